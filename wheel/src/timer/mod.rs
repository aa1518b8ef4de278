//! The timers, as users see them: their builder, their tasks and the handles of these.

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
