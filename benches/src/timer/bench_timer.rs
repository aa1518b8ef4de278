//! What a timer offers to be measured.

use std::time::{Duration, Instant};

use crate::harness::clock::now;
use crate::harness::process::wait_until_quiet;

/// How long after each firing a timeout that re-arms itself is due again.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// Marks the number of a timeout that re-arms itself.
const AGAIN: u64 = 1 << 63;

/// The number of a timeout that re-arms itself: when it is due, counted from some origin.
pub(crate) fn again(since_origin: Duration) -> u64 {
    AGAIN | u64::try_from(since_origin.as_nanos()).unwrap_or(0)
}

/// When such a timeout is due the next time. `None` for any other.
pub(crate) fn due_again(number: u64) -> Option<Duration> {
    (number & AGAIN != 0).then(|| Duration::from_nanos(number & !AGAIN) + PERIOD)
}

/// A timer, shared by all clones of it. A measuring process starts one, and ends without stopping
/// it.
pub(crate) trait BenchTimer: Clone + Send + 'static {
    /// Identifies one timeout.
    type Handle: Send + 'static;

    /// The name of the timer's thread. `None` if all threads but the main one are counted.
    const THREAD: Option<&'static str> = None;

    /// Starts it with a tick of 1 ms, and with this number of buckets if it has buckets.
    fn start(buckets: usize) -> Self;

    /// Schedules a timeout that calls [`fired`](crate::timer::record::fired) with this number.
    fn schedule(&mut self, delay: Duration, number: u64) -> Self::Handle;

    /// Schedules a timeout with a deadline, which calls [`fired`](crate::timer::record::fired) with
    /// this number. A timer that takes only delays reads the clock for it.
    fn schedule_at(&mut self, deadline: Instant, number: u64) -> Self::Handle {
        self.schedule(deadline.saturating_duration_since(now()), number)
    }

    /// Cancels it, if it has not fired.
    fn cancel(&mut self, handle: Self::Handle);

    /// Schedules a timeout for each of the slots, after these delays.
    fn schedule_all(
        &mut self,
        slots: &mut [Option<Self::Handle>],
        mut delay: impl FnMut() -> Duration,
    ) {
        for slot in slots {
            *slot = Some(self.schedule(delay(), 0));
        }
    }

    /// Cancels what is in the slots.
    fn cancel_all(&mut self, slots: &mut [Option<Self::Handle>]) {
        for handle in slots.iter_mut().filter_map(Option::take) {
            self.cancel(handle);
        }
    }

    /// Drops the handle, and leaves the timeout pending.
    fn leave(handle: Self::Handle) {
        drop(handle);
    }

    /// Waits until all timeouts, this many since the start, are where they stay until they are due.
    fn absorb(&mut self, _timeouts: u64) {
        wait_until_quiet();
    }

    /// Waits until all that was cancelled is freed, as far as it is freed before it is due.
    fn free(&mut self) {
        wait_until_quiet();
    }

    /// Schedules a timeout that re-arms itself for a second later whenever it fires.
    fn arm(&mut self, _deadline: Instant) {}

    /// Runs what schedules and cancels on this thread, in a runtime if the timer needs one.
    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}
