//! Rounds: the split of a tick into a bucket and a round, and the lists of the later rounds.
//!
//! The number of buckets is a power of two. So the lower bits of a tick are the bucket, and the
//! upper bits are the round: the number of complete passes over all buckets before the tick. Ticks
//! ordered by round, and then by bucket, are in the order of time.
//!
//! Netty's wheel has a single list per bucket for all rounds, and walks the list at each pass to
//! decrement the entries' round counters. With a million entries in 512 buckets and ticks of 1 ms,
//! the walk visits two million entries a second and takes 38 to 47 % of a core while nothing is
//! due. Storing the lowest round of each bucket avoids the walk only while the stored round is
//! exact: cancelling an entry of the lowest round requires a scan. If timeouts of little more than
//! a lap are scheduled and cancelled all the time, the walk returns, bucket after bucket.
//!
//! Here each later round of each bucket has a separate list, in a tree. The first list of the tree
//! has the lowest round, an emptied list is removed at once, and no entry is inspected before the
//! due tick. The cost is a search in the tree, over the distinct ticks more than a lap ahead, to
//! link an entry and to unlink the first or the last entry of a tick. Entries due within the lap
//! when linked, the usual case, are never here.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use super::list::List;
use super::slab::{Links, Slab};

/// The bucket of `tick` on a wheel with `buckets` buckets.
#[expect(
    clippy::cast_possible_truncation,
    reason = "less than the number of buckets, which is a usize"
)]
pub(super) const fn bucket(tick: u64, buckets: usize) -> usize {
    (tick & (buckets as u64 - 1)) as usize
}

/// The round of `tick`, counted from tick 0.
const fn round(tick: u64, buckets: usize) -> u64 {
    tick >> buckets.ilog2()
}

/// The number of passes over the bucket of `due` after the tick `cursor` and before `due`.
pub(super) const fn rounds_until(due: u64, cursor: u64, buckets: usize) -> u64 {
    let next = cursor + 1;
    // The round of `next` has already passed the buckets before the bucket of `next`.
    let passed = if bucket(due, buckets) < bucket(next, buckets) { 1 } else { 0 };
    round(due, buckets).saturating_sub(round(next, buckets) + passed)
}

/// The entries linked more than a lap before they are due: a list per round and bucket, by tick. No
/// list is empty.
#[derive(Debug)]
pub(super) struct LaterRounds {
    lists: BTreeMap<u64, List>,
}

impl LaterRounds {
    pub(super) const fn new() -> Self {
        Self { lists: BTreeMap::new() }
    }

    /// Removes and returns the first tick and list, if the tick is at most `last`.
    pub(super) fn take_first(&mut self, last: u64) -> Option<(u64, List)> {
        let first = self.lists.first_entry().filter(|first| *first.key() <= last)?;
        Some(first.remove_entry())
    }

    pub(super) fn push_back<T>(&mut self, slab: &mut Slab<T>, due: u64, index: u32) {
        self.lists.entry(due).or_insert(List::EMPTY).push_back(slab, index);
    }

    /// Unlinks the first or the last slot of the list of the tick `due`, given the slot's `links`.
    pub(super) fn unlink<T>(&mut self, slab: &mut Slab<T>, due: u64, links: Links) {
        if let Entry::Occupied(mut list) = self.lists.entry(due) {
            list.get_mut().unlink(slab, links);
            if list.get().is_empty() {
                list.remove();
            }
        }
    }

    /// The lists and their ticks, in the order of time.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, List)> {
        self.lists.iter().map(|(due, list)| (*due, *list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_has_a_bucket_and_a_round() {
        for (tick, expected) in [(0, (0, 0)), (5, (0, 5)), (7, (0, 7)), (8, (1, 0)), (17, (2, 1))] {
            assert_eq!((round(tick, 8), bucket(tick, 8)), expected, "tick {tick}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn rounds_are_counted_from_the_next_pass_of_the_bucket() {
        for buckets in [1, 2, 8, 64] {
            for cursor in 0..200 {
                for due in cursor + 1..cursor + 300 {
                    let passes = (cursor + 1..due)
                        .filter(|tick| bucket(*tick, buckets) == bucket(due, buckets));
                    let rounds = rounds_until(due, cursor, buckets);
                    assert_eq!(rounds, passes.count() as u64, "{due} after {cursor}");
                }
            }
        }
    }
}
