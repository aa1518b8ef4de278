//! The topology of a cluster, from what its nodes send: replies to `CLUSTER SLOTS` and
//! redirections, compared with a simple model.
//!
//! An input is what is sent, decoded as from a connection:
//!
//! | reply | what it stands for |
//! |---|---|
//! | an array | a reply to `CLUSTER SLOTS` |
//! | an error | a redirection, if it is one |
//! | an integer | the node of this slot was restarted |
//! | a text | the node at this address, `host:port`, is forgotten if it serves nothing |
//!
//! # What holds for every input
//!
//! * Nothing panics.
//! * A reply that is accepted has no more ranges than there are slots, and each range lies within
//!   the slots. A redirection is of such a slot.
//! * The host of each address is the one that was asked, or has at most 255 bytes, all of them
//!   visible ASCII.
//! * Each slot has the owner that the model says, and was taken over as often. An address has one
//!   id while it is not forgotten, and no id has two addresses.

#![cfg_attr(fuzzing, no_main)]

mod wheellock;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use wheellock::ops::value::Value;
use wheellock::store::redis::address::url::Address;
use wheellock::store::redis::cluster::slot_map::{SlotMap, SlotRange};
use wheellock::store::redis::cluster::slots_reply::parse_ranges;
use wheellock::store::redis::resp::decode::{Bounds, Decoder};
use wheellock::store::redis::resp::hash_slot::HASH_SLOTS;
use wheellock::store::redis::resp::redirect::Redirection;
use wheellock::store::server_id::ServerId;
use wheellock::{error, model, ops, store, waits};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("cluster_topology", run)
}

/// Runs all replies of an input, and returns their number.
///
/// # Panics
///
/// If the topology and the model differ.
fn run(mut bytes: &[u8]) -> usize {
    let mut decoder = Decoder::new();
    decoder.set_bounds(Bounds::SLOTS);
    let mut both = Both {
        map: SlotMap::new(),
        model: Model::new(),
        addresses: BTreeMap::new(),
        asked: Address { host: "asked".to_owned(), port: 7000 },
    };
    let mut replies = 0;
    while let Ok(reply) = decoder.next(bytes.by_ref()) {
        both.step(&reply);
        both.compare();
        replies += 1;
    }
    replies
}

/// The topology and its model, with the same replies.
struct Both {
    map: SlotMap,
    model: Model,
    /// The address of each id that was ever given.
    addresses: BTreeMap<ServerId, Address>,
    asked: Address,
}

impl Both {
    fn step(&mut self, reply: &Value) {
        match reply {
            Value::Array(_) => {
                if let Some(ranges) = parse_ranges(reply, &self.asked) {
                    self.learn(&ranges);
                }
            }
            Value::Refusal { code, message } => {
                match Redirection::parse(code, message, &self.asked) {
                    Some(Redirection::Moved { slot, to }) => {
                        assert!(slot < HASH_SLOTS);
                        self.note(&to);
                        self.map.set_owner(slot, &to);
                        self.model.set_owner(slot, &to);
                    }
                    Some(Redirection::Ask { to }) => drop(self.note(&to)),
                    None => {}
                }
            }
            Value::Integer(slot) => {
                let owner = u16::try_from(*slot).ok().and_then(|slot| self.map.owner(slot));
                if let Some(id) = owner {
                    self.map.count_restart(id);
                    self.model.count_restart(&self.addresses[&id]);
                }
            }
            Value::Text(text) => {
                let named = Redirection::parse("ASK", &format!("0 {text}"), &self.asked);
                if let Some(Redirection::Ask { to }) = named {
                    self.forget(&to);
                }
            }
            Value::Nil => {}
        }
    }

    fn learn(&mut self, ranges: &[SlotRange]) {
        assert!(ranges.len() <= usize::from(HASH_SLOTS));
        for range in ranges {
            assert!(range.first <= range.last && range.last < HASH_SLOTS, "{range:?}");
            self.note(&range.address);
        }
        assert_eq!(self.map.learn(ranges), self.model.learn(ranges), "whether it has changed");
    }

    fn forget(&mut self, address: &Address) {
        let id = self.note(address);
        if !self.map.serving().contains(&id) {
            self.map.forget(id);
            self.model.forget(address);
            assert_ne!(self.note(address), id);
        }
    }

