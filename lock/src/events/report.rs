//! Reports about a client's locks and its server: plain data, created by the thread with the news.

use std::fmt;
use std::time::Duration;

use crate::error::LostReason;
use crate::model::name::LockName;
#[cfg(feature = "serde")]
use crate::model::serialize::{debug, millis};
use crate::model::sync::thread::ThreadId;

/// A lost hold of a lock or a watched permit, as reported to
/// [`on_lost`](crate::ClientBuilder::on_lost).
///
/// ```
/// use wheellock::{Client, LostReason, Memory};
///
/// let (sender, reports) = wheellock::crossbeam_channel::unbounded();
/// let client = Client::builder()
///     .in_memory(&Memory::new())
///     .on_lost(move |lost| drop(sender.send((lost.name().to_owned(), lost.reason()))))
///     .build()?;
/// let guard = client.lock("orders:42").lock()?;
/// client.lock("orders:42").force_unlock()?;
/// assert_eq!(reports.recv(), Ok(("orders:42".to_owned(), LostReason::Deleted)));
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
    /// The full name of the lock, or of the permit's semaphore, with the client's
    /// [prefix](crate::Client::with_prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The hold's owner, as on the server: [`LockGuard::owner`](crate::LockGuard::owner) returns
    /// the same string. For a permit, a string of the same form, which is not the permit's
    /// [id](crate::Permit::id).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The reason of the loss.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// The time until the loss was found, by the client's clock: from just before the acquire was
    /// sent, or from the last [hand-over](crate::ClientBuilder::hand_over_budget) or use of a
    /// [cached](crate::Lock::with_cache) hold. If the process was stopped, the loss is found after
    /// the end of the lease, and the time is longer than the lease.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.held_for
    }
}

/// A long hold of a lock or a watched permit, as reported to
/// [`on_long_hold`](crate::ClientBuilder::on_long_hold).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use wheellock::{Client, ManualClock, Memory};
///
/// let clock = ManualClock::new();
/// let (sender, reports) = wheellock::crossbeam_channel::unbounded();
/// let client = Client::builder()
///     .in_memory(&Memory::with_clock(Arc::new(clock.clone())))
///     .on_long_hold(Duration::from_secs(60), move |held| {
///         drop(sender.send((held.name().to_owned(), held.held_for())));
///     })
///     .build()?;
/// let guard = client.lock("orders:42").lock()?;
/// clock.advance(Duration::from_secs(70));
/// let (name, held_for) = reports.recv().unwrap();
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
    /// The full name of the lock, or of the permit's semaphore, with the client's
    /// [prefix](crate::Client::with_prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The hold's owner, as on the server: [`LockGuard::owner`](crate::LockGuard::owner) returns
    /// the same string. For a permit, a string of the same form, which is not the permit's
    /// [id](crate::Permit::id).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The time until the watchdog found the long hold, by the client's clock: from just before the
    /// acquire was sent, or from the last [hand-over](crate::ClientBuilder::hand_over_budget) or
    /// use of a [cached](crate::Lock::with_cache) hold.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.held_for
    }
}

/// A hold of this client, as returned by [`Client::holds`](crate::Client::holds): of a lock, or of
/// a [watched](crate::ExpirableSemaphore::watched) permit.
///
/// ```
/// use wheellock::{Client, OwnHolder};
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").with_owner("request 7").lock()?;
/// let [hold] = client.holds().try_into().unwrap();
/// assert_eq!((hold.name.as_str(), hold.owner.as_str()), ("orders:42", guard.owner()));
/// assert_eq!(hold.holder, OwnHolder::Named("request 7".to_owned()));
/// assert!(hold.watched && hold.renewals == 0);
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct OwnHold {
    /// The full name of the lock, or of the permit's semaphore, with the client's
    /// [prefix](crate::Client::with_prefix).
    pub name: String,
    /// The kind: `lock`, `fair`, `fenced`, `spin`, `simple`, `read`, `write` or `permit`.
    pub kind: &'static str,
    /// The hold's owner, as on the server. For a permit, a string of the same form, which is not
    /// the permit's [id](crate::Permit::id).
    pub owner: String,
    /// The holder in this process.
    pub holder: OwnHolder,
    /// The time until now, by the client's clock: from just before the acquire was sent, or from
    /// the last [hand-over](crate::ClientBuilder::hand_over_budget), caching or use of a
    /// [cached](crate::Lock::with_cache) hold.
    #[cfg_attr(feature = "serde", serde(rename = "held_for_ms", serialize_with = "millis"))]
    pub held_for: Duration,
    /// How long the hold is held for certain without a further renewal.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "millis"))]
    pub remaining: Duration,
    /// Whether the hold is renewed: at least one of its guards is watched.
    pub watched: bool,
    /// The number of guards: above 1 for a nested hold. A cached hold has no guard, and counts 1.
    pub guards: u32,
    /// How often the lease was extended since the server's grant, by renewals, by nesting and by
    /// [`extend`](crate::LockGuard::extend). At most 65,535 extensions are counted.
    pub renewals: u32,
}

