//! What has gone from the wheel, and still stands in its list.
//!
//! To take an entry out of its list means to write to its neighbours, which lie anywhere in memory. A caller who holds a
//! lock waits for each such write when the lock changes hands. So the gaps are closed many at a time, and the processor
//! waits for all of them at once. The value is out, and its key names nothing, from the beginning; only its slot is not
//! let before the gap is closed.

use core::num::NonZeroU64;

/// How many are kept: enough to share the waits, few enough that they are soon stepped over.
const GONE_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Gone {
    places: [Entry; GONE_MAX],
    len: usize,
}

/// An entry by the index of its slot, and the tick at which it was due.
type Entry = (NonZeroU64, u32);

impl Gone {
    pub(super) const fn new() -> Self {
        Self { places: [(NonZeroU64::MIN, 0); GONE_MAX], len: 0 }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == GONE_MAX
    }

    /// There must be room.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        self.places[self.len] = entry;
        self.len += 1;
    }

    /// Takes one of them out, in no particular order.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Entry> {
        self.len = self.len.checked_sub(1)?;
        Some(self.places[self.len])
    }
}
