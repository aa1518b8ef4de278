//! The one error type: what went wrong, whether to try again, and whether the command may have run.

use std::fmt;
use std::time::Duration;

/// Why a lock operation failed.
///
/// Contention is never an error: a `try_lock` that finds the lock taken answers `None`.
///
/// Two questions matter to a caller, and each has a method. [`is_retryable`](Self::is_retryable): may the same call
/// succeed later? [`is_outcome_unknown`](Self::is_outcome_unknown): may the command have run on the server although no
/// answer came? What an unknown outcome left behind is cleaned up in the background in either case.
///
/// ```
/// use wheellock::{Client, Error};
///
/// let client = Client::in_memory();
/// let error = client.lock("").try_lock().unwrap_err();
/// assert!(matches!(error, Error::InvalidName { .. }));
/// assert!(!error.is_retryable());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be a lock's. Permanent; nothing was sent.
    InvalidName {
        /// The name, cut short if it is long.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The lease is too short to be useful or too long to be kept. Permanent; nothing was sent.
    InvalidLease {
        /// The lease that was asked for.
        lease: Duration,
        /// What is wrong with it.
        reason: String,
    },
    /// A number of permits, or a count, that cannot be. Permanent; nothing was changed.
    InvalidCount {
        /// The number that was asked for.
        count: i64,
        /// What is wrong with it.
        reason: String,
    },
    /// The text cannot be a permit's id. Permanent; nothing was sent.
    InvalidPermitId {
        /// The text, cut short if it is long.
        id: String,
    },
    /// A setting makes no sense. Permanent; nothing was sent.
    InvalidSetting {
        /// The method of the builder, or `multi_lock`, `red_lock` or `server_timeout`.
        setting: &'static str,
        /// What is wrong with its value.
        reason: String,
    },
    /// The server's URL cannot be used. Permanent; nothing was sent. The text never holds the password.
    InvalidUrl {
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused a thread. Transient.
    Thread {
        /// What it said.
        reason: String,
    },
    /// The client's renewal thread for the lock's server has ended, because the
    /// [clock](crate::ClientBuilder::clock) that it was given panicked, so a watched hold would not be renewed.
    /// Permanent for this client; nothing was sent. A hold with a [lease of its own](crate::Lock::with_lease) can still
    /// be taken.
    WatchdogGone,
    /// No connection could be made, or none was free. Transient; the command did not run.
    Unreachable {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// What the last attempt met.
        reason: String,
    },
    /// The server refused the user or the password, or refused that user a command that connecting takes, which the
    /// reason names. Permanent until somebody changes one of them. Nothing ran.
    ///
    /// With [`credentials`](crate::ClientBuilder::credentials) from a callback, they were asked for again and again
    /// first, for as long as the call has patience. A callback that fails is [`Unreachable`](Self::Unreachable).
    Authentication {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// What it answered.
        reason: String,
    },
    /// One side did not believe the other's certificate, or they found no TLS that both speak. Permanent until somebody
    /// changes a certificate or a setting. Nothing ran, and nothing that is secret was said.
    Tls {
        /// The server, as host and port, or as the path of its unix socket.
        server: String,
        /// What was wrong, as the side that refused tells it.
        reason: String,
    },
    /// The server may evict locks, and the client was told to [refuse](crate::ClientBuilder::refuse_eviction) such a
    /// server. Permanent until its `maxmemory-policy` is `noeviction`; no lock was taken.
    Eviction {
        /// The server's policy.
        policy: String,
    },
    /// The command was sent and no answer came: it may have run. Transient.
    ///
    /// From an acquire: the lock is not held by the caller, and what the command may have created is released in the
    /// background. From a release: the hold is over, and what the server has not acknowledged is finished in the
    /// background.
    OutcomeUnknown {
        /// The operation.
        operation: &'static str,
        /// What the last attempt met.
        reason: String,
    },
    /// The server answered with an error, so the command did not take effect.
    ///
    /// Transient for the codes that pass by themselves: `LOADING`, `BUSY`, `READONLY`, `MASTERDOWN`, `TRYAGAIN`,
    /// `CLUSTERDOWN`, `OOM`, `NOREPLICAS`, `MISCONF`. Permanent otherwise.
    Refused {
        /// The operation.
        operation: &'static str,
        /// The first word of the server's answer.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// It was granted, and fewer replicas than [wanted](crate::ClientBuilder::replica_acks) acknowledged it in time, so
    /// it was given back. Transient; nothing is held.
    NotReplicated {
        /// How many were to.
        wanted: u32,
        /// How many did, as far as is known.
        acknowledged: u32,
    },
    /// The key of that name holds something that is not a lock. Permanent until it is removed; it was not touched.
    WrongType {
        /// The lock's name.
        name: String,
    },
    /// Whoever asks holds the lock already, and it is of a kind that is not taken twice. Permanent while that hold lasts;
    /// nothing was sent.
    AlreadyHeld {
        /// The lock's name.
        name: String,
    },
    /// Whoever asks for the write lock holds the read lock: it would wait for itself. Permanent while that hold lasts;
    /// nothing was sent. Release the read lock first; somebody else may write in between.
    Upgrade {
        /// The lock's name.
        name: String,
    },
    /// The hold is over although its guard was not released. Permanent for that hold.
    Lost {
        /// The lock's name.
        name: String,
        /// How it was lost.
        reason: LostReason,
    },
    /// The wait was cancelled by the caller. Nothing is held.
    Cancelled {
        /// The lock's name.
        name: String,
    },
    /// The client has been shut down. Permanent for this client; nothing is held.
    Shutdown,
}

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
    /// The lease ran out as it was meant to: it was a lease without renewal, or the hold had come to
    /// [`max_hold`](crate::ClientBuilder::max_hold).
    Expired,
    /// Renewals were due, and none was answered before the lease ran out.
    ServerUnreachable,
    /// The lease ran out although no renewal went unanswered: this process did not come to one. It was stopped, or had
    /// no processor for too long.
    Paused,
    /// The key is gone: deleted, flushed, evicted or lost by a restart.
    Deleted,
    /// The key belongs to somebody else.
    TakenOver,
    /// The client was shut down.
    Shutdown,
    /// This process is a fork of the one that holds the lock.
    Forked,
}

impl LostReason {
    /// Every one of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::Expired,
        Self::ServerUnreachable,
        Self::Paused,
        Self::Deleted,
        Self::TakenOver,
        Self::Shutdown,
        Self::Forked,
    ];

    pub(crate) const fn number(self) -> usize {
        self as usize
    }

    /// One word, for the labels of metrics.
    #[cfg(feature = "metrics")]
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Paused => "paused",
            Self::ServerUnreachable => "server_unreachable",
            Self::Deleted => "deleted",
            Self::TakenOver => "taken_over",
            Self::Shutdown => "shutdown",
            Self::Forked => "forked",
        }
    }
}

