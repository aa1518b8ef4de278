//! The known nodes of a cluster, each with its own connections, and the hash slots of the nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::store::listener::Listener;
use crate::store::redis::address::url::{Access, Address, Peer};
use crate::store::redis::cluster::slot_map::{SlotMap, SlotRange};
use crate::store::redis::node::node::Node;
use crate::store::redis::node::server::Server;
use crate::store::redis::node::subscriber::RedirectSink;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::MasterEndpoint;
use crate::store::server_id::ServerId;
use crate::store::unread::ReleaseReplies;

/// How long a node without hash slots is retained. A new node serves no hash slot yet, while nodes
/// redirect callers to the new node. And calls under way on a leaving node should end there.
const MAX_UNUSED: Duration = Duration::from_secs(5);

/// Creates the nodes of one cluster.
pub(crate) struct NodeFactory {
    pub(crate) access: Access,
    pub(crate) command_timeout: Duration,
    /// The limit for each node: a hanging node must not use up the connections to the rest.
    pub(crate) connections: Option<usize>,
    pub(crate) listener: Weak<dyn Listener>,
    pub(crate) release_replies: Arc<ReleaseReplies>,
    pub(crate) redirects: Option<Weak<dyn RedirectSink>>,
}

impl NodeFactory {
    /// Creates the server at `address`, without connecting.
    pub(crate) fn server(&self, address: Address, channels: Channels) -> Server {
        let endpoint = MasterEndpoint::Fixed(Peer::Tcp(address));
        let (listener, replies) = (self.listener.clone(), Arc::clone(&self.release_replies));
        let access = self.access.clone();
        Server::new(endpoint, access, self.command_timeout, channels, listener, replies)
    }

    /// Creates the node at `address`, without connecting.
    fn node(&self, address: Address, channels: Channels) -> Node {
        Node::new(self.server(address, channels), self.connections, self.redirects.clone())
    }
}

/// The nodes of one cluster. Time is an argument of the methods.
pub(crate) struct Nodes {
    pub(crate) map: SlotMap,
    factory: Arc<NodeFactory>,
    entries: BTreeMap<ServerId, NodeEntry>,
    /// Whether channels are sharded, as reported by the first node. Never changes: all clients that
    /// share a lock must decide the same.
    channels: Option<Channels>,
    /// How often the calls under way were aborted.
    aborts: u64,
    closed: bool,
}

/// A known node, with the time of its last use.
struct NodeEntry {
    node: Arc<Node>,
    /// When the node last served a hash slot or was the target of a redirection.
    used_at: Instant,
}

impl Nodes {
    pub(crate) fn new(factory: Arc<NodeFactory>) -> Self {
        let (map, entries) = (SlotMap::new(), BTreeMap::new());
        Self { factory, map, entries, channels: None, aborts: 0, closed: false }
    }

    /// Returns whether channels are sharded. `None` until a node was queried.
    pub(crate) fn channels(&self) -> Option<Channels> {
        self.channels
    }

    /// Sets whether channels are sharded. Only the first call has an effect.
    pub(crate) fn set_channels(&mut self, channels: Channels) {
        self.channels.get_or_insert(channels);
    }

    pub(crate) fn get(&self, id: ServerId) -> Option<&Arc<Node>> {
        self.entries.get(&id).map(|entry| &entry.node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.entries.values().map(|entry| &entry.node)
    }

    /// Returns the id of any node, which redirects operations on foreign hash slots. `None` without
    /// nodes.
    pub(crate) fn any(&self) -> Option<ServerId> {
        self.entries.keys().next().copied()
    }

    /// Returns the node at `address`, created if necessary, and records the use at `now`. `None`
    /// after [`close`](Self::close).
    pub(crate) fn get_or_create(&mut self, address: &Address, now: Instant) -> Option<Arc<Node>> {
        if self.closed {
            return None;
        }
        let id = self.map.id_of(address);
        let channels = self.channels.unwrap_or(Channels::Everywhere);
        let entry = self.entries.entry(id).or_insert_with(|| {
            let node = Arc::new(self.factory.node(address.clone(), channels));
            // Calls from before the aborts are refused, as on the older nodes.
            (0..self.aborts).for_each(|_| node.abort_calls());
            NodeEntry { node, used_at: now }
        });
        entry.used_at = now;
        Some(Arc::clone(&entry.node))
    }

    /// Sets the owner of one hash slot to the existing node at `address`.
    pub(crate) fn set_owner(&mut self, slot: u16, address: &Address, now: Instant) {
        // As far as is known, the hash slot's earlier owner has served the hash slot until now.
        let earlier = self.map.owner(slot);
        if let Some(entry) = earlier.and_then(|id| self.entries.get_mut(&id)) {
            entry.used_at = now;
        }
        self.map.set_owner(slot, address);
    }

    /// Replaces the owners of all hash slots, and creates the nodes of `ranges`. Returns whether
    /// any owner has changed.
    pub(crate) fn learn(&mut self, ranges: &[SlotRange], now: Instant) -> bool {
        // As far as is known, the earlier owners have served their hash slots until now.
        for id in self.map.serving() {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.used_at = now;
            }
        }
        for range in ranges {
            self.get_or_create(&range.address, now);
        }
        self.map.learn(ranges)
    }

