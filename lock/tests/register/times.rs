//! The durations of these tests, and the only place that sleeps.

use std::time::{Duration, Instant};

use wheellock::{Clock, SystemClock};

/// The watchdog's lease of all clients.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// How long a process waits for a reply while there are faults.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);

/// How long a thread waits for a lock at most.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// Lets time pass: while a fault lasts, while a holder works. Nothing is waited for in this way.
pub(crate) fn let_pass(time: Duration) {
    let _nothing = crossbeam_channel::never::<()>().recv_timeout(time);
}
