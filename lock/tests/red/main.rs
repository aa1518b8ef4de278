//! One lock on a majority of servers.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod extend;
mod faults;
mod majority;
mod members;
mod one_server;
