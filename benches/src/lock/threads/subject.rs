//! The subjects: what acquires and releases locks with many threads.

use crate::harness::figures::Subject;

/// The subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// This crate: one client for all threads.
    Wheellock,
    /// An older build of this crate, given with `--old`.
    Old,
    /// A plain socket for each thread.
    Raw,
    /// Two plain sockets, on which half of the pairs each are under way at once.
    Batch,
    /// Redisson: one client for all threads.
    Redisson,
}

impl ClientKind {
    const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Wheellock, "wheellock", "wheellock"),
        (Self::Old, "old", "wheellock before"),
        (Self::Raw, "raw", "a raw connection each"),
        (Self::Batch, "batch", "raw, pipelined on two"),
        (Self::Redisson, "redisson", "Redisson 4.7"),
    ];

    /// What the report and the measuring process call it.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, word, _)| word)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own, _)| *own == word).map(|(kind, ..)| *kind)
    }
}

impl Subject for ClientKind {
    fn name(self) -> String {
        let name = Self::ALL.iter().find(|(kind, ..)| *kind == self);
        name.map_or("", |(_, _, name)| name).to_owned()
    }

    fn is_ours(self) -> bool {
        self == Self::Wheellock
    }
}
