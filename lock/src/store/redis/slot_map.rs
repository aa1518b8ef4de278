//! Which node serves which slot, as far as the nodes have told.
//!
//! Each node has a number, its lane. A node that is forgotten takes its number with it: if it comes back, it has another.

use std::collections::{BTreeSet, HashMap};

use super::address::Address;
use super::slot::SLOTS;
use crate::store::Lane;

/// Slots that follow each other, and who serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) address: Address,
}

#[derive(Debug)]
pub(super) struct SlotMap {
    /// One for each slot.
    owners: Vec<Option<Lane>>,
    lanes: HashMap<Address, Lane>,
    next: u32,
}

impl SlotMap {
    pub(super) fn new() -> Self {
        Self { owners: vec![None; usize::from(SLOTS)], lanes: HashMap::new(), next: Lane::ONLY.0 }
    }

    /// Who serves a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Lane> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    /// The number of a node, which is known from now on.
    pub(super) fn lane(&mut self, address: &Address) -> Lane {
        if let Some(lane) = self.lanes.get(address) {
            return *lane;
        }
        let lane = Lane(self.next);
        self.next += 1;
        self.lanes.insert(address.clone(), lane);
        lane
    }

    /// One slot is served by this node.
    pub(super) fn moved(&mut self, slot: u16, address: &Address) -> Lane {
        let lane = self.lane(address);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(lane);
        }
        lane
    }

    /// All slots are served as these say, and those they leave out by nobody. Whether that is new.
    pub(super) fn learn(&mut self, ranges: &[Range]) -> bool {
        let mut owners = vec![None; usize::from(SLOTS)];
        for Range { first, last, address } in ranges {
            let lane = self.lane(address);
            let slots = usize::from(*first)..=usize::from(*last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(Some(lane));
            }
        }
        let is_new = owners != self.owners;
        self.owners = owners;
        is_new
    }

    /// Those that serve a slot.
    pub(super) fn serving(&self) -> BTreeSet<Lane> {
        let mut serving = BTreeSet::new();
        // Slots of one node mostly follow each other.
        let mut before = None;
        for owner in &self.owners {
            if *owner != before {
                serving.extend(*owner);
                before = *owner;
            }
        }
        serving
    }

    /// A node that serves nothing is not known any more.
    pub(super) fn forget(&mut self, gone: Lane) {
        self.lanes.retain(|_, lane| *lane != gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { host: "a".to_owned(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range { first, last, address: address(port) }
    }

    #[test]
    fn at_first_nobody_serves_anything() {
        let map = SlotMap::new();
        assert_eq!((map.owner(0), map.owner(SLOTS - 1), map.owner(u16::MAX)), (None, None, None));
        assert!(map.serving().is_empty());
    }

    #[test]
    fn ranges_are_learnt_with_both_ends_and_what_they_leave_out_is_nobodys() {
        let mut map = SlotMap::new();
        assert!(map.learn(&[range(0, 99, 1), range(200, 16_383, 2), range(100, 100, 1)]));
        let (one, two) = (map.lane(&address(1)), map.lane(&address(2)));
        assert_ne!(one, two);
        let owners = [0, 99, 100, 101, 199, 200, 16_383].map(|slot| map.owner(slot));
        assert_eq!(owners, [Some(one), Some(one), Some(one), None, None, Some(two), Some(two)]);
        assert_eq!(map.serving(), [one, two].into());
        assert!(!map.learn(&[range(0, 100, 1), range(200, 16_383, 2)]));
        assert!(map.learn(&[range(0, 16_383, 2)]));
        assert_eq!((map.owner(0), map.serving()), (Some(two), [two].into()));
    }

    #[test]
    fn what_cannot_be_changes_nothing() {
        let mut map = SlotMap::new();
        assert!(!map.learn(&[range(5, 4, 1), range(16_000, 16_384, 1), range(u16::MAX, 0, 1)]));
        map.moved(u16::MAX, &address(1));
        assert!(map.serving().is_empty());
    }

    #[test]
    fn one_slot_moves_alone() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 16_383, 1)]);
        let target = map.moved(7, &address(2));
        assert_eq!(map.owner(7), Some(target));
        assert_eq!([map.owner(6), map.owner(8)], [Some(map.lane(&address(1))); 2]);
    }

    #[test]
    fn a_number_stays_with_a_node_and_is_never_anothers() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 16_383, 1)]);
        let first = map.lane(&address(1));
        map.learn(&[range(0, 16_383, 2)]);
        assert_eq!(map.lane(&address(1)), first);
        map.forget(first);
        let again = map.lane(&address(1));
        assert!(again != first && again != map.lane(&address(2)), "{again:?}");
    }
}
