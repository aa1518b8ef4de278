//! The free slots, and the order of reallocation.
//!
//! Up to 64 recently freed slots are on a stack and are allocated first, latest first: entries
//! inserted and cancelled at once reuse a single slot, which is in the cache. Slots freed while the
//! stack is full are allocated in the order of their addresses, pass after pass. In the random
//! order of freeing, each allocation would miss the cache and the page tables' cache for as long as
//! the wheel lives: an insertion would take 50 ns instead of 17 with a million entries pending.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::bit_set::{BITS, BitSet};

/// The capacity of the stack of recently freed slots.
const RECENT: usize = 64;

/// The number of slots of a chunk: few enough to open, scan or release a chunk in microseconds, and
/// enough to make the data per chunk negligible. Small in tests, so a few entries fill several
/// chunks.
pub(super) const CHUNK: usize = if cfg!(test) { 128 } else { 4096 };

/// The number of words with a bit for each slot of a chunk.
const WORDS: usize = CHUNK / BITS;

/// The free slots. Each free slot is in exactly one place: `recent`, `run` or `ordered`.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// A stack of recently freed slots, which are allocated first.
    recent: [u32; RECENT],
    recent_len: usize,
    /// A bit for each free slot of the 64 slots from `run_start` on. These slots are allocated
    /// next, lowest first.
    run: u64,
    run_start: u32,
    /// The remaining free slots, by chunk.
    ordered: Vec<ChunkSlots>,
    /// The chunks with a free slot in `ordered`.
    chunks: BitSet,
    /// The number of slots in `run` and `ordered`. Zero saves the search.
    len: usize,
}

/// The free slots of a chunk, and the number of allocated slots.
#[derive(Debug, Default)]
struct ChunkSlots {
    /// A bit for each free slot. `None` for a closed chunk.
    words: Option<Box<[u64; WORDS]>>,
    /// Bit i is set if word i is not zero.
    summary: u64,
    /// The number of allocated slots: slots with an entry, or still linked after a cancel.
    ///
    /// The count is here because the summary is written at the same time. Beside the addresses of
    /// the slots, which every call reads, each write would evict the addresses from the caches of
    /// further processors: with two threads, 10 of a cancel's 200 ns.
    allocated: u32,
}

impl FreeSlots {
    pub(super) const fn new() -> Self {
        Self {
            recent: [0; RECENT],
            recent_len: 0,
            run: 0,
            run_start: 0,
            ordered: Vec::new(),
            chunks: BitSet::new(),
            len: 0,
        }
    }

    #[cfg(any(test, feature = "std"))]
    pub(super) const fn is_empty(&self) -> bool {
        self.recent_len == 0 && self.len == 0
    }

    /// Makes room for the slots of a chunk.
    pub(super) fn open(&mut self, chunk: usize) {
        if chunk >= self.ordered.len() {
            self.ordered.resize_with(chunk + 1, ChunkSlots::default);
            self.chunks.grow(chunk + 1);
        }
        self.ordered[chunk].words = Some(Box::new([0; WORDS]));
    }

    /// Removes the free slots of a chunk, and releases the memory of the bits.
    pub(super) fn close(&mut self, chunk: usize) {
        let within = |index: u32| index as usize / CHUNK == chunk;
        // Removes the slots of the chunk from `recent`, and preserves the order of the rest.
        let mut kept = 0;
        for position in 0..self.recent_len {
            let index = self.recent[position];
            self.recent[kept] = index;
            kept += usize::from(!within(index));
        }
        self.recent_len = kept;
        if within(self.run_start) {
            self.len -= self.run.count_ones() as usize;
            self.run = 0;
        }
        let closed = core::mem::take(&mut self.ordered[chunk]);
        let words = closed.words.into_iter().flat_map(|words| *words);
        self.len -= words.map(|word| word.count_ones() as usize).sum::<usize>();
        self.chunks.remove(chunk);
    }

    /// Counts a slot of the chunk as allocated.
    #[inline]
    pub(super) fn count_allocated(&mut self, chunk: usize) {
        self.ordered[chunk].allocated += 1;
    }

    /// Counts a slot of the chunk as freed, and returns whether the chunk has no allocated slot
    /// left.
    #[inline]
    pub(super) fn count_freed(&mut self, chunk: usize) -> bool {
        let slots = &mut self.ordered[chunk];
        slots.allocated -= 1;
        slots.allocated == 0
    }

    /// Whether a slot of the chunk is allocated.
    pub(super) fn is_in_use(&self, chunk: usize) -> bool {
        self.ordered[chunk].allocated > 0
    }

