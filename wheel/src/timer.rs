//! The timer that runs closures.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::BatchTimer;
use crate::clock::Clock;
use crate::config::TimerBuilder;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::firing::Firing;
use crate::job::{BoxedJob, Job, Once};
use crate::lifecycle::Ending;
use crate::period::Period;
use crate::periodic::{Periodic, PeriodicTimeout};
use crate::shard::{Due, home};
use crate::statistics::Statistics;
use crate::task::{Executor, Task};
use crate::tick::NEVER;
use crate::timeout::{Timeout, UnprocessedTask};

/// A timer that runs closures on a thread of its own when their time has come.
///
/// It is Netty's `HashedWheelTimer` in Rust, on a [`Wheel`](crate::Wheel) that is never walked and a ticker that does
/// not tick while nothing is due.
///
/// Tasks run one after the other on the ticker thread, with no lock held. They may schedule and cancel, and may drop
/// the timer that runs them; only [`stop`](Self::stop) and [`drain`](Self::drain) they may not. A task that takes long, or waits, delays all
/// behind it: hand such work to another thread. A task that panics harms no other: the panic is caught,
/// [counted](Self::panics) and reported to [`TimerBuilder::on_panic`].
///
/// All methods take `&self`; share a timer in an [`Arc`]. One timer serves a whole program: it takes one thread, and a
/// second one is needed only to keep slow tasks away from others.
///
/// With an [executor](TimerBuilder::executor) a task runs on a thread of that one's, and must neither stop nor drop the
/// timer if the executor waits for its own threads: the ticker ends last of all by dropping the executor.
///
/// Dropping the timer drops the pending tasks unrun and waits for the ticker thread to end, which finishes the tasks
/// that it has taken. If a task drops the timer, nothing is waited for. Do not drop it while holding what a task waits
/// for.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let (sender, receiver) = crossbeam_channel::unbounded();
/// let timeout = timer.schedule(Duration::from_secs(30), move || {
///     sender.send("too late").ok();
/// })?;
/// clock.advance(Duration::from_secs(29));
/// assert!(!timeout.is_expired());
/// clock.advance(Duration::from_secs(1));
/// assert!(timeout.is_expired());
/// assert_eq!(receiver.try_recv(), Ok("too late"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HashedWheelTimer {
    tasks: BatchTimer<BoxedJob>,
}