impl Error {
    /// Whether the same call may succeed later without anything being changed by hand.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Thread { .. }
            | Self::Unreachable { .. }
            | Self::OutcomeUnknown { .. }
            | Self::NotReplicated { .. } => true,
            Self::Refused { code, .. } => passes_by_itself(code) || code == "OOM",
            _ => false,
        }
    }

    /// Whether the command may have run on the server although no answer came.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }
}

impl Error {
    /// Whether it says that the server did not answer, or not yet as it should.
    pub(crate) fn is_the_servers_state(&self) -> bool {
        self.is_retryable() && !matches!(self, Self::NotReplicated { .. })
    }
}

/// Whether a server's error is a state that it leaves by itself, so that sending again makes sense.
pub(crate) fn passes_by_itself(code: &str) -> bool {
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
                write!(formatter, "{name:?} cannot name a lock: {reason}")
            }
            Self::InvalidLease { lease, reason } => {
                write!(formatter, "a lease of {lease:?} cannot be used: {reason}")
            }
            Self::InvalidCount { count, reason } => {
                write!(formatter, "a count of {count} cannot be used: {reason}")
            }
            Self::InvalidPermitId { id } => {
                write!(formatter, "{id:?} is no permit's id: it has 32 hexadecimal digits")
            }
            Self::InvalidSetting { setting, reason } => write!(formatter, "{setting}: {reason}"),
            Self::InvalidUrl { reason } => {
                write!(formatter, "the server's URL cannot be used: {reason}")
            }
            Self::Thread { reason } => write!(formatter, "a thread could not be started: {reason}"),
            Self::WatchdogGone => {
                write!(formatter, "the client's renewal thread has ended, nothing would be renewed")
            }
            Self::Unreachable { server, reason } => {
                write!(formatter, "the server {server} cannot be reached: {reason}")
            }
            Self::Authentication { server, reason } => {
                write!(formatter, "the server {server} refused the credentials: {reason}")
            }
            Self::Tls { server, reason } => {
                write!(formatter, "no TLS with the server {server}: {reason}")
            }
            Self::Eviction { policy } => {
                write!(formatter, "the server may evict locks: its maxmemory-policy is {policy}")
            }
            Self::OutcomeUnknown { operation, reason } => {
                write!(formatter, "{operation}: no answer came, it may have run: {reason}")
            }
            Self::Refused { operation, code, message } => {
                write!(formatter, "{operation}: the server answered {code} {message}")
            }
            Self::NotReplicated { wanted, acknowledged } => {
                write!(
                    formatter,
                    "{acknowledged} replicas acknowledged what was granted, and {wanted} are wanted"
                )
            }
            Self::WrongType { name } => {
                write!(formatter, "the key {name:?} holds something that is not a lock")
            }
            Self::AlreadyHeld { name } => {
                write!(formatter, "the lock {name:?} is held already, and cannot be taken twice")
            }
            Self::Upgrade { name } => {
                write!(formatter, "the write lock of {name:?} would wait for its own read lock")
            }
            Self::Lost { name, reason } => {
                write!(formatter, "the lock {name:?} was lost: {reason}")
            }
            Self::Cancelled { name } => write!(formatter, "the wait for {name:?} was cancelled"),
            Self::Shutdown => write!(formatter, "the client has been shut down"),
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::ServerUnreachable => "the server did not answer before its lease ran out",
            Self::Paused => "this process stood still until its lease had run out",
            Self::Deleted => "its key was deleted",
            Self::TakenOver => "its key belongs to somebody else",
            Self::Shutdown => "the client was shut down",
            Self::Forked => "this process is a fork of the holder",
        })
    }
}

impl std::error::Error for Error {}

/// A text for messages: whole if it is short, else its beginning and its length.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN: usize = 80;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(SHOWN).collect();
    format!("{beginning}… ({} bytes)", text.len())
}
