//! Maps each hash slot of a cluster to the node that serves the hash slot.
//!
//! Each node has an id. The id of a forgotten node is not used again: a returning node gets a new
//! id.

use std::collections::{BTreeSet, HashMap};

use crate::store::redis::address::url::Address;
use crate::store::redis::resp::hash_slot::HASH_SLOTS;
use crate::store::server_id::ServerId;

/// Consecutive hash slots, both ends included, and the node that serves the hash slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) address: Address,
}

impl SlotRange {
    /// Returns the number of hash slots in the range.
    pub(crate) fn slots(&self) -> usize {
        usize::from(self.last.saturating_sub(self.first)) + 1
    }
}

/// The owner of each hash slot, the id of each node, and the takeovers of hash slots.
#[derive(Debug)]
pub(crate) struct SlotMap {
    /// The owner of each hash slot.
    owners: Vec<Option<ServerId>>,
    ids: HashMap<Address, ServerId>,
    next_id: u32,
    /// Earlier owners not yet compared with the hash slot's new owner: for redirected single hash
    /// slots, and for hash slots without an owner.
    earlier_owners: HashMap<u16, ServerId>,
    /// The number of takeovers and restarts.
    moves: u64,
    /// For each hash slot, the value of `moves` after its last takeover or restart. Empty before
    /// the first.
    moved_at: Vec<u64>,
}

impl SlotMap {
    pub(crate) fn new() -> Self {
        Self {
            owners: vec![None; usize::from(HASH_SLOTS)],
            ids: HashMap::new(),
            next_id: ServerId::ONLY.0,
            earlier_owners: HashMap::new(),
            moves: 0,
            moved_at: Vec::new(),
        }
    }

    /// Returns the node that serves `slot`. `None` if no such node is known.
    pub(crate) fn owner(&self, slot: u16) -> Option<ServerId> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    /// Returns the id of the node at `address`. A new node gets a new id.
    pub(crate) fn id_of(&mut self, address: &Address) -> ServerId {
        if let Some(id) = self.ids.get(address) {
            return *id;
        }
        let id = ServerId(self.next_id);
        self.next_id += 1;
        self.ids.insert(address.clone(), id);
        id
    }

    /// Sets the owner of one hash slot to the node at `address`. Returns the node's id.
    pub(crate) fn set_owner(&mut self, slot: u16, address: &Address) -> ServerId {
        let id = self.id_of(address);
        if let Some(owner) = self.owners.get_mut(usize::from(slot))
            && let Some(earlier) = owner.replace(id)
        {
            self.earlier_owners.entry(slot).or_insert(earlier);
        }
        id
    }

    /// Replaces the owners of all hash slots. Slots outside the ranges have no owner. Returns
    /// whether any owner has changed. Counts takeovers.
    pub(crate) fn learn(&mut self, ranges: &[SlotRange]) -> bool {
        let mut owners = vec![None; usize::from(HASH_SLOTS)];
        for SlotRange { first, last, address } in ranges {
            let id = self.id_of(address);
            let slots = usize::from(*first)..=usize::from(*last);
            if let Some(slots) = owners.get_mut(slots) {
                slots.fill(Some(id));
            }
        }
        let has_changed = owners != self.owners;
        let before = std::mem::replace(&mut self.owners, owners);
        if has_changed || !self.earlier_owners.is_empty() {
            self.count_takeovers(&before);
        }
        has_changed
    }

