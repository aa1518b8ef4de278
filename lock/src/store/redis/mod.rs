//! Redis and Valkey servers.
//!
//! Connections, their pool, the subscription and the codec are our own. The redis crate's
//! connections wait without a deadline, survive an error or lose messages, and its codec took half
//! of the processor time of a lock and its unlock. Outside of tests, only connection addresses of
//! the crate are accepted (feature `redis`).
//!
//! Two rules hold here: every wait on a socket has a deadline, and a connection is dropped after
//! receiving anything but replies.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod net;
pub(crate) mod node;
pub(crate) mod resp;
pub(crate) mod sentinel;
