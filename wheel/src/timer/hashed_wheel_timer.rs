//! The timer that runs closures.

use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch_timer::{BatchTimer, Unprocessed};
use super::builder::TimerBuilder;
use super::job::BoxedJob;
use super::period::Period;
use super::periodic::{PeriodicTimeout, once};
use super::task::{Executor, Task, boxed};
use super::timeout::{Timeout, UnprocessedTask};
use super::weak_batch_timer::WeakBatchTimer;
use super::weak_timer::WeakTimer;
use crate::driver::context::Context;
use crate::driver::lifecycle::StopMode;
use crate::driver::shard::Due;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::stats::statistics::Statistics;
use crate::time::clock::Clock;

/// A timer that runs closures on a thread of its own when they are due.
///
/// It is Netty's `HashedWheelTimer` in Rust, on a [`Wheel`](crate::Wheel) whose buckets are never
/// walked, and with a ticker thread that sleeps while nothing is due.
///
/// Tasks run one after the other on the ticker thread, with no lock held. They may schedule and
/// cancel, and may drop the timer that runs them, but may not call [`stop`](Self::stop) or
/// [`drain`](Self::drain). A task that takes long or blocks delays all behind it: move such work to
/// another thread. A panic of a task affects no other: it is caught, [counted](Self::panics) and
/// reported to [`TimerBuilder::on_panic`].
///
/// All methods take `&self`; share a timer in an [`Arc`]. One timer serves a whole program. It has
/// one thread, and a second timer is useful only to keep slow tasks away from others.
///
/// With an [executor](TimerBuilder::executor) a task runs on a thread of the executor. If the
/// executor waits for its threads when it is dropped, a task must neither stop nor drop the timer:
/// the ticker thread drops the executor when it ends.
///
/// Dropping the timer drops the pending tasks without running them and waits for the ticker thread
/// to end, which first finishes the tasks that it has taken. If a task drops the timer, nothing
/// waits. Do not drop the timer while holding a lock that a task waits for.
///
/// To cancel everything at once, stop the timer and start another. There is no `clear` as
/// [`BatchTimer`] has it: a [`Timeout`] could not tell afterwards whether its task was cleared or
/// has run, unless the timer remembered every task that was ever cleared.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, crossbeam_channel};
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
    /// Starts a timer with the default settings.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`] (transient): the operating system refused a thread.
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// The default settings of a timer, to be changed and [built](TimerBuilder::build).
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }

    /// Runs `task` when `delay` has passed: not before, and at most a tick plus the operating
    /// system's wake-up later, if no other task delays the ticker thread. A delay that ends more
    /// than 584 years after the timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient), `Stopped` or
    /// `Forked` (permanent).
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        match self.tasks.ensure_started() {
            Ok(()) => {
                let tick = self.tasks.context().tick_in(delay);
                self.tasks.weak().schedule_task(tick, task)
            }
            Err(error) => Err(ScheduleError::NotStarted(boxed(task), error)),
        }
    }

    /// Runs `task` when the timer's clock reaches `deadline`, as [`schedule`](Self::schedule) does.
    /// A deadline that has passed is due at the next tick at the latest.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient), `Stopped` or
    /// `Forked` (permanent).
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        match self.tasks.ensure_started() {
            Ok(()) => {
                let tick = self.tasks.context().scale.deadline_tick(deadline);
                self.tasks.weak().schedule_task(tick, task)
            }
            Err(error) => Err(ScheduleError::NotStarted(boxed(task), error)),
        }
    }

    /// Runs `task` when `first` has passed, and then repeatedly as `period` says, each run as with
    /// [`schedule`](Self::schedule). Runs never overlap: the next is scheduled when one has ended.
    ///
    /// It repeats until it is [cancelled](PeriodicTimeout::cancel) or the timer is stopped. A panic
    /// in a run is caught, counted and reported, and the next run takes place. Between runs the
    /// task counts as pending. With a [limit](TimerBuilder::max_pending_timeouts) it also counts
    /// during a run, so that it can always be scheduled again. A stop returns the task once, if it
    /// is pending; a run that is under way then is the last.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` or `NotStarted` (transient), `Stopped`,
    /// `ZeroPeriod` or `Forked` (permanent).
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

    /// As [`schedule_periodic`](Self::schedule_periodic), for a task that can end itself: it runs
    /// again as long as it returns [`ControlFlow::Continue`].
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
        match self.tasks.ensure_started() {
            Ok(()) => self.tasks.weak().schedule_periodic_task(first, period, task),
            Err(error) => Err(ScheduleError::NotStarted(once(task), error)),
        }
    }

    /// How many tasks are pending: scheduled, not cancelled, not yet taken to be run. Exact while
    /// no other thread changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.tasks.pending_timeouts()
    }

    /// How many panics have been caught: of tasks, of their destructors, of the clock on the ticker
    /// thread.
    pub fn panics(&self) -> u64 {
        self.tasks.panics()
    }

    /// What the timer has done since it was built, and how late it was.
    pub fn statistics(&self) -> Statistics {
        self.tasks.statistics()
    }

    /// The clock of the timer.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.tasks.clock()
    }

    /// A handle that schedules, and keeps neither the timer nor its thread alive.
    pub fn downgrade(&self) -> WeakTimer {
        WeakTimer::new(self.tasks.downgrade())
    }

    /// Stops the timer and returns the tasks that were pending, in the order of their due ticks.
    /// Every task that was scheduled has run, was cancelled, or is returned here.
    ///
    /// It waits for the ticker thread to end, which first finishes the tasks that it has taken, at
    /// most 1024. Nothing can be scheduled afterwards. The second call returns nothing. Do not call
    /// it while holding a lock that a task waits for.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if a task calls it, or `Forked`. Nothing is stopped then.
    pub fn stop(&self) -> Result<Vec<UnprocessedTask>, StopError> {
        self.stop_with(StopMode::Stop)
    }

    /// Runs every task that is already due, then stops as [`stop`](Self::stop) does and returns the
    /// rest.
    ///
    /// From the start of the call nothing can be scheduled. It waits until every task that was due
    /// when it was called has run or was passed to the executor.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if a task calls it, or `Forked`. Nothing is stopped then.
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
        self.stop_with(StopMode::Drain)
    }

    /// Starts the ticker thread of a timer that [starts lazily](TimerBuilder::start_lazily), before
    /// its first task. No effect if the thread runs, or after a stop.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`] (transient): the operating system refused a thread. A later
    /// call, or the next task, tries again. [`BuildError::Forked`] (permanent).
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

    fn stop_with(&self, mode: StopMode) -> Result<Vec<UnprocessedTask>, StopError> {
        let unprocessed = self.tasks.stop_with(mode)?;
        Ok(unprocessed
            .into_iter()
            .map(|Unprocessed { deadline, value }| {
                UnprocessedTask::new(deadline, value.into_task())
            })
            .collect())
    }
}

