//! The handle for scheduling closures, without the timer's thread.

use std::fmt;
use std::ops::ControlFlow;
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
use crate::stats::statistics::Statistics;
use crate::time::clock::Clock;
use crate::time::tick::NEVER;
use crate::wheel::Key;

/// A handle for scheduling on a [`HashedWheelTimer`](crate::HashedWheelTimer), without ownership.
///
/// Returned by [`HashedWheelTimer::downgrade`](crate::HashedWheelTimer::downgrade).
///
/// The handle keeps neither the timer nor the ticker thread alive, and is for tasks that schedule
/// themselves again. A task owning the timer in an [`Arc`] would keep the timer alive for ever.
/// After a stop or drop of the timer, scheduling fails with [`ScheduleError::Stopped`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, WeakTimer};
///
/// // Polls with growing pauses. Each poll schedules the next poll with a cloned handle.
/// fn poll(timer: WeakTimer, pause: Duration) {
///     let again = timer.clone();
///     timer.schedule(pause, move || poll(again, pause * 2)).ok();
/// }
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// poll(timer.downgrade(), Duration::from_secs(1));
/// clock.advance(Duration::from_secs(20));
/// // The polls ran after 1, 3, 7 and 15 seconds.
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

    /// Schedules `task` to run once after `delay`, and returns the handle to cancel or reschedule
    /// the task. Dropping the handle does not cancel the task.
    ///
    /// The task runs on the ticker thread, or where the
    /// [executor](crate::TimerBuilder::build_with_executor) runs the task. The task runs no
    /// earlier, and at most a tick plus the operating system's wake-up later, unless another task
    /// delays the ticker thread. A task due more than 584 years after the timer's start never runs,
    /// but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked` (permanent).
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        self.tasks.schedule_task(self.tasks.context().tick_in(delay), task)
    }

    /// Schedules `task` to run once when the timer's clock reaches `deadline`, and otherwise as
    /// [`schedule`](Self::schedule) does.
    ///
    /// With a past deadline, the task is due at the next tick at the latest.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked` (permanent).
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        self.tasks.schedule_task(self.tasks.context().scale.deadline_tick(deadline), task)
    }

    /// Schedules `task` to run after `first`, and then repeatedly by the rules of `period`, and
    /// returns the handle to end the task. Dropping the handle does not end the task.
    ///
    /// Thread and lateness of each run are as for [`schedule`](Self::schedule). Runs never overlap:
    /// the next run is scheduled when the current run has ended.
    ///
    /// The task repeats until [cancelled](PeriodicTimeout::cancel) or until the timer is stopped. A
    /// panic in a run is caught, counted and reported, and the next run takes place. Between runs
    /// the task counts as pending. With a [limit](crate::TimerBuilder::max_pending_timeouts) the
    /// task also counts during a run, so the limit never refuses the next run. A stop returns a
    /// pending task, once; a run under way at a stop is the last run.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked` (permanent).
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

    /// Schedules `task` as [`schedule_periodic`](Self::schedule_periodic) does, until a run returns
    /// [`ControlFlow::Break`]. After a run that panics, the next run takes place.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient), `Stopped` or `Forked` (permanent).
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, Period};
    ///
    /// let clock = ManualClock::new();
    /// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    /// let mut left = 3;
    /// let pause = Duration::from_secs(1);
    /// let countdown = timer.schedule_while(pause, Period::fixed_delay(pause), move || {
    ///     left -= 1;
    ///     if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// })?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(countdown.runs(), 3);
    /// assert!(countdown.is_ended());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_while(
        &self,
        first: Duration,
        period: Period,
        task: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> Result<PeriodicTimeout, ScheduleError<Task>> {
        self.tasks.schedule_periodic_task(first, period, task)
    }

    /// Returns the number of pending tasks: scheduled, not cancelled, not yet taken for a run.
    ///
    /// The number is exact while no thread schedules, cancels or takes tasks.
    #[must_use]
    pub fn pending_timeouts(&self) -> usize {
        self.tasks.pending_timeouts()
    }

    /// Returns the timer's counts since the start, and the lateness of the tasks.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.tasks.statistics()
    }

    /// Returns the timer's clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.tasks.clock()
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
        timeout
            .schedule_with(|| self.schedule_at_home(tick, job).map(|(_, key)| key))
            .map_err(|error| error.map(Job::into_task))?;
        Ok(timeout)
    }

    /// Returns the handle of a scheduled task.
    fn timeout(&self, shard: u8, key: Key) -> Timeout {
        Timeout::new(Arc::clone(self.shard_numbered(shard)), key)
    }
}

/// Shows the number of pending tasks, the time until the next is due, and the number of panics.
impl fmt::Debug for WeakTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.debug_as("WeakTimer", formatter)
    }
}
