//! The durations of the soak, and the only place that sleeps.

use std::time::{Duration, Instant};

use crossbeam_channel::never;
use hashed_wheel::Parker;
use wheellock::{Clock, SystemClock};

/// The watchdog's lease of all clients: what a dead holder costs the others.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long a client waits for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

/// How long a thread waits for a lock at most.
pub(crate) const WAIT: Duration = Duration::from_secs(3);

/// The longest work of a holder, which loses its lock meanwhile.
pub(crate) const LONG_WORK: Duration = Duration::from_millis(1200);

/// What a busy machine may add to any of them.
pub(crate) const SLACK: Duration = Duration::from_secs(4);

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

/// Lets time pass that the seed has laid down: until the next disruption, while it lasts, while a
/// holder works. Nothing is waited for in this way. The passing of time is what the soak is
/// about.
pub(crate) fn let_pass(time: Duration) {
    SystemClock.park(&Parker::new(), Some(now() + time), &never());
}
