//! The driver: wheels behind locks, and the ticker thread, which fires due timeouts.

pub(crate) mod context;
pub(crate) mod fork;
pub(crate) mod lifecycle;
#[cfg(all(test, hashed_wheel_loom))]
mod loom_tests;
pub(crate) mod panics;
pub(crate) mod shard;
pub(crate) mod ticker;
pub(crate) mod wakeup;
