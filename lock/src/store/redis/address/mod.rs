//! Addresses of the servers, and the credentials and certificates of a client.

pub(crate) mod cluster_seeds;
pub(crate) mod credentials;
#[cfg(feature = "tls")]
pub(crate) mod tls_config;
#[cfg(feature = "tls")]
pub(crate) mod tls_settings;
pub(crate) mod url;
