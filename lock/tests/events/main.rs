//! Callbacks, futures and warnings: what a program is notified of, once and in order.

#[path = "../common/mod.rs"]
mod common;

mod callbacks;
mod futures;
#[cfg(feature = "serde")]
mod serialize;