/// The holder of a hold in this process, in [`OwnHold::holder`].
///
/// ```
/// use wheellock::{Client, OwnHolder};
///
/// let client = Client::in_memory();
/// let _guard = client.lock("orders:42").lock()?;
/// assert_eq!(client.holds()[0].holder, OwnHolder::Thread(std::thread::current().id()));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OwnHolder {
    /// A thread. For a permit, the thread that acquired the permit, or called
    /// [`watch`](crate::Permit::watch).
    #[cfg_attr(feature = "serde", serde(serialize_with = "debug"))]
    Thread(ThreadId),
    /// The name given to [`with_owner`](crate::Lock::with_owner).
    Named(String),
    /// The thread with the guard of a [`sendable`](crate::Lock::sendable) lock.
    Guard,
    /// No thread: the lock is [cached](crate::Lock::with_cache) for the next acquire of this
    /// client.
    Cached,
}

/// A problem of the server which endangers locks or delays waiters, or a deadlock.
///
/// Reported to [`on_warning`](crate::ClientBuilder::on_warning) and returned by
/// [`Client::warnings`](crate::Client::warnings).
///
/// ```
/// use wheellock::{Client, Memory, Warning};
///
/// let client = Client::builder()
///     .in_memory(&Memory::new())
///     .on_warning(|warning| match warning {
///         Warning::Eviction { policy, .. } => eprintln!("set {policy} to noeviction"),
///         other => eprintln!("{other}"),
///     })
///     .build()?;
/// assert!(client.warnings().is_empty());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "warning", rename_all = "snake_case"))]
pub enum Warning {
    /// The server may delete locks when out of memory: its `maxmemory-policy` is not `noeviction`.
    ///
    /// Checked when the client is built, and again after each new connection for renewals, as the
    /// server may have been restarted. Reported once for each policy. With
    /// [`refuse_eviction`](crate::ClientBuilder::refuse_eviction), building the client fails
    /// instead; a later change of the policy is reported.
    #[non_exhaustive]
    Eviction {
        /// The value of `maxmemory-policy`, such as `allkeys-lru`.
        policy: String,
    },
    /// The master continues to grant locks without replicas: its `min-replicas-to-write` or its
    /// `min-replicas-max-lag` is zero.
    ///
    /// If a network partition isolates the master together with a client while a replica takes
    /// over, this client retains locks which the new master grants to other clients, for as long as
    /// the partition lasts. With both settings at 1 or more, the isolated master refuses renewals,
    /// and holds end with their leases.
    ///
    /// Checked behind sentinels and in a cluster, for a master with replicas, at the same times as
    /// [`Eviction`](Self::Eviction). Reported once.
    WritesWithoutReplicas,
    /// The server has replicas, and the client does not wait for replicas: a failover to a replica
    /// which has not received a grant yet loses the lock.
    ///
    /// With [`replica_acks`](crate::ClientBuilder::replica_acks) each acquire waits for replicas,
    /// as in Redisson by default. Checked at the same times as [`Eviction`](Self::Eviction).
    /// Reported once.
    ReplicasNotAwaited,
    /// The server's clock was set, or stood still.
    ///
    /// Leases end by the server's clock. If the clock was set forward, every lock of every client
    /// ends sooner by as much, perhaps while its guard still counts as held. If the clock was set
    /// back or stood still, every lock ends later by as much.
    ///
    /// The client compares the time between two replies to renewals on both clocks. A difference is
    /// reported if it exceeds one second, a twentieth of the [watchdog
    /// lease](crate::ClientBuilder::watchdog_lease), and a hundredth of the time. Each jump is
    /// reported.
    #[non_exhaustive]
    ServerClockJumped {
        /// The minimum distance of the jump, in whole milliseconds.
        #[cfg_attr(feature = "serde", serde(rename = "by_ms", serialize_with = "millis"))]
        by: Duration,
        /// Whether the clock jumped forward.
        forward: bool,
    },
    /// The server has refused a subscription, or the message of a release, usually because the ACL
    /// of its user does not allow the command or the channel.
    ///
    /// No lock is in danger, and releases take effect. But no message wakes the waiters on the
    /// channel, which poll instead: once a second, or every five seconds behind other waiters in
    /// the queue of a fair lock. Found when a thread waits or releases, and reported once for each
    /// error message.
    #[non_exhaustive]
    ChannelsRefused {
        /// The server's error message.
        refusal: String,
    },
    /// Two locks of a [`RedLock`](crate::RedLock) are on one server, under two addresses.
    ///
    /// The server has one vote: the second lock is not acquired, and counts as refused. If too few
    /// servers remain for a majority, each acquire returns
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting); otherwise the red lock survives the
    /// failure of fewer servers. Found by the server's run id, when the second lock is acquired,
    /// and reported once for each pair of addresses.
    #[non_exhaustive]
    SharedServer {
        /// Both addresses.
        servers: [String; 2],
    },
    /// The server answers renewals with an error: the server cannot write to disk, is a replica or
    /// lacks replicas, the ACL of the user does not allow renewals, or the server no longer accepts
    /// the credentials.
    ///
    /// The holds are lost as [`Refused`](LostReason::Refused) unless the server accepts renewals
    /// before the leases end. Reported once for each error message.
    #[non_exhaustive]
    RenewalsRefused {
        /// The server's error message.
        refusal: String,
    },
    /// The server has refused the client's record, usually because the ACL of its user does not
    /// allow the key `wheellock_client:*`.
    ///
    /// No lock is affected. But a query for the [holder](crate::Lock::holder) of a lock shows
    /// neither this client's [label](crate::ClientBuilder::label) nor for how long the lock is
    /// held. Found when the background writes the record, and reported once for each error message.
    #[non_exhaustive]
    RecordRefused {
        /// The server's error message.
        refusal: String,
    },
    /// A deadlock of threads, at least one of them a thread of this client.
    ///
    /// Waits without a time limit last forever, unless
    /// [`OnDeadlock::Fail`](crate::OnDeadlock::Fail) is set with
    /// [`on_deadlock`](crate::ClientBuilder::on_deadlock) and ends a wait. Found within 3 s after
    /// the last wait has begun, and reported once for the waits of this client in the cycle.
    #[non_exhaustive]
    Deadlock {
        /// The threads, their clients, and the lock for which each thread waits, as a sentence.
        cycle: String,
    },
}

