//! The error type: the failure, whether to retry, and whether the command may have run.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Why a lock operation failed.
///
/// Returned by all calls that can fail, such as [`Lock::lock`](crate::Lock::lock).
///
/// Contention is never an error: a `try_lock` that finds the lock taken returns `None`.
///
/// Two methods answer the questions of a caller. [`is_retryable`](Self::is_retryable) says whether
/// the same call may succeed later. [`is_outcome_unknown`](Self::is_outcome_unknown) says whether
/// the command may have run on the server although no reply arrived. After an acquire with an
/// unknown outcome, the client releases a possible grant in the background.
///
/// Below, *transient* means that the same call may succeed later, and *permanent* that the same
/// call fails again until something is changed.
///
/// The text of an error includes the text of its cause. An error caused by another error, such as
/// an [`io::Error`] or an error of TLS, also has this cause as the [`source`](StdError::source):
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
    /// The name cannot be used for a lock or another named object. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidName {
        /// The name; a long name is truncated.
        name: String,
        /// Why the name cannot be used.
        reason: String,
    },
    /// A lease, or another time that the server counts, such as a minimum hold, is too short or too
    /// long. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidLease {
        /// The requested time.
        lease: Duration,
        /// The use of the time, and why the time cannot be used.
        reason: String,
    },
    /// A number of permits or a count is out of range. Permanent; nothing was changed.
    #[non_exhaustive]
    InvalidCount {
        /// The requested number.
        count: i128,
        /// Why the number cannot be used.
        reason: String,
    },
    /// A text is not the id of a permit: 32 hexadecimal digits. Permanent; nothing was sent.
    #[non_exhaustive]
    InvalidPermitId {
        /// The text; a long text is truncated.
        id: String,
    },
    /// A setting or an argument is invalid. Permanent; the call had no effect.
    #[non_exhaustive]
    InvalidSetting {
        /// The name of the setting: a method of the [`ClientBuilder`](crate::ClientBuilder), or a
        /// method or an argument of a lock or an election, such as `multi_lock`, `lock_many`,
        /// `red_lock`, `server_timeout`, `with_cache`, `watch`, `reason` or `value`.
        setting: &'static str,
        /// Why the value cannot be used. The cause is an [`io::Error`] if a certificate file cannot
        /// be read.
        reason: Reason,
    },
    /// The server's URL cannot be used, or does not fit the server, such as `redis://` for a node
    /// of a cluster. Permanent; the command did not run. The text says what to write instead, and
    /// never contains the password.
    #[non_exhaustive]
    InvalidUrl {
        /// Why the URL cannot be used.
        reason: String,
    },
    /// The operating system refused to start a thread. Transient.
    #[non_exhaustive]
    Thread {
        /// The system's answer. The cause is an [`io::Error`], or an error of `hashed_wheel`.
        reason: Reason,
    },
    /// The operating system gave no random bytes for the client's identity. Transient; nothing was
    /// sent.
    #[non_exhaustive]
    Random {
        /// The system's answer. The cause is an [`io::Error`].
        reason: Reason,
    },
    /// An acquire would get a watched hold that no thread renews: the renewal thread for the lock's
    /// server has ended, because the client's [clock](crate::ClientBuilder::clock) panicked.
    /// Permanent for this client; nothing is held. A hold with a [lease of its
    /// own](crate::Lock::with_lease) can still be acquired.
    WatchdogGone,
    /// The client could not send the command: no connection could be made, or no connection was
    /// free. Transient; the command did not run.
    ///
    /// A caller that waited behind other threads of the same client also gets this error if the
    /// server answered none of these threads during the whole wait.
    #[non_exhaustive]
    Unreachable {
        /// The server, as host and port, as the path of a unix socket, or as a list of addresses of
        /// sentinels or nodes. `memory` for a server in memory.
        server: String,
        /// Why the last attempt failed. The cause is an [`io::Error`] if a socket or the resolution
        /// of a name failed.
        reason: Reason,
    },
    /// The server refused the user or the password, or does not allow the user a command that is
    /// needed to connect, which the reason names. Permanent until a user, a password or a
    /// permission is changed. The command did not run.
    ///
    /// With [`credentials`](crate::ClientBuilder::credentials) from a callback, the client first
    /// retries with new credentials until the call's time is over. If the callback fails, the error
    /// is [`Unreachable`](Self::Unreachable).
    #[non_exhaustive]
    Authentication {
        /// The server, as host and port, or as the path of a unix socket.
        server: String,
        /// The server's answer.
        reason: String,
    },
    /// The client or the server did not accept the other side's certificate, or both sides have no
    /// version or cipher of TLS in common. Permanent until a certificate or a setting is changed.
    /// The command did not run, and no password was sent.
    #[non_exhaustive]
    Tls {
        /// The server, as host and port, or as the path of a unix socket.
        server: String,
        /// The failure, as reported by the refusing side. The cause is an error of the TLS library,
        /// whose type is not part of this crate's interface.
        reason: Reason,
    },
    /// The server may evict locks, and the client [refuses](crate::ClientBuilder::refuse_eviction)
    /// such a server. Returned when a client is built. Permanent until the server's
    /// `maxmemory-policy` is `noeviction`.
    #[non_exhaustive]
    Eviction {
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// The command was sent, and no valid reply arrived: the command may have run. Transient.
    ///
    /// A reply is invalid if the reply is malformed, has more than 1 MiB or more than 16,384 parts,
    /// or has lists nested more than 8 deep.
    ///
    /// After an acquire with this error the caller does not hold the lock, and the client releases
    /// a possible hold in the background. After a release with this error the hold is over, and the
    /// client sends the release again in the background. An acquire that the server has refused
    /// returns this error, with the operation `release`, if an unacknowledged release of this
    /// client may be the reason: possibly no owner holds the lock.
    #[non_exhaustive]
    OutcomeUnknown {
        /// The operation, such as `release`.
        operation: &'static str,
        /// Why the last attempt failed. The cause is an [`io::Error`] if a socket failed.
        reason: Reason,
    },
    /// The server replied with an error: the command had no effect, or its effect was undone.
    ///
    /// Transient for the codes `LOADING`, `BUSY`, `READONLY`, `MASTERDOWN`, `TRYAGAIN`,
    /// `CLUSTERDOWN`, `OOM`, `NOREPLICAS` and `MISCONF`. Permanent for any other code. The code
    /// `UNEXPECTED` is an exception: the command ran, and the client cannot decode the reply. Such
    /// an acquire is released in the background.
    #[non_exhaustive]
    Refused {
        /// The operation. `replica_acks` if the server refused to wait for replicas.
        operation: &'static str,
        /// The first word of the server's reply, such as `NOPERM`.
        code: String,
        /// The text of the reply after the code.
        message: String,
    },
    /// The server granted the request, but fewer replicas than
    /// [required](crate::ClientBuilder::replica_acks) acknowledged the grant in time. Transient.
    ///
    /// An acquire with this error holds nothing: the client gives the grant back. After a
    /// [draw of a token](crate::LockGuard::draw_token) the hold is unchanged.
    #[non_exhaustive]
    NotReplicated {
        /// The required number of replicas.
        wanted: u32,
        /// The number of replicas that are known to have acknowledged the grant.
        acknowledged: u32,
    },
    /// A key holds foreign data, or a lock of another kind than the lock of the call. Permanent
    /// until the key is removed; the key was not changed.
    #[non_exhaustive]
    WrongType {
        /// The key; a long key is truncated. The key is the name, or a further key of the name,
        /// such as the queue of a fair lock or the record of a job.
        key: String,
        /// The content of the key, such as `a hash that is not a lock`.
        found: String,
    },
    /// The caller holds the lock, and this kind of lock does not nest. Permanent while the hold
    /// lasts; nothing was sent, and the hold is unchanged.
    #[non_exhaustive]
    AlreadyHeld {
        /// The lock's name.
        name: String,
    },
    /// The caller requests the write lock of a name while holding the read lock: the wait would
    /// never end. Permanent while the read hold lasts; nothing was sent. Release the read lock
    /// first; another owner may then write before the caller.
    #[non_exhaustive]
    Upgrade {
        /// The lock's name.
        name: String,
    },
    /// The hold is over although the guard was not released. Permanent for this hold.
    ///
    /// From an acquire: the grant arrived after the lease had ended. Nothing is held, and a new
    /// acquire may succeed.
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: String,
        /// How the hold was lost.
        reason: LostReason,
    },
    /// The caller [cancelled](crate::Wait::or_cancelled) the wait. Nothing is held; a possible
    /// grant of an unanswered try is released in the background.
    #[non_exhaustive]
    Cancelled {
        /// The lock's name.
        name: String,
    },
    /// Threads wait for each other in a cycle, and this wait began last. Only waits of clients with
    /// [`OnDeadlock::Fail`](crate::OnDeadlock::Fail) end with this error. The lock is not held.
    /// Transient: release the other locks of this thread and try again, or acquire locks in the
    /// same order everywhere.
    #[non_exhaustive]
    Deadlock {
        /// The lock's name.
        name: String,
        /// Which thread of which client waits for which lock, as a sentence.
        cycle: String,
    },
    /// The client was [shut down](crate::Client::shutdown). Permanent for this client. An acquire
    /// with this error holds nothing, and a possible grant is released in the background.
    Shutdown,
    /// This process is a fork of the process in which the client was built. Permanent in this
    /// process; nothing was sent. Build a new client in this process: see
    /// [`Client`](crate::Client).
    Forked,
}

