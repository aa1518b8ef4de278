//! Threads of this process, waiting for a name: their queue, the registry of all queues, and the
//! hand-over of a lock from thread to thread.

pub(crate) mod hand_over;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod yielding;
