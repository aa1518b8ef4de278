//! Fair locks: the queue, its order, and what is left when a waiter dies.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod queue;
mod redisson;
