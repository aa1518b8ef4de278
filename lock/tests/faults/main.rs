//! Server and network faults, one at a time.

#[path = "../common/mod.rs"]
mod common;

mod late_copies;
mod partial_replies;
mod server_and_network;
mod shared_connection;
mod torture;
