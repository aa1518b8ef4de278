//! The nodes of a cluster that are known, each with its connections, and which of them serves which slot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::address::Address;
use super::channels::Channels;
use super::node::Node;
use super::slot_map::{Range, SlotMap};
use crate::store::Lane;

/// How long a node is kept that serves no slot. One that has just come serves none yet, while others send callers there;
/// and who has begun something on one that leaves should finish it there.
const LINGER: Duration = Duration::from_secs(5);

pub(super) struct Members {
    map: SlotMap,
    nodes: BTreeMap<Lane, Member>,
    /// How messages are sent, once the first node has said it. It stays so: all who share a lock must do the same.
    channels: Option<Channels>,
    closed: bool,
}

struct Member {
    node: Arc<Node>,
    /// When somebody last had a reason to go there.
    needed: Instant,
}

impl Members {
    pub(super) fn new() -> Self {
        Self { map: SlotMap::new(), nodes: BTreeMap::new(), channels: None, closed: false }
    }

    /// `None` until something was learnt.
    pub(super) fn channels(&self) -> Option<Channels> {
        self.channels
    }

    pub(super) fn decide(&mut self, channels: Channels) {
        self.channels.get_or_insert(channels);
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Lane> {
        self.map.owner(slot)
    }

    pub(super) fn node(&self, lane: Lane) -> Option<&Arc<Node>> {
        self.nodes.get(&lane).map(|member| &member.node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().map(|member| &member.node)
    }

    /// Some node, so that there is one to ask who knows better.
    pub(super) fn any(&self) -> Option<Lane> {
        self.nodes.keys().next().copied()
    }

    /// The node of an address, made if there is none. `None` at the end.
    pub(super) fn admit(
        &mut self,
        address: &Address,
        now: Instant,
        make: impl FnOnce(Address, Channels) -> Node,
    ) -> Option<Arc<Node>> {
        if self.closed {
            return None;
        }
        let lane = self.map.lane(address);
        let channels = self.channels.unwrap_or(Channels::Everywhere);
        let member = self.nodes.entry(lane).or_insert_with(|| {
            let node = Arc::new(make(address.clone(), channels));
            Member { node, needed: now }
        });
        member.needed = now;
        Some(Arc::clone(&member.node))
    }

    /// A slot is served by a node, which has been admitted.
    pub(super) fn moved(&mut self, slot: u16, address: &Address, now: Instant) {
        // Who served it has done so until now, for all that was known.
        let before = self.map.owner(slot);
        if let Some(member) = before.and_then(|lane| self.nodes.get_mut(&lane)) {
            member.needed = now;
        }
        self.map.moved(slot, address);
    }

    /// All slots are served as these say. Whether that is new.
    pub(super) fn learn(
        &mut self,
        ranges: &[Range],
        now: Instant,
        mut make: impl FnMut(Address, Channels) -> Node,
    ) -> bool {
        // As above.
        for lane in self.map.serving() {
            if let Some(member) = self.nodes.get_mut(&lane) {
                member.needed = now;
            }
        }
        for range in ranges {
            self.admit(&range.address, now, &mut make);
        }
        self.map.learn(ranges)
    }

    /// Takes out the nodes that have served nothing for long enough. Whether there are others that serve nothing.
    pub(super) fn part(&mut self, now: Instant) -> (Vec<Arc<Node>>, bool) {
        let serving = self.map.serving();
        let idle = |lane: &Lane, member: &Member| {
            (!serving.contains(lane)).then(|| now.saturating_duration_since(member.needed))
        };
        let mut others = false;
        let gone: Vec<Lane> = self
            .nodes
            .iter()
            .filter_map(|(lane, member)| {
                let since = idle(lane, member)?;
                others |= since < LINGER;
                (since >= LINGER).then_some(*lane)
            })
            .collect();
        let gone = gone.into_iter().filter_map(|lane| {
            self.map.forget(lane);
            self.nodes.remove(&lane).map(|member| member.node)
        });
        (gone.collect(), others)
    }

    /// No node is made from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock, SystemClock};

    use super::super::address::{Access, Peer};
    use super::super::server::Server;
    use super::super::whereabouts::Whereabouts;
    use super::*;

    fn address(port: u16) -> Address {
        Address { host: "a".to_owned(), port }
    }

    fn make(address: Address, channels: Channels) -> Node {
        let access = Access::default();
        let listener = std::sync::Weak::<crate::wait::Channels>::new();
        let timeout = Duration::from_secs(1);
        Node::of(
            Server::new(Whereabouts::Fixed(Peer::Tcp(address)), access, timeout, channels),
            3,
            listener,
            None,
        )
    }

    fn all(port: u16) -> Vec<Range> {
        vec![Range { first: 0, last: 16_383, address: address(port) }]
    }

    #[test]
    fn a_node_is_kept_while_it_serves_or_was_needed_a_moment_ago() {
        let (mut members, start) = (Members::new(), SystemClock.now());
        assert!(members.learn(&all(1), start, make));
        assert!(!members.learn(&all(1), start, make));
        // For so long nobody had a reason to look.
        let late = start + LINGER * 9;
        assert!(members.part(late).0.is_empty());
        assert!(members.learn(&all(2), late, make));
        let (gone, others) = members.part(late);
        assert!(gone.is_empty() && others, "it served until now");
        // Somebody was sent there.
        members.admit(&address(1), late + LINGER, make).unwrap();
        let at_last = late + LINGER * 2;
        assert!(members.part(at_last.checked_sub(Duration::from_millis(1)).unwrap()).0.is_empty());
        let (gone, others) = members.part(at_last);
        assert_eq!(gone.iter().map(|node| node.address()).collect::<Vec<_>>(), [Some(&address(1))]);
        assert!(!others && members.nodes().count() == 1);
    }

    #[test]
    fn who_served_one_slot_only_is_kept_for_a_while_too_when_that_has_moved() {
        let (mut members, start) = (Members::new(), SystemClock.now());
        let range = |first, last, port| Range { first, last, address: address(port) };
        assert!(members.learn(&[range(0, 0, 1), range(1, 16_383, 2)], start, make));
        let late = start + LINGER * 9;
        members.moved(0, &address(2), late);
        let (gone, others) = members.part(late);
        assert!(gone.is_empty() && others);
        assert_eq!(members.part(late + LINGER).0.len(), 1);
    }

    #[test]
    fn after_the_end_there_are_no_new_nodes() {
        let (mut members, now) = (Members::new(), SystemClock.now());
        members.learn(&all(1), now, make);
        members.close();
        assert!(members.admit(&address(2), now, make).is_none());
        assert_eq!(members.nodes().count(), 1);
    }

    #[test]
    fn the_first_node_decides_how_messages_are_sent() {
        let mut members = Members::new();
        members.decide(Channels::Sharded);
        members.decide(Channels::Everywhere);
        assert_eq!(members.channels(), Some(Channels::Sharded));
    }
}
