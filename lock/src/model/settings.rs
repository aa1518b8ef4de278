//! The settings of a client, and the checks of their values.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::model::lease::{self, Lease};

/// All numeric settings of a client. Defaults are Redisson's where Redisson has one.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The lease of a watched hold.
    pub(crate) watchdog_lease: Lease,
    /// The lease of other programs' renewals, which may shorten a reader's lease.
    pub(crate) foreign_watchdog: Lease,
    /// The timeout of one attempt at one command.
    pub(crate) command_timeout: Duration,
    /// The wheel's resolution: a loss is reported within a tick.
    pub(crate) tick: Duration,
    /// The longest sleep of a waiter between two tries, in case a message was lost.
    pub(crate) poll_bound: Duration,
    /// Keys in one renewal script under normal load. A script of a hundred keys blocks the server
    /// long enough to nearly double the slowest hundredth of all other commands.
    pub(crate) renewal_keys: usize,
    /// Keys in one renewal script with a backlog.
    pub(crate) renewal_keys_behind: usize,
    /// The highest number of connections for calls. If `None`, the number depends on the round trip
    /// time.
    pub(crate) connections: Option<usize>,
    /// A watched hold is not renewed beyond this age.
    pub(crate) max_hold: Option<Duration>,
    /// A longer hold is reported.
    pub(crate) long_hold: Option<Duration>,
    /// Whether building the client fails for a server which may evict locks.
    pub(crate) refuse_eviction: bool,
    /// The replicas which must acknowledge a grant.
    pub(crate) replica_acks: Option<ReplicaAcks>,
    /// Whether dropping a guard waits for the server's reply.
    pub(crate) wait_on_drop: bool,
    /// Whether a hold is handed from thread to thread, and for how long.
    pub(crate) hand_over: HandOver,
    /// The most locks cached by the client between two uses.
    pub(crate) max_cached: usize,
    /// The client's label in replies to queries about a lock's holder.
    pub(crate) label: Option<Arc<str>>,
    /// The reaction to a deadlock.
    pub(crate) on_deadlock: OnDeadlock,
}

/// A client's reaction to a deadlock of its threads, also with threads of other clients.
///
/// The argument of [`ClientBuilder::on_deadlock`](crate::ClientBuilder::on_deadlock).
///
/// ```
/// use wheellock::{Client, Memory, OnDeadlock};
///
/// let builder = Client::builder().in_memory(&Memory::new()).on_deadlock(OnDeadlock::Fail);
/// let client = builder.build()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDeadlock {
    /// The client reports a [`Warning::Deadlock`](crate::Warning::Deadlock) if one of its threads
    /// is in the cycle. The waits continue.
    Warn,
    /// The client reports the warning, and one wait of the cycle ends with [`Error::Deadlock`]: of
    /// the waits of clients with this setting, the wait that began last.
    Fail,
    /// The client does not check for deadlocks, and its waits are invisible to other clients: no
    /// client finds a cycle with a thread of this client.
    Ignore,
}

/// How long a hold may be handed from thread to thread without the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOver {
    Off,
    /// For this long after the server's grant.
    Within(Duration),
    /// This many times: for a clock which stands still, or a store without cost.
    Times(u32),
}

impl HandOver {
    /// Makes `Within(budget)`, or `Off` for a budget of zero.
    pub(crate) fn within(budget: Duration) -> Self {
        if budget.is_zero() { Self::Off } else { Self::Within(budget) }
    }

    /// Returns the same setting with a count of hand-overs, for a store where time is no measure.
    pub(crate) fn counted(self) -> Self {
        if self == Self::Off { self } else { Self::Times(HAND_OVERS) }
    }

    /// Returns how long one client retains a lock while other clients wait. Zero without
    /// hand-overs, or if hand-overs are counted.
    pub(crate) fn budget(self) -> Duration {
        match self {
            Self::Within(budget) => budget,
            Self::Off | Self::Times(_) => Duration::ZERO,
        }
    }
}

/// The replicas which must acknowledge a grant, and the timeout of their acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaAcks {
    pub(crate) wanted: Replicas,
    pub(crate) timeout: Duration,
    /// Whether a replica acknowledges its append-only file instead of its memory.
    pub(crate) on_disk: bool,
}

/// The number of replicas that must acknowledge a grant.
///
/// The argument of [`ClientBuilder::replica_acks`](crate::ClientBuilder::replica_acks). A number
/// converts into [`AtLeast`](Self::AtLeast).
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, Replicas};
///
/// let builder = Client::builder().url("redis://127.0.0.1/");
/// let two = builder.clone().replica_acks(2, Duration::from_millis(500));
/// let all = builder.replica_acks(Replicas::AllConnected, Duration::from_millis(500));
/// # drop((two, all));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replicas {
    /// At least this many replicas, at least 1. If the server has fewer connected replicas, every
    /// acquire returns [`Error::NotReplicated`].
    AtLeast(u32),
    /// All replicas that are connected to the server at the grant, as by Redisson's default. If no
    /// replica is connected, the acquire does not wait, and a failover may lose the grant.
    AllConnected,
}

impl From<u32> for Replicas {
    fn from(number: u32) -> Self {
        Self::AtLeast(number)
    }
}

