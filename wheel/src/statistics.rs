//! What a timer counts, always.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::Histogram;

/// What a timer has done since it was built, and how late it was.
///
/// It is always counted; that costs a few additions a timeout, under locks that are held anyway, and a look at the clock
/// for each task that is run. While other threads use the timer, the numbers are of slightly different moments.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// timer.schedule(Duration::from_secs(1), || {})?;
/// timer.schedule(Duration::from_secs(1), || {})?.cancel();
/// timer.schedule(Duration::from_secs(9), || {})?;
/// clock.advance(Duration::from_secs(2));
/// let statistics = timer.statistics();
/// assert_eq!(statistics.scheduled, 3);
/// assert_eq!((statistics.fired, statistics.cancelled, statistics.pending), (1, 1, 1));
/// assert_eq!(statistics.lateness_max, Duration::ZERO); // a manual clock is never late
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// How many timeouts were taken in. A periodic task counts once, and rescheduling does not count.
    pub scheduled: u64,
    /// How often something that was due was run, or handed to the executor or the handler. Each run of a periodic task
    /// counts, also one that was cancelled after it was taken to be run.
    pub fired: u64,
    /// How many pending timeouts were cancelled, one by one. What was pending when the timer was stopped is not among
    /// them.
    pub cancelled: u64,
    /// How often something was handed back because the timer was full.
    pub rejected: u64,
    /// How many panics were caught: of tasks, handlers, executors, and destructors of theirs.
    pub panicked: u64,
    /// How many timeouts are pending: taken in, not cancelled, not taken to be run.
    pub pending: usize,
    /// Half of all firings were at most this late, counted from the tick at which they were due: the deadline rounded up.
    /// Known to an eighth of itself, rounded up.
    pub lateness_p50: Duration,
    /// Of a hundred firings, 99 were at most this late. Known to an eighth of itself, rounded up.
    pub lateness_p99: Duration,
    /// The latest firing of all, exactly.
    pub lateness_max: Duration,
    /// How long the longest task took: on the executor's thread if there is one. For a
    /// [`BatchTimer`](crate::BatchTimer), the longest call of its handler.
    pub longest_task: Duration,
}

/// What firing is noted in. Written by the ticker and by the executor's threads, read by anyone.
#[derive(Debug)]
pub(crate) struct Record {
    lateness: Histogram,
    longest_nanos: AtomicU64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { lateness: Histogram::new(), longest_nanos: AtomicU64::new(0) }
    }

    /// Notes that `count` timeouts fired this late.
    pub(crate) fn fired(&self, late_nanos: u64, count: u64) {
        self.lateness.record(late_nanos, count);
    }

    /// Notes how long a task took.
    pub(crate) fn took(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a number to look at, nothing follows from it.
        if nanos > self.longest_nanos.load(Ordering::Relaxed) {
            self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Everything that is noted here, and zeros for the rest.
    pub(crate) fn statistics(&self) -> Statistics {
        let spread = self.lateness.spread();
        Statistics {
            scheduled: 0,
            fired: spread.count,
            cancelled: 0,
            rejected: 0,
            panicked: 0,
            pending: 0,
            lateness_p50: spread.p50,
            lateness_p99: spread.p99,
            lateness_max: spread.max,
            longest_task: Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)),
        }
    }
}
