//! What stands for locks, threads, clocks, the wheel and sockets where a test runs in many orders of
//! its threads (`--cfg wheellock_shuttle`). `model` and `store/redis/net` put these in the place of
//! the real ones.

pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod sync;
pub(crate) mod timer;
