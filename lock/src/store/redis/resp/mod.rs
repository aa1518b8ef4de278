//! The Redis protocol: encodes commands, decodes replies, and parses redirections.

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod hash_slot;
pub(crate) mod pubsub;
pub(crate) mod redirect;
