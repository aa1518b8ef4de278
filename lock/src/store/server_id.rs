//! Names the server and the slot that an operation belongs to.

/// One server. Each has a connection for a pipeline of its own, so one that hangs delays no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u32);

/// A slot of a cluster. One script may touch only keys of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HashSlot(pub(crate) u16);

impl ServerId {
    /// The only one, where there is one server.
    pub(crate) const ONLY: Self = Self(0);
}

impl HashSlot {
    /// The only one, where there is one server.
    pub(crate) const ONLY: Self = Self(0);
}
