//! What a timer counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::histogram::Histogram;

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
/// assert_eq!(statistics.lateness_max, Duration::ZERO); // a manual clock is never late
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The median lateness, from the tick at which a timeout was due (its deadline, rounded up).
    /// Rounded up, by at most an eighth.
    pub lateness_p50: Duration,
    /// The 99th percentile of the lateness. Rounded up, by at most an eighth.
    pub lateness_p99: Duration,
    /// The largest lateness, exactly.
    pub lateness_max: Duration,
    /// The duration of the longest task, on the executor's thread if there is an executor. For a
    /// [`BatchTimer`](crate::BatchTimer), that of the longest call of its handler.
    pub longest_task: Duration,
}

/// Lateness and durations. Written by the ticker and the executor's threads, read by any thread.
#[derive(Debug)]
pub(crate) struct Recorder {
    lateness: Histogram,
    longest_nanos: AtomicU64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { lateness: Histogram::new(), longest_nanos: AtomicU64::new(0) }
    }

    /// Records that `count` timeouts fired this late.
    pub(crate) fn record_lateness(&self, late_nanos: u64, count: u64) {
        self.lateness.record(late_nanos, count);
    }

    /// Records how long a task took.
    pub(crate) fn record_duration(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a figure, nothing depends on it.
        if nanos > self.longest_nanos.load(Ordering::Relaxed) {
            self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// The statistics that are recorded here, with zeros for the others.
    pub(crate) fn statistics(&self) -> Statistics {
        let lateness = self.lateness.summary();
        Statistics {
            scheduled: 0,
            fired: lateness.count,
            cancelled: 0,
            rejected: 0,
            panicked: 0,
            pending: 0,
            lateness_p50: lateness.p50,
            lateness_p99: lateness.p99,
            lateness_max: lateness.max,
            longest_task: Duration::from_nanos(self.longest_nanos.load(Ordering::Relaxed)),
        }
    }
}
