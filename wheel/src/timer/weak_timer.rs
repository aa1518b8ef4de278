//! What schedules closures on a timer: all of it but its thread.

use std::fmt;
use std::ops::ControlFlow;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::{BoxedJob, Job, Once};
use super::period::Period;
use super::periodic::{Periodic, PeriodicTimeout, once};
use super::task::Task;
use super::timeout::Timeout;
use super::weak_batch_timer::WeakBatchTimer;
use crate::driver::shard::home_shard;
use crate::error::ScheduleError;
use crate::time::tick::NEVER;
use crate::wheel::Key;

/// Schedules on a [`HashedWheelTimer`](crate::HashedWheelTimer), and keeps neither the timer nor
/// its thread alive.
///
/// It is for tasks that schedule themselves again: a task that owned the timer in an [`Arc`] would
/// keep it alive for ever. After the timer was stopped or dropped, scheduling fails with
/// [`ScheduleError::Stopped`].
///
/// It does not start a timer that [starts lazily](crate::TimerBuilder::start_lazily): what it
/// schedules is due when the timer has been started.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, WeakTimer};
///
/// // Polls with growing pauses. The task needs no slot for its own handle.
/// fn poll(timer: WeakTimer, pause: Duration) {
///     let again = timer.clone();
///     timer.schedule(pause, move || poll(again, pause * 2)).ok();
/// }
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// poll(timer.downgrade(), Duration::from_secs(1));
/// clock.advance(Duration::from_secs(20));
/// // After 1, 3, 7 and 15 seconds.
/// assert_eq!(timer.statistics().fired, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct WeakTimer {
    tasks: WeakBatchTimer<BoxedJob>,
}

impl WeakTimer {
    pub(crate) const fn new(tasks: WeakBatchTimer<BoxedJob>) -> Self {
        Self { tasks }
    }

    /// As [`HashedWheelTimer::schedule`](crate::HashedWheelTimer::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        self.tasks.schedule_task(self.tasks.context().tick_in(delay), task)
    }

    /// As [`HashedWheelTimer::schedule_at`](crate::HashedWheelTimer::schedule_at).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        self.tasks.schedule_task(self.tasks.context().scale.deadline_tick(deadline), task)
    }

    /// As [`HashedWheelTimer::schedule_periodic`](crate::HashedWheelTimer::schedule_periodic).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped`, `ZeroPeriod` or
    /// `Forked` (permanent).
    pub fn schedule_periodic(
        &self,
        first: Duration,
        period: Period,
        mut task: impl FnMut() + Send + 'static,
    ) -> Result<PeriodicTimeout, ScheduleError<Task>> {
        self.schedule_while(first, period, move || {
            task();
            ControlFlow::Continue(())
        })
    }

    /// As [`HashedWheelTimer::schedule_while`](crate::HashedWheelTimer::schedule_while).
    ///
    /// # Errors
    ///
    /// As [`schedule_periodic`](Self::schedule_periodic).
    pub fn schedule_while(
        &self,
        first: Duration,
        period: Period,
        task: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> Result<PeriodicTimeout, ScheduleError<Task>> {
        self.tasks.schedule_periodic_task(first, period, task)
    }
}

impl WeakBatchTimer<BoxedJob> {
    #[inline]
    pub(crate) fn schedule_task(
        &self,
        tick: u64,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        match self.schedule_at_home(tick, Box::new(Once(task))) {
            Ok((shard, key)) => Ok(self.timeout(shard, key)),
            Err(error) => Err(error.map(Job::into_task)),
        }
    }

    pub(crate) fn schedule_periodic_task(
        &self,
        first: Duration,
        period: Period,
        task: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> Result<PeriodicTimeout, ScheduleError<Task>> {
        let context = self.context();
        if !context.home.is_current_by_count() {
            return Err(ScheduleError::Forked(once(task)));
        }
        let due = context.clock.now().checked_add(first);
        let tick = due.map_or(NEVER, |due| context.scale.deadline_tick(due));
        let shard = Arc::clone(self.shard_numbered(home_shard()));
        let (job, timeout) = Periodic::new(task, period, due, shard, Arc::clone(context));
        if period.length().is_zero() {
            return Err(ScheduleError::ZeroPeriod(job.into_task()));
        }
        timeout
            .schedule_with(|| self.schedule_at_home(tick, job).map(|(_, key)| key))
            .map_err(|error| error.map(Job::into_task))?;
        Ok(timeout)
    }

    /// The handle of a task that was scheduled.
    fn timeout(&self, shard: u8, key: Key) -> Timeout {
        Timeout::new(Arc::clone(self.shard_numbered(shard)), key)
    }
}

// A panic cannot leave it half changed: no code of a user runs under its locks.
impl UnwindSafe for WeakTimer {}
impl RefUnwindSafe for WeakTimer {}

/// Shows how many tasks are pending, when the next is due, and how many panics were caught.
impl fmt::Debug for WeakTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.debug_as("WeakTimer", formatter)
    }
}
