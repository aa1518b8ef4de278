//! The slots in which pending entries stand, and the keys by which they are found again.
//!
//! A key names a slot and the generation of its tenant. A freed slot goes to its next generation, so the key of an
//! entry that is gone finds nothing, for ever: a slot whose generations are used up is not let again. (That costs one
//! slot every 2^32 entries.)

use alloc::vec::Vec;
use core::num::{NonZeroU32, NonZeroU64};

use super::free::Free;

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
pub struct Key(
    /// The index above, the generation below. In one piece, as a processor waits when it is to read in one what it has
    /// just written in two.
    NonZeroU64,
);

/// The index that names no slot: the end of a list.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The index that names no slot either: what has it for a neighbour is in no list yet.
const FRESH: u32 = u32::MAX - 1;

/// A slot is the place of one entry, and is in two pieces: 12 bytes for what is known of the slot, and 16 for its tenant
/// if that is a `u64`. An entry that goes has the links of both its neighbours changed, and in a list these lie anywhere
/// in memory. With 12 bytes for each, more of them are in the cache, and on pages that the processor knows.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot>,
    /// As many as there are slots.
    tenants: Vec<Option<Tenant<T>>>,
    free: Free,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: NonZeroU32,
    /// Belongs to the list in which the entry stands, and means nothing for a free slot.
    links: Links,
}

/// The neighbours of an entry in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) previous: u32,
    pub(super) next: u32,
}

/// An entry. That nothing is due at tick 0, where a wheel begins, spares the eight bytes that an `Option` of this would
/// take to say that it is none.
#[derive(Debug)]
pub(super) struct Tenant<T> {
    pub(super) due: NonZeroU64,
    pub(super) value: T,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), tenants: Vec::new(), free: Free::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether every index that exists is taken.
    pub(super) fn is_full(&self) -> bool {
        self.slots.len() >= FRESH as usize && self.free.is_empty()
    }

    /// Gives `value` a slot that stands in no list yet.
    ///
    /// # Panics
    ///
    /// If the slab is full.
    pub(super) fn insert(&mut self, due: NonZeroU64, value: T) -> Key {
        let key = if let Some(index) = self.free.take() {
            let empty = &mut self.tenants[index as usize];
            debug_assert!(empty.is_none(), "a free slot holds nothing");
            *empty = Some(Tenant { due, value });
            Key::new(index, self.slots[index as usize].generation)
        } else {
            let index = u32::try_from(self.slots.len()).unwrap_or(FRESH);
            assert!(index < FRESH, "the wheel is full: it has no slot left");
            if self.slots.len() == self.slots.capacity() {
                self.grow();
            }
            let generation = NonZeroU32::MIN;
            let links = Links { previous: NOWHERE, next: NOWHERE };
            self.slots.push(Slot { generation, links });
            self.tenants.push(Some(Tenant { due, value }));
            Key::new(index, generation)
        };
        self.len += 1;
        key
    }

    /// Makes room for more slots, and for each of them in the set of free ones: freeing a slot never allocates.
    #[cold]
    fn grow(&mut self) {
        self.slots.reserve(1);
        let capacity = self.slots.capacity();
        self.tenants.reserve_exact(capacity - self.tenants.len());
        self.free.grow(capacity);
    }

    /// Takes the entry out of its slot. The key names nothing from now on; the slot is let again when it is
    /// [vacated](Self::vacate).
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<(Tenant<T>, Links)> {
        let slot = *self.slots.get(key.index() as usize)?;
        if slot.generation.get() != key.generation() {
            return None;
        }
        Some((self.remove_at(key.index())?, slot.links))
    }

    /// As [`remove`](Self::remove), of the entry that stands at `index`.
    #[inline]
    pub(super) fn remove_at(&mut self, index: u32) -> Option<Tenant<T>> {
        let tenant = self.tenants[index as usize].take()?;
        self.len -= 1;
        Some(tenant)
    }

    /// Lets a slot be let again whose entry was removed, and which is out of its list.
    #[inline]
    pub(super) fn vacate(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.put(index);
        }
    }

    /// Whether an entry stands at `index`.
    pub(super) fn is_let(&self, index: u32) -> bool {
        self.tenants[index as usize].is_some()
    }

    /// The entry that `key` names, if it is still there.
    pub(super) fn tenant(&self, key: Key) -> Option<&Tenant<T>> {
        let slot = self.slots.get(key.index() as usize)?;
        let tenant = self.tenants[key.index() as usize].as_ref();
        tenant.filter(|_| slot.generation.get() == key.generation())
    }

    pub(super) fn tenant_mut(&mut self, key: Key) -> Option<&mut Tenant<T>> {
        let slot = self.slots.get(key.index() as usize)?;
        let tenant = self.tenants[key.index() as usize].as_mut();
        tenant.filter(|_| slot.generation.get() == key.generation())
    }

    pub(super) fn links(&self, index: u32) -> Links {
        self.slots[index as usize].links
    }

    pub(super) fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.slots[index as usize].links
    }

    /// Every entry, in the order of the slots, which means nothing.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        // Slots and indexes end together: `insert` sees to it that no index is beyond 32 bits.
        (0..NOWHERE).zip(&self.slots).zip(&self.tenants).filter_map(|((index, slot), tenant)| {
            let key = Key::new(index, slot.generation);
            tenant.as_ref().map(|tenant| (key, tenant.due.get(), &tenant.value))
        })
    }
}

