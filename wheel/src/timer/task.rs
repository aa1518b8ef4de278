//! What a timer runs, and where: a task, and the executor that it may be passed to.

use parking_lot::Mutex;

/// What a timer runs, in the form in which an [`Executor`] or a caller gets it.
///
/// Any closure that is [`Send`] can be scheduled; it need not be [`Sync`]. The boxed task is `Sync`
/// so that a [`ScheduleError`](crate::ScheduleError) with a task can be returned with `?`, as any
/// other error.
pub type Task = Box<dyn FnOnce() + Send + Sync>;

/// Boxes a closure as a task. The lock is never locked: it only makes the task `Sync`
/// (DESIGN: task errors).
pub(crate) fn boxed(task: impl FnOnce() + Send + 'static) -> Task {
    let task = Mutex::new(task);
    Box::new(move || (task.into_inner())())
}

/// Runs the tasks of a [`HashedWheelTimer`](crate::HashedWheelTimer) elsewhere than on its ticker
/// thread. Any closure that takes a [`Task`] is an executor.
///
/// The ticker calls [`execute`](Self::execute) for each task that is due, with no lock held. It
/// should pass the task on and return: while it blocks, no other task is run. A task that it drops
/// counts as fired. If it panics, the panic is caught, counted and reported like that of a task,
/// and it is called again for the next task.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Task, crossbeam_channel};
///
/// let (sender, tasks) = crossbeam_channel::unbounded::<Task>();
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder()
///     .clock(Arc::new(clock.clone()))
///     .executor(move |task: Task| {
///         // A thread pool would receive it.
///         sender.send(task).ok();
///     })
///     .build()?;
/// let (done, finished) = crossbeam_channel::bounded(1);
/// timer.schedule(Duration::from_secs(1), move || done.send("on a worker's thread").unwrap())?;
/// clock.advance(Duration::from_secs(2));
/// let task = tasks.try_recv()?;
/// std::thread::spawn(task).join().unwrap();
/// assert_eq!(finished.try_recv()?, "on a worker's thread");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Takes a task that is due, to run it soon. Called on the ticker thread.
    fn execute(&self, task: Task);
}

impl<F: Fn(Task) + Send + Sync + 'static> Executor for F {
    fn execute(&self, task: Task) {
        self(task);
    }
}
