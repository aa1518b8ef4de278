//! Semaphores, permits with a lease, and the count-down latch.

pub(crate) mod acquire;
pub(crate) mod expirable;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod latch;
pub(crate) mod permit;
pub(crate) mod semaphore;
