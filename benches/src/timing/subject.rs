//! What a timer must offer to be measured.

use std::time::{Duration, Instant};

use crate::clock::now;
use crate::process::wait_until_quiet;

/// How long after each firing a timeout that is armed again is due once more.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// Marks the number of a timeout that is armed again.
const AGAIN: u64 = 1 << 63;

/// The number of a timeout that is armed again is when it is due, counted from some origin.
pub(crate) fn again(since_origin: Duration) -> u64 {
    AGAIN | u64::try_from(since_origin.as_nanos()).unwrap_or(0)
}

/// When such a timeout is due the next time; none for any other.
pub(crate) fn due_again(number: u64) -> Option<Duration> {
    (number & AGAIN != 0).then(|| Duration::from_nanos(number & !AGAIN) + PERIOD)
}

/// A timer, shared by all clones of it. A measured process starts one and ends without stopping it.
pub(crate) trait Subject: Clone + Send + 'static {
    /// What names one timeout.
    type Handle: Send + 'static;

    /// The name of the thread that keeps the time; none if all threads but the main one are looked at.
    const THREAD: Option<&'static str> = None;

    /// Starts it with a tick of 1 ms, and with so many buckets if it has buckets.
    fn start(buckets: usize) -> Self;

    /// Keeps a timeout, which is to be [`fired`](crate::timing::record::fired) with this number.
    fn schedule(&mut self, delay: Duration, number: u64) -> Self::Handle;

    /// The same by an instant; a timer that takes only delays reads the clock for it.
    fn schedule_at(&mut self, deadline: Instant, number: u64) -> Self::Handle {
        self.schedule(deadline.saturating_duration_since(now()), number)
    }

    /// Takes it back, if it has not fired.
    fn cancel(&mut self, handle: Self::Handle);

    /// Lets go of the handle and leaves the timeout pending.
    fn leave(handle: Self::Handle) {
        drop(handle);
    }

    /// Waits until all that was scheduled, so many timeouts since the start, is where it stays until it is due.
    fn absorb(&mut self, _timeouts: u64) {
        wait_until_quiet();
    }

    /// Waits until all that was cancelled is freed, or as free as it gets before it is due.
    fn free(&mut self) {
        wait_until_quiet();
    }

    /// Schedules a timeout that schedules itself once more, a second later, whenever it fires.
    fn arm(&mut self, _deadline: Instant) {}

    /// Runs what schedules and cancels on this thread.
    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}
