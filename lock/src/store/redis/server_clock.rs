//! What time it is on the server, as far as its replies have told.
//!
//! A not-after is a moment by the server's clock. If the guess is wrong, because the server's clock was set, a command
//! is refused as late, the refusal carries the server's time, and the command is sent again. So an error here costs a
//! retry and never safety.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};

use crate::value::ServerTime;

/// The offset of the server's clock from ours.
#[derive(Debug)]
pub(super) struct ServerClock {
    origin: Instant,
    offset: AtomicI64,
}

impl ServerClock {
    pub(super) fn new() -> Self {
        Self { origin: SystemClock.now(), offset: AtomicI64::new(0) }
    }

    /// Takes in what a reply told of the server's time.
    pub(super) fn learn(&self, server: ServerTime) {
        // Relaxed: the number stands alone.
        self.offset.store(server.0.saturating_sub(self.elapsed()), Ordering::Relaxed);
    }

    /// The server's time when ours is `instant`.
    pub(super) fn at(&self, instant: Instant) -> ServerTime {
        let since = millis(instant.saturating_duration_since(self.origin));
        ServerTime(since.saturating_add(self.offset.load(Ordering::Relaxed)))
    }

    fn elapsed(&self) -> i64 {
        millis(SystemClock.now().saturating_duration_since(self.origin))
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
