//! Several locks as one.

#[path = "../common/mod.rs"]
mod common;

mod acquire;
mod extend;
mod faults;
mod many;
mod pauses;
mod processes;
