//! The public timers, with the builder, the tasks and the handles of tasks.

pub(crate) mod batch_timer;
pub(crate) mod builder;
pub(crate) mod cancel_on_drop;
pub(crate) mod channels;
pub(crate) mod hashed_wheel_timer;
pub(crate) mod job;
pub(crate) mod period;
pub(crate) mod periodic;
pub(crate) mod task;
pub(crate) mod timeout;
pub(crate) mod weak_batch_timer;
pub(crate) mod weak_timer;
