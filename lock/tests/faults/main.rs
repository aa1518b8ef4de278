//! Server and network faults: on a server one at a time, in memory also as a seed draws them.

#[path = "../common/mod.rs"]
mod common;

mod late_cohorts;
mod late_copies;
mod partial_replies;
mod planned;
mod seeds;
mod server_and_network;
mod shared_connection;
mod torture;