    /// Checks an address that was sent, and its id.
    fn note(&mut self, address: &Address) -> ServerId {
        let is_plain = address.host.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(is_plain && (1..=255).contains(&address.host.len()), "{address:?}");
        let id = self.map.id_of(address);
        assert_eq!(self.map.id_of(address), id);
        let noted = self.addresses.entry(id).or_insert_with(|| address.clone());
        assert_eq!(noted, address, "of {id:?}");
        id
    }

    fn compare(&self) {
        let mut serving = BTreeSet::new();
        let mut before = (None, None);
        for (number, slot) in (0..HASH_SLOTS).zip(&self.model.slots) {
            let both = (self.map.owner(number), slot.owner);
            if both != before {
                let address = slot.owner.map(|node| &self.model.nodes[node]);
                assert_eq!(both.0.map(|id| &self.addresses[&id]), address, "slot {number}");
                serving.extend(both.0);
                before = both;
            }
            assert!(!self.map.has_moved(number, slot.moved_at), "slot {number}");
            let is_first = slot.moved_at == 0;
            assert!(is_first || self.map.has_moved(number, slot.moved_at - 1), "slot {number}");
        }
        assert_eq!(self.map.moves(), self.model.moves);
        assert_eq!(self.map.serving(), serving);
        assert_eq!(self.map.owner(HASH_SLOTS), None);
    }
}

/// A topology without shortcuts: each slot for itself.
struct Model {
    /// All nodes that there ever were. One that was forgotten and comes back is another.
    nodes: Vec<Address>,
    forgotten: BTreeSet<usize>,
    slots: Vec<Slot>,
    moves: u64,
}

#[derive(Clone, Default)]
struct Slot {
    owner: Option<usize>,
    /// The last owner in a reply to `CLUSTER SLOTS`, or else the first of a redirection.
    settled: Option<usize>,
    /// The number of moves after its last one.
    moved_at: u64,
}

impl Model {
    fn new() -> Self {
        let slots = vec![Slot::default(); usize::from(HASH_SLOTS)];
        Self { nodes: Vec::new(), forgotten: BTreeSet::new(), slots, moves: 0 }
    }

    fn node(&mut self, address: &Address) -> usize {
        let known = self.nodes.iter().rposition(|node| node == address);
        known.filter(|node| !self.forgotten.contains(node)).unwrap_or_else(|| {
            self.nodes.push(address.clone());
            self.nodes.len() - 1
        })
    }

    fn forget(&mut self, address: &Address) {
        let node = self.node(address);
        self.forgotten.insert(node);
    }

    fn set_owner(&mut self, slot: u16, address: &Address) {
        let node = self.node(address);
        let slot = &mut self.slots[usize::from(slot)];
        slot.owner = Some(node);
        slot.settled.get_or_insert(node);
    }

    fn learn(&mut self, ranges: &[SlotRange]) -> bool {
        let mut owners = vec![None; usize::from(HASH_SLOTS)];
        for range in ranges {
            let node = self.node(&range.address);
            for slot in range.first..=range.last {
                owners[usize::from(slot)] = Some(node);
            }
        }
        let serving: BTreeSet<usize> = owners.iter().flatten().copied().collect();
        let mut has_changed = false;
        let mut taken_over = Vec::new();
        for (number, (slot, owner)) in self.slots.iter_mut().zip(owners).enumerate() {
            has_changed |= slot.owner != owner;
            slot.owner = owner;
            if owner.is_some() {
                // It was taken over if the owner before serves nothing any more.
                let before = std::mem::replace(&mut slot.settled, owner);
                let is_gone = |before: usize| !serving.contains(&before);
                taken_over.extend(before.is_some_and(is_gone).then_some(number));
            }
        }
        self.count_move(&taken_over);
        has_changed
    }

    fn count_restart(&mut self, address: &Address) {
        let node = self.node(address);
        let is_its = |number: &usize| self.slots[*number].owner == Some(node);
        let slots: Vec<usize> = (0..self.slots.len()).filter(is_its).collect();
        self.count_move(&slots);
    }

    fn count_move(&mut self, slots: &[usize]) {
        self.moves += u64::from(!slots.is_empty());
        for slot in slots {
            self.slots[*slot].moved_at = self.moves;
        }
    }
}
