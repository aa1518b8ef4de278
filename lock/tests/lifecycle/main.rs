//! Clients, guards and processes: how they end, fork, stop and panic.

#[path = "../common/mod.rs"]
mod common;

mod crossings;
mod drops;
mod endings;
mod exits;
mod many_threads;
mod overtaking;
mod panics;
mod processes;
