//! Identifies the server and the slot of an operation.

/// A server. Each server has its own connection for a pipeline, so a hanging server delays no other
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u32);

/// A slot of a cluster. A script may only touch keys of a single slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HashSlot(pub(crate) u16);

impl ServerId {
    /// The server of a deployment without a cluster.
    pub(crate) const ONLY: Self = Self(0);
}

impl HashSlot {
    /// The slot of a deployment without a cluster.
    pub(crate) const ONLY: Self = Self(0);
}
