//! The slots of the pending entries, and the keys of the entries.
//!
//! A key names a slot and a generation. Freeing a slot increments the slot's generation, so the key
//! of a removed entry never resolves again. A slot with used-up generations is retired, which costs
//! a slot per 2^32 entries.
//!
//! Slots are in chunks, which never move: making room for more entries copies only the data of the
//! chunks, 64 bytes each. With a single vector of slots and a single table of lists, a call among
//! four million entries took 280 ms. The cost of chunks is a second memory access per slot: 1.5 ns
//! of 47 to schedule and cancel an entry, and 5 ns of 70 for each of a million random cancels.
//!
//! Empty chunks, except one, release their memory after a delay. With chunks released at once, each
//! cancel of a million closures took 240 ns longer: before the C library frees or allocates a piece
//! of memory as large as a chunk, the library merges all small free pieces. A released chunk stores
//! the first generation of the slots for the next opening.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::num::{NonZeroU32, NonZeroU64};

use super::free_slots::{CHUNK, FreeSlots};

/// Names a pending entry of a [`Wheel`](crate::Wheel), and nothing once the entry is removed.
///
/// Returned by [`Wheel::insert`](crate::Wheel::insert).
///
/// A key takes 8 bytes, and so does `Option<Key>`. A key does not identify the wheel: on a
/// different wheel, the key may name an unrelated entry.
///
/// ```
/// use hashed_wheel::Wheel;
///
/// let mut wheel = Wheel::new(8)?;
/// let key = wheel.insert(5, "first");
/// assert_eq!(wheel.cancel(key), Some("first"));
/// wheel.insert(5, "in the same slot");
/// assert_eq!(wheel.get(key), None);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(
    /// The index in the upper half, the generation in the lower half. A single integer, because a
    /// processor stalls when reading a word just written in two parts: 8 ns of a schedule and
    /// cancel.
    NonZeroU64,
);

/// The index of no slot: the end of a list.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// Also the index of no slot: the previous link of a slot in the insert buffer.
const BUFFERED: u32 = u32::MAX - 1;

/// The most chunks. The index allows a chunk more, whose last slots would have the indexes
/// `BUFFERED` and `NO_SLOT`.
const CHUNKS_MAX: usize = u32::MAX as usize / CHUNK;

/// The most chunks released per call.
pub(super) const RELEASED_MAX: usize = 4;

/// The due tick of an entry, and the index of the entry's slot.
pub(super) type DueSlot = (NonZeroU64, u32);

/// All slots of a wheel.
///
/// A slot has two parts: 12 bytes of generation and links, and the entry, 16 bytes for a `u64` and
/// 24 bytes for a boxed task. Unlinking a slot changes the links of the neighbours, which lie
/// anywhere in memory. At 12 bytes each, more of the links are in the cache and in the page tables'
/// cache.
#[derive(Debug)]
pub(super) struct Slab<T> {
    /// The number of a slot's chunk is the slot's index divided by the size of a chunk.
    chunks: Vec<Chunk<T>>,
    /// The chunk with slots not allocated since the chunk was opened, if any.
    unused: Option<usize>,
    /// The numbers of chunks without memory, for reopening.
    closed: Vec<usize>,
    /// The numbers of chunks that became empty, oldest first. Some may hold entries again.
    emptied: VecDeque<usize>,
    /// How many chunks of `emptied`, from the first on, are released from the tick `release_from`
    /// on, unless used before.
    expiring: usize,
    release_from: u64,
    free_slots: FreeSlots,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    /// `None` for a closed chunk. The fixed length of the array saves a length check per access.
    slots: Option<Box<[Slot; CHUNK]>>,
    /// The entries of the slots allocated since the chunk was opened. The vector has capacity for
    /// all slots from the start and grows into the capacity, so no more memory is touched than the
    /// entries need.
    entries: Vec<Option<Entry<T>>>,
    /// The generation at which the slots start when the chunk is opened again.
    generation: NonZeroU32,
    /// Whether the number of the chunk is in `Slab::emptied`.
    emptied: bool,
    /// Whether the chunk was used since, and became empty again.
    emptied_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: NonZeroU32,
    /// Used by the list or the buffer of the slot. Meaningless for a free slot.
    links: Links,
}

/// The neighbours of a slot in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) previous: u32,
    pub(super) next: u32,
}

