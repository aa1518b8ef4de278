//! The handle of one scheduled task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::job::{BoxedJob, Job};
use crate::shard::{Shard, Stage};
use crate::task::Task;
use crate::wheel::Key;

/// One scheduled task: a handle to cancel it, to give it another deadline, and to see what became of it.
///
/// Dropping the handle does not cancel the task. The handle keeps nothing of the task alive, and may outlive the timer.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let timeout = timer.schedule(Duration::from_secs(5), || unreachable!("it is cancelled"))?;
/// assert!(timeout.cancel());
/// clock.advance(Duration::from_secs(6));
/// assert!(timeout.is_cancelled());
/// assert!(!timeout.is_expired());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Timeout {
    shard: Arc<Shard<BoxedJob>>,
    key: Key,
    /// Whether a cancel through this handle, the only one there is, has won. Written under the shard's lock, which
    /// orders it; so it is accessed relaxed.
    cancelled: AtomicBool,
}

impl Timeout {
    pub(crate) fn new(shard: Arc<Shard<BoxedJob>>, key: Key) -> Self {
        Self { shard, key, cancelled: AtomicBool::new(false) }
    }

    /// Cancels the task if the ticker has not taken it to be run, and returns whether this call did so. Of all calls
    /// of `cancel`, the ticker and [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop), exactly one gets the
    /// task.
    ///
    /// The task is dropped before this returns, on the calling thread, with no lock held.
    pub fn cancel(&self) -> bool {
        // Dropped here, with the lock released: its destructor is foreign code.
        self.take_job().is_some()
    }

    /// As [`cancel`](Self::cancel), but gives the task back instead of dropping it. None if this call has not won.
    ///
    /// It is what a cancel callback is for elsewhere: what is to happen on a cancel, the canceller does with the task in
    /// hand. What must happen on every end without a run belongs into the destructor of something that the task owns.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::HashedWheelTimer;
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

    /// Gives the task another deadline, an instant of the timer's clock. False, and nothing happens, if the task is
    /// not pending any more.
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
    /// // Something was heard: thirty seconds more.
    /// assert!(idle.reschedule(clock.now() + Duration::from_secs(30)));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(!idle.is_expired());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule(&self, deadline: Instant) -> bool {
        self.shard.reschedule(self.key, deadline)
    }

    /// Whether the task's time came: the ticker has taken it, and has run it, runs it now or will in a moment.
    pub fn is_expired(&self) -> bool {
        // In this order: the look under the shard's lock comes after the note that a winning cancel made under it.
        self.shard.stage(self.key) == Stage::Gone && !self.cancelled.load(Ordering::Relaxed)
    }

    /// Whether the task was cancelled: by [`cancel`](Self::cancel), or because it was pending when the timer was
    /// stopped or dropped.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.shard.stage(self.key) == Stage::Unprocessed
    }

    /// When the task is due: its deadline, rounded up to a tick. None if it is not pending any more, and for a deadline
    /// that never comes.
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

/// A task that was pending when its timer was stopped. Dropping it drops the task unrun.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::HashedWheelTimer;
///
/// let timer = HashedWheelTimer::builder().build()?;
/// timer.schedule(Duration::from_secs(60), || {})?;
/// for unprocessed in timer.stop()? {
///     assert!(unprocessed.deadline().is_some());
///     unprocessed.run();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UnprocessedTask {
    deadline: Option<Instant>,
    task: Task,
}

impl UnprocessedTask {
    pub(crate) fn new(deadline: Option<Instant>, task: Task) -> Self {
        Self { deadline, task }
    }

    /// When it would have been due; none for a deadline that never comes.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Runs the task now, on the calling thread.
    ///
    /// # Panics
    ///
    /// If the task does.
    pub fn run(self) {
        (self.task)();
    }

    /// The task itself.
    #[must_use]
    pub fn into_task(self) -> Task {
        self.task
    }
}

impl fmt::Debug for UnprocessedTask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnprocessedTask")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
