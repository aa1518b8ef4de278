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

use std::collections::BTreeMap;

use super::bucket::Bucket;
use super::slab::Slab;

#[derive(Debug)]
pub(super) struct Rounds {
    by_tick: BTreeMap<u64, Bucket>,
}

impl Rounds {
    pub(super) const fn new() -> Self {
        Self { by_tick: BTreeMap::new() }
    }

    /// The lowest tick at which anything in here is due.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_tick.first_key_value().map(|(tick, _)| *tick)
    }

    /// The entry that has stood longest under the tick `due`.
    pub(super) fn front(&self, due: u64) -> Option<u32> {
        self.by_tick.first_key_value().filter(|(tick, _)| **tick == due)?.1.front()
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, index: u32) {
        let due = slab.slot(index).due;
        self.by_tick.entry(due).or_insert(Bucket::EMPTY).push_back(slab, index);
    }

    pub(super) fn unlink<T>(&mut self, slab: &mut Slab<T>, index: u32) {
        let due = slab.slot(index).due;
        if let Some(bucket) = self.by_tick.get_mut(&due) {
            bucket.unlink(slab, index);
            if bucket.is_empty() {
                self.by_tick.remove(&due);
            }
        }
    }
}