/// The reason of an [`Error`]: a text, and the error that caused the failure, if any.
///
/// In the variants of [`Error`], such as [`Error::Unreachable`].
///
/// The text includes the text of the cause. Two reasons are equal if their texts are equal.
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
    /// Returns the text of the reason.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn caused_by(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self { text: cause.to_string(), cause: Some(Arc::new(cause)) }
    }

    /// Whether the cause is a timeout: a server was silent for too long.
    pub(crate) fn is_timeout(&self) -> bool {
        let error = self.cause.as_ref().and_then(|cause| cause.downcast_ref::<io::Error>());
        error.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    /// The same reason with `context`, such as the failed step, before the text.
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

// A cause is shared and only read, so a panic leaves no cause half changed.
impl UnwindSafe for Reason {}
impl RefUnwindSafe for Reason {}

/// How a hold ended without a release.
///
/// Received from [`LockGuard::lost`](crate::LockGuard::lost), and in [`Error::Lost`].
///
/// ```
/// use wheellock::LostReason;
///
/// assert_eq!(LostReason::Deleted.to_string(), "its key was deleted");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ended as planned: the lease was not to be renewed, or the hold reached
    /// [`max_hold`](crate::ClientBuilder::max_hold).
    Expired,
    /// A renewal was due, and the server answered no attempt before the lease ended, or did not
    /// answer the last attempt. Check the network and the server.
    ServerUnreachable,
    /// A renewal was due, and the server refused the last attempt before the lease ended. Check the
    /// server's state or the user's permissions; a [warning](crate::Warning::RenewalsRefused) has
    /// the full text of the refusal.
    Refused {
        /// The code of the refusal, such as `MISCONF` for a server unable to write to the disk or
        /// `NOPERM` for a missing permission. `ERR` stands for every code that is not well known.
        code: &'static str,
    },
    /// The lease ended before the client could send a renewal: this process was stopped, or got no
    /// processor for too long.
    Paused,
    /// The key is gone: the key was deleted, flushed or evicted, the server lost the key by a
    /// restart or a failover, or a client [forced](crate::Lock::force_unlock) the release.
    Deleted,
    /// The key belongs to another owner.
    TakenOver,
    /// The client was [shut down](crate::Client::shutdown), which releases the lock.
    Shutdown,
    /// This process is a fork of the process that holds the lock.
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

    /// A word for the labels of metrics, and for serialization.
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
    /// Returns whether the same call may succeed later without any change by a person or the
    /// program: `true` for a transient error, `false` for a permanent error.
    ///
    /// A cancelled wait, a lost hold and a shutdown are not retryable.
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

    /// Returns whether the command may have run on the server, although no reply arrived or the
    /// reply cannot be decoded: `true` for [`OutcomeUnknown`](Self::OutcomeUnknown), and for
    /// [`Refused`](Self::Refused) with the code `UNEXPECTED`.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::OutcomeUnknown { .. } => true,
            Self::Refused { code, .. } => code == UNEXPECTED,
            _ => false,
        }
    }
}

