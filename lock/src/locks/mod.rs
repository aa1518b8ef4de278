//! Locks, semaphores and their guards, as users see them.
//!
//! `multi` and `red` combine several locks.

pub(crate) mod any_lock;
pub(crate) mod guard;
pub(crate) mod held_locks;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod read_write;
pub(crate) mod red;
pub(crate) mod semaphore;