#[cfg(feature = "metrics")]
impl Warning {
    /// Returns the kind, as the label of a metric. Serde writes the same word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Eviction { .. } => "eviction",
            Self::WritesWithoutReplicas => "writes_without_replicas",
            Self::ReplicasNotAwaited => "replicas_not_awaited",
            Self::ServerClockJumped { .. } => "server_clock_jumped",
            Self::ChannelsRefused { .. } => "channels_refused",
            Self::SharedServer { .. } => "shared_server",
            Self::RenewalsRefused { .. } => "renewals_refused",
            Self::RecordRefused { .. } => "record_refused",
            Self::Deadlock { .. } => "deadlock",
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { policy } => {
                write!(
                    formatter,
                    "the server may evict locks: its maxmemory-policy is {policy}, set it to noeviction"
                )
            }
            Self::WritesWithoutReplicas => formatter.write_str(
                "the master grants locks without replicas: set its min-replicas-to-write and \
                 min-replicas-max-lag",
            ),
            Self::ReplicasNotAwaited => formatter.write_str(
                "the server has replicas, and grants do not wait for them: see replica_acks",
            ),
            Self::ServerClockJumped { by, forward } => {
                let direction = if *forward { "forward" } else { "back" };
                write!(formatter, "the server's clock jumped {direction} by {by:?}")
            }
            Self::ChannelsRefused { refusal } => {
                write!(
                    formatter,
                    "the server has refused the messages that wake waiters, so they poll: {refusal}"
                )
            }
            Self::RenewalsRefused { refusal } => {
                write!(formatter, "the server refuses renewals, so locks will be lost: {refusal}")
            }
            Self::SharedServer { servers: [one, other] } => {
                write!(formatter, "{one} and {other} are one server: give each server once")
            }
            Self::RecordRefused { refusal } => {
                write!(formatter, "the server has refused the client's record: {refusal}")
            }
            Self::Deadlock { cycle } => write!(formatter, "threads wait for each other: {cycle}"),
        }
    }
}

/// A report on its way to the callbacks.
#[derive(Debug)]
pub(crate) enum Report {
    Lost(LostLock),
    LongHold(HeldLock),
    Warning(Warning),
}
