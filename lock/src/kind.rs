//! The kinds of locks, and which of them share a place on the server.

/// What kind of lock a hold is of.
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
}

impl Kind {
    /// A thread that holds one kind re-enters it through another of the same layout: on the server they are one hold.
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Reentrant | Self::Fair | Self::Fenced | Self::Spin => Layout::Counted,
            Self::Simple => Layout::Text,
            Self::Read => Layout::Reader,
            Self::Write => Layout::Writer,
        }
    }
}
