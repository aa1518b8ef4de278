//! The later rounds: what is due after more than one lap, ordered by tick.
//!
//! Netty's wheel keeps all rounds of a bucket in one list and walks the list at each pass. To know the lowest round of
//! a bucket spares that walk only while the knowledge is exact, and with one mixed list it is not: cancelling the
//! lowest leaves a value that calls for a scan, so timeouts of little more than a lap that are scheduled and cancelled
//! all the time bring the walk back, bucket after bucket.
//!
//! Here each round of each bucket has a list of its own, under its due tick, in a tree. The lowest is the first of the
//! tree, always exact; a list that gets empty leaves at once; and no entry is ever looked at before it is due, whatever
//! its neighbours do. The price is a search in the tree, over the distinct ticks that are more than a lap away, for an
//! entry that is the first or the last of its tick. What is due within the lap, the usual case, never comes here.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use super::list::List;
use super::slab::{Links, Slab};

/// No list in here is empty.
#[derive(Debug)]
pub(super) struct Rounds {
    by_tick: BTreeMap<u64, List>,
}

impl Rounds {
    pub(super) const fn new() -> Self {
        Self { by_tick: BTreeMap::new() }
    }

    /// Takes the list of the lowest tick out, if that tick is `last` or before it.
    pub(super) fn take_first(&mut self, last: u64) -> Option<(u64, List)> {
        let first = self.by_tick.first_entry().filter(|first| *first.key() <= last)?;
        Some(first.remove_entry())
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, due: u64, index: u32) {
        self.by_tick.entry(due).or_insert(List::EMPTY).push_back(slab, index);
    }

    /// Closes the gap that an entry has left which was due at `due`.
    pub(super) fn close_gap<T>(&mut self, slab: &mut Slab<T>, due: u64, links: Links) {
        if let Entry::Occupied(mut list) = self.by_tick.entry(due) {
            list.get_mut().close_gap(slab, links);
            if list.get().is_empty() {
                list.remove();
            }
        }
    }

    /// The lists and their ticks, in the order of the ticks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, List)> {
        self.by_tick.iter().map(|(tick, list)| (*tick, *list))
    }
}
