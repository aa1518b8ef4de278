//! Who holds a lock, and who waits for it.

#[path = "../common/mod.rs"]
mod common;

mod foreign;
mod holder;
mod record;
mod revocation;
mod waiters;
