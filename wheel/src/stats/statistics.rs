//! What a timer counts.

use std::time::Duration;

use super::histogram::Summary;

/// What a timer has done since it was built, and how late it was.
///
/// It is always counted. That costs a few additions per timeout, under locks that are held anyway,
/// and a reading of the clock for each task that runs. While other threads use the timer, the
/// figures are of slightly different moments.
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
    /// of a periodic task counts, even if it was cancelled after the ticker took it.
    pub fired: u64,
    /// How many pending timeouts were cancelled, without those that were pending when the timer was
    /// stopped.
    pub cancelled: u64,
    /// How many timeouts were refused because the timer was full.
    pub rejected: u64,
    /// How many panics were caught: of tasks, handlers, executors, their destructors, and the clock
    /// on the ticker thread.
    pub panicked: u64,
    /// How many timeouts are pending: scheduled, not cancelled, not yet taken to be run.
    pub pending: usize,
    /// How late timeouts fired, counted from the tick at which each was due (its deadline, rounded
    /// up).
    pub lateness: Summary,
    /// The duration of the longest task, on the executor's thread if there is an executor. For a
    /// [`BatchTimer`](crate::BatchTimer), that of the longest call of its handler.
    pub longest_task: Duration,
}
