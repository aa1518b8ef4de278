//! Read-write locks.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod many_readers;
mod redisson;
mod waiting;
