//! The client and the client builder, the entry points of the crate.

pub(crate) mod builder;
pub(crate) mod client;
