//! The settings of a client, and which values are valid.

use std::time::Duration;

use crate::error::Error;
use crate::model::lease::{self, Lease};

/// All numeric settings of a client. Defaults are Redisson's where Redisson has one; DESIGN.md
/// gives the reasons.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The lease of a watched hold.
    pub(crate) watchdog_lease: Lease,
    /// The lease of other programs' renewals, which may shorten a reader's.
    pub(crate) foreign_watchdog: Lease,
    /// The longest that one attempt at one command may take.
    pub(crate) command_timeout: Duration,
    /// The wheel's resolution.
    pub(crate) tick: Duration,
    /// The longest sleep of a waiter between two attempts, in case a message was lost.
    pub(crate) poll_bound: Duration,
    /// Keys in one renewal script under normal load. A script of a hundred keys blocks the server
    /// long enough to nearly double the slowest hundredth of all other commands.
    pub(crate) renewal_keys: usize,
    /// Keys in one renewal script when more is due than a few scripts carry.
    pub(crate) renewal_keys_behind: usize,
    /// The highest number of connections, with those of the subscription and the renewals.
    pub(crate) connections: usize,
    /// A watched hold is not renewed beyond this age.
    pub(crate) max_hold: Option<Duration>,
    /// A hold that lasts longer is reported.
    pub(crate) long_hold: Option<Duration>,
    /// Whether a server that may evict locks is an error.
    pub(crate) refuse_eviction: bool,
    /// How many replicas have to acknowledge a grant.
    pub(crate) replica_acks: Option<ReplicaAcks>,
    /// Whether dropping a guard waits for the server's reply.
    pub(crate) wait_on_drop: bool,
}

/// How many replicas have to acknowledge a grant, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaAcks {
    pub(crate) wanted: u32,
    pub(crate) timeout: Duration,
}

/// Below ten ticks a third of the lease is not enough for a tick, the jitter and a round trip.
const TICKS_PER_WATCHED_LEASE: u32 = 10;

/// Redis limits a script to some thousands of arguments, and a renewal has two.
const MOST_KEYS: usize = 1000;

/// The longest sleep of a waiter that may be next.
pub(crate) const POLL_BOUND: Duration = Duration::from_secs(1);

/// The longest sleep of a waiter in a queue on the server that has other waiters ahead.
pub(crate) const QUEUE_POLL_BOUND: Duration = Duration::from_secs(5);

/// What a thread of Redisson's adds to the deadlines of those behind it in a fair queue, and
/// subtracts again when its turn comes or it gives up: its `fairLockWaitTimeout`, unless it is
/// configured otherwise.
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
            connections: 64,
            max_hold: None,
            long_hold: None,
            refuse_eviction: false,
            replica_acks: None,
            wait_on_drop: false,
        }
    }
}

impl Settings {
    /// How long a call is repeated while the server does not answer: one attempt that times out,
    /// and one more on a new connection.
    pub(crate) fn retry_timeout(&self) -> Duration {
        self.command_timeout * 2
    }

    pub(crate) fn set_watchdog_lease(&mut self, lease: Duration) -> Result<(), Error> {
        self.watchdog_lease = self.renewable(lease)?;
        Ok(())
    }

    pub(crate) fn set_foreign_watchdog(&mut self, lease: Duration) -> Result<(), Error> {
        self.foreign_watchdog = self.renewable(lease)?;
        Ok(())
    }

    fn renewable(&self, lease: Duration) -> Result<Lease, Error> {
        let parsed = Lease::new(lease)?;
        let shortest = self.tick * TICKS_PER_WATCHED_LEASE;
        if parsed.duration() < shortest {
            return Err(Error::InvalidLease {
                lease,
                reason: format!("the shortest that can be renewed in time is {shortest:?}"),
            });
        }
        Ok(parsed)
    }

    pub(crate) fn set_command_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        bounded("command_timeout", timeout, Duration::from_millis(10), Duration::from_secs(600))?;
        self.command_timeout = timeout;
        Ok(())
    }

    pub(crate) fn set_renewal_batch(&mut self, keys: usize, behind: usize) -> Result<(), Error> {
        if keys == 0 || behind < keys || behind > MOST_KEYS {
            return Err(Error::InvalidSetting {
                setting: "renewal_batch",
                reason: format!(
                    "{keys} and {behind} are not at least 1 and at most {MOST_KEYS}, in this order"
                )
                .into(),
            });
        }
        self.renewal_keys = keys;
        self.renewal_keys_behind = behind;
        Ok(())
    }

    /// Checked against the watchdog's lease.
    pub(crate) fn set_max_hold(&mut self, longest: Duration) -> Result<(), Error> {
        let lease = self.watchdog_lease.duration();
        // The shortest lease is more than zero, so zero is refused too.
        if longest < lease {
            return Err(Error::InvalidSetting {
                setting: "max_hold",
                reason: format!("{longest:?} is shorter than the watchdog's lease of {lease:?}")
                    .into(),
            });
        }
        self.max_hold = Some(longest);
        Ok(())
    }

    pub(crate) fn set_long_hold(&mut self, long: Duration) -> Result<(), Error> {
        if long.is_zero() {
            return Err(Error::InvalidSetting {
                setting: "on_long_hold",
                reason: "every hold is longer than zero".into(),
            });
        }
        self.long_hold = Some(long);
        Ok(())
    }

    /// Checked against the command timeout: half of it is left for the command itself.
    pub(crate) fn set_replica_acks(&mut self, wanted: u32, timeout: Duration) -> Result<(), Error> {
        if wanted == 0 {
            return Err(Error::InvalidSetting {
                setting: "replica_acks",
                reason: "no replica has to acknowledge anything".into(),
            });
        }
        let most = self.command_timeout / 2;
        bounded("replica_acks", timeout, Duration::from_millis(1), most)?;
        self.replica_acks = Some(ReplicaAcks { wanted, timeout });
        Ok(())
    }

    pub(crate) fn set_connections(&mut self, connections: usize) -> Result<(), Error> {
        // One that calls share, one for what cannot share, one for the renewals, one for the
        // subscription.
        if !(4..=10_000).contains(&connections) {
            return Err(Error::InvalidSetting {
                setting: "max_connections",
                reason: format!("{connections} is not between 4 and 10,000").into(),
            });
        }
        self.connections = connections;
        Ok(())
    }
}

fn bounded(
    setting: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::InvalidSetting {
        setting,
        reason: format!("{value:?} is not between {least:?} and {most:?}").into(),
    })
}