/// The code for a reply that cannot be decoded.
pub(crate) const UNEXPECTED: &str = "UNEXPECTED";

impl Error {
    pub(crate) fn invalid_setting(setting: &'static str, reason: impl Into<Reason>) -> Self {
        Self::InvalidSetting { setting, reason: reason.into() }
    }

    /// Whether the server would refuse all threads of this client in the same way.
    pub(crate) fn applies_to_all_threads(&self) -> bool {
        matches!(
            self,
            Self::Authentication { .. }
                | Self::Tls { .. }
                | Self::Refused { .. }
                | Self::WrongType { .. }
        )
    }

    /// Whether the server's user may not read a key, as opposed to a forbidden command.
    pub(crate) fn is_unreadable_key(&self) -> bool {
        matches!(self, Self::Refused { code, message, .. }
            if code == "NOPERM" && message.contains(" key"))
    }

    /// Whether the server did not answer, or is in a transient state.
    pub(crate) fn is_server_unavailable(&self) -> bool {
        self.is_retryable() && !matches!(self, Self::NotReplicated { .. } | Self::Deadlock { .. })
    }
}

/// The refusal codes with a number of their own. `ERR` stands for all codes without a number.
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

/// The number of a refusal's code, at least 1.
pub(crate) fn number_of_code(code: &str) -> u8 {
    let index = CODES.iter().position(|known| *known == code).unwrap_or(0);
    u8::try_from(index + 1).unwrap_or(1)
}

/// The code of this number; `None` for zero.
pub(crate) fn code_of_number(number: u8) -> Option<&'static str> {
    CODES.get(usize::from(number).checked_sub(1)?).copied()
}

/// Whether the server no longer knows the user of this connection: the user was removed, the
/// password was replaced, or the token has ended.
pub(crate) fn is_authentication_code(code: &str) -> bool {
    matches!(code, "NOAUTH" | "WRONGPASS")
}

/// Whether the code names a transient state of the server, so a retry makes sense.
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

/// A text for messages: a short text in full, else the beginning and the length.
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
