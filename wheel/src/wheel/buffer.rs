//! The buffers: slots that are to be linked into a list or unlinked from one, many at a time.
//!
//! To link or to unlink a slot means to write to its neighbours, which lie anywhere in memory, and
//! the caller holds a lock meanwhile. 64 at a time, the processor fetches memory for one slot while
//! it waits for another (DESIGN: buffers). A wheel has two buffers:
//!
//! * The *insert buffer* has the entries that came last and are in no list yet. Most timeouts are
//!   cancelled, many of them soon after they are scheduled. An entry that is cancelled in the buffer
//!   never touches a list.
//! * The *cancel buffer* has the slots whose entry was cancelled and which are still linked. The
//!   value is gone and its key is invalid at once; only the slot is not allocated again before it is
//!   unlinked.

use super::slab::DueSlot;

/// How many slots a buffer holds: enough to overlap the cache misses, few enough that a scan of all
/// is short.
const BUFFER_LEN: usize = 64;

/// In the order in which the slots came, with holes where slots were removed. The last position is
/// never a hole.
#[derive(Debug)]
pub(super) struct Buffer {
    slots: [Option<DueSlot>; BUFFER_LEN],
    len: usize,
}

impl Buffer {
    pub(super) const fn new() -> Self {
        Self { slots: [None; BUFFER_LEN], len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == BUFFER_LEN
    }

    /// Adds a slot behind all others and returns its position. The buffer must not be full.
    #[inline]
    pub(super) fn push(&mut self, slot: DueSlot) -> usize {
        let position = self.len;
        self.slots[position] = Some(slot);
        self.len += 1;
        position
    }

    /// Removes the slot at `position`.
    #[inline]
    pub(super) fn remove(&mut self, position: usize) {
        if position + 1 < self.len {
            self.slots[position] = None;
        } else {
            self.len = position;
            // The holes before it are at the end now.
            while let Some(None) = self.slots[..self.len].last() {
                self.len -= 1;
            }
        }
    }

    /// How many positions are in use, holes included.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The slot at `position`; `None` for a hole.
    pub(super) fn at(&self, position: usize) -> Option<DueSlot> {
        self.slots.get(position).copied().flatten()
    }

    /// Forgets all slots. The caller has linked or unlinked them.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// The due ticks of the slots.
    pub(super) fn ticks(&self) -> impl Iterator<Item = u64> {
        self.slots[..self.len].iter().flatten().map(|(due, _)| due.get())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::num::NonZeroU64;

    use super::*;

    fn entry(index: u32) -> DueSlot {
        (NonZeroU64::MIN.saturating_add(index.into()), index)
    }

    #[test]
    fn remove_leaves_a_hole_and_trims_holes_at_the_end() {
        let mut buffer = Buffer::new();
        let positions = [10, 11, 12, 13].map(|index| buffer.push(entry(index)));
        assert_eq!(positions, [0, 1, 2, 3]);
        buffer.remove(1);
        buffer.remove(2);
        assert_eq!(buffer.push(entry(14)), 4);
        buffer.remove(4);
        buffer.remove(3);
        assert_eq!(
            buffer.push(entry(15)),
            1,
            "the holes before the last entry are trimmed with it"
        );
        assert_eq!(buffer.ticks().collect::<Vec<_>>(), [11, 16]);
        assert_eq!(
            (0..buffer.len()).map(|position| buffer.at(position)).collect::<Vec<_>>(),
            [Some(entry(10)), Some(entry(15))]
        );
        buffer.clear();
        assert_eq!(buffer.ticks().count(), 0);
        assert_eq!(buffer.push(entry(16)), 0);
    }

    #[test]
    fn is_full_until_cleared_or_until_the_last_entry_is_removed() {
        let mut buffer = Buffer::new();
        let mut index = 0;
        while !buffer.is_full() {
            buffer.push(entry(index));
            index += 1;
        }
        buffer.remove(0);
        assert!(buffer.is_full());
        buffer.remove(BUFFER_LEN - 1);
        assert!(!buffer.is_full());
        assert_eq!(buffer.ticks().count(), BUFFER_LEN - 2);
        buffer.clear();
        assert_eq!(buffer.len(), 0);
    }
}
