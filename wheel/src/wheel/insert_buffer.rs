//! The insert buffer: the entries that came last and are in no list yet.
//!
//! Most timeouts are cancelled, many of them soon after they are scheduled. An entry that is
//! cancelled while it is in the buffer never touches a list, nor the neighbours it would have
//! there, which lie anywhere in memory. Entries that stay longer go into their lists many at a
//! time, so that the processor fetches memory for one while it waits for another (DESIGN:
//! buffers).

use super::slab::DueSlot;

/// How many entries the buffer holds: enough to overlap the cache misses, few enough that a scan of
/// all is short.
const BUFFER_LEN: usize = 64;

/// In the order of insertion, with holes where entries were removed. The last position is never a
/// hole.
#[derive(Debug)]
pub(super) struct InsertBuffer {
    entries: [Option<DueSlot>; BUFFER_LEN],
    len: usize,
}

impl InsertBuffer {
    pub(super) const fn new() -> Self {
        Self { entries: [None; BUFFER_LEN], len: 0 }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == BUFFER_LEN
    }

    /// Adds an entry behind all others and returns its position. The buffer must not be full.
    #[inline]
    pub(super) fn push(&mut self, entry: DueSlot) -> usize {
        let position = self.len;
        self.entries[position] = Some(entry);
        self.len += 1;
        position
    }

    /// Removes the entry at `position`.
    #[inline]
    pub(super) fn remove(&mut self, position: usize) {
        if position + 1 < self.len {
            self.entries[position] = None;
        } else {
            self.len = position;
            // The holes before it are at the end now.
            while let Some(None) = self.entries[..self.len].last() {
                self.len -= 1;
            }
        }
    }

    /// How many positions are in use, holes included.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The entry at `position`; `None` for a hole.
    pub(super) fn at(&self, position: usize) -> Option<DueSlot> {
        self.entries.get(position).copied().flatten()
    }

    /// Forgets all entries. The caller has put them into their lists.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// The due ticks of the entries.
    pub(super) fn ticks(&self) -> impl Iterator<Item = u64> {
        self.entries[..self.len].iter().flatten().map(|(due, _)| due.get())
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
        let mut buffer = InsertBuffer::new();
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
        let mut buffer = InsertBuffer::new();
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