impl HashedWheelTimer {
    /// The settings of a timer, to be changed and then [built](TimerBuilder::build).
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }

    /// Runs `task` when `delay` has passed from now: not before, and at most a tick and the operating system's wake-up
    /// after, if no other task holds up the ticker thread. A delay that would end 584 years after the
    /// timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient) or `Stopped` (permanent).
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        match self.tasks.schedule_after(delay, Box::new(Once(task))) {
            Ok((shard, key)) => Ok(Timeout::new(Arc::clone(self.tasks.shard_numbered(shard)), key)),
            Err(error) => Err(error.map(Job::into_task)),
        }
    }

    /// Runs `task` when the timer's clock shows `deadline`, as [`schedule`](Self::schedule) does. A deadline that has
    /// passed is due at the next tick at the latest.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient) or `Stopped` (permanent).
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        match self.tasks.schedule_by(deadline, Box::new(Once(task))) {
            Ok((shard, key)) => Ok(Timeout::new(Arc::clone(self.tasks.shard_numbered(shard)), key)),
            Err(error) => Err(error.map(Job::into_task)),
        }
    }

    /// Runs `task` when `first` has passed, and then again and again as `period` says, each run as
    /// [`schedule`](Self::schedule) does it. Two runs never overlap: the next is scheduled when one has ended.
    ///
    /// It goes on until it is [cancelled](PeriodicTimeout::cancel) or the timer ends. A run that panics is caught,
    /// counted and reported, and the next takes place. Between runs the task counts as pending; under a
    /// [bound](TimerBuilder::max_pending_timeouts) it holds its place during a run as well, so that it can always come
    /// back. When the timer is stopped it is given back once, if it was pending; a run that is under way then is the
    /// last.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient), `Stopped` or `ZeroPeriod` (permanent).
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

    /// As [`schedule_periodic`](Self::schedule_periodic), for a task that can end itself: it runs again for as long as
    /// it returns [`ControlFlow::Continue`].
    ///
    /// # Errors
    ///
    /// As [`schedule_periodic`](Self::schedule_periodic).
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
        let firing = self.tasks.firing();
        let due = firing.clock.now().checked_add(first);
        let tick = due.map_or(NEVER, |due| firing.scale.deadline_tick(due));
        let shard = Arc::clone(self.tasks.shard_numbered(home()));
        let (job, timeout) = Periodic::new(task, period, due, shard, Arc::clone(firing));
        if period.length().is_zero() {
            return Err(ScheduleError::ZeroPeriod(job.into_task()));
        }
        timeout
            .admit(|| self.tasks.schedule_tick(tick, job).map(|(_, key)| key))
            .map_err(|error| error.map(Job::into_task))?;
        Ok(timeout)
    }

    /// How many tasks are pending: scheduled, not cancelled, not yet taken to be run. Exact while no other thread
    /// changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.tasks.pending_timeouts()
    }

    /// How many panics have been caught: of tasks, of their destructors, of the clock on the ticker thread.
    pub fn panics(&self) -> u64 {
        self.tasks.panics()
    }

    /// What the timer has done so far, and how late it was.
    pub fn statistics(&self) -> Statistics {
        self.tasks.statistics()
    }

    /// The clock that the timer goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.tasks.clock()
    }

    /// Stops the timer and gives back the tasks that were pending, in the order of the ticks at which they were due.
    /// Every task that was scheduled has been run, cancelled, or is given back here.
    ///
    /// It waits for the ticker thread to end, which first finishes the tasks that it has taken: 1024 at most. Nothing
    /// can be scheduled afterwards. The second call gives back nothing. Do not call it while holding what a task waits
    /// for.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if a task calls it. Nothing is stopped then.
    pub fn stop(&self) -> Result<Vec<UnprocessedTask>, StopError> {
        self.end(Ending::Stop)
    }

    /// Runs every task that is already due, then stops as [`stop`](Self::stop) does and gives back the rest.
    ///
    /// From the beginning of the call nothing new can be scheduled. It waits until every task has run that was due when
    /// it was called, or was handed to the executor.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if a task calls it. Nothing is stopped then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().build()?;
    /// timer.schedule(Duration::from_secs(60), || {})?;
    /// assert_eq!(timer.drain()?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self) -> Result<Vec<UnprocessedTask>, StopError> {
        self.end(Ending::Drain)
    }

    /// Starts the ticker thread of a timer that was to [start lazily](TimerBuilder::start_lazily), instead of leaving
    /// that to the first task. Without effect if it runs, and after a stop.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`], transient: the operating system gave no thread. A later call, or the next task,
    /// tries again.
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    ///
    /// let timer = HashedWheelTimer::builder().start_lazily().build()?;
    /// timer.start()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(&self) -> Result<(), BuildError> {
        self.tasks.start()
    }

    fn end(&self, ending: Ending) -> Result<Vec<UnprocessedTask>, StopError> {
        let unprocessed = self.tasks.end_with_deadlines(ending)?;
        Ok(unprocessed
            .into_iter()
            .map(|(deadline, job)| UnprocessedTask::new(deadline, job.into_task()))
            .collect())
    }
}

impl TimerBuilder {
    /// Starts a timer that runs closures.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system gives no thread (transient).
    pub fn build(mut self) -> Result<HashedWheelTimer, BuildError> {
        let executor = self.take_executor();
        let handler =
            |firing| move |due: &mut Due<BoxedJob>| run_all(&firing, executor.as_ref(), due);
        let tasks = self.build_batch_with(handler, |job| job.keeps_place())?;
        Ok(HashedWheelTimer { tasks })
    }
}

/// Runs each task by itself, so that a panic stops no other task of the batch.
fn run_all(firing: &Arc<Firing>, executor: Option<&Arc<dyn Executor>>, due: &mut Due<BoxedJob>) {
    // One look at the clock between two tasks says how long the one took and how late the other is.
    for job in &mut due.values {
        // All before anything foreign is called: whatever happens to the batch, their places come back.
        job.taken();
    }
    let mut begun = firing.now();
    for (job, tick) in due.values.drain(..).zip(&due.ticks) {
        firing.record.fired(firing.scale.nanos_after(*tick, begun), 1);
        begun = match executor {
            None => firing.run(begun, || job.run()),
            Some(executor) => {
                let task = on_executor(Arc::clone(firing), job);
                firing.panics.contain(|| executor.execute(task));
                firing.now()
            }
        };
    }
}

/// The task as an executor gets it: the panic of the closure is the timer's to count, on whichever thread it runs.
fn on_executor(firing: Arc<Firing>, job: BoxedJob) -> Task {
    Box::new(move || {
        let begun = firing.now();
        firing.run(begun, || job.run());
    })
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HashedWheelTimer").field("tasks", &self.tasks).finish()
    }
}
