//! What a client tells of its locks and its server: plain data, made where it is found out and heard elsewhere.

use std::fmt;
use std::time::Duration;

use crate::error::LostReason;
use crate::name::LockName;

/// A hold that was lost, as [`on_lost`](crate::ClientBuilder::on_lost) is told of it.
///
/// ```
/// use wheellock::{Client, LostReason, Memory};
///
/// let (tell, told) = crossbeam_channel::unbounded();
/// let client = Client::builder()
///     .in_memory(&Memory::new())
///     .on_lost(move |lost| drop(tell.send((lost.name().to_owned(), lost.reason()))))
///     .build()?;
/// let guard = client.lock("orders:42").lock()?;
/// client.lock("orders:42").force_unlock()?;
/// assert_eq!(told.recv(), Ok(("orders:42".to_owned(), LostReason::Deleted)));
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LostLock {
    pub(crate) name: LockName,
    pub(crate) owner: String,
    pub(crate) reason: LostReason,
    pub(crate) held_for: Duration,
}

impl LostLock {
    /// The lock's name, whole.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Who held it, as it stood on the server: what [`LockGuard::owner`](crate::LockGuard::owner) says.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How it was lost.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// From just before its acquire was sent until the loss was found, by the client's clock. If the process stood
    /// still, that is after the end of the lease.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.held_for
    }
}

/// A hold that lasts for long, as [`on_long_hold`](crate::ClientBuilder::on_long_hold) is told of it.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use wheellock::{Client, ManualClock, Memory};
///
/// let clock = ManualClock::new();
/// let (tell, told) = crossbeam_channel::unbounded();
/// let client = Client::builder()
///     .in_memory(&Memory::with_clock(Arc::new(clock.clone())))
///     .on_long_hold(Duration::from_secs(60), move |held| {
///         drop(tell.send((held.name().to_owned(), held.held_for())));
///     })
///     .build()?;
/// let guard = client.lock("orders:42").lock()?;
/// clock.advance(Duration::from_secs(70));
/// let (name, held_for) = told.recv().unwrap();
/// assert_eq!(name, "orders:42");
/// assert!(held_for >= Duration::from_secs(60));
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeldLock {
    pub(crate) name: LockName,
    pub(crate) owner: String,
    pub(crate) held_for: Duration,
}

impl HeldLock {
    /// The lock's name, whole.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Who holds it, as it stands on the server: what [`LockGuard::owner`](crate::LockGuard::owner) says.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// From just before its acquire was sent until the watchdog looked, by the client's clock.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.held_for
    }
}

/// Something about the server that endangers locks or delays waiters, as
/// [`on_warning`](crate::ClientBuilder::on_warning) and [`Client::warnings`](crate::Client::warnings) tell it.
///
/// ```
/// use wheellock::Warning;
///
/// let warning = Warning::Eviction { policy: "allkeys-lru".to_owned() };
/// assert!(warning.to_string().contains("allkeys-lru"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// The server may delete locks when it is out of memory: its `maxmemory-policy` is other than `noeviction`.
    /// Looked at when the client is built, and again whenever the connection for renewals was made anew, as the server
    /// may have been started anew. Told once for each policy.
    /// [`refuse_eviction`](crate::ClientBuilder::refuse_eviction) makes it an error of building the client.
    Eviction {
        /// The policy.
        policy: String,
    },
    /// The server's clock was set, or stood still. Leases end by that clock: forward, every lock of every client ends
    /// sooner by as much, perhaps before its holder stops believing; back, later.
    ///
    /// Found when a renewal is answered, by what the server's clock counted since the answer before, against the
    /// client's: a difference of more than a second, of a twentieth of the watched lease, and of a hundredth of the time
    /// between.
    ServerClockJumped {
        /// How far at least, in whole milliseconds.
        by: Duration,
        /// Whether it now shows a later time than it should.
        forward: bool,
    },
    /// The server does not let waiters listen to some channel; mostly its user may not. No lock is in danger, but a
    /// waiter there hears of no release, and looks for himself: once a second, behind others in the line of a fair lock
    /// every five. Found when somebody waits, and told once for each refusal.
    ChannelsRefused {
        /// What the server said.
        refusal: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { policy } => {
                write!(formatter, "the server may evict locks: its maxmemory-policy is {policy}")
            }
            Self::ServerClockJumped { by, forward } => {
                let direction = if *forward { "forward" } else { "back" };
                write!(formatter, "the server's clock jumped {direction} by {by:?}")
            }
            Self::ChannelsRefused { refusal } => {
                write!(formatter, "the server lets nobody listen to some channel: {refusal}")
            }
        }
    }
}

/// Any of them, on its way to the callbacks.
#[derive(Debug)]
pub(crate) enum Report {
    Lost(LostLock),
    LongHold(HeldLock),
    Warning(Warning),
}