/// The shortest lease of a watched hold, in ticks. With fewer ticks, a third of the lease is not
/// enough for a tick, the jitter and a round trip.
const TICKS_PER_WATCHED_LEASE: u32 = 10;

/// The largest number of keys in one renewal script. Redis limits a script to some thousands of
/// arguments, and a renewal has two.
const MOST_KEYS: usize = 1000;

/// The longest label of a client, in bytes. A label is read with each status.
const LONGEST_LABEL: usize = 256;

/// How long a hold is handed from thread to thread. Other clients wait as long for their turn; the
/// server's grant takes about a hundredth of this time.
const HAND_OVER_BUDGET: Duration = Duration::from_millis(5);

/// How many times a hold is handed over where time is no measure.
const HAND_OVERS: u32 = 100;

/// The longest sleep of a waiter which may be next.
pub(crate) const POLL_BOUND: Duration = Duration::from_secs(1);

/// The longest sleep of a waiter behind other waiters in a queue on the server.
pub(crate) const QUEUE_POLL_BOUND: Duration = Duration::from_secs(5);

/// Redisson's default `fairLockWaitTimeout`. A thread of Redisson adds this time to the deadlines
/// of the following waiters in a fair queue, and subtracts the time at its turn or when giving up.
pub(crate) const REDISSON_FAIR_WAIT: Duration = Duration::from_secs(300);

impl Default for Settings {
    fn default() -> Self {
        Self {
            watchdog_lease: lease::DEFAULT,
            foreign_watchdog: lease::DEFAULT,
            command_timeout: Duration::from_secs(3),
            tick: Duration::from_millis(10),
            poll_bound: POLL_BOUND,
            renewal_keys: 25,
            renewal_keys_behind: 100,
            connections: None,
            max_hold: None,
            long_hold: None,
            refuse_eviction: false,
            replica_acks: None,
            wait_on_drop: false,
            hand_over: HandOver::Within(HAND_OVER_BUDGET),
            max_cached: 1024,
            label: None,
            on_deadlock: OnDeadlock::Warn,
        }
    }
}

impl Settings {
    /// Returns how long a call is repeated while the server does not answer: one attempt until its
    /// timeout, and one more on a new connection.
    pub(crate) fn retry_timeout(&self) -> Duration {
        self.command_timeout * 2
    }

    /// Parses a lease which the watchdog can renew in time. Returns [`Error::InvalidLease`] for any
    /// other lease.
    pub(crate) fn renewable(&self, lease: Duration) -> Result<Lease, Error> {
        let parsed = Lease::new(lease)?;
        let shortest = self.tick * TICKS_PER_WATCHED_LEASE;
        if parsed.duration() < shortest {
            return Err(Error::InvalidLease {
                lease,
                reason: format!("the shortest lease that can be renewed in time is {shortest:?}"),
            });
        }
        Ok(parsed)
    }

    /// Checks all settings. Returns [`Error::InvalidSetting`] for the first setting out of bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (lease, timeout) = (self.watchdog_lease.duration(), self.command_timeout);
        bounded("command_timeout", timeout, Duration::from_millis(10), Duration::from_secs(600))?;
        if let Some(other) = self.connections.filter(|set| !(1..=64).contains(set)) {
            let reason = format!("{other} is not between 1 and 64");
            return Err(Error::invalid_setting("max_connections", reason));
        }
        let (keys, behind) = (self.renewal_keys, self.renewal_keys_behind);
        if keys == 0 || behind < keys || behind > MOST_KEYS {
            let reason = format!(
                "{keys} and {behind} are not at least 1 and at most {MOST_KEYS}, in this order"
            );
            return Err(Error::invalid_setting("renewal_batch", reason));
        }
        // The shortest lease is more than zero, so zero is refused too.
        if let Some(longest) = self.max_hold.filter(|longest| *longest < lease) {
            let reason = format!("{longest:?} is shorter than the watchdog's lease of {lease:?}");
            return Err(Error::invalid_setting("max_hold", reason));
        }
        if self.long_hold == Some(Duration::ZERO) {
            return Err(Error::invalid_setting("on_long_hold", "every hold is longer than zero"));
        }
        if let Some(acks) = self.replica_acks {
            if acks.wanted == Replicas::AtLeast(0) {
                let reason = "no replica has to acknowledge anything";
                return Err(Error::invalid_setting("replica_acks", reason));
            }
            // Half of the time is left for the command itself.
            bounded("replica_acks", acks.timeout, Duration::from_millis(1), timeout / 2)?;
        }
        if let Some(label) = self.label.as_ref().map(|label| label.len())
            && !(1..=LONGEST_LABEL).contains(&label)
        {
            let reason = format!("{label} bytes are not between 1 and {LONGEST_LABEL}");
            return Err(Error::invalid_setting("label", reason));
        }
        // A longer budget would starve other clients.
        bounded("hand_over_budget", self.hand_over.budget(), Duration::ZERO, Duration::from_secs(1))
    }
}

/// Returns [`Error::InvalidSetting`] for `setting` if `value` is below `least` or above `most`.
fn bounded(
    setting: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let reason = format!("{value:?} is not between {least:?} and {most:?}");
    Err(Error::invalid_setting(setting, reason))
}
