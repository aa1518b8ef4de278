//! The table: a list for each tick of the lap that lies ahead.
//!
//! A lap of the table is a lap of the wheel, or more: a wheel that holds much gets a longer table, in which several
//! rounds of its buckets stand side by side. See [`Wheel`](super::Wheel) for when.

use alloc::boxed::Box;
use alloc::vec;

use super::bits::Bits;
use super::list::List;
use super::slab::{Links, Slab};

/// The list of a tick stands at *tick modulo length*. The length is a power of two.
#[derive(Debug)]
pub(super) struct Table {
    lists: Box<[List]>,
    /// Where a list is that is not empty, so that empty ones are jumped over and never visited.
    occupied: Bits,
}

impl Table {
    pub(super) fn new(len: usize) -> Self {
        debug_assert!(len.is_power_of_two(), "a tick finds its place by its last bits");
        let mut occupied = Bits::new();
        occupied.grow(len);
        Self { lists: vec![List::EMPTY; len].into_boxed_slice(), occupied }
    }

    /// How many ticks a lap has.
    pub(super) const fn lap(&self) -> u64 {
        self.lists.len() as u64
    }

    /// The lowest tick at which anything in here is due, of the lap that begins with the tick `first`.
    pub(super) fn next_from(&self, first: u64) -> Option<u64> {
        let start = self.place(first);
        let place = self.occupied.next_from(start)?;
        let ahead = place.wrapping_sub(start) & (self.lists.len() - 1);
        // No overflow: a list is filled only for ticks that exist.
        Some(first + ahead as u64)
    }

    pub(super) fn list(&self, tick: u64) -> List {
        self.lists[self.place(tick)]
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, due: u64, index: u32) {
        let place = self.place(due);
        let list = &mut self.lists[place];
        if list.is_empty() {
            self.occupied.insert(place);
        }
        list.push_back(slab, index);
    }

    /// Puts a whole list before what stands under its tick.
    pub(super) fn push_front<T>(&mut self, slab: &mut Slab<T>, due: u64, mut earlier: List) {
        if !earlier.is_empty() {
            let place = self.place(due);
            earlier.append(slab, self.lists[place]);
            self.lists[place] = earlier;
            self.occupied.insert(place);
        }
    }

    /// Closes the gap that an entry at an end of its list has left. False if that list is not in here.
    pub(super) fn close_gap<T>(
        &mut self,
        slab: &mut Slab<T>,
        due: u64,
        index: u32,
        links: Links,
    ) -> bool {
        let place = self.place(due);
        let list = &mut self.lists[place];
        let here = list.has_at_an_end(index);
        if here {
            list.close_gap(slab, links);
            if list.is_empty() {
                self.occupied.remove(place);
            }
        }
        here
    }

    /// Hands at most `limit` entries of the tick `due` to `take`, from the first on, and answers how many. Each is out
    /// of its list and its slot before it is handed over, so `take` may panic.
    pub(super) fn drain<T>(
        &mut self,
        slab: &mut Slab<T>,
        due: u64,
        limit: usize,
        take: &mut impl FnMut(u64, T),
    ) -> usize {
        let place = self.place(due);
        let list = &mut self.lists[place];
        for taken in 0..limit {
            let Some(index) = list.front() else {
                return taken;
            };
            let Some(tenant) = slab.remove_at(index) else {
                unreachable!("what has gone is out of its list before anything is taken")
            };
            let links = slab.links(index);
            list.close_gap(slab, links);
            slab.vacate(index);
            if list.is_empty() {
                self.occupied.remove(place);
            }
            take(due, tenant.value);
        }
        limit
    }

    /// The same lists in a table of `len`, of the lap that begins with the tick `first`. No entry is touched.
    pub(super) fn lengthened(&self, len: usize, first: u64) -> Self {
        debug_assert!(len >= self.lists.len(), "a shorter table has no room for the lists");
        let mut longer = Self::new(len);
        let mut next = self.next_from(first);
        while let Some(tick) = next {
            let place = longer.place(tick);
            longer.lists[place] = self.list(tick);
            longer.occupied.insert(place);
            next = self.next_after(tick, first);
        }
        longer
    }

    /// The lowest tick after `tick` at which anything in here is due, of the lap that begins with `first`.
    pub(super) fn next_after(&self, tick: u64, first: u64) -> Option<u64> {
        // What comes round to the beginning of the lap is seen as less far ahead of it than `tick` is.
        let place = self.occupied.next_from(self.place(tick.wrapping_add(1)))?;
        let ahead = (place.wrapping_sub(self.place(first)) & (self.lists.len() - 1)) as u64;
        (ahead > tick - first).then(|| first + ahead)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than the length, which is a usize"
    )]
    const fn place(&self, tick: u64) -> usize {
        (tick & (self.lap() - 1)) as usize
    }
}
