//! What is in the wheel of a timer that runs closures: a task that runs once, or periodically.

use std::time::Instant;

use super::task::{Task, boxed};

/// A task in its box. The box is allocated when the task is scheduled and lives as long as the
/// task.
pub(crate) type BoxedJob = Box<dyn Job>;

pub(crate) trait Job: Send {
    /// Runs it, on the ticker's thread or the executor's. Panics if the closure inside does.
    fn run(self: Box<Self>);

    /// What a user gets back in place of this.
    fn into_task(self: Box<Self>) -> Task;

    /// Whether it keeps its unit of capacity while it runs, because it is scheduled again.
    fn keeps_capacity(&self) -> bool {
        false
    }

    /// Called when it got another deadline. `None` for one that is out of range.
    fn on_rescheduled(&mut self, _deadline: Option<Instant>) {}

    /// Called when it was taken out of the wheel to be run.
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