/// A pending entry. No entry is due at tick 0, where a wheel starts, so the due tick is never zero,
/// and an `Option` of an entry is no larger.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) due: NonZeroU64,
    pub(super) value: T,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            unused: None,
            closed: Vec::new(),
            emptied: VecDeque::new(),
            expiring: 0,
            release_from: 0,
            free_slots: FreeSlots::new(),
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether no slot is free and no chunk can be opened.
    #[cfg(feature = "std")]
    pub(super) fn is_full(&self) -> bool {
        self.free_slots.is_empty()
            && self.unused.is_none()
            && self.closed.is_empty()
            && self.chunks.len() >= CHUNKS_MAX
    }

    /// Allocates a slot with `links` for an entry, and returns the entry's key.
    ///
    /// # Panics
    ///
    /// If the slab is full.
    pub(super) fn insert(&mut self, due: NonZeroU64, value: T, links: Links) -> Key {
        let index = self.free_slots.take().unwrap_or_else(|| self.next_unused());
        let (number, offset) = locate(index);
        let chunk = &mut self.chunks[number];
        let entry = Some(Entry { due, value });
        if let Some(empty) = chunk.entries.get_mut(offset) {
            debug_assert!(empty.is_none(), "a free slot holds no entry");
            *empty = entry;
        } else {
            // Allocated for the first time since the chunk was opened.
            chunk.entries.push(entry);
            if chunk.entries.len() == CHUNK {
                self.unused = None;
            }
        }
        self.free_slots.count_allocated(number);
        self.len += 1;
        let slot = chunk.slot_mut(offset);
        slot.links = links;
        Key::new(index, slot.generation)
    }

    /// The next slot of the `unused` chunk. Opens a chunk if there is none.
    #[inline]
    fn next_unused(&mut self) -> u32 {
        let number = self.unused.unwrap_or_else(|| self.open_chunk());
        index(number, self.chunks[number].entries.len())
    }

    /// Opens a chunk, with room for each slot in `free_slots`: freeing a slot never allocates
    /// memory. Returns the number of the chunk.
    #[cold]
    fn open_chunk(&mut self) -> usize {
        // 1. The number of a closed chunk, or else a new number.
        let number = self.closed.pop().unwrap_or(self.chunks.len());
        if number == self.chunks.len() {
            assert!(number < CHUNKS_MAX, "the wheel is full: it has no slot left");
            self.chunks.push(Chunk::CLOSED);
            // Room for every chunk in both lists, so closing a chunk later never allocates.
            self.closed.reserve(self.chunks.len());
            self.emptied.reserve(self.chunks.len() - self.emptied.len());
        }
        // 2. Memory for entries and slots.
        let chunk = &mut self.chunks[number];
        chunk.entries.reserve_exact(CHUNK);
        touch(CHUNK);
        let links = Links { previous: NO_SLOT, next: NO_SLOT };
        let slot = Slot { generation: chunk.generation, links };
        // Cannot fail: the lengths are equal. Created as a vector, so the array is never on the
        // stack.
        chunk.slots = vec![slot; CHUNK].into_boxed_slice().try_into().ok();
        // 3. Room among the free slots.
        self.free_slots.open(number);
        self.unused = Some(number);
        number
    }

    /// Removes the entry of `key`, and returns the entry and the slot's links; `None` if the entry
    /// is no longer pending. The key is invalid afterwards. The slot can be allocated again after
    /// [`free`](Self::free).
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<(Entry<T>, Links)> {
        let (number, offset) = locate(key.index());
        // Entry and slot are both located before either is read, so the two cache misses overlap.
        let chunk = self.chunks.get_mut(number)?;
        let entry = chunk.entries.get_mut(offset)?;
        let slot = chunk.slots.as_ref()?[offset];
        if slot.generation.get() != key.generation() {
            return None;
        }
        let entry = entry.take()?;
        self.len -= 1;
        Some((entry, slot.links))
    }

    /// Removes the entry of the slot `index`, as [`remove`](Self::remove) does.
    #[inline]
    pub(super) fn remove_at(&mut self, index: u32) -> Option<Entry<T>> {
        let (chunk, offset) = locate(index);
        let entry = self.chunks[chunk].entries[offset].take()?;
        self.len -= 1;
        Some(entry)
    }

    /// Frees the slot of a removed entry, and returns the slot's links. The caller must unlink the
    /// slot, given these links, before the next insert.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "every cancel does this, and a call costs half as much as the work"
    )]
    pub(super) fn free(&mut self, index: u32) -> Links {
        let (number, offset) = locate(index);
        let slot = self.chunks[number].slot_mut(offset);
        let links = slot.links;
        // A slot at the last generation is retired.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free_slots.put(index);
        }
        if self.free_slots.count_freed(number) {
            let chunk = &mut self.chunks[number];
            chunk.emptied_again = chunk.emptied;
            if !chunk.emptied {
                self.note_empty(number);
            }
        }
        links
    }

    #[cold]
    fn note_empty(&mut self, number: usize) {
        self.chunks[number].emptied = true;
        self.emptied.push_back(number);
    }

    /// Releases the memory of a few chunks which have been empty for `delay` ticks, at most twice
    /// as long. One empty chunk is retained. So a wheel which fills and empties over and over does
    /// not allocate each time.
    pub(super) fn release_chunks(&mut self, now: u64, delay: u64) {
        // 1. If no chunk is expiring, the chunks which are empty now start to expire.
        if self.has_new_empty_chunks() {
            self.expiring = self.emptied.len();
            self.release_from = now.saturating_add(delay);
        }
        // 2. Release a few expired chunks.
        if now < self.release_from {
            return;
        }
        for _ in 0..RELEASED_MAX.min(self.expiring) {
            if !self.has_chunks_to_release() {
                return;
            }
            if let Some(number) = self.emptied.pop_front() {
                self.expiring -= 1;
                self.release_chunk(number);
            }
        }
    }

    /// Whether there are empty chunks besides the retained chunk.
    #[inline]
    pub(super) fn has_chunks_to_release(&self) -> bool {
        self.emptied.len() > 1
    }

    /// Whether there are chunks to release, none of them expiring yet.
    #[inline]
    pub(super) fn has_new_empty_chunks(&self) -> bool {
        self.has_chunks_to_release() && self.expiring == 0
    }

    /// The tick from which on [`release_chunks`](Self::release_chunks) has work; `None` without
    /// work.
    #[cfg(feature = "std")]
    pub(super) fn next_release(&self) -> Option<u64> {
        let tick = if self.expiring == 0 { 0 } else { self.release_from };
        self.has_chunks_to_release().then_some(tick)
    }

    #[cold]
    fn release_chunk(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        chunk.emptied = false;
        if self.free_slots.is_in_use(number) {
            // In use again.
            return;
        }
        if chunk.emptied_again {
            // The chunk was in use in between, so the delay starts again.
            chunk.emptied_again = false;
            return self.note_empty(number);
        }
        // 1. Find a generation not used by any key of the chunk's slots. If a slot has used up all
        //    generations, the chunk is never opened again.
        touch(CHUNK);
        let generation =
            chunk.slots.iter().flat_map(|slots| &**slots).map(|slot| slot.generation).max();
        let next = generation.filter(|generation| *generation < NonZeroU32::MAX);
        // 2. Free the memory of the chunk, also in `free_slots`.
        *chunk = Chunk { generation: next.unwrap_or(NonZeroU32::MAX), ..Chunk::CLOSED };
        self.free_slots.close(number);
        self.unused = self.unused.filter(|unused| *unused != number);
        if next.is_some() {
            self.closed.push(number);
        }
    }

    /// Whether the slot holds an entry.
    pub(super) fn is_pending(&self, index: u32) -> bool {
        let (chunk, offset) = locate(index);
        self.chunks[chunk].entries[offset].is_some()
    }

    /// The entry of `key`, while pending.
    pub(super) fn entry(&self, key: Key) -> Option<&Entry<T>> {
        let (number, offset) = locate(key.index());
        let chunk = self.chunks.get(number)?;
        let slot = chunk.slots.as_ref()?[offset];
        let entry = chunk.entries.get(offset)?.as_ref();
        entry.filter(|_| slot.generation.get() == key.generation())
    }

    pub(super) fn entry_mut(&mut self, key: Key) -> Option<&mut Entry<T>> {
        let (number, offset) = locate(key.index());
        let chunk = self.chunks.get_mut(number)?;
        let slot = chunk.slots.as_ref()?[offset];
        let entry = chunk.entries.get_mut(offset)?.as_mut();
        entry.filter(|_| slot.generation.get() == key.generation())
    }

    #[inline]
    pub(super) fn links(&self, index: u32) -> Links {
        let (number, offset) = locate(index);
        self.chunks[number].slot(offset).links
    }

    #[inline]
    pub(super) fn links_mut(&mut self, index: u32) -> &mut Links {
        touch(1);
        let (number, offset) = locate(index);
        &mut self.chunks[number].slot_mut(offset).links
    }

    /// Every entry, in the order of the slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| chunk.iter(number))
    }

    #[cfg(feature = "std")]
    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The keys of the entries in the chunk `number`.
    #[cfg(feature = "std")]
    pub(super) fn keys_in_chunk(&self, number: usize) -> Vec<Key> {
        touch(CHUNK);
        self.chunks[number].iter(number).map(|(key, _, _)| key).collect()
    }
}