    /// Removes and returns the nodes that have been unused for [`MAX_UNUSED`]. Also returns
    /// whether more nodes are unused.
    pub(crate) fn remove_unused(&mut self, now: Instant) -> (Vec<Arc<Node>>, bool) {
        let serving = self.map.serving();
        let (expired, others): (Vec<_>, Vec<_>) = self
            .entries
            .iter()
            .filter(|(id, _)| !serving.contains(id))
            .map(|(id, entry)| (*id, now.saturating_duration_since(entry.used_at)))
            .partition(|(_, unused_for)| *unused_for >= MAX_UNUSED);
        let removed = expired.into_iter().filter_map(|(id, _)| {
            self.map.forget(id);
            self.entries.remove(&id).map(|entry| entry.node)
        });
        (removed.collect(), !others.is_empty())
    }

    /// Counts an abort of the calls under way, for nodes that are created later.
    pub(crate) fn count_abort(&mut self) {
        self.aborts += 1;
    }

    /// Prevents the creation of nodes from now on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
impl Nodes {
    /// Nodes without connections.
    pub(crate) fn for_test() -> Self {
        Self::new(Arc::new(NodeFactory {
            access: Access::default(),
            command_timeout: Duration::from_secs(1),
            connections: None,
            listener: Weak::<crate::store::listener::NoListener>::new(),
            release_replies: Arc::default(),
            redirects: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock, SystemClock};

    use super::*;
    use crate::store::failure::Failure;
    use crate::store::shutdown::CallGeneration;

    fn address(port: u16) -> Address {
        Address { host: "a".to_owned(), port }
    }

    fn all(port: u16) -> Vec<SlotRange> {
        vec![SlotRange { first: 0, last: 16_383, address: address(port) }]
    }

    #[test]
    fn node_is_kept_while_serving_and_for_a_time_after_last_use() {
        let (mut nodes, start) = (Nodes::for_test(), SystemClock.now());
        assert!(nodes.learn(&all(1), start));
        assert!(!nodes.learn(&all(1), start));
        // Nothing is refreshed for a long time.
        let late = start + MAX_UNUSED * 9;
        assert!(nodes.remove_unused(late).0.is_empty());
        assert!(nodes.learn(&all(2), late));
        let (removed, others) = nodes.remove_unused(late);
        assert!(removed.is_empty() && others, "it served until now");
        // A caller is redirected there.
        nodes.get_or_create(&address(1), late + MAX_UNUSED).unwrap();
        let end = late + MAX_UNUSED * 2;
        let just_before = end.checked_sub(Duration::from_millis(1)).unwrap();
        assert!(nodes.remove_unused(just_before).0.is_empty());
        let (removed, others) = nodes.remove_unused(end);
        let removed: Vec<_> = removed.iter().map(|node| node.address()).collect();
        assert_eq!(removed, [Some(&address(1))]);
        assert!(!others && nodes.iter().count() == 1);
    }

    #[test]
    fn node_is_kept_for_a_time_after_its_only_slot_is_redirected() {
        let (mut nodes, start) = (Nodes::for_test(), SystemClock.now());
        let range = |first, last, port| SlotRange { first, last, address: address(port) };
        assert!(nodes.learn(&[range(0, 0, 1), range(1, 16_383, 2)], start));
        let late = start + MAX_UNUSED * 9;
        nodes.set_owner(0, &address(2), late);
        let (removed, others) = nodes.remove_unused(late);
        assert!(removed.is_empty() && others);
        assert_eq!(nodes.remove_unused(late + MAX_UNUSED).0.len(), 1);
    }

    #[test]
    fn a_node_made_after_an_abort_refuses_the_calls_from_before() {
        let mut nodes = Nodes::for_test();
        let ping = |node: &Node, began| node.ping(Duration::from_secs(10), CallGeneration(began));
        for aborts in 1..3 {
            nodes.count_abort();
            let address = address(u16::try_from(aborts).unwrap());
            let node = nodes.get_or_create(&address, SystemClock.now()).unwrap();
            assert!(matches!(ping(&node, aborts - 1), Err(Failure::Closed)));
            // A later one finds no server.
            assert!(matches!(ping(&node, aborts), Err(Failure::NotSent { .. })));
        }
    }

    #[test]
    fn after_close_no_node_is_created() {
        let (mut nodes, now) = (Nodes::for_test(), SystemClock.now());
        nodes.learn(&all(1), now);
        nodes.close();
        assert!(nodes.get_or_create(&address(2), now).is_none());
        assert_eq!(nodes.iter().count(), 1);
    }

    #[test]
    fn the_first_node_decides_whether_channels_are_sharded() {
        let mut nodes = Nodes::for_test();
        nodes.set_channels(Channels::Sharded);
        nodes.set_channels(Channels::Everywhere);
        assert_eq!(nodes.channels(), Some(Channels::Sharded));
    }
}