    /// Counts a takeover of hash slots by a replica as one move. Holds are verified and recent
    /// releases sent again after a move, because the replica may lack the latest writes.
    ///
    /// A master that gives a hash slot away still serves hash slots and stays a master: no
    /// takeover. If the earlier owner serves no hash slot any more, this node died or became a
    /// replica, and its own replica took over. A single redirection does not show the difference,
    /// so the earlier owner is retained until the whole topology is known. A master that gave its
    /// last hash slot away looks like a dead master; some holds are then verified needlessly.
    fn count_takeovers(&mut self, before: &[Option<ServerId>]) {
        let serving = self.serving();
        let mut earlier_owners = std::mem::take(&mut self.earlier_owners);
        let mut taken_over = Vec::new();
        for slot in 0..HASH_SLOTS {
            let earlier =
                earlier_owners.remove(&slot).or_else(|| before.get(usize::from(slot)).copied()?);
            match (earlier, self.owner(slot)) {
                (Some(earlier), Some(owner)) => {
                    if earlier != owner && !serving.contains(&earlier) {
                        taken_over.push(slot);
                    }
                }
                // Compared with the hash slot's next owner later.
                (Some(earlier), None) => drop(self.earlier_owners.insert(slot, earlier)),
                (None, _) => {}
            }
        }
        self.count_move(&taken_over);
    }

    /// Counts a restart of a node as a takeover of its hash slots.
    pub(crate) fn count_restart(&mut self, id: ServerId) {
        let slots: Vec<u16> =
            (0..HASH_SLOTS).filter(|slot| self.owner(*slot) == Some(id)).collect();
        self.count_move(&slots);
    }

    /// Counts one move of all `slots`: another node serves the hash slots, or their node was
    /// restarted.
    fn count_move(&mut self, slots: &[u16]) {
        if slots.is_empty() {
            return;
        }
        self.moves += 1;
        self.moved_at.resize(usize::from(HASH_SLOTS), 0);
        for slot in slots {
            if let Some(at) = self.moved_at.get_mut(usize::from(*slot)) {
                *at = self.moves;
            }
        }
    }

    /// Returns the number of takeovers and restarts.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Returns whether this hash slot was taken over, or its node restarted, after the first
    /// `moves`.
    pub(crate) fn has_moved(&self, slot: u16, moves: u64) -> bool {
        self.moved_at(slot) > moves
    }

    /// Returns the value of `moves` after the hash slot's last takeover or restart. Zero before the
    /// first.
    fn moved_at(&self, slot: u16) -> u64 {
        self.moved_at.get(usize::from(slot)).copied().unwrap_or(0)
    }

    /// Returns the nodes with at least one hash slot.
    pub(crate) fn serving(&self) -> BTreeSet<ServerId> {
        let mut serving = BTreeSet::new();
        // Most neighbours have the same owner: insert each run's owner once.
        let mut before = None;
        for owner in &self.owners {
            if *owner != before {
                serving.extend(*owner);
                before = *owner;
            }
        }
        serving
    }

    /// Forgets a node without hash slots: a returning node gets a new id.
    pub(crate) fn forget(&mut self, forgotten: ServerId) {
        self.ids.retain(|_, id| *id != forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address { host: "a".to_owned(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> SlotRange {
        SlotRange { first, last, address: address(port) }
    }

    #[test]
    fn at_first_no_slot_has_an_owner() {
        let map = SlotMap::new();
        assert_eq!(
            (map.owner(0), map.owner(HASH_SLOTS - 1), map.owner(u16::MAX)),
            (None, None, None)
        );
        assert!(map.serving().is_empty());
    }

    #[test]
    fn slot_ranges_are_inclusive_and_uncovered_slots_have_no_owner() {
        let mut map = SlotMap::new();
        assert!(map.learn(&[range(0, 99, 1), range(200, 16_383, 2), range(100, 100, 1)]));
        let (one, two) = (map.id_of(&address(1)), map.id_of(&address(2)));
        assert_ne!(one, two);
        let owners = [0, 99, 100, 101, 199, 200, 16_383].map(|slot| map.owner(slot));
        assert_eq!(owners, [Some(one), Some(one), Some(one), None, None, Some(two), Some(two)]);
        assert_eq!(map.serving(), [one, two].into());
        assert!(!map.learn(&[range(0, 100, 1), range(200, 16_383, 2)]));
        assert!(map.learn(&[range(0, 16_383, 2)]));
        assert_eq!((map.owner(0), map.serving()), (Some(two), [two].into()));
    }

    #[test]
    fn impossible_ranges_change_nothing() {
        let mut map = SlotMap::new();
        assert!(!map.learn(&[range(5, 4, 1), range(16_000, 16_384, 1), range(u16::MAX, 0, 1)]));
        map.set_owner(u16::MAX, &address(1));
        assert!(map.serving().is_empty());
    }

    #[test]
    fn a_single_slot_can_move() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 16_383, 1)]);
        let target = map.set_owner(7, &address(2));
        assert_eq!(map.owner(7), Some(target));
        assert_eq!([map.owner(6), map.owner(8)], [Some(map.id_of(&address(1))); 2]);
    }

