//! The entries in the wheel of a closure timer: tasks that run once or periodically.

use std::time::Instant;

use super::task::{Task, boxed};

/// A boxed task. The box is allocated when the task is scheduled and lives as long as the task.
pub(crate) type BoxedJob = Box<dyn Job>;

pub(crate) trait Job: Send {
    /// Runs the task, on the ticker thread or an executor's thread. Panics if the closure of a
    /// [`Once`] panics.
    fn run(self: Box<Self>);

    /// Converts the job into the form returned to users.
    fn into_task(self: Box<Self>) -> Task;

    /// Whether the job retains a unit of capacity during a run, for being scheduled again.
    fn retains_capacity(&self) -> bool {
        false
    }

    /// Called after a change of the deadline; `None` for a deadline out of range.
    fn on_rescheduled(&mut self, _deadline: Option<Instant>) {}

    /// Called when the job was taken out of the wheel for a run.
    fn on_taken(&mut self) {}
}

/// A closure that runs once.
pub(crate) struct Once<F>(pub(crate) F);

impl<F: FnOnce() + Send + 'static> Job for Once<F> {
    fn run(self: Box<Self>) {
        (self.0)();
    }

    fn into_task(self: Box<Self>) -> Task {
        boxed(self.0)
    }
}