    /// Adds a freed slot.
    #[inline]
    pub(super) fn put(&mut self, index: u32) {
        if let Some(recent) = self.recent.get_mut(self.recent_len) {
            *recent = index;
            self.recent_len += 1;
        } else {
            self.put_ordered(index);
        }
    }

    /// Adds a freed slot to `ordered`. Not inlined, so adding to `recent` stays cheap.
    #[inline(never)]
    fn put_ordered(&mut self, index: u32) {
        let (chunk, offset) = (index as usize / CHUNK, index as usize % CHUNK);
        let bits = &mut self.ordered[chunk];
        if let Some(words) = &mut bits.words {
            words[offset / BITS] |= 1 << (offset % BITS);
            let before = bits.summary;
            bits.summary |= 1 << (offset / BITS);
            self.len += 1;
            if before == 0 {
                self.chunks.insert(chunk);
            }
        }
    }

    /// Removes and returns the slot to allocate next.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(last) = self.recent_len.checked_sub(1) {
            self.recent_len = last;
            return self.recent.get(last).copied();
        }
        if self.len == 0 { None } else { self.take_ordered() }
    }

    /// Removes and returns the next slot in the order of addresses.
    fn take_ordered(&mut self) -> Option<u32> {
        if self.run == 0 {
            (self.run_start, self.run) = self.next_run()?;
        }
        let index = self.run_start + self.run.trailing_zeros();
        // Clears the lowest bit.
        self.run &= self.run - 1;
        self.len -= 1;
        Some(index)
    }

    /// Removes the next word with free slots after the last run, wrapping around at the end.
    /// Returns the index of the word's first slot, and the word.
    fn next_run(&mut self) -> Option<(u32, u64)> {
        let (last, word) =
            (self.run_start as usize / CHUNK, self.run_start as usize % CHUNK / BITS);
        // Words of the same chunk after the last run.
        let behind = self.ordered[last].summary & (!1 << word);
        // Otherwise the next chunk with a free slot.
        let chunk = if behind == 0 {
            self.chunks.next_from((last + 1) % self.ordered.len())?
        } else {
            last
        };
        let bits = &mut self.ordered[chunk];
        let words = if behind == 0 { bits.summary } else { behind };
        let word = words.trailing_zeros() as usize;
        let run = core::mem::take(bits.words.as_mut()?.get_mut(word)?);
        bits.summary &= !(1 << word);
        if bits.summary == 0 {
            self.chunks.remove(chunk);
        }
        Some((u32::try_from(chunk * CHUNK + word * BITS).ok()?, run))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    fn free(indexes: impl IntoIterator<Item = u32>) -> FreeSlots {
        let mut free = FreeSlots::new();
        for chunk in 0..(1 << 16) / CHUNK {
            free.open(chunk);
        }
        for index in indexes {
            free.put(index);
        }
        free
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn recently_freed_slots_come_first_and_rest_in_address_order() {
        // Each index once, shuffled: 40503 is odd.
        let mixed: Vec<u32> = (0..1 << 16).map(|at| at * 40_503 % (1 << 16)).collect();
        let mut free = free(mixed.iter().copied());
        let allocated: Vec<u32> = core::iter::from_fn(|| free.take()).collect();
        assert!(free.is_empty());
        let (recent, ordered) = allocated.split_at(RECENT);
        assert!(recent.iter().eq(mixed[..RECENT].iter().rev()));
        assert_eq!(allocated.iter().collect::<BTreeSet<_>>().len(), 1 << 16);
        // It wraps around at most once.
        let steps_back = ordered.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(steps_back <= 1, "{steps_back}");
    }

    #[test]
    fn slot_freed_within_current_run_is_allocated_once_in_next_pass() {
        let mut free = free(0..200);
        for _ in 0..RECENT + 10 {
            free.take();
        }
        // Fills `recent`; the last two go into the word that is the current run.
        for index in (0..64).chain([64, 73]) {
            free.put(index);
        }
        let mut left: Vec<u32> = core::iter::from_fn(|| free.take()).collect();
        assert!(free.is_empty());
        let count = left.len();
        left.sort_unstable();
        left.dedup();
        assert_eq!(left.len(), count);
        assert_eq!(count, 200 - 10 + 2);
    }

    #[test]
    fn closed_chunk_with_the_current_run_leaves_no_slot_of_it() {
        let second = u32::try_from(CHUNK).unwrap();
        let mut free = free(0..second + 10);
        // The first of the slots in the order of addresses makes its word the current run.
        for _ in 0..=RECENT {
            free.take();
        }
        free.close(0);
        let left = core::iter::from_fn(|| free.take());
        assert!(left.eq(second..second + 10));
        assert!(free.is_empty());
    }
}
