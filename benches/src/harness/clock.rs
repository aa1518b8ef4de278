//! Real time, which a benchmark measures and waits for.

use std::time::{Duration, Instant};

/// The present instant.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Lets the calling thread sleep.
#[expect(clippy::disallowed_methods, reason = "a benchmark runs in real time")]
pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
