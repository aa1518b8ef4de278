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
use crate::driver::shard::DueValues;
#[cfg(doc)]
use crate::error::ScheduleError;
use crate::error::{BuildError, StopError};
#[cfg(doc)]
use crate::timer::timeout::Timeout;

/// A timer that runs due closures on a dedicated thread.
///
/// The timer is Netty's `HashedWheelTimer` in Rust, on a [`Wheel`](crate::Wheel) whose buckets are
/// never walked, and with a ticker thread that sleeps while nothing is due. The methods for
/// scheduling belong to [`WeakTimer`], to which the timer dereferences.
///
/// All methods take `&self`; share a timer in an [`Arc`]. A single timer serves a whole program.
/// Each timer has a thread, and a second timer is useful only to separate slow tasks from fast
/// tasks.
///
/// # The life of a timer
///
/// | event | effect |
/// |---|---|
/// | [`new`](Self::new), [`build`](TimerBuilder::build) | The ticker thread starts. The thread's [name](TimerBuilder::thread_name) is `hashed-wheel` unless set; Linux shows the first 15 bytes. |
/// | a task is due | The task runs on the ticker thread, one task after the other, with no lock held. With an [executor](TimerBuilder::build_with_executor) the ticker thread only passes the task on. A task that blocks delays all later tasks. |
/// | a task calls its timer | A task may schedule and cancel. [`stop`](Self::stop) in a task is an [error](StopError::OnTickerThread), because the call would wait for the calling thread. |
/// | a task panics | The panic is caught, [counted](crate::Statistics::panicked) and reported to [`on_panic`](TimerBuilder::on_panic). No other task is affected, and a periodic task runs again. |
/// | [`Timeout::cancel`] | The task is dropped before the call returns, on the calling thread. |
/// | [`stop`](Self::stop) | Nothing can be scheduled any more. The ticker thread finishes the tasks already taken, at most 1024, and ends. The pending tasks are returned. |
/// | the timer is dropped | As `stop`, but the pending tasks are dropped on the dropping thread without a run. The drop waits for the ticker thread. |
/// | the timer is dropped inside a task | As a drop, but nothing waits: the ticker thread ends after the tasks already taken. |
/// | a `fork` | The child has no ticker thread. Each call in the child returns [`Forked`](ScheduleError::Forked), no task runs, and a drop is quiet and drops no task. The parent's timer continues. |
///
/// Do not stop or drop a timer while holding a lock that a task waits for. If an executor waits for
/// its own threads when the executor is dropped, a task must neither stop nor drop the timer: the
/// ticker thread drops the executor when the thread ends.
///
/// To cancel everything at once, stop the timer and start another. There is no `clear` as in
/// [`BatchTimer`]: a [`Timeout`] could not tell a cleared task from a finished task, unless the
/// timer recorded every task that was ever cleared.
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

    /// Returns a builder with the default settings; [`TimerBuilder::build`] starts the timer.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }

    /// Returns a handle for scheduling, which keeps neither the timer nor the ticker thread alive.
    pub fn downgrade(&self) -> WeakTimer {
        self.weak.clone()
    }

    /// Stops the timer and returns the pending tasks, in the order of the due ticks.
    ///
    /// Every scheduled task has run, was cancelled, or is returned here. The call waits for the
    /// ticker thread, which first finishes the tasks already taken, at most 1024, and then ends.
    /// Afterwards nothing can be scheduled, and a second call returns nothing. Do not call `stop`
    /// while holding a lock that a task waits for.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if a task calls `stop`, or `Forked`. Nothing is stopped
    /// then.
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

/// The methods for scheduling.
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

    /// Starts a timer that passes due closures to `executor`, for running on another thread.
    ///
    /// A slow task then delays only the later tasks of the executor.
    ///
    /// The ticker thread calls `executor` for each due task, with no lock held. `executor` should
    /// pass the task on and return: while `executor` blocks, no further task is passed. A task
    /// dropped by `executor` counts as fired. A panic of `executor` is caught, counted and reported
    /// like a task's panic, and `executor` is called again for the next task.
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
            move |due: &mut DueValues<BoxedJob>| run_all(&context, executor.as_mut(), due)
        };
        let tasks = self.build_batch_with(make_handler, |job| job.retains_capacity())?;
        let weak = WeakTimer::new(tasks.downgrade());
        Ok(HashedWheelTimer { tasks, weak })
    }
}

/// Receives due tasks, for running on another thread.
type Executor = Box<dyn FnMut(Task) + Send>;

/// Runs each task separately, so that a panic affects no other task of the batch.
fn run_all(
    context: &Arc<Context>,
    mut executor: Option<&mut Executor>,
    due: &mut DueValues<BoxedJob>,
) {
    // All jobs are marked as taken before any user code runs, so the capacity of each job is given
    // back whatever happens to the batch.
    for job in &mut due.values {
        job.on_taken();
    }
    // The clock is read once between two tasks: the reading ends the first task and gives the
    // lateness of the second.
    let mut started = context.now();
    for (job, tick) in due.values.drain(..).zip(&due.ticks) {
        if !context.home.is_current_by_count() {
            // A task has forked. In the child the rest of the batch is neither run nor dropped.
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

/// Wraps a job for an executor. The timer counts a panic of the closure on whichever thread the
/// closure runs.
fn on_executor(context: Arc<Context>, job: BoxedJob) -> Task {
    boxed(move || {
        let started = context.now();
        context.run(started, || job.run());
    })
}

/// Shows the number of pending tasks, the time until the next is due, and the number of panics.
impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tasks.debug_as("HashedWheelTimer", formatter)
    }
}
