//! The one error type: what failed, whether to try again, and whether the command may have run.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Why a lock operation failed.
///
/// Contention is never an error: a `try_lock` that finds the lock taken returns `None`.
///
/// Two questions matter to a caller, and each has a method. [`is_retryable`](Self::is_retryable):
/// may the same call succeed later? [`is_outcome_unknown`](Self::is_outcome_unknown): may the
/// command have run on the server although no reply arrived? What an unknown outcome left on the
/// server is cleaned up in the background.
///
/// The text of an error says everything. Where another error caused it, such as an [`io::Error`] or
/// an error of TLS, that one is its [`source`](StdError::source), so that a program can look at its
/// kind:
///
/// ```
/// use std::error::Error as _;
/// use std::io;
/// use wheellock::{Client, Error};
///
/// let client = Client::in_memory();
/// let error = client.lock("").try_lock().unwrap_err();
/// assert!(matches!(error, Error::InvalidName { .. }));
/// assert!(!error.is_retryable());
///
/// let error = Client::connect("redis://127.0.0.1:1/").unwrap_err();
/// let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
/// assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be used for a lock, or for what else it is to name. Permanent; nothing was
    /// sent.
    #[non_exhaustive]
    InvalidName {
        /// The name, truncated if it is long.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A lease, or another time that the server counts such as a minimum hold, is too short to be
    /// useful or too long to be stored. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidLease {
        /// The requested time.
        lease: Duration,
        /// What the time is for, and what is wrong with it.
        reason: String,
    },
    /// A number of permits or a count is out of range. Permanent; nothing was changed.
    #[non_exhaustive]
    InvalidCount {
        /// The requested number, whatever its sign and width.
        count: i128,
        /// What is wrong with it.
        reason: String,
    },
    /// The text is not a permit's id. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidPermitId {
        /// The text, truncated if it is long.
        id: String,
    },
    /// A setting is invalid. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidSetting {
        /// The method of the builder, or `multi_lock`, `red_lock`, `server_timeout` or `with_cache`.
        setting: &'static str,
        /// What is wrong with its value. A certificate file that cannot be read has an
        /// [`io::Error`] as its cause.
        reason: Reason,
    },
    /// The server's URL cannot be used, or the server is not what the URL says, such as a node of a
    /// cluster behind `redis://`. Permanent; nothing ran. The text says what to write instead, and
    /// never contains the password.
    #[non_exhaustive]
    InvalidUrl {
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused to start a thread. Transient.
    #[non_exhaustive]
    Thread {
        /// What it answered. The cause is an [`io::Error`], or an error of `hashed_wheel`.
        reason: Reason,
    },
    /// The operating system gave no random bytes for the client's identity. Transient; nothing was
    /// sent.
    #[non_exhaustive]
    Random {
        /// What it answered. The cause is an [`io::Error`].
        reason: Reason,
    },
    /// The client's renewal thread for the lock's server has ended because the client's
    /// [clock](crate::ClientBuilder::clock) panicked, so a watched hold would not be renewed.
    /// Permanent for this client; nothing was sent. A hold with a [lease of its
    /// own](crate::Lock::with_lease) can still be acquired.
    WatchdogGone,
    /// No connection could be made, or none was free; or the caller waited behind other threads of
    /// the client, and the server answered none of them during the whole wait. Transient; the
    /// command did not run.
    #[non_exhaustive]
    Unreachable {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// Why the last attempt failed. The cause is an [`io::Error`] if a socket or the resolution
        /// of a name failed.
        reason: Reason,
    },
    /// The server refused the user or the password, or refused that user a command that connecting
    /// needs, which the reason names. Permanent until a user, a password or a permission is
    /// changed. Nothing ran.
    ///
    /// With [`credentials`](crate::ClientBuilder::credentials) from a callback, the client first
    /// retries with new credentials until the call's time is over. A callback that fails is
    /// [`Unreachable`](Self::Unreachable).
    #[non_exhaustive]
    Authentication {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// What it answered.
        reason: String,
    },
    /// One side did not accept the other's certificate, or the two have no version or cipher of TLS
    /// in common. Permanent until a certificate or a setting is changed. Nothing ran, and no secret
    /// was sent.
    #[non_exhaustive]
    Tls {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// What was wrong, as the side that refused reports it. The cause is an error of the TLS
        /// library, whose type is not part of this crate's interface.
        reason: Reason,
    },
    /// The server may evict locks, and the client was told to
    /// [refuse](crate::ClientBuilder::refuse_eviction) such a server. Permanent until its
    /// `maxmemory-policy` is `noeviction`; no lock was acquired.
    #[non_exhaustive]
    Eviction {
        /// The server's policy.
        policy: String,
    },
    /// The command was sent, and no reply arrived, or bytes that are not a reply, or a reply of
    /// more than 1 MiB, of more than 16,384 parts or with lists nested more than 8 deep: the
    /// command may have run. Transient.
    ///
    /// From an acquire: the caller does not hold the lock, and what the command may have created is
    /// released in the background. From a release: the hold is over, and what the server has not
    /// acknowledged is finished in the background. An acquire that was refused returns this error
    /// for the operation `release` if such a release of this client may be the reason.
    #[non_exhaustive]
    OutcomeUnknown {
        /// The operation.
        operation: &'static str,
        /// Why the last attempt failed. The cause is an [`io::Error`] if a socket failed.
        reason: Reason,
    },
    /// The server replied with an error, so the command had no effect.
    ///
    /// Transient for the codes `LOADING`, `BUSY`, `READONLY`, `MASTERDOWN`, `TRYAGAIN`,
    /// `CLUSTERDOWN`, `OOM`, `NOREPLICAS` and `MISCONF`. Permanent otherwise.
    #[non_exhaustive]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The first word of the server's reply.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The lock was granted, and fewer replicas than
    /// [wanted](crate::ClientBuilder::replica_acks) acknowledged it in time, so it was released.
    /// Transient; nothing is held.
    #[non_exhaustive]
    NotReplicated {
        /// How many replicas were to acknowledge it.
        wanted: u32,
        /// How many did, as far as is known.
        acknowledged: u32,
    },
    /// The key of that name holds something that is not a lock, or a lock of another kind than the
    /// call is for. Permanent until it is removed; it was not changed.
    #[non_exhaustive]
    WrongType {
        /// The key, truncated if it is long: the name itself, or a key beside it, such as a fair
        /// lock's queue or a job's record.
        key: String,
        /// What the key holds, such as `a hash that is not a lock`.
        found: String,
    },
    /// The caller already holds the lock, and its kind cannot be acquired twice. Permanent while
    /// that hold lasts; nothing was sent.
    #[non_exhaustive]
    AlreadyHeld {
        /// The lock's name.
        name: String,
    },
    /// The caller asks for the write lock while it holds the read lock: it would wait for itself.
    /// Permanent while that hold lasts; nothing was sent. Release the read lock first; another
    /// owner may write in between.
    #[non_exhaustive]
    Upgrade {
        /// The lock's name.
        name: String,
    },
    /// The hold is over although its guard was not released. Permanent for that hold.
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: String,
        /// How it was lost.
        reason: LostReason,
    },
    /// The caller cancelled the wait. Nothing is held.
    #[non_exhaustive]
    Cancelled {
        /// The lock's name.
        name: String,
    },
    /// Threads wait for each other, and this wait began last: with
    /// [`OnDeadlock::Fail`](crate::OnDeadlock::Fail). The lock is not held. Transient: release what
    /// this thread holds, and try again; or acquire locks in one order everywhere.
    #[non_exhaustive]
    Deadlock {
        /// The lock's name.
        name: String,
        /// Which thread of which client waits for which lock, as a sentence.
        cycle: String,
    },
    /// The client has been shut down. Permanent for this client; nothing is held.
    Shutdown,
    /// This process is a fork of the process that built the client. Permanent in this process;
    /// nothing was sent. Build a client here: see [`Client`](crate::Client).
    Forked,
}

