//! Until when something may take, and which errors only say that time has passed.

use std::io;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};

/// Until when something may take.
///
/// Reading the clock is a good part of what a short command costs, so it remembers when the clock was read last: what
/// is answered at once does not ask again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    read_at: Instant,
    deadline: Instant,
}

impl Limit {
    /// From now on, for that long.
    pub(super) fn after(timeout: Duration) -> Self {
        let read_at = SystemClock.now();
        Self { read_at, deadline: read_at + timeout }
    }

    pub(super) fn deadline(self) -> Instant {
        self.deadline
    }

    /// What was left when the clock was read last. A wait that is set to it ends late by what has passed since.
    pub(super) fn left(self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(self.read_at);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Reads the clock. After whatever may have taken long.
    pub(super) fn refresh(&mut self) -> Self {
        self.read_at = SystemClock.now();
        *self
    }
}

/// Whether a system call ended for no reason but its own timeout or a signal.
pub(super) fn passes(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
