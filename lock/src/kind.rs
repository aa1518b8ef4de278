//! The kinds of what is held, and which of them share a place on the server.

/// What a hold is of: a kind of lock, or a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Redisson's `RLock`.
    Reentrant,
    /// Redisson's `RFairLock`: waiters are served in the order in which they came.
    Fair,
    /// Redisson's `RFencedLock`: each hold has a number, and a later one a larger number.
    Fenced,
    /// Redisson's `RedissonSpinLock`: no messages.
    Spin,
    /// A text under the key: no nesting, no messages.
    Simple,
    /// The shared half of Redisson's `RReadWriteLock`.
    Read,
    /// The exclusive half of it.
    Write,
    /// A permit of a semaphore with leases, which is renewed. No lock: it is not taken as one, and never nested.
    Permit,
}

/// How a hold is written on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// A field of a hash, with a count.
    Counted,
    /// A text.
    Text,
    /// A field of a hash with a mode, and a key for each count.
    Reader,
    /// A field of a hash with a mode.
    Writer,
    /// A member of a sorted set, whose score is the end of its lease.
    Permit,
}

impl Kind {
    /// A thread that holds one kind re-enters it through another of the same layout: on the server they are one hold.
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Reentrant | Self::Fair | Self::Fenced | Self::Spin => Layout::Counted,
            Self::Simple => Layout::Text,
            Self::Read => Layout::Reader,
            Self::Write => Layout::Writer,
            Self::Permit => Layout::Permit,
        }
    }
}
