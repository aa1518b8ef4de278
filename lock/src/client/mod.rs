//! What a user starts with: the client and its builder.

pub(crate) mod builder;
pub(crate) mod client;
