//! Every operation against its script: random histories run in memory and on a real server, and each reply, each
//! message and what is stored in the end must be the same.

mod fair;
mod fenced;
mod latches;
mod mutex;
mod permits;
mod read_write;
mod semaphores;
mod text;
mod worlds;
