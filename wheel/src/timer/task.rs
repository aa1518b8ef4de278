//! What a timer runs.

use parking_lot::Mutex;

/// What a timer runs, in the form in which an [executor](crate::TimerBuilder::build_with_executor) or a
/// caller gets it.
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
