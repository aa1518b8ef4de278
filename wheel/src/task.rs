//! What a timer runs, and where: a task, and the executor it may be handed to.

/// What a timer runs.
pub type Task = Box<dyn FnOnce() + Send>;

/// Where the tasks of a [`HashedWheelTimer`](crate::HashedWheelTimer) run, if not on its ticker thread. Any closure that
/// takes a [`Task`] is one.
///
/// The ticker calls [`execute`](Self::execute) for each task that is due, with no lock held. It should hand the task on
/// and return: while it waits, no other task gets its turn. A task that it drops instead is gone, and counts as fired.
/// If it panics, the panic is caught, counted and reported like that of a task, and the next task is handed to it all
/// the same.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Task};
///
/// let (sender, tasks) = crossbeam_channel::unbounded::<Task>();
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder()
///     .clock(Arc::new(clock.clone()))
///     .executor(move |task: Task| {
///         // A pool of threads would take it from here.
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
