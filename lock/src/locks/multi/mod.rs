//! A lock of several locks, held when all of them are held.

pub(crate) mod acquire;
pub(crate) mod batch_queue;
pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod plain_locks;
pub(crate) mod release;
