//! Redis and Valkey servers. This folder is the only one that names the redis crate, which parses
//! addresses.
//!
//! Connections, their pool, the subscription and the codec are our own: the crate's connections
//! wait without a deadline, survive an error or lose messages, and its codec took half of the
//! processor time of a lock and its unlock. Two rules hold here: every wait on a socket has a
//! deadline, and a connection that received anything but replies is dropped.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod net;
pub(crate) mod node;
pub(crate) mod resp;
pub(crate) mod sentinel;
