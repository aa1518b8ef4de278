//! How a client connects and authenticates: URLs, TLS, credentials, permissions, replicas.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod connection_names;
mod credentials;
mod deadlines;
mod impatience;
mod lazy_connect;
mod permissions;
#[cfg(feature = "redis")]
mod redis_crate;
mod refused_commands;
mod replicas;
mod replicas_elsewhere;
mod secrets;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod wrong_targets;
