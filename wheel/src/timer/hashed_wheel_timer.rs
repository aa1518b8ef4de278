//! The timer that runs closures.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use super::batch_timer::{BatchTimer, Unprocessed};
use super::builder::TimerBuilder;
use super::job::BoxedJob;
use super::task::{Task, boxed};
use super::weak_batch_timer::WeakBatchTimer;
use super::weak_timer::WeakTimer;
use crate::driver::context::Context;
use crate::driver::shard::Due;
#[cfg(doc)]
use crate::error::ScheduleError;
use crate::error::{BuildError, StopError};
#[cfg(doc)]
use crate::timer::timeout::Timeout;

/// A timer that runs closures on a thread of its own when they are due.
///
/// The timer is Netty's `HashedWheelTimer` in Rust, on a [`Wheel`](crate::Wheel) whose buckets are
/// never walked, and with a ticker thread that sleeps while nothing is due. The methods that
/// schedule belong to [`WeakTimer`], to which the timer dereferences.
///
/// All methods take `&self`; share a timer in an [`Arc`]. One timer serves a whole program. Each
/// timer has one thread, and a second timer is useful only to keep slow tasks away from others.
///
/// # The life of a timer
///
/// | event | effect |
/// |---|---|
/// | [`new`](Self::new), [`build`](TimerBuilder::build) | The ticker thread starts. Its [name](TimerBuilder::thread_name) is `hashed-wheel` unless set; Linux shows the first 15 bytes. |
/// | a task is due | The task runs on the ticker thread, one task after the other, with no lock held. With an [executor](TimerBuilder::build_with_executor) the ticker thread only passes the task on. A task that blocks delays all tasks behind it. |
/// | a task calls its timer | A task may schedule and cancel. [`stop`](Self::stop) in a task is an [error](StopError::OnTickerThread), because it would wait for its own thread. |
/// | a task panics | The panic is caught, [counted](crate::Statistics::panicked) and reported to [`on_panic`](TimerBuilder::on_panic). No other task is affected, and a periodic task runs again. |
/// | [`Timeout::cancel`] | The task is dropped before the call returns, on the calling thread. |
/// | [`stop`](Self::stop) | Nothing can be scheduled any more. The ticker thread finishes the tasks that it has taken, at most 1024, and ends. The pending tasks are returned. |
/// | the timer is dropped | As `stop`, and the pending tasks are dropped on the dropping thread without a run. The drop waits for the ticker thread. |
/// | the timer is dropped inside a task | As a drop, but nothing waits: the thread ends after the tasks that it has taken. |
/// | a `fork` | The child has no ticker thread. Each call there returns [`Forked`](ScheduleError::Forked), no task runs, and a drop is quiet and drops no task. The parent's timer continues. |
///
/// Do not stop or drop a timer while holding a lock that a task waits for. If an executor waits for
/// its own threads when the executor is dropped, a task must neither stop nor drop the timer: the
/// ticker thread drops the executor when the thread ends.
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
    weak: WeakTimer,
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

    /// A handle that schedules, and keeps neither the timer nor its thread alive.
    pub fn downgrade(&self) -> WeakTimer {
        self.weak.clone()
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
    pub fn stop(&self) -> Result<Vec<Unprocessed<Task>>, StopError> {
        let unprocessed = self.tasks.stop()?.into_iter();
        Ok(unprocessed
            .map(|Unprocessed { deadline, value }| Unprocessed {
                deadline,
                value: value.into_task(),
            })
            .collect())
    }
}

/// Schedules.
impl Deref for HashedWheelTimer {
    type Target = WeakTimer;

    fn deref(&self) -> &WeakTimer {
        &self.weak
    }
}

impl TimerBuilder {
    /// Starts a timer that runs closures on its ticker thread.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system refuses a
    /// thread (transient).
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        self.build_closures(None)
    }

    /// Starts a timer that passes closures to `executor` when they are due, to be run on another
    /// thread. A slow task then delays only what the executor runs after it.
    ///
    /// The ticker thread calls `executor` for each task that is due, with no lock held. `executor`
    /// should pass the task on and return: while it blocks, no other task is run. A task that it
    /// drops counts as fired. A panic of `executor` is caught, counted and reported as a panic of a
    /// task is, and `executor` is called again for the next task.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{HashedWheelTimer, ManualClock, Task, crossbeam_channel};
    ///
    /// let (sender, tasks) = crossbeam_channel::unbounded::<Task>();
    /// let clock = ManualClock::new();
    /// // A thread pool would receive the tasks.
    /// let timer = HashedWheelTimer::builder()
    ///     .clock(Arc::new(clock.clone()))
    ///     .build_with_executor(move |task| drop(sender.send(task)))?;
    /// let (done, finished) = crossbeam_channel::bounded(1);
    /// timer.schedule(Duration::from_secs(1), move || done.send("on a worker's thread").unwrap())?;
    /// clock.advance(Duration::from_secs(2));
    /// let task = tasks.try_recv()?;
    /// std::thread::spawn(task).join().unwrap();
    /// assert_eq!(finished.try_recv()?, "on a worker's thread");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_with_executor(
        self,
        executor: impl FnMut(Task) + Send + 'static,
    ) -> Result<HashedWheelTimer, BuildError> {
        self.build_closures(Some(Box::new(executor)))
    }

    fn build_closures(
        self,
        mut executor: Option<Executor>,
    ) -> Result<HashedWheelTimer, BuildError> {
        let make_handler = |tasks: &WeakBatchTimer<BoxedJob>| {
            let context = Arc::clone(tasks.context());
            move |due: &mut Due<BoxedJob>| run_all(&context, executor.as_mut(), due)
        };
        let tasks = self.build_batch_with(make_handler, |job| job.keeps_capacity())?;
        let weak = WeakTimer::new(tasks.downgrade());
        Ok(HashedWheelTimer { tasks, weak })
    }
}

/// Takes tasks that are due, to run them elsewhere.
type Executor = Box<dyn FnMut(Task) + Send>;

/// Runs each task separately, so that a panic affects no other task of the batch.
fn run_all(context: &Arc<Context>, mut executor: Option<&mut Executor>, due: &mut Due<BoxedJob>) {
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
        started = match &mut executor {
            None => context.run(started, || job.run()),
            Some(executor) => {
                let task = on_executor(Arc::clone(context), job);
                context.panics.catch(|| executor(task));
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

/// Shows how many tasks are pending, when the next is due, and how many panics were caught.
impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.debug_as("HashedWheelTimer", formatter)
    }
}