impl Links {
    /// What stands for a list while an entry is not in one yet: its place among the [fresh](super::fresh) ones.
    #[expect(clippy::cast_possible_truncation, reason = "there are a few places only")]
    pub(super) const fn fresh(place: usize) -> Self {
        Self { previous: FRESH, next: place as u32 }
    }

    /// The place among the fresh ones; none if the entry is in a list.
    pub(super) const fn fresh_place(self) -> Option<usize> {
        if self.previous == FRESH { Some(self.next as usize) } else { None }
    }

    /// Closes the gap that an entry has left which was neither the first nor the last of its list, whichever list that
    /// is. False, and nothing done, if it was at an end.
    pub(super) fn close_gap<T>(self, slab: &mut Slab<T>) -> bool {
        let Self { previous, next } = self;
        let inside = previous != NOWHERE && next != NOWHERE;
        if inside {
            slab.links_mut(previous).next = next;
            slab.links_mut(next).previous = previous;
        }
        inside
    }
}

impl Key {
    #[inline]
    fn new(index: u32, generation: NonZeroU32) -> Self {
        Self(NonZeroU64::from(generation) | (u64::from(index) << u32::BITS))
    }

    #[inline]
    pub(super) const fn index(self) -> u32 {
        (self.0.get() >> u32::BITS) as u32
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it takes the lower half")]
    const fn generation(self) -> u32 {
        self.0.get() as u32
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;

    fn insert<T>(slab: &mut Slab<T>, value: T) -> Key {
        slab.insert(NonZeroU64::MIN, value)
    }

    fn remove<T>(slab: &mut Slab<T>, key: Key) -> Option<T> {
        let (tenant, _) = slab.remove(key)?;
        slab.vacate(key.index());
        Some(tenant.value)
    }

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<Key>(), 8);
        assert_eq!(size_of::<Option<Key>>(), 8);
    }

    #[test]
    fn a_slot_takes_28_bytes_with_a_number_and_36_with_a_box() {
        assert_eq!(size_of::<Slot>(), 12);
        assert_eq!(size_of::<Option<Tenant<u64>>>(), 16);
        assert_eq!(size_of::<Option<Tenant<Box<dyn FnOnce() + Send>>>>(), 24);
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_let_again() {
        let mut slab = Slab::new();
        let first = insert(&mut slab, 'a');
        slab.slots[first.index() as usize].generation = NonZeroU32::MAX;
        let last = Key::new(first.index(), NonZeroU32::MAX);
        assert_eq!(remove(&mut slab, last), Some('a'));
        let other = insert(&mut slab, 'b');
        assert_ne!(other.index(), first.index());
        assert!(slab.tenant(last).is_none() && slab.tenant(first).is_none());
        assert_eq!(remove(&mut slab, last), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_freed_slot_is_the_next_to_be_let() {
        let mut slab = Slab::new();
        let first = insert(&mut slab, 'a');
        insert(&mut slab, 'b');
        remove(&mut slab, first);
        let third = insert(&mut slab, 'c');
        assert_eq!(third.index(), first.index());
        assert_ne!(third.generation(), first.generation());
    }
}
