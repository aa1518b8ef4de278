//! The members of a red lock, one per server, and the size of a quorum.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Reason};
use crate::locks::any_lock::MemberLock;
use crate::locks::red::servers::RedServers;
use crate::store::retry::RetryLimit;

/// The members of a red lock, the number of members in a majority, and the threads for the servers.
#[derive(Clone, Debug)]
pub(crate) struct Quorum {
    pub(crate) members: Arc<[MemberLock]>,
    /// The number of members in a majority.
    pub(crate) size: usize,
    pub(crate) shared: Arc<RedServers>,
}

/// The minimum number of servers of a red lock. A red lock on two servers would fail if either
/// server fails.
const MIN_SERVERS: usize = 3;

/// The lower bound of the default server timeout.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(50);
/// The upper bound of the default server timeout.
const LONGEST_TIMEOUT: Duration = Duration::from_millis(250);

/// The default server timeout is the lease divided by this.
const DEFAULT_LEASE_DIVISOR: u32 = 20;

/// A server timeout is at most the lease divided by this.
const MAX_LEASE_DIVISOR: u32 = 3;

impl Quorum {
    /// Returns the quorum of `members`, each of which makes a single attempt at a call from now on.
    /// Returns [`Error::InvalidSetting`] for fewer than [`MIN_SERVERS`] members and for two members
    /// on the same server, and the error of a client if no client runs.
    pub(crate) fn new(mut members: Vec<MemberLock>) -> Result<Self, Error> {
        if members.len() < MIN_SERVERS {
            let count = members.len();
            return Err(invalid(format!("{count} locks; it takes at least {MIN_SERVERS}")));
        }
        for (position, member) in members.iter().enumerate() {
            if members.iter().skip(position + 1).any(|other| other.host() == member.host()) {
                return Err(invalid(format!("duplicate server {}", member.host())));
            }
        }
        for member in &mut members {
            // A server without an answer counts as not granting. The next attempt asks the server
            // again.
            member.spec.retries = RetryLimit::One;
        }
        // A client after a shutdown counts as a failed server, so any client's clock will do.
        let clock = members.iter().map(MemberLock::clock).reduce(Result::or);
        let clock = clock.ok_or_else(|| invalid("the list of locks is empty"))??;
        let shared = Arc::new(RedServers::new(members.len(), clock));
        Ok(Self { size: members.len() / 2 + 1, members: members.into(), shared })
    }

    /// Applies `change` to each member. Clones of the quorum, which share the threads, keep their
    /// members.
    pub(crate) fn change(&mut self, change: impl FnMut(&mut MemberLock)) {
        let mut members = self.members.to_vec();
        members.iter_mut().for_each(change);
        self.members = members.into();
    }

    /// Returns the lock's name on the first server, for messages.
    pub(crate) fn name(&self) -> String {
        self.members.first().map(MemberLock::shown).unwrap_or_default()
    }

    /// Returns how long to wait for the servers: `timeout`, or a default derived from the shortest
    /// lease of the members. Returns [`Error::InvalidSetting`] if `timeout` does not fit the lease.
    pub(crate) fn server_timeout(&self, timeout: Option<Duration>) -> Result<Duration, Error> {
        let mut lease = Duration::MAX;
        for member in &*self.members {
            lease = lease.min(member.spec.lease()?);
        }
        let max = lease / MAX_LEASE_DIVISOR;
        let Some(timeout) = timeout else {
            let default = lease / DEFAULT_LEASE_DIVISOR;
            return Ok(default.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT).min(max));
        };
        if timeout.is_zero() || timeout > max {
            let reason = format!("{timeout:?}; it must be more than zero and at most {max:?}");
            return Err(Error::invalid_setting("server_timeout", reason));
        }
        Ok(timeout)
    }

    /// Returns how long failures of too many servers are retried: the longest retry timeout of the
    /// running clients, zero without a running client.
    pub(crate) fn retry_timeout(&self) -> Duration {
        let timeouts = self.members.iter().filter_map(|member| member.retry_timeout().ok());
        timeouts.max().unwrap_or_default()
    }

    /// Returns the error for a cancelled caller.
    pub(crate) fn cancelled_error(&self) -> Error {
        Error::Cancelled { name: self.name() }
    }
}

/// Returns the error for an invalid list of locks, with `reason`.
fn invalid(reason: impl Into<Reason>) -> Error {
    Error::invalid_setting("red_lock", reason)
}
