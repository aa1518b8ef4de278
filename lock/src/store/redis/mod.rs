//! The store on a Redis or Valkey server. This folder is the only one that names the redis crate, which reads addresses
//! and knows the hashes of scripts.
//!
//! Connections, their pool and the subscription are our own, because the crate's wait without a deadline, keep a
//! connection after an error, or lose messages. So is the codec, because the crate's took the half of what this client
//! executes for a lock and its unlock. The rules: every wait on a socket has a deadline; a connection that saw
//! anything but a server's reply is dropped.

mod address;
mod asking;
mod audience;
mod channels;
mod cluster;
mod command;
mod connection;
mod eviction;
mod follower;
mod limit;
mod lookout;
mod members;
mod node;
mod pace;
mod pipeline;
mod pool;
mod reach;
mod redirection;
mod replicas;
mod replies;
mod resolve;
mod seeds;
mod sentinels;
mod server;
mod server_clock;
mod slot;
mod slot_map;
mod socket;
mod sockets;
mod store;
mod subscription;
#[cfg(feature = "tls")]
mod tls;
mod topology;
#[cfg(feature = "tls")]
mod trust;
mod whereabouts;
mod wire;

pub(crate) use address::{Access, Location};
pub(crate) use store::Redis;
