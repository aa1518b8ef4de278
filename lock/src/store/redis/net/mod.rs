//! Sockets with deadlines, TLS, name resolution and the connections made of them.

pub(crate) mod connection;
pub(crate) mod deadline;
pub(crate) mod dial;
pub(crate) mod open_sockets;
pub(crate) mod resolve;
pub(crate) mod single_flight;
#[cfg(not(all(test, wheellock_shuttle)))]
pub(crate) mod socket;
#[cfg(feature = "tls")]
pub(crate) mod tls_stream;

#[cfg(all(test, wheellock_shuttle))]
pub(crate) use crate::testing::modelled::socket;
