//! Ten thousand held locks at once.

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod process;
mod server;
mod wire;
