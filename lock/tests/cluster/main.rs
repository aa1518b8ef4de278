//! Locks in a cluster.

#[path = "../common/mod.rs"]
mod common;

mod endpoint;
mod failures;
mod key_prefix;
mod redirections;
mod renewal;
mod routing;
mod slot_moves;
#[cfg(feature = "tls")]
mod tls;
