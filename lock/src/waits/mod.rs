//! Threads of this process that wait for one name: their queue, the registry of all queues, and the
//! hand-over of a lock from one thread to the next.

pub(crate) mod hand_over;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod yielding;