impl TimerBuilder {
    /// Starts a timer that runs closures.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system refuses a
    /// thread (transient).
    pub fn build(mut self) -> Result<HashedWheelTimer, BuildError> {
        let executor = self.take_executor();
        let make_handler = |tasks: &WeakBatchTimer<BoxedJob>| {
            let context = Arc::clone(tasks.context());
            move |due: &mut Due<BoxedJob>| run_all(&context, executor.as_ref(), due)
        };
        let tasks = self.build_batch_with(make_handler, |job| job.keeps_capacity())?;
        Ok(HashedWheelTimer { tasks })
    }
}

/// Runs each task separately, so that a panic affects no other task of the batch.
fn run_all(context: &Arc<Context>, executor: Option<&Arc<dyn Executor>>, due: &mut Due<BoxedJob>) {
    // All of them before a user's code is called: whatever happens to the batch, their capacity is
    // given back.
    for job in &mut due.values {
        job.on_taken();
    }
    // The clock is read once between two tasks: it ends the one and tells how late the other is.
    let mut started = context.now();
    for (job, tick) in due.values.drain(..).zip(&due.ticks) {
        if !context.home.is_current_by_count() {
            // A task has forked. In the child the rest is not run, and not dropped either.
            mem::forget(job);
            continue;
        }
        context.record_fired(*tick, started);
        started = match executor {
            None => context.run(started, || job.run()),
            Some(executor) => {
                let task = on_executor(Arc::clone(context), job);
                context.panics.catch(|| executor.execute(task));
                context.now()
            }
        };
    }
}

/// The task that an executor gets. The timer counts a panic of the closure, whichever thread it
/// runs on.
fn on_executor(context: Arc<Context>, job: BoxedJob) -> Task {
    boxed(move || {
        let started = context.now();
        context.run(started, || job.run());
    })
}

// A panic cannot leave it half changed: no code of a user runs under its locks.
impl UnwindSafe for HashedWheelTimer {}
impl RefUnwindSafe for HashedWheelTimer {}

/// Shows how many tasks are pending, when the next is due, and how many panics were caught.
impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.weak().debug_as("HashedWheelTimer", formatter)
    }
}
