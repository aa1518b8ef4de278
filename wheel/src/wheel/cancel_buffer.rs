//! The cancel buffer: slots whose entry was cancelled, and which are still linked in a list.
//!
//! To unlink a slot means to write to its neighbours, which lie anywhere in memory, and the caller
//! holds a lock meanwhile. So slots are unlinked many at a time, and the cache misses overlap. The
//! value is gone and its key is invalid at once; only the slot is not allocated again before it is
//! unlinked (DESIGN: buffers).

use core::num::NonZeroU64;

use super::slab::DueSlot;

/// How many slots the buffer holds: enough to overlap the cache misses, few enough that a search
/// that skips them is short.
const BUFFER_LEN: usize = 64;

#[derive(Debug)]
pub(super) struct CancelBuffer {
    slots: [DueSlot; BUFFER_LEN],
    len: usize,
}

impl CancelBuffer {
    pub(super) const fn new() -> Self {
        Self { slots: [(NonZeroU64::MIN, 0); BUFFER_LEN], len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a slot. False, and nothing done, if the buffer is full.
    #[inline]
    pub(super) fn push(&mut self, slot: DueSlot) -> bool {
        let free = self.slots.get_mut(self.len);
        let added = free.is_some();
        if let Some(free) = free {
            *free = slot;
            self.len += 1;
        }
        added
    }

    /// Removes the slot that was added last.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<DueSlot> {
        self.len = self.len.checked_sub(1)?;
        Some(self.slots[self.len])
    }
}
