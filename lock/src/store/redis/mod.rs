//! The store on a Redis or Valkey server. This folder is the only one that names the redis crate, which reads addresses
//! and knows the hashes of scripts.
//!
//! Connections, their pool and the subscription are our own, because the crate's wait without a deadline, keep a
//! connection after an error, or lose messages. So is the codec, because the crate's took a third of what a pair of
//! commands costs this client. The rules: every wait on a socket has a deadline; a connection that saw
//! anything but a server's reply is dropped.

mod address;
mod command;
mod connection;
mod eviction;
mod pipeline;
mod pool;
mod replies;
mod resolve;
mod server;
mod server_clock;
mod store;
mod subscription;
mod wire;

pub(crate) use address::Address;
pub(crate) use store::Redis;
