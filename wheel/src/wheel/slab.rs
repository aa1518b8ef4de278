//! The slots in which pending entries stand, and the keys by which they are found again.
//!
//! A key names a slot and the generation of its tenant. A freed slot goes to its next generation, so the key of an
//! entry that is gone finds nothing, for ever: a slot whose generations are used up is not let again. (That costs one
//! slot every 2^32 entries.)
//!
//! Free slots stand on a dense stack of their own. Linked through the slots they would cost a cache miss per insertion,
//! and the next free slot would be known only after it.

use std::num::NonZeroU32;

/// Names one entry of one [`Wheel`](crate::Wheel), for as long as it is pending and never anything else afterwards.
///
/// Eight bytes, and so is `Option<Key>`. A key means nothing to a wheel that did not hand it out.
///
/// ```
/// use hashed_wheel::Wheel;
///
/// let mut wheel = Wheel::new(8)?;
/// let key = wheel.insert(5, "gone");
/// assert_eq!(wheel.cancel(key), Some("gone"));
/// wheel.insert(5, "in the same slot");
/// assert_eq!(wheel.get(key), None);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: NonZeroU32,
}

/// The index that names no slot: the end of a list.
pub(super) const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

/// One entry, or the place of one. `previous` and `next` belong to the list in which the entry stands.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) due: u64,
    pub(super) previous: u32,
    pub(super) next: u32,
    generation: NonZeroU32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether every index that exists is taken.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= NOWHERE as usize
    }

    /// Gives `value` a slot that stands in no list yet.
    ///
    /// # Panics
    ///
    /// If the slab is full.
    pub(super) fn insert(&mut self, due: u64, value: T) -> Key {
        let (index, generation) = if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            debug_assert!(slot.value.is_none(), "a free slot holds nothing");
            slot.due = due;
            slot.value = Some(value);
            (index, slot.generation)
        } else {
            let index = u32::try_from(self.slots.len()).unwrap_or(NOWHERE);
            assert!(index != NOWHERE, "a wheel holds at most 2^32 - 1 entries");
            let generation = NonZeroU32::MIN;
            let value = Some(value);
            self.slots.push(Slot { due, previous: NOWHERE, next: NOWHERE, generation, value });
            (index, generation)
        };
        self.len += 1;
        Key { index, generation }
    }

    /// Empties the slot, which must stand in no list any more.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let slot = &mut self.slots[index as usize];
        let value = slot.value.take()?;
        self.len -= 1;
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push(index);
        }
        Some(value)
    }

    /// The index of the entry that `key` names, if it is still there.
    pub(super) fn index(&self, key: Key) -> Option<u32> {
        let slot = self.slots.get(key.index as usize)?;
        (slot.generation == key.generation && slot.value.is_some()).then_some(key.index)
    }

    pub(super) fn slot(&self, index: u32) -> &Slot<T> {
        &self.slots[index as usize]
    }

    pub(super) fn slot_mut(&mut self, index: u32) -> &mut Slot<T> {
        &mut self.slots[index as usize]
    }

    pub(super) fn value(&self, index: u32) -> Option<&T> {
        self.slots[index as usize].value.as_ref()
    }

    pub(super) fn value_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots[index as usize].value.as_mut()
    }

    /// Every entry, in the order of the slots, which means nothing.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        // Slots and indexes end together: `insert` sees to it that no index is beyond 32 bits.
        (0..NOWHERE).zip(&self.slots).filter_map(|(index, slot)| {
            let key = Key { index, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, slot.due, value))
        })
    }
}

impl<T> Slot<T> {
    /// Whether taking this entry out of its list leaves the list's ends as they are.
    pub(super) const fn has_neighbours_on_both_sides(&self) -> bool {
        self.previous != NOWHERE && self.next != NOWHERE
    }
}

impl Key {
    pub(super) const fn index(self) -> u32 {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<Key>(), 8);
        assert_eq!(size_of::<Option<Key>>(), 8);
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_let_again() {
        let mut slab = Slab::new();
        let first = slab.insert(0, 'a');
        slab.slot_mut(first.index).generation = NonZeroU32::MAX;
        let last = Key { index: first.index, generation: NonZeroU32::MAX };
        assert_eq!(slab.remove(last.index), Some('a'));
        let other = slab.insert(0, 'b');
        assert_ne!(other.index, first.index);
        assert_eq!(slab.index(last), None);
        assert_eq!(slab.index(first), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_freed_slot_is_the_next_to_be_let() {
        let mut slab = Slab::new();
        let first = slab.insert(0, 'a');
        slab.insert(0, 'b');
        slab.remove(first.index);
        let third = slab.insert(0, 'c');
        assert_eq!(third.index, first.index);
        assert_ne!(third.generation, first.generation);
    }
}
