//! The buckets: for each, a list of what is due in its current round (DESIGN: buckets).
//!
//! A lap is one round: as many buckets as the wheel was made with. A wheel with many entries gets
//! more buckets for a while, and keeps its rounds: then the lists of several rounds are side by
//! side, and a lap is that many rounds. [`Wheel`](super::Wheel) says when.
//!
//! The lists are in pages, and an empty page takes no memory. Creating, lengthening and dropping
//! the buckets costs work for the addresses of the pages, one for 512 ticks, and touches no list
//! (DESIGN: chunks).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::bit_set::{BITS, BitSet};
use super::list::List;
use super::rounds;
use super::slab::{Links, Slab, touch};

/// How many lists a page has. Small in tests, so that their wheels have several pages.
pub(super) const PAGE: usize = if cfg!(test) { 64 } else { 512 };

/// The words with a bit for each list of a page.
const WORDS: usize = PAGE / BITS;

/// How many empty pages are kept, so that lists that fill and empty over and over do not allocate
/// each time: as many as 65,536 buckets have, half a megabyte.
const SPARE_MAX: usize = if cfg!(test) { 16 } else { 128 };

/// The list of a tick is bucket *tick modulo length*. The length is a power of two.
#[derive(Debug)]
pub(super) struct Buckets {
    len: usize,
    /// `None` stands for a page of empty lists. Every other page has a list that is not empty.
    pages: Vec<Option<Box<Page>>>,
    /// The numbers of the pages that are not `None`, so that a search skips the others.
    occupied: BitSet,
    /// Pages of empty lists, to be used again.
    #[cfg_attr(test, expect(clippy::vec_box, reason = "only in tests a page is small"))]
    spare: Vec<Box<Page>>,
}

/// Aligned so that no page shares a cache line with data of other threads.
#[derive(Debug)]
#[repr(align(128))]
struct Page {
    lists: [List; PAGE],
    /// A bit for each list that is not empty.
    occupied: [u64; WORDS],
}

impl Buckets {
    pub(super) fn new(len: usize) -> Self {
        debug_assert!(len.is_power_of_two(), "the bucket of a tick is its lowest bits");
        let mut pages = Vec::new();
        pages.resize_with(len.div_ceil(PAGE), || None);
        let mut occupied = BitSet::new();
        occupied.grow(pages.len());
        Self { len, pages, occupied, spare: Vec::new() }
    }

    /// How many ticks a lap has: one for each bucket.
    pub(super) const fn lap(&self) -> u64 {
        self.len as u64
    }

    /// The lowest tick whose list is not empty, in the lap that begins at the tick `first`.
    pub(super) fn next_from(&self, first: u64) -> Option<u64> {
        let start = self.bucket(first);
        let bucket = self.occupied_from(start)?;
        // No overflow: only lists of existing ticks are filled.
        Some(first + self.ahead(start, bucket))
    }

    /// The lowest tick after `tick` whose list is not empty, in the lap that begins at `first`.
    pub(super) fn next_after(&self, tick: u64, first: u64) -> Option<u64> {
        let bucket = self.occupied_from(self.bucket(tick.wrapping_add(1)))?;
        let ahead = self.ahead(self.bucket(first), bucket);
        // A search that wrapped around found a bucket that is not ahead of `tick`.
        (ahead > tick - first).then(|| first + ahead)
    }

    pub(super) fn list(&self, tick: u64) -> List {
        let bucket = self.bucket(tick);
        self.pages[bucket / PAGE].as_ref().map_or(List::EMPTY, |page| page.lists[bucket % PAGE])
    }

