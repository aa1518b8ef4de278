//! The buckets: for each bucket, a list of the entries due in the current round.
//!
//! A lap is a round at first: a pass over the buckets with which the wheel was created. A wheel
//! with many entries gets more buckets, and the rounds stay the same: then the lists of several
//! rounds are side by side, and a lap is several rounds. [`Wheel`](super::Wheel) says when.
//!
//! The lists are in pages, and an empty page takes no memory. Creating, lengthening and dropping
//! the buckets costs work for the addresses of the pages, at most 32,768, and not for each list.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::bit_set::{BITS, BitSet};
use super::list::List;
use super::rounds;
use super::slab::{Links, Slab, touch};

/// The number of lists of a page. Small in tests, so the wheels of tests have several pages.
pub(super) const PAGE: usize = if cfg!(test) { 64 } else { 512 };

/// The number of words with a bit for each list of a page.
const WORDS: usize = PAGE / BITS;

/// The most empty pages retained, so lists which fill and empty over and over do not allocate each
/// time: the pages of 65,536 buckets, half a megabyte.
const SPARE_MAX: usize = if cfg!(test) { 16 } else { 128 };

/// The list of a tick is bucket *tick modulo length*. The length is a power of two.
#[derive(Debug)]
pub(super) struct Buckets {
    len: usize,
    /// `None` stands for a page of empty lists. Every present page has a non-empty list.
    pages: Vec<Option<Box<Page>>>,
    /// The numbers of the present pages: a search skips the rest.
    occupied: BitSet,
    /// Pages of empty lists, for reuse.
    #[cfg_attr(test, expect(clippy::vec_box, reason = "only in tests a page is small"))]
    spare: Vec<Box<Page>>,
}

/// A page of lists, aligned to share no cache line with data of different threads.
#[derive(Debug)]
#[repr(align(128))]
struct Page {
    lists: [List; PAGE],
    /// A bit for each non-empty list.
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

    /// The number of ticks of a lap: a tick per bucket.
    pub(super) const fn lap(&self) -> u64 {
        self.len as u64
    }

    /// The lowest tick with a non-empty list, in the lap from the tick `first` on.
    pub(super) fn next_from(&self, first: u64) -> Option<u64> {
        let start = self.bucket(first);
        let bucket = self.occupied_from(start)?;
        // No overflow: only lists of existing ticks are filled.
        Some(first + self.ahead(start, bucket))
    }

    /// The lowest tick after `tick` with a non-empty list, in the lap from the tick `first` on.
    pub(super) fn next_after(&self, tick: u64, first: u64) -> Option<u64> {
        let bucket = self.occupied_from(self.bucket(tick.wrapping_add(1)))?;
        let ahead = self.ahead(self.bucket(first), bucket);
        // A search which wrapped around found a bucket not ahead of `tick`.
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

    /// Prepends `earlier` to the list of the tick `due`.
    pub(super) fn push_front<T>(&mut self, slab: &mut Slab<T>, due: u64, mut earlier: List) {
        if !earlier.is_empty() {
            let list = self.list_to_fill(self.bucket(due));
            earlier.append(slab, *list);
            *list = earlier;
        }
    }

    /// Unlinks a slot at an end of the list of the tick `due`. Returns false, without any effect,
    /// if the slot is at no end of the list.
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

    /// Passes the first entries of the tick `due`, at most `limit`, to `take`, and returns their
    /// number. Each entry is removed from the list and the slot before the call, so `take` may
    /// panic.
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

    /// Makes the lap `len` ticks long, from the tick `first` on. Pages move as a whole, except the
    /// page in which the lap begins: the lap also ends there, so the lists of the page go to two
    /// pages.
    pub(super) fn lengthen(&mut self, len: usize, first: u64) {
        debug_assert!(len >= self.len, "a shorter lap has no room for the lists");
        let mut shorter = mem::replace(self, Self::new(len));
        self.spare = mem::take(&mut shorter.spare);
        let start = shorter.bucket(first);
        if let Some(page) = shorter.pages[start / PAGE].take() {
            // List by list: the lists before `start` are a lap further ahead than the lists after
            // `start`.
            touch(PAGE);
            for offset in 0..PAGE.min(shorter.len) {
                let list = page.lists[offset];
                if !list.is_empty() {
                    let ahead = shorter.ahead(start, start / PAGE * PAGE + offset);
                    *self.list_to_fill(self.bucket(first + ahead)) = list;
                }
            }
        }
        // The ticks of each remaining page stay in order, so the page moves as a whole.
        for (number, page) in shorter.pages.into_iter().enumerate() {
            if page.is_some() {
                let ahead = (number * PAGE).wrapping_sub(start) & (shorter.len - 1);
                let number = self.bucket(first + ahead as u64) / PAGE;
                self.pages[number] = page;
                self.occupied.insert(number);
            }
        }
    }

    /// The first bucket with a non-empty list from `start` on, else the first of all; `None` if all
    /// lists are empty.
    fn occupied_from(&self, start: usize) -> Option<usize> {
        let number = start / PAGE;
        let here = self.pages[number].as_ref().and_then(|page| page.occupied_from(start % PAGE));
        if let Some(offset) = here {
            return Some(number * PAGE + offset);
        }
        // If the search wraps around to the same page, the non-empty lists are all before `start`.
        let number = self.occupied.next_from((number + 1) % self.pages.len())?;
        let offset = self.pages[number].as_ref()?.occupied_from(0)?;
        Some(number * PAGE + offset)
    }

    /// The list of a bucket, marked as non-empty. The caller must fill the list.
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

    /// Marks the list of a bucket as empty, and releases the page if all lists of the page are
    /// empty.
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

    /// The first non-empty list of the page from `start` on.
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
    /// The number of allocated pages, including spare pages.
    pub(super) fn pages(&self) -> usize {
        self.pages.iter().flatten().count() + self.spare.len()
    }
}
