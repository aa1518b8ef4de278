//! The kinds of holds, and their layouts on the server.

/// The kind of a hold: a kind of lock, or a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Redisson's `RLock`.
    Reentrant,
    /// Redisson's `RFairLock`: waiters are served in the order of arrival.
    Fair,
    /// Redisson's `RFencedLock`: each hold has a number, and a later hold a larger one.
    Fenced,
    /// Redisson's `RedissonSpinLock`: no messages.
    Spin,
    /// A text under the key: no nesting, no messages.
    Simple,
    /// The shared half of Redisson's `RReadWriteLock`.
    Read,
    /// The exclusive half of Redisson's `RReadWriteLock`.
    Write,
    /// A permit of a semaphore with leases, which is renewed. A permit is not acquired as a lock
    /// and never nested.
    Permit,
}

/// How a hold is stored on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// A field of a hash, with a count.
    Counted,
    /// A text.
    Text,
    /// A field of a hash with a mode, and a key for each level.
    Reader,
    /// A field of a hash with a mode.
    Writer,
    /// A member of a sorted set, with the end of its lease as its score.
    Permit,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Reentrant,
        Self::Fair,
        Self::Fenced,
        Self::Spin,
        Self::Simple,
        Self::Read,
        Self::Write,
        Self::Permit,
    ];

    /// Returns the index in [`ALL`](Self::ALL).
    pub(crate) fn number(self) -> usize {
        self as usize
    }

    /// Returns the kind's name in metrics and events.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Reentrant => "lock",
            Self::Fair => "fair",
            Self::Fenced => "fenced",
            Self::Spin => "spin",
            Self::Simple => "simple",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit => "permit",
        }
    }

    /// Returns the layout on the server. A thread with a hold re-enters the hold through any kind
    /// of the same layout: on the server both are one hold.
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