    #[inline]
    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, due: u64, index: u32) {
        self.list_to_fill(self.bucket(due)).push_back(slab, index);
    }

    /// Puts a whole list before the list of its tick.
    pub(super) fn push_front<T>(&mut self, slab: &mut Slab<T>, due: u64, mut earlier: List) {
        if !earlier.is_empty() {
            let list = self.list_to_fill(self.bucket(due));
            earlier.append(slab, *list);
            *list = earlier;
        }
    }

    /// Unlinks a slot at an end of the list of `due`. False, and nothing done, if it is not in that
    /// list.
    pub(super) fn unlink<T>(
        &mut self,
        slab: &mut Slab<T>,
        due: u64,
        index: u32,
        links: Links,
    ) -> bool {
        let bucket = self.bucket(due);
        let list = self.pages[bucket / PAGE].as_mut().map(|page| &mut page.lists[bucket % PAGE]);
        let Some(list) = list.filter(|list| list.is_at_end(index)) else {
            return false;
        };
        list.unlink(slab, links);
        if list.is_empty() {
            self.note_empty(bucket);
        }
        true
    }

    /// Passes at most `limit` entries of the tick `due` to `take`, from the first on, and returns
    /// how many. Each is out of its list and its slot before the call, so `take` may panic.
    pub(super) fn drain<T>(
        &mut self,
        slab: &mut Slab<T>,
        due: u64,
        limit: usize,
        take: &mut impl FnMut(u64, T),
    ) -> usize {
        let bucket = self.bucket(due);
        let page = self.pages[bucket / PAGE].as_mut();
        let Some(list) = page.map(|page| &mut page.lists[bucket % PAGE]) else {
            return 0;
        };
        for taken in 0..limit {
            let Some(index) = list.front() else {
                return taken;
            };
            let Some(entry) = slab.remove_at(index) else {
                unreachable!("cancelled slots are unlinked before entries are taken")
            };
            let links = slab.free(index);
            list.unlink(slab, links);
            if list.is_empty() {
                self.note_empty(bucket);
                take(due, entry.value);
                return taken + 1;
            }
            take(due, entry.value);
        }
        limit
    }

    /// Makes the lap `len` ticks long. It begins at the tick `first`. Pages are moved as they are,
    /// except the one in which the lap begins: the lap ends in it too, so its lists go to two
    /// pages.
    pub(super) fn lengthen(&mut self, len: usize, first: u64) {
        debug_assert!(len >= self.len, "a shorter lap has no room for the lists");
        let mut shorter = mem::replace(self, Self::new(len));
        self.spare = mem::take(&mut shorter.spare);
        let start = shorter.bucket(first);
        if let Some(page) = shorter.pages[start / PAGE].take() {
            // List by list: those before `start` are a lap further ahead than those after it.
            touch(PAGE);
            for offset in 0..PAGE.min(shorter.len) {
                let list = page.lists[offset];
                if !list.is_empty() {
                    let ahead = shorter.ahead(start, start / PAGE * PAGE + offset);
                    *self.list_to_fill(self.bucket(first + ahead)) = list;
                }
            }
        }
        // All ticks of any other page keep their order, so the page moves as a whole.
        for (number, page) in shorter.pages.into_iter().enumerate() {
            if page.is_some() {
                let ahead = (number * PAGE).wrapping_sub(start) & (shorter.len - 1);
                let number = self.bucket(first + ahead as u64) / PAGE;
                self.pages[number] = page;
                self.occupied.insert(number);
            }
        }
    }

    /// The first bucket from `start` on whose list is not empty. If there is none, the first of
    /// all.
    fn occupied_from(&self, start: usize) -> Option<usize> {
        let number = start / PAGE;
        let here = self.pages[number].as_ref().and_then(|page| page.occupied_from(start % PAGE));
        if let Some(offset) = here {
            return Some(number * PAGE + offset);
        }
        // If the search wraps around to the same page, its lists are all before `start`.
        let number = self.occupied.next_from((number + 1) % self.pages.len())?;
        let offset = self.pages[number].as_ref()?.occupied_from(0)?;
        Some(number * PAGE + offset)
    }

    /// The list of a bucket, marked as not empty: the caller fills it.
    #[inline]
    fn list_to_fill(&mut self, bucket: usize) -> &mut List {
        touch(1);
        let (number, offset) = (bucket / PAGE, bucket % PAGE);
        if self.pages[number].is_none() {
            self.open_page(number);
        }
        let page = self.pages[number].get_or_insert_with(Page::new);
        let list = &mut page.lists[offset];
        if list.is_empty() {
            page.occupied[offset / BITS] |= 1 << (offset % BITS);
        }
        list
    }

    #[cold]
    fn open_page(&mut self, number: usize) {
        self.occupied.insert(number);
        self.pages[number] = Some(self.spare.pop().unwrap_or_else(Page::new));
    }

    /// Notes that the list of a bucket has become empty, and releases its page if that was the last
    /// list.
    fn note_empty(&mut self, bucket: usize) {
        let (number, offset) = (bucket / PAGE, bucket % PAGE);
        let Some(page) = &mut self.pages[number] else {
            return;
        };
        page.occupied[offset / BITS] &= !(1 << (offset % BITS));
        if page.occupied.iter().fold(0, |all, word| all | word) == 0 {
            let page = self.pages[number].take();
            self.occupied.remove(number);
            if self.spare.len() < SPARE_MAX {
                self.spare.extend(page);
            }
        }
    }

    /// How many ticks `bucket` is ahead of the bucket `start`.
    const fn ahead(&self, start: usize, bucket: usize) -> u64 {
        (bucket.wrapping_sub(start) & (self.len - 1)) as u64
    }

    const fn bucket(&self, tick: u64) -> usize {
        rounds::bucket(tick, self.len)
    }
}

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self { lists: [List::EMPTY; PAGE], occupied: [0; WORDS] })
    }

    /// The first list of the page from `start` on that is not empty.
    fn occupied_from(&self, start: usize) -> Option<usize> {
        let rest = self.occupied[start / BITS] >> (start % BITS);
        if rest != 0 {
            return Some(start + rest.trailing_zeros() as usize);
        }
        let mut words = (start / BITS + 1)..WORDS;
        let word = words.find(|word| self.occupied[*word] != 0)?;
        Some(word * BITS + self.occupied[word].trailing_zeros() as usize)
    }
}

#[cfg(all(test, feature = "std"))]
impl Buckets {
    /// How many pages are allocated, spare ones included.
    pub(super) fn pages(&self) -> usize {
        self.pages.iter().flatten().count() + self.spare.len()
    }
}