/// Why something failed: a text and, where another error caused it, that error.
///
/// The text says everything that the cause says. Two are equal if their texts are equal.
///
/// ```
/// use std::error::Error as _;
/// use std::io;
/// use wheellock::{Client, Error};
///
/// let error = Client::connect("redis://127.0.0.1:1/").unwrap_err();
/// let Error::Unreachable { reason, .. } = error else { panic!("{error}") };
/// assert!(reason.as_str().contains("refused"));
/// assert!(reason.source().unwrap().is::<io::Error>());
/// ```
#[derive(Clone)]
pub struct Reason {
    text: String,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Reason {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn caused_by(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self { text: cause.to_string(), cause: Some(Arc::new(cause)) }
    }

    /// Whether it is that a server was silent for too long.
    pub(crate) fn is_timeout(&self) -> bool {
        let error = self.cause.as_ref().and_then(|cause| cause.downcast_ref::<io::Error>());
        error.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    /// The same reason with a text that begins with what failed.
    pub(crate) fn in_context(self, context: impl fmt::Display) -> Self {
        Self { text: format!("{context}: {}", self.text), cause: self.cause }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, cause: None }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Self::caused_by(error)
    }
}

impl StdError for Reason {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, formatter)
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Reason {}

// A cause is shared and only read, so a panic leaves none half changed.
impl UnwindSafe for Reason {}
impl RefUnwindSafe for Reason {}

/// How a hold ended without being released.
///
/// ```
/// use wheellock::LostReason;
///
/// assert_eq!(LostReason::Deleted.to_string(), "its key was deleted");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ended as planned: it was a lease without renewal, or the hold reached
    /// [`max_hold`](crate::ClientBuilder::max_hold).
    Expired,
    /// Renewals were due, and none was answered before the lease ended. Look at the network and the
    /// server.
    ServerUnreachable,
    /// Renewals were due, and the server refused the last of them before the lease ended. Look at
    /// the server's state or at the user's permissions; a
    /// [warning](crate::Warning::RenewalsRefused) has the whole refusal.
    Refused {
        /// The code of the refusal, such as `MISCONF` for a server that cannot write to its disk or
        /// `NOPERM` for a missing permission. `ERR` stands for every code that is not well known.
        code: &'static str,
    },
    /// The lease ended although no renewal went unanswered: this process was stopped, or got no
    /// processor for too long.
    Paused,
    /// The key is gone: deleted, flushed, evicted or lost by a restart.
    Deleted,
    /// The key belongs to another owner.
    TakenOver,
    /// The client was shut down.
    Shutdown,
    /// This process is a fork of the one that holds the lock.
    Forked,
}

