//! Where the servers are and how a client identifies itself to them.

pub(crate) mod cluster_seeds;
pub(crate) mod credentials;
#[cfg(feature = "tls")]
pub(crate) mod tls_config;
#[cfg(feature = "tls")]
pub(crate) mod tls_settings;
pub(crate) mod url;