    #[test]
    fn slot_counts_as_moved_only_if_the_old_owner_serves_no_slots() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 8191, 1), range(8192, 16_383, 2)]);
        assert_eq!((map.moves(), map.moved_at(0)), (0, 0));
        // Slots move, by a reply and by a redirection.
        map.learn(&[range(0, 0, 2), range(1, 8191, 1), range(8192, 16_383, 2)]);
        map.set_owner(1, &address(2));
        map.learn(&[range(0, 1, 2), range(2, 8191, 1), range(8192, 16_383, 2)]);
        assert_eq!(map.moves(), 0);
        // A replica replaces the first node. One hash slot was redirected to it before.
        map.set_owner(7, &address(3));
        assert_eq!(map.moves(), 0);
        map.learn(&[range(0, 1, 2), range(2, 8191, 3), range(8192, 16_383, 2)]);
        assert_eq!(map.moves(), 1);
        assert_eq!([1, 2, 7, 8191, 8192].map(|slot| map.moved_at(slot)), [0, 1, 1, 1, 0]);
        // Some hash slots have no owner for a while.
        map.learn(&[range(0, 1, 2), range(2, 8191, 3)]);
        map.learn(&[range(0, 1, 3), range(2, 8191, 3)]);
        assert_eq!((map.moves(), map.moved_at(0), map.moved_at(8192)), (2, 2, 0));
        map.learn(&[range(0, 8191, 3), range(8192, 16_383, 4)]);
        assert_eq!((map.moves(), map.moved_at(8192)), (3, 3));
        map.learn(&[range(0, 8191, 3), range(8192, 16_383, 4)]);
        assert_eq!(map.moves(), 3);
    }

    #[test]
    fn slot_redirected_twice_is_compared_with_its_first_owner() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 8191, 1), range(8192, 16_383, 2)]);
        // The replica of the first node takes over. A node that is behind sends the client to a
        // node that serves other hash slots, and this node sends the client to the replica.
        map.set_owner(0, &address(2));
        map.set_owner(0, &address(3));
        map.learn(&[range(0, 8191, 3), range(8192, 16_383, 2)]);
        assert_eq!((map.moves(), map.moved_at(0), map.moved_at(8192)), (1, 1, 0));
    }

    #[test]
    fn the_slots_of_a_restarted_node_count_as_taken_over() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 8191, 1), range(8192, 16_383, 2)]);
        let second = map.id_of(&address(2));
        map.count_restart(second);
        assert_eq!((map.moves(), map.moved_at(8191), map.moved_at(8192)), (1, 0, 1));
    }

    #[test]
    fn an_id_is_never_used_for_another_node() {
        let mut map = SlotMap::new();
        map.learn(&[range(0, 16_383, 1)]);
        let first = map.id_of(&address(1));
        map.learn(&[range(0, 16_383, 2)]);
        assert_eq!(map.id_of(&address(1)), first);
        map.forget(first);
        let again = map.id_of(&address(1));
        assert!(again != first && again != map.id_of(&address(2)), "{again:?}");
    }
}
