//! The clock that benchmarks read, and the pause that lets threads fall asleep.

use std::time::{Duration, Instant};

/// The present instant.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Sleeps, so that whoever is about to wait does wait.
#[expect(clippy::disallowed_methods, reason = "a benchmark runs in real time")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
