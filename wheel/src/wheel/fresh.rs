//! What came last, and stands in no list yet.
//!
//! Most timeouts are cancelled, and many of them soon: the request is answered, the lock is let go. An entry that goes
//! from here has never touched a list, nor the neighbours it would have had there, which lie anywhere in memory. Those
//! that stay longer are put into their lists many at a time, so that the processor fetches for one while it waits for
//! another.

use core::num::NonZeroU64;

/// How many are kept: enough to share the waits, few enough that a look at all of them is short.
const FRESH_MAX: usize = 64;

/// In the order of insertion, with holes where entries have gone. The last place is never a hole.
#[derive(Debug)]
pub(super) struct Fresh {
    places: [Option<Entry>; FRESH_MAX],
    len: usize,
}

/// An entry by the index of its slot, and the tick at which it is due.
type Entry = (NonZeroU64, u32);

impl Fresh {
    pub(super) const fn new() -> Self {
        Self { places: [None; FRESH_MAX], len: 0 }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == FRESH_MAX
    }

    /// Adds an entry behind all others, and answers at which place. There must be room.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) -> usize {
        let place = self.len;
        self.places[place] = Some(entry);
        self.len += 1;
        place
    }

    /// Takes out what stands at `place`.
    #[inline]
    pub(super) fn remove(&mut self, place: usize) {
        if place + 1 < self.len {
            self.places[place] = None;
        } else {
            self.len = place;
            while let Some(None) = self.places[..self.len].last() {
                self.len -= 1;
            }
        }
    }

    /// How many places are in use, holes included.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// What stands at `place`; none if that is a hole.
    pub(super) fn at(&self, place: usize) -> Option<Entry> {
        self.places.get(place).copied().flatten()
    }

    /// Forgets everything, which has gone elsewhere.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// The ticks at which these entries are due.
    pub(super) fn ticks(&self) -> impl Iterator<Item = u64> {
        self.places[..self.len].iter().flatten().map(|(due, _)| due.get())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn entry(index: u32) -> Entry {
        (NonZeroU64::MIN.saturating_add(index.into()), index)
    }

    #[test]
    fn what_goes_leaves_a_hole_and_no_hole_is_last() {
        let mut fresh = Fresh::new();
        let places = [10, 11, 12, 13].map(|index| fresh.push(entry(index)));
        assert_eq!(places, [0, 1, 2, 3]);
        fresh.remove(1);
        fresh.remove(2);
        assert_eq!(fresh.push(entry(14)), 4);
        fresh.remove(4);
        fresh.remove(3);
        assert_eq!(fresh.push(entry(15)), 1, "the holes went with the last that stood behind them");
        assert_eq!(fresh.ticks().collect::<Vec<_>>(), [11, 16]);
        assert_eq!(
            (0..fresh.len()).map(|place| fresh.at(place)).collect::<Vec<_>>(),
            [Some(entry(10)), Some(entry(15))]
        );
        fresh.clear();
        assert_eq!(fresh.ticks().count(), 0);
        assert_eq!(fresh.push(entry(16)), 0);
    }

    #[test]
    fn it_is_full_until_everything_is_taken_or_the_last_goes() {
        let mut fresh = Fresh::new();
        let mut index = 0;
        while !fresh.is_full() {
            fresh.push(entry(index));
            index += 1;
        }
        fresh.remove(0);
        assert!(fresh.is_full());
        fresh.remove(FRESH_MAX - 1);
        assert!(!fresh.is_full());
        assert_eq!(fresh.ticks().count(), FRESH_MAX - 2);
        fresh.clear();
        assert_eq!(fresh.len(), 0);
    }
}
