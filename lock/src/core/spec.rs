//! The settings of a lock: its identity, and how to acquire the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::core::client_core::ClientCore;
use crate::error::Error;
use crate::hold::hold::Hold;
use crate::model::backoff::Backoff;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::{LockName, Prefix};
use crate::model::owner::LocalHolder;
use crate::model::wait::WaitSpec;
use crate::ops::Operation;
use crate::store::retry::RetryLimit;

/// The lock to acquire, and how.
#[derive(Clone, Debug)]
pub(crate) struct LockSpec {
    core: Arc<ClientCore>,
    prefix: Prefix,
    name: Result<LockName, Error>,
    pub(crate) kind: Kind,
    lease: Result<LeasePolicy, Error>,
    pub(crate) nesting: Nesting,
    /// The shortest hold: after an earlier release the key stays until then.
    min_hold: Result<Option<Lease>, Error>,
    /// The label under which acquires are counted.
    pub(crate) metrics_label: Option<&'static str>,
    /// Whether a thread may hand its hold over to another thread.
    pub(crate) hand_over: bool,
    /// How long a hold stays with the client between two uses.
    cache: Option<Duration>,
    pub(crate) backoff: Backoff,
    /// How often to send a try without an answer.
    pub(crate) retries: RetryLimit,
}

/// How long a hold lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasePolicy {
    pub(crate) lease: Lease,
    /// Whether the watchdog renews the hold.
    pub(crate) watched: bool,
}

/// The effect of an acquire by the lock's present holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// The holder gets another guard.
    Allowed,
    /// The acquire fails with an error.
    Refused,
    /// The acquire waits, as for any owner.
    Contends,
}

impl LockSpec {
    /// Makes the default settings of a lock: watched, and not handed over or cached. Sends nothing.
    pub(crate) fn new(core: Arc<ClientCore>, kind: Kind, prefix: Prefix, name: &str) -> Self {
        let lease = LeasePolicy { lease: core.settings.watchdog_lease, watched: true };
        Self {
            name: checked_name(&core, kind, &prefix, name),
            core,
            prefix,
            kind,
            lease: Ok(lease),
            nesting: Nesting::Allowed,
            min_hold: Ok(None),
            metrics_label: None,
            hand_over: false,
            cache: None,
            backoff: Backoff::default(),
            retries: RetryLimit::UntilAnswered,
        }
    }

