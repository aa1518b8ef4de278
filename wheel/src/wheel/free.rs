//! The free slots, and in which order they are let again.
//!
//! The few that were freed last come first, and the last of them before all: what is scheduled and cancelled at once
//! stays in one slot, which the cache holds. All others are let in the order of their addresses, round and round.
//! Slots that are freed in random order would otherwise be let in random order, each a cache miss and a miss of the
//! page tables, for as long as the wheel lives.

use super::bits::{BITS, Bits};

/// How many of the slots that were freed last are let first.
const RECENT: usize = 64;

/// No slot is in here twice: it is among the recent ones, or in the run, or in the rest.
#[derive(Debug)]
pub(super) struct Free {
    recent: [u32; RECENT],
    recent_len: usize,
    /// The free ones of the 64 slots from `run_start` on, being let from below.
    run: u64,
    run_start: u32,
    rest: Bits,
    /// How many there are in the run and the rest. It spares the search where there is nothing to be found.
    len: usize,
}

impl Free {
    pub(super) const fn new() -> Self {
        let rest = Bits::new();
        Self { recent: [0; RECENT], recent_len: 0, run: 0, run_start: 0, rest, len: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.recent_len == 0 && self.len == 0
    }

    /// Makes room for the slots below `slots`.
    pub(super) fn grow(&mut self, slots: usize) {
        self.rest.grow(slots);
    }

    pub(super) fn put(&mut self, index: u32) {
        if let Some(place) = self.recent.get_mut(self.recent_len) {
            *place = index;
            self.recent_len += 1;
        } else {
            self.rest.insert(index as usize);
            self.len += 1;
        }
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(last) = self.recent_len.checked_sub(1) {
            self.recent_len = last;
            return self.recent.get(last).copied();
        }
        self.take_in_order()
    }

    /// The next in the order of the addresses.
    fn take_in_order(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        if self.run == 0 {
            let start = self.run_start as usize / BITS + 1;
            let (word, run) = self.rest.take_word_from(start)?;
            self.run_start = u32::try_from(word * BITS).ok()?;
            self.run = run;
        }
        let index = self.run_start + self.run.trailing_zeros();
        self.run &= self.run - 1;
        self.len -= 1;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    fn free(indexes: impl IntoIterator<Item = u32>) -> Free {
        let mut free = Free::new();
        free.grow(1 << 16);
        for index in indexes {
            free.put(index);
        }
        free
    }

    #[test]
    fn the_few_freed_last_come_first_and_all_others_in_the_order_of_their_addresses() {
        // Each index once, in an order without any order: 40503 is odd.
        let mixed: Vec<u32> = (0..1 << 16).map(|at| at * 40_503 % (1 << 16)).collect();
        let mut free = free(mixed.iter().copied());
        let let_again: Vec<u32> = core::iter::from_fn(|| free.take()).collect();
        assert!(free.is_empty());
        let (recent, rest) = let_again.split_at(RECENT);
        assert!(recent.iter().eq(mixed[..RECENT].iter().rev()));
        assert_eq!(let_again.iter().collect::<BTreeSet<_>>().len(), 1 << 16);
        // It goes round at most once.
        let steps_back = rest.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(steps_back <= 1, "{steps_back}");
    }

    #[test]
    fn a_slot_freed_while_its_neighbours_are_let_is_let_once_in_the_next_round() {
        let mut free = free(0..200);
        for _ in 0..RECENT + 10 {
            free.take();
        }
        // Fills the recent ones, and the last two go where slots are just being let.
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
}