impl LostReason {
    /// All reasons, in the order of their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::Expired,
        Self::ServerUnreachable,
        Self::Refused { code: "ERR" },
        Self::Paused,
        Self::Deleted,
        Self::TakenOver,
        Self::Shutdown,
        Self::Forked,
    ];

    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Expired => 0,
            Self::ServerUnreachable => 1,
            Self::Refused { .. } => 2,
            Self::Paused => 3,
            Self::Deleted => 4,
            Self::TakenOver => 5,
            Self::Shutdown => 6,
            Self::Forked => 7,
        }
    }

    /// A word for the labels of metrics, and for what is serialized.
    #[cfg(any(feature = "metrics", feature = "serde"))]
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Paused => "paused",
            Self::ServerUnreachable => "server_unreachable",
            Self::Refused { .. } => "refused",
            Self::Deleted => "deleted",
            Self::TakenOver => "taken_over",
            Self::Shutdown => "shutdown",
            Self::Forked => "forked",
        }
    }
}

impl Error {
    /// Whether the same call may succeed later although nothing is changed by hand.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Thread { .. }
            | Self::Random { .. }
            | Self::Unreachable { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Deadlock { .. }
            | Self::NotReplicated { .. } => true,
            Self::Refused { code, .. } => is_transient_code(code) || code == "OOM",
            _ => false,
        }
    }

    /// Whether the command may have run on the server although no reply arrived.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }
}

impl Error {
    pub(crate) fn invalid_setting(setting: &'static str, reason: impl Into<Reason>) -> Self {
        Self::InvalidSetting { setting, reason: reason.into() }
    }

    /// Whether the server would refuse every other thread of this client in the same way.
    pub(crate) fn applies_to_all_threads(&self) -> bool {
        matches!(
            self,
            Self::Authentication { .. }
                | Self::Tls { .. }
                | Self::Refused { .. }
                | Self::WrongType { .. }
        )
    }

    /// Whether the server's user may not read a key, as opposed to a command that it may not use.
    pub(crate) fn is_unreadable_key(&self) -> bool {
        matches!(self, Self::Refused { code, message, .. }
            if code == "NOPERM" && message.contains(" key"))
    }

    /// Whether the server did not answer, or is in a state that does not last.
    pub(crate) fn is_server_unavailable(&self) -> bool {
        self.is_retryable() && !matches!(self, Self::NotReplicated { .. } | Self::Deadlock { .. })
    }
}

/// The codes of refusals that are told apart where a number must do, `ERR` for all others.
const CODES: [&str; 14] = [
    "ERR",
    "NOPERM",
    "MISCONF",
    "OOM",
    "READONLY",
    "NOREPLICAS",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOAUTH",
    "WRONGPASS",
    "WRONGTYPE",
];

/// The number of a refusal's code, more than zero.
pub(crate) fn number_of_code(code: &str) -> u8 {
    let index = CODES.iter().position(|known| *known == code).unwrap_or(0);
    u8::try_from(index + 1).unwrap_or(1)
}

/// The code of this number; none for zero.
pub(crate) fn code_of_number(number: u8) -> Option<&'static str> {
    CODES.get(usize::from(number).checked_sub(1)?).copied()
}

/// Whether the server does not know the user of this connection any more: the user was removed, its
/// password was replaced, or its token has ended.
pub(crate) fn is_authentication_code(code: &str) -> bool {
    matches!(code, "NOAUTH" | "WRONGPASS")
}

