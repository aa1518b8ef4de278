//! Later rounds: entries that are due after more than one lap, under their round and bucket
//! (DESIGN: buckets).
//!
//! Netty's wheel keeps all rounds of a bucket in one list, and walks that list at each pass.
//! Knowing the lowest round of a bucket avoids the walk only while it is exact, and with one list
//! for all rounds it is not: cancelling the lowest makes a scan necessary. Timeouts of little more
//! than a lap that are scheduled and cancelled all the time would bring the walk back, bucket after
//! bucket.
//!
//! Here each round of each bucket has a list of its own, in a tree, under its round and bucket. The
//! lowest is the first of the tree and always exact; a list that becomes empty is removed at once;
//! and no entry is looked at before it is due. The cost is a search in the tree, over the distinct
//! ticks that are more than a lap ahead, for an entry that is the first or the last of its tick.
//! Entries that are due within the lap, the usual case, are never here.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use super::list::List;
use super::rounds::RoundAndBucket;
use super::slab::{Links, Slab};

/// No list in here is empty.
#[derive(Debug)]
pub(super) struct LaterRounds {
    lists: BTreeMap<RoundAndBucket, List>,
}

impl LaterRounds {
    pub(super) const fn new() -> Self {
        Self { lists: BTreeMap::new() }
    }

    /// Removes the first list, if its round has come to its bucket at `last`.
    pub(super) fn take_first(&mut self, last: RoundAndBucket) -> Option<(RoundAndBucket, List)> {
        let first = self.lists.first_entry().filter(|first| *first.key() <= last)?;
        Some(first.remove_entry())
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, of: RoundAndBucket, index: u32) {
        self.lists.entry(of).or_insert(List::EMPTY).push_back(slab, index);
    }

    /// Unlinks a slot with these links, at an end of the list of this round and bucket.
    pub(super) fn unlink<T>(&mut self, slab: &mut Slab<T>, of: RoundAndBucket, links: Links) {
        if let Entry::Occupied(mut list) = self.lists.entry(of) {
            list.get_mut().unlink(slab, links);
            if list.get().is_empty() {
                list.remove();
            }
        }
    }

    /// The lists, round by round and bucket by bucket.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RoundAndBucket, List)> {
        self.lists.iter().map(|(of, list)| (*of, *list))
    }
}
