//! Locks and their guards.
//!
//! `acquire` acquires a lock and `raw_guard` releases it, for every kind. `multi` and `red` combine
//! several locks.

pub(crate) mod acquire;
pub(crate) mod acquire_many;
pub(crate) mod any_lock;
pub(crate) mod guard;
pub(crate) mod held_locks;
pub(crate) mod lock;
pub(crate) mod lost_future;
pub(crate) mod multi;
pub(crate) mod raw_guard;
pub(crate) mod read_write;
pub(crate) mod red;
pub(crate) mod revocation_future;
pub(crate) mod spec;
