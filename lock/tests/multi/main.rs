//! Several locks as one.

#[path = "../common/mod.rs"]
mod common;

mod acquire;
mod faults;
mod pauses;
