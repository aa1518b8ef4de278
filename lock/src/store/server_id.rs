//! Identifies the server and the hash slot of an operation.

/// The id of a server. Each server has its own connection for a pipeline, so a hanging server
/// delays no other server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u32);

/// A hash slot of a cluster. A script may only touch keys of a single hash slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HashSlot(pub(crate) u16);

impl ServerId {
    /// The server of a store without a cluster.
    pub(crate) const ONLY: Self = Self(0);
}

impl HashSlot {
    /// The hash slot of all keys of a store without a cluster.
    pub(crate) const ONLY: Self = Self(0);
}