#[cold]
#[inline(never)]
fn closed() -> ! {
    unreachable!("no slot of a closed chunk is linked or free")
}

impl<T> Chunk<T> {
    const CLOSED: Self = Self {
        slots: None,
        entries: Vec::new(),
        generation: NonZeroU32::MIN,
        emptied: false,
        emptied_again: false,
    };

    /// Every entry of this chunk, which has the number `number`.
    fn iter(&self, number: usize) -> impl Iterator<Item = (Key, u64, &T)> {
        let slots = self.slots.iter().flat_map(|slots| &**slots);
        slots.zip(&self.entries).enumerate().filter_map(move |(offset, (slot, entry))| {
            let key = Key::new(index(number, offset), slot.generation);
            entry.as_ref().map(|entry| (key, entry.due.get(), &entry.value))
        })
    }

    #[inline]
    fn slot(&self, offset: usize) -> &Slot {
        let Some(slots) = &self.slots else { closed() };
        &slots[offset]
    }

    #[inline]
    fn slot_mut(&mut self, offset: usize) -> &mut Slot {
        let Some(slots) = &mut self.slots else { closed() };
        &mut slots[offset]
    }
}

#[cfg(all(test, feature = "std"))]
std::thread_local! {
    /// How many slots and lists this thread has touched.
    pub(super) static TOUCHED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// Counts touched slots and lists, for the test of the bound on the work of a call.
#[cfg(all(test, feature = "std"))]
pub(super) fn touch(count: usize) {
    TOUCHED.set(TOUCHED.get() + count);
}

#[cfg(not(all(test, feature = "std")))]
pub(super) const fn touch(_count: usize) {}

/// The number of a slot's chunk, and the slot's offset in the chunk.
#[inline]
const fn locate(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

/// The index of the slot at `offset` in `chunk`.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the number of chunks is limited to what 32 bits can index"
)]
const fn index(chunk: usize, offset: usize) -> u32 {
    (chunk * CHUNK + offset) as u32
}

