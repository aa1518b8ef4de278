//! The tasks that a timer runs.

use parking_lot::Mutex;

/// A task of a timer, as passed to an [executor](crate::TimerBuilder::build_with_executor) or
/// returned to a caller.
///
/// Returned by [`Timeout::take`](crate::Timeout::take) and
/// [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop), and with a
/// [`ScheduleError`](crate::ScheduleError).
///
/// Any closure that is [`Send`] can be scheduled; the closure need not be [`Sync`]. The boxed task
/// is `Sync`, so a [`ScheduleError`](crate::ScheduleError) with a task can be returned with `?`, as
/// any other error.
pub type Task = Box<dyn FnOnce() + Send + Sync>;

/// Boxes a closure as a task.
///
/// The mutex only makes the task `Sync`, so that an error with a task is `Send + Sync`, as `?` into
/// a boxed error requires. The mutex is never locked: only the owner of a task can call the task.
pub(crate) fn boxed(task: impl FnOnce() + Send + 'static) -> Task {
    let task = Mutex::new(task);
    Box::new(move || (task.into_inner())())
}
