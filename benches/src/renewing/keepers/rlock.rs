//! rlock 0.2: a thread for each lock, which sends a script each time.

use std::fmt;
use std::time::Duration;

use rlock::sync_lock::{RLock, RLockGuard};
use rlock::{AcquireOptions, LeaseState, RenewalMode};

use crate::renewing::keepers::{Keeper, Target, lock_name, url};

/// A manager with its guards.
pub(crate) struct Rlock {
    manager: RLock,
    lease: Duration,
    interval: Duration,
    guards: Vec<RLockGuard>,
}

impl Keeper for Rlock {
    fn start(target: &Target) -> Self {
        let manager = RLock::new(url(target.address).as_str()).expect("the server is there");
        Self { manager, lease: target.lease, interval: target.interval(), guards: Vec::new() }
    }

    fn take(&mut self, held: usize) {
        // Unless it is told otherwise it renews at half of the lease.
        let options = AcquireOptions::builder()
            .ttl(self.lease)
            .renewal_mode(RenewalMode::Interval(self.interval))
            .build()
            .expect("the options are valid");
        self.guards.extend((0..held).map(|number| {
            let guard = self.manager.acquire_mutex_with_options(lock_name(number), options.clone());
            guard.expect("nobody else wants it")
        }));
    }

    fn lost(&self) -> usize {
        self.guards.iter().filter(|guard| guard.lease_state() != LeaseState::Active).count()
    }
}

impl fmt::Debug for Rlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rlock").field("held", &self.guards.len()).finish_non_exhaustive()
    }
}