/// Whether the code names a state that a server leaves by itself, so that a retry makes sense.
pub(crate) fn is_transient_code(code: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "READONLY"
            | "MASTERDOWN"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "NOREPLICAS"
            | "MISCONF"
    )
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidName { name, reason } => {
                write!(formatter, "the name {name:?} cannot be used: {reason}")
            }
            Self::InvalidLease { lease, reason } => {
                write!(formatter, "a time of {lease:?} cannot be used: {reason}")
            }
            Self::InvalidCount { count, reason } => {
                write!(formatter, "the number {count} cannot be used: {reason}")
            }
            Self::InvalidPermitId { id } => {
                write!(formatter, "{id:?} is not a permit's id: an id has 32 hexadecimal digits")
            }
            Self::InvalidSetting { setting, reason } => write!(formatter, "{setting}: {reason}"),
            Self::InvalidUrl { reason } => {
                write!(formatter, "the server's URL cannot be used: {reason}")
            }
            Self::Thread { reason } => write!(formatter, "a thread could not be started: {reason}"),
            Self::Random { reason } => {
                write!(formatter, "the operating system gave no random bytes: {reason}")
            }
            Self::WatchdogGone => {
                write!(
                    formatter,
                    "the client's renewal thread has ended: the hold would not be renewed"
                )
            }
            // The limit may have been the caller's, and too short for any server.
            Self::Unreachable { server, reason } if reason.is_timeout() => {
                write!(formatter, "the server {server} did not answer in time: {reason}")
            }
            Self::Unreachable { server, reason } => {
                write!(formatter, "the server {server} cannot be reached: {reason}")
            }
            Self::Authentication { server, reason } => {
                write!(formatter, "the server {server} refused the credentials: {reason}")
            }
            Self::Tls { server, reason } => {
                write!(formatter, "the TLS handshake with the server {server} failed: {reason}")
            }
            Self::Eviction { policy } => {
                write!(
                    formatter,
                    "the server may evict locks: its maxmemory-policy is {policy}, set it to noeviction"
                )
            }
            Self::OutcomeUnknown { operation, reason } => {
                write!(formatter, "{operation}: no reply arrived, it may have run: {reason}")
            }
            Self::Refused { operation, code, message } => {
                write!(formatter, "{operation}: the server replied {code} {message}")
            }
            Self::NotReplicated { wanted, acknowledged } => {
                write!(
                    formatter,
                    "{acknowledged} replicas acknowledged the grant, and {wanted} are wanted"
                )
            }
            Self::WrongType { key, found } => {
                write!(formatter, "the key {key:?} holds {found}: remove it, or use another name")
            }
            Self::AlreadyHeld { name } => {
                write!(formatter, "the lock {name:?} is already held and cannot be acquired twice")
            }
            Self::Upgrade { name } => {
                write!(formatter, "the write lock of {name:?} would wait for its own read lock")
            }
            Self::Lost { name, reason } => {
                write!(formatter, "the hold of {name:?} was lost: {reason}")
            }
            Self::Cancelled { name } => write!(formatter, "the wait for {name:?} was cancelled"),
            Self::Deadlock { name, cycle } => {
                write!(formatter, "the wait for {name:?} is part of a deadlock: {cycle}")
            }
            Self::Shutdown => write!(formatter, "the client has been shut down"),
            Self::Forked => {
                write!(formatter, "the client is a parent process's: build one in this process")
            }
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::ServerUnreachable => "the server did not answer before its lease ran out",
            Self::Refused { code } => {
                return write!(
                    formatter,
                    "the server refused its renewals with {code} until its lease ran out"
                );
            }
            Self::Paused => "this process stood still until its lease had run out",
            Self::Deleted => "its key was deleted",
            Self::TakenOver => "its key belongs to somebody else",
            Self::Shutdown => "the client was shut down",
            Self::Forked => "this process is a fork of the holder",
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::InvalidSetting { reason, .. }
            | Self::Thread { reason }
            | Self::Random { reason }
            | Self::Unreachable { reason, .. }
            | Self::Tls { reason, .. }
            | Self::OutcomeUnknown { reason, .. } => reason.source(),
            _ => None,
        }
    }
}

/// A text for messages: all of it if it is short, else its beginning and its length.
pub(crate) fn truncated(text: &str) -> String {
    const SHOWN: usize = 80;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(SHOWN).collect();
    format!("{beginning}… ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_can_be_shared_compared_and_carried_through_a_panic() {
        fn check<T: Clone + PartialEq + Send + Sync + UnwindSafe + RefUnwindSafe>(_: &T) {}
        let thread = |reason: Reason| Error::Thread { reason };
        let error = thread(io::Error::from(io::ErrorKind::OutOfMemory).into());
        check(&error);
        assert_eq!(error, thread("out of memory".into()), "compared by text");
        assert!(error.source().is_some() && thread("x".into()).source().is_none());
    }
}
