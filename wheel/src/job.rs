//! What stands in the wheel of a timer that runs closures: something to run once, or again and again.

use crate::task::Task;

/// A task in its box. The box is made when the task is scheduled and lives as long as the task.
pub(crate) type BoxedJob = Box<dyn Job>;

pub(crate) trait Job: Send {
    /// Runs it, on the ticker's thread or the executor's. May panic if the closure inside does.
    fn run(self: Box<Self>);

    /// What is given back to a user in place of this.
    fn into_task(self: Box<Self>) -> Task;

    /// Whether it keeps its place under the timer's bound while it runs, as it comes back into the wheel.
    fn keeps_place(&self) -> bool {
        false
    }

    /// It was taken out of the wheel to be run.
    fn taken(&mut self) {}
}

/// A closure that runs once.
pub(crate) struct Once<F>(pub(crate) F);

impl<F: FnOnce() + Send + 'static> Job for Once<F> {
    fn run(self: Box<Self>) {
        (self.0)();
    }

    fn into_task(self: Box<Self>) -> Task {
        Box::new(self.0)
    }
}
