//! For tests only. Every operation against its script: random histories run in memory and on a real
//! server, and each reply, each message and what is stored in the end must be the same.

pub(crate) mod fair;
pub(crate) mod fenced;
mod jobs;
pub(crate) mod latches;
pub(crate) mod mutex;
pub(crate) mod permits;
pub(crate) mod read_write;
pub(crate) mod semaphores;
pub(crate) mod server_and_model;
pub(crate) mod simple;
