//! The counts of a timer.

use std::time::Duration;

use super::histogram::Summary;

/// Counts of a timer's timeouts since the timer was built, and their lateness.
///
/// Returned by [`WeakTimer::statistics`](crate::WeakTimer::statistics) and
/// [`WeakBatchTimer::statistics`](crate::WeakBatchTimer::statistics).
///
/// Counting is always on. The cost is a few additions for a timeout, under locks held anyway, and a
/// reading of the clock for each task run. While other threads use the timer, the figures are of
/// slightly different moments.
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
/// assert_eq!(statistics.lateness.max, Duration::ZERO); // a manual clock is never late
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// How many timeouts were scheduled. A periodic task counts once; rescheduling does not count.
    pub scheduled: u64,
    /// How many timeouts were due and were run, or passed to the executor or the handler. Each run
    /// of a periodic task counts, even if the task was cancelled after the ticker took the task.
    pub fired: u64,
    /// How many pending timeouts were cancelled. Timeouts pending at the stop of the timer do not
    /// count.
    pub cancelled: u64,
    /// How many timeouts were refused because the timer was full.
    pub rejected: u64,
    /// How many panics were caught: of tasks, handlers, executors, their destructors, and the clock
    /// on the ticker thread.
    pub panicked: u64,
    /// How many timeouts are pending: scheduled, not cancelled, not yet taken to be run.
    pub pending: usize,
    /// How late timeouts fired, counted from the tick at which each timeout was due (the deadline,
    /// rounded up).
    pub lateness: Summary,
    /// The duration of the longest task, on the executor's thread if there is an executor. For a
    /// [`BatchTimer`](crate::BatchTimer), the duration of the handler's longest call.
    pub longest_task: Duration,
}
