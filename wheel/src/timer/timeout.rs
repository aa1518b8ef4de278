//! The handle of a scheduled task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::job::{BoxedJob, Job};
use super::task::Task;
use crate::driver::shard::{EntryStage, Shard};
use crate::wheel::Key;

/// A handle to a scheduled task, for cancelling, rescheduling and querying the task.
///
/// Returned by [`WeakTimer::schedule`](crate::WeakTimer::schedule) and
/// [`WeakTimer::schedule_at`](crate::WeakTimer::schedule_at).
///
/// Dropping the handle does not cancel the task; [`cancel_on_drop`](Self::cancel_on_drop) returns a
/// handle that cancels on drop. The handle does not keep the task alive, and may outlive the timer.
///
/// The handle is not `Clone`, because the handle itself records whether the task was cancelled.
/// Clones would have to share the record in an allocation for each task, which is most of the cost
/// of scheduling. Threads share a handle in an [`Arc`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let timeout = timer.schedule(Duration::from_secs(5), || unreachable!("cancelled"))?;
/// assert!(timeout.cancel());
/// clock.advance(Duration::from_secs(6));
/// assert!(timeout.is_cancelled());
/// assert!(!timeout.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Timeout {
    shard: Arc<Shard<BoxedJob>>,
    key: Key,
    /// Whether this handle, the task's only handle, has cancelled the task. Written under the
    /// shard's lock, which orders the accesses, so all accesses are relaxed.
    cancelled: AtomicBool,
}

impl Timeout {
    pub(crate) fn new(shard: Arc<Shard<BoxedJob>>, key: Key) -> Self {
        Self { shard, key, cancelled: AtomicBool::new(false) }
    }

    /// Cancels the task unless the ticker has taken the task, and returns whether this call has
    /// cancelled the task.
    ///
    /// The result is `false` if the task has run, is running or is about to run, if the task was
    /// cancelled before, and after a stop of the timer. Either a call of `cancel`, the ticker, or
    /// [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop) gets the task, never two of them.
    ///
    /// The task is dropped before the call returns, on the calling thread, with no lock held.
    pub fn cancel(&self) -> bool {
        // Dropped here, without the lock: the destructor is user code.
        self.take_job().is_some()
    }

    /// Cancels the task as [`cancel`](Self::cancel) does, and returns the task.
    ///
    /// `None` if this call did not cancel the task.
    ///
    /// `take` replaces a callback for cancellation: the caller reacts to the cancel. Work for every
    /// case in which the task does not run belongs in the destructor of a value owned by the task.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, crossbeam_channel};
    ///
    /// let timer = HashedWheelTimer::builder().build()?;
    /// let (sender, receiver) = crossbeam_channel::bounded(1);
    /// let timeout = timer.schedule(Duration::from_secs(60), move || sender.send("now").unwrap())?;
    /// if let Some(task) = timeout.take() {
    ///     task();
    /// }
    /// assert!(timeout.is_cancelled());
    /// assert_eq!(receiver.try_recv()?, "now");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&self) -> Option<Task> {
        self.take_job().map(Job::into_task)
    }

    fn take_job(&self) -> Option<BoxedJob> {
        let note = || self.cancelled.store(true, Ordering::Relaxed);
        self.shard.cancel_with(self.key, note)
    }

    /// Changes the deadline to `deadline`, an instant of the timer's clock.
    ///
    /// Returns `true` if the task is pending and has the new deadline, and `false`, without effect,
    /// if the task is no longer pending. With a past deadline, the task is due at the next tick at
    /// the latest.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{Clock, HashedWheelTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    /// let idle = timer.schedule(Duration::from_secs(30), || {})?;
    /// clock.advance(Duration::from_secs(20));
    /// // The connection was used: thirty seconds more.
    /// assert!(idle.reschedule(clock.now() + Duration::from_secs(30)));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(!idle.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule(&self, deadline: Instant) -> bool {
        self.reschedule_tick(self.shard.context().scale.deadline_tick(deadline))
    }

    /// Changes the deadline to `delay` from now, by the timer's clock.
    ///
    /// Returns `true` if the task is pending and has the new deadline, and `false`, without effect,
    /// if the task is no longer pending.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::new()?;
    /// let idle = timer.schedule(Duration::from_secs(30), || {})?;
    /// assert!(idle.reschedule_after(Duration::from_secs(60)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule_after(&self, delay: Duration) -> bool {
        self.reschedule_tick(self.shard.context().tick_in(delay))
    }

    fn reschedule_tick(&self, tick: u64) -> bool {
        self.shard.reschedule(self.key, tick, |_| {})
    }

    /// Returns whether the ticker has taken the task: the run has ended, is under way, or is about
    /// to start. In a forked child the result is `false`.
    pub fn is_expired(&self) -> bool {
        // The order matters: a cancel sets the flag under the shard's lock, before the entry is
        // seen as removed.
        self.shard.stage(self.key) == EntryStage::Removed && !self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns whether the task was cancelled.
    ///
    /// A task is cancelled by [`cancel`](Self::cancel) or [`take`](Self::take), or when the timer
    /// is stopped or dropped while the task is pending. In a forked child, the parent's tasks never
    /// run, and all are cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.shard.stage(self.key) == EntryStage::Unprocessed
    }

    /// Returns the deadline of the task, rounded up to a tick.
    ///
    /// `None` if the task is no longer pending, and for a deadline out of range.
    pub fn deadline(&self) -> Option<Instant> {
        self.shard.deadline(self.key)
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Timeout")
            .field("deadline", &self.deadline())
            .field("expired", &self.is_expired())
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
