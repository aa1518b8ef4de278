//! What a lock does: every kind of lock, on every store, over every connection, key by key.

#[path = "../common/mod.rs"]
mod common;

mod auto_traits;
mod bad_input;
mod braces;
mod contract;
mod extend;
mod foreign_data;
mod foreign_keys;
mod key_prefix;
mod kinds;
mod many_threads;
mod min_hold;
mod replies;
mod sendable;
mod tokens;
