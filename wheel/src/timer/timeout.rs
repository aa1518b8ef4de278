//! The handle of one scheduled task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::job::{BoxedJob, Job};
use super::task::Task;
use crate::driver::shard::{EntryStage, Shard};
use crate::wheel::Key;

/// A handle to one scheduled task: to cancel it, to reschedule it, and to see whether it ran.
///
/// Dropping the handle does not cancel the task; [`cancel_on_drop`](Self::cancel_on_drop) makes a
/// handle that does. The handle does not keep the task alive, and may outlive the timer.
///
/// It is not `Clone`: the handle itself remembers whether the task was cancelled. Clones would have
/// to share that, in memory of its own for each task, which is most of what scheduling costs.
/// Threads that share a handle have it in an [`Arc`].
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
    /// Whether this handle, the only one of the task, has cancelled it. Written under the shard's
    /// lock, which orders it, so it is accessed relaxed.
    cancelled: AtomicBool,
}

impl Timeout {
    pub(crate) fn new(shard: Arc<Shard<BoxedJob>>, key: Key) -> Self {
        Self { shard, key, cancelled: AtomicBool::new(false) }
    }

    /// Cancels the task if the ticker has not taken it to be run, and returns whether this call did
    /// so. Either a call of `cancel`, the ticker, or
    /// [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop) gets the task, never two of them.
    ///
    /// The task is dropped before this returns, on the calling thread, with no lock held.
    pub fn cancel(&self) -> bool {
        // Dropped here, without the lock: its destructor is a user's code.
        self.take_job().is_some()
    }

    /// As [`cancel`](Self::cancel), but returns the task instead of dropping it. `None` if this
    /// call did not cancel it.
    ///
    /// It replaces a callback for cancellation: the caller does what is to happen on a cancel. What
    /// must happen whenever the task does not run belongs in the destructor of a value that the
    /// task owns.
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

    /// Gives the task another deadline, an instant of the timer's clock. Returns false, without
    /// effect, if the task is no longer pending.
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

    /// As [`reschedule`](Self::reschedule), with a delay from now.
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

    /// Whether the ticker has taken the task: it has run, runs now, or is about to run.
    pub fn is_expired(&self) -> bool {
        // In this order: a cancel sets the flag under the shard's lock, before the entry is seen as
        // removed.
        self.shard.stage(self.key) == EntryStage::Removed && !self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether the task was cancelled: by [`cancel`](Self::cancel) or [`take`](Self::take), or
    /// because it was pending when the timer was stopped or dropped. In a child of a fork the
    /// parent's tasks never run, and all are cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.shard.stage(self.key) == EntryStage::Unprocessed
    }

    /// When the task is due: its deadline, rounded up to a tick. `None` if it is no longer pending,
    /// and for a deadline that never comes.
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
