//! Clients, guards and processes: how they end, fork, stop and panic.

#[path = "../common/mod.rs"]
mod common;

mod crossings;
mod endings;
mod many_threads;
mod panics;
mod processes;