    /// Sets the lease of holds, which the watchdog does not renew from now on. An invalid lease is
    /// an error at each use.
    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = Lease::new(lease).map(|lease| LeasePolicy { lease, watched: false });
    }

    /// Sets the lease of holds to the client's, and has the watchdog renew the holds.
    pub(crate) fn set_watched(&mut self) {
        let lease = self.core.settings.watchdog_lease;
        self.lease = Ok(LeasePolicy { lease, watched: true });
    }

    /// Sets the shortest hold; zero means none.
    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        let is_none = min_hold.is_zero();
        self.min_hold =
            if is_none { Ok(None) } else { Lease::named("minimum hold", min_hold).map(Some) };
    }

    /// Returns whether holds may pass to another thread of this client. Never with a minimum hold:
    /// the next holder would get an older hold.
    pub(crate) fn hands_over(&self) -> bool {
        self.hand_over && matches!(self.min_hold, Ok(None))
    }

    /// Has holds stay with the client between two uses, for `cache` at most.
    pub(crate) fn set_cache(&mut self, cache: Duration) {
        self.cache = Some(cache);
    }

    /// Returns for how long `holder` leaves the lock with the client between two uses; `None`
    /// without a cache. Returns an error if the lock's kind or other settings exclude a cache.
    pub(crate) fn cache(&self, holder: &LocalHolder) -> Result<Option<Duration>, Error> {
        const SHORTEST: Duration = Duration::from_millis(1);
        let Some(cache) = self.cache else { return Ok(None) };
        let policy = self.lease_policy()?;
        let longest = policy.lease.duration() / 3;
        let reason = if self.kind != Kind::Reentrant || self.nesting != Nesting::Allowed {
            "only `lock` can be cached, sendable or not"
        } else if !policy.watched {
            "a lock with a lease of its own cannot be cached"
        } else if self.min_hold()?.is_some() {
            "a lock with a minimum hold cannot be cached"
        } else if matches!(holder, LocalHolder::Named(_)) {
            "a lock of a named owner cannot be cached"
        } else if !self.hand_over {
            "a member of a multi lock or a red lock cannot be cached"
        } else if !(SHORTEST..=longest).contains(&cache) {
            let reason =
                format!("{cache:?} is not between 1 ms and a third of the lease, {longest:?}");
            return Err(Error::invalid_setting("with_cache", reason));
        } else {
            return Ok(Some(cache));
        };
        Err(Error::invalid_setting("with_cache", reason))
    }

    /// Returns the same settings, without the shortest hold.
    pub(crate) fn without_min_hold(mut self) -> Self {
        self.min_hold = Ok(None);
        self
    }

    pub(crate) fn min_hold(&self) -> Result<Option<Lease>, Error> {
        self.min_hold.clone()
    }

    /// Replaces the name. The prefix of the client stays.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = checked_name(&self.core, self.kind, &self.prefix, name);
    }

    pub(crate) fn name(&self) -> Result<LockName, Error> {
        self.name.clone()
    }

    /// Returns the name for messages, even an invalid name.
    pub(crate) fn shown_name(&self) -> String {
        match self.name() {
            Ok(name) => name.shown(),
            Err(Error::InvalidName { name, .. }) => name,
            // A name has no other error.
            Err(error) => error.to_string(),
        }
    }

    pub(crate) fn lease_policy(&self) -> Result<LeasePolicy, Error> {
        self.lease.clone()
    }

    /// Returns the requested lease.
    pub(crate) fn lease(&self) -> Result<Duration, Error> {
        self.lease_policy().map(|policy| policy.lease.duration())
    }

    /// Returns the longest time from one renewal request to the next. `None` if the lock is not
    /// renewed, or if its lease is invalid.
    pub(crate) fn renewal_interval(&self) -> Option<Duration> {
        let LeasePolicy { lease, watched } = self.lease_policy().ok()?;
        watched.then(|| lease.renewal_interval(self.core.settings.tick))
    }

    /// Returns the address of the lock's server, as far as known.
    pub(crate) fn server(&self) -> String {
        self.core.server()
    }

    /// Whether both locks are of the same client.
    pub(crate) fn same_client(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Returns the client's core. Returns an error in a child of a fork, or if the client was shut
    /// down.
    pub(crate) fn core(&self) -> Result<Arc<ClientCore>, Error> {
        self.core.running()
    }

    /// Returns the hold of `holder`, if the hold is certainly valid. Returns `None` in a child of a
    /// fork.
    pub(crate) fn held_by(&self, holder: &LocalHolder) -> Option<Arc<Hold>> {
        if !self.core.is_current() {
            return None;
        }
        let hold = self.core.holds.find(self.name.as_ref().ok()?, holder, self.kind.layout())?;
        hold.is_held(self.core.now()).then_some(hold)
    }

    /// Sends `operation` until the server answers, and returns the reply.
    pub(crate) fn call<O: Operation>(&self, operation: &O) -> Result<O::Reply, Error> {
        let name = self.name()?;
        self.core()?.ask(operation, &name)
    }

    /// Sends `operation` until the server answers, within the wait, and returns the reply.
    pub(crate) fn call_within<O: Operation>(
        &self,
        operation: &O,
        wait: WaitSpec<'_>,
    ) -> Result<O::Reply, Error> {
        let name = self.name()?;
        self.core()?.ask_within(operation, &name, wait)
    }
}

/// Returns the lock name of `name` under `prefix`. Returns an error if the name is invalid, or if
/// its keys collide with the keys of another name used by the client.
fn checked_name(
    core: &ClientCore,
    kind: Kind,
    prefix: &Prefix,
    name: &str,
) -> Result<LockName, Error> {
    let name = prefix.name(name)?;
    match kind {
        Kind::Fair => core.shared_keys.register(name, LockName::queue),
        Kind::Fenced => core.shared_keys.register(name, LockName::token),
        _ => Ok(name),
    }
}