impl Links {
    /// The links of a slot at `position` in the insert buffer.
    #[expect(clippy::cast_possible_truncation, reason = "the buffer has 64 positions")]
    pub(super) const fn buffered(position: usize) -> Self {
        Self { previous: BUFFERED, next: position as u32 }
    }

    /// The position in the insert buffer; `None` if the slot is in a list.
    pub(super) const fn buffer_position(self) -> Option<usize> {
        if self.previous == BUFFERED { Some(self.next as usize) } else { None }
    }

    /// Unlinks a slot with these links from the middle of any list. Returns false, without any
    /// effect, if the slot is the first or the last of a list.
    pub(super) fn unlink<T>(self, slab: &mut Slab<T>) -> bool {
        let Self { previous, next } = self;
        let inside = previous != NO_SLOT && next != NO_SLOT;
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
    #[expect(clippy::cast_possible_truncation, reason = "the generation is the lower half")]
    const fn generation(self) -> u32 {
        self.0.get() as u32
    }
}

#[cfg(test)]
impl<T> Slab<T> {
    /// How many chunks are open.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.slots.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert<T>(slab: &mut Slab<T>, value: T) -> Key {
        slab.insert(NonZeroU64::MIN, value, Links::buffered(0))
    }

    fn remove<T>(slab: &mut Slab<T>, key: Key) -> Option<T> {
        let (entry, _) = slab.remove(key)?;
        slab.free(key.index());
        Some(entry.value)
    }

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<Key>(), 8);
        assert_eq!(size_of::<Option<Key>>(), 8);
    }

    #[test]
    fn a_slot_takes_28_bytes_with_a_number_and_36_with_a_box() {
        assert_eq!(size_of::<Slot>(), 12);
        assert_eq!(size_of::<Option<Entry<u64>>>(), 16);
        assert_eq!(size_of::<Option<Entry<Box<dyn FnOnce() + Send>>>>(), 24);
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_retired() {
        let mut slab = Slab::new();
        let first = insert(&mut slab, 'a');
        slab.chunks[0].slot_mut(first.index() as usize).generation = NonZeroU32::MAX;
        let last = Key::new(first.index(), NonZeroU32::MAX);
        assert_eq!(remove(&mut slab, last), Some('a'));
        let other = insert(&mut slab, 'b');
        assert_ne!(other.index(), first.index());
        assert!(slab.entry(last).is_none() && slab.entry(first).is_none());
        assert_eq!(remove(&mut slab, last), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn empty_chunks_are_released_a_few_at_a_time_and_one_is_kept() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..20 * CHUNK).map(|value| insert(&mut slab, value)).collect();
        assert_eq!((slab.chunks(), slab.has_chunks_to_release()), (20, false));
        for key in &keys[CHUNK..] {
            remove(&mut slab, *key);
        }
        let mut left = 20;
        while slab.has_chunks_to_release() {
            slab.release_chunks(0, 0);
            left -= RELEASED_MAX.min(left - 2);
            assert_eq!(slab.chunks(), left);
        }
        assert_eq!(left, 2, "the full one, and one empty one");
        assert_eq!(slab.iter().count(), CHUNK);
        for key in &keys[..CHUNK] {
            assert!(remove(&mut slab, *key).is_some());
        }
        slab.release_chunks(0, 0);
        assert_eq!(slab.chunks(), 1);
    }

    #[test]
    fn a_chunk_is_released_when_it_has_been_empty_for_the_delay() {
        const DELAY: u64 = 100;
        let mut slab = Slab::new();
        let fill_and_empty = |slab: &mut Slab<usize>, chunks: usize| {
            let keys: Vec<Key> = (0..chunks * CHUNK).map(|value| insert(slab, value)).collect();
            for key in &keys {
                remove(slab, *key);
            }
        };
        // 1. A load that comes and goes keeps its memory.
        for now in 0..5 * DELAY {
            fill_and_empty(&mut slab, 3);
            slab.release_chunks(now, DELAY);
            assert_eq!(slab.chunks(), 3, "at tick {now}");
        }
        // 2. So does a part of it, and the other chunks are released, within twice the delay.
        let mut opened = Vec::new();
        for now in 5 * DELAY..8 * DELAY {
            let key = insert(&mut slab, 7);
            remove(&mut slab, key);
            slab.release_chunks(now, DELAY);
            opened.push(slab.chunks());
        }
        assert_eq!(opened[usize::try_from(DELAY / 2).unwrap()], 3);
        assert_eq!(opened[usize::try_from(2 * DELAY).unwrap()], 1);
        assert!(!slab.has_chunks_to_release());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_reopened_chunk_resolves_no_earlier_key() {
        let mut slab = Slab::new();
        let mut all: Vec<Key> = Vec::new();
        for _ in 0..5 {
            let keys: Vec<Key> = (0..3 * CHUNK).map(|value| insert(&mut slab, value)).collect();
            assert_eq!(slab.chunks.len(), 3, "the numbers are used again");
            for key in &all {
                assert!(slab.entry(*key).is_none() && slab.remove(*key).is_none());
            }
            for key in &keys {
                remove(&mut slab, *key);
            }
            all.extend(keys);
            // The second time if a chunk was used again since it became empty.
            slab.release_chunks(0, 0);
            slab.release_chunks(0, 0);
            assert_eq!((slab.chunks(), slab.len()), (1, 0));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "no key is used twice");
    }

    #[test]
    fn chunk_with_exhausted_generation_is_released_and_not_reopened() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..2 * CHUNK).map(|value| insert(&mut slab, value)).collect();
        slab.chunks[0].slot_mut(7).generation = NonZeroU32::MAX;
        assert_eq!(remove(&mut slab, Key::new(7, NonZeroU32::MAX)), Some(7));
        for key in &keys {
            remove(&mut slab, *key);
        }
        slab.release_chunks(0, 0);
        assert_eq!(slab.chunks(), 1);
        for value in 0..3 * CHUNK {
            let key = insert(&mut slab, value);
            assert!(key.index() as usize >= CHUNK);
        }
    }

    #[test]
    fn a_chunk_that_is_in_use_again_is_not_released() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..3 * CHUNK).map(|value| insert(&mut slab, value)).collect();
        for key in &keys {
            remove(&mut slab, *key);
        }
        let kept: Vec<Key> = (0..3 * CHUNK).map(|value| insert(&mut slab, value)).collect();
        slab.release_chunks(0, 0);
        assert_eq!((slab.chunks(), slab.has_chunks_to_release()), (3, false));
        assert!(kept.iter().zip(0..).all(|(key, value)| remove(&mut slab, *key) == Some(value)));
    }

    #[test]
    fn a_freed_slot_is_the_next_to_be_allocated() {
        let mut slab = Slab::new();
        let first = insert(&mut slab, 'a');
        insert(&mut slab, 'b');
        remove(&mut slab, first);
        let third = insert(&mut slab, 'c');
        assert_eq!(third.index(), first.index());
        assert_ne!(third.generation(), first.generation());
    }
}
