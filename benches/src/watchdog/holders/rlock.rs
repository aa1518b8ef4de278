//! rlock 0.2: a thread for each lock, which sends a script for each renewal.

use std::fmt;
use std::time::Duration;

use rlock::sync_lock::{RLock, RLockGuard};
use rlock::{AcquireOptions, LeaseState, RenewalMode};

use crate::watchdog::holders::{Holder, HolderConfig, lock_name, url};

/// A manager with its guards.
pub(crate) struct Rlock {
    manager: RLock,
    lease: Duration,
    interval: Duration,
    guards: Vec<RLockGuard>,
}

impl Holder for Rlock {
    fn start(config: &HolderConfig) -> Self {
        let manager = RLock::new(url(config.address).as_str()).expect("the server is there");
        Self { manager, lease: config.lease, interval: config.interval(), guards: Vec::new() }
    }

    fn acquire(&mut self, held: usize) {
        // By default it renews after half of the lease.
        let options = AcquireOptions::builder()
            .ttl(self.lease)
            .renewal_mode(RenewalMode::Interval(self.interval))
            .build()
            .expect("the options are valid");
        self.guards.extend((0..held).map(|number| {
            let guard = self.manager.acquire_mutex_with_options(lock_name(number), options.clone());
            guard.expect("the lock is free")
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
