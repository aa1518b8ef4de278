//! The Redis protocol: commands are encoded, replies are decoded, redirections are parsed.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod pubsub;
pub(crate) mod redirect;
pub(crate) mod slot;
