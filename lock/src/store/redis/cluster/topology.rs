//! The known state of a cluster: the nodes, their hash slots, and the channels subscribed at each
//! node.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashed_wheel::Clock;

use crate::model::sync::{RwLock, SystemClock};
use crate::store::connections::Connections;
use crate::store::failure::Failure;
use crate::store::redis::address::url::Address;
use crate::store::redis::cluster::nodes::Nodes;
use crate::store::redis::cluster::slots_query::Description;
use crate::store::redis::cluster::subscriptions::ClusterSubscriptions;
use crate::store::redis::node::node::Node;
use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::server_id::ServerId;

/// The nodes of a cluster with their hash slots, and the subscribed channels.
pub(crate) struct Topology {
    nodes: RwLock<Nodes>,
    subscriptions: ClusterSubscriptions,
    /// The number of connections to removed nodes. Relaxed: a statistic.
    removed_connections: AtomicU64,
}

impl Topology {
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self {
            nodes: RwLock::new(nodes),
            subscriptions: ClusterSubscriptions::default(),
            removed_connections: AtomicU64::new(0),
        }
    }

    /// Returns whether channels are sharded. `None` until a node was queried.
    pub(crate) fn channels(&self) -> Option<Channels> {
        self.nodes.read().channels()
    }

    /// Returns the node that serves a hash slot. `None` if no such node is known.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let nodes = self.nodes.read();
        nodes.get(nodes.map.owner(slot)?).cloned()
    }

    /// Returns the id of the node of a hash slot, or else of any node: any node redirects the
    /// operation. `None` without nodes.
    pub(crate) fn owner_or_any(&self, slot: u16) -> Option<ServerId> {
        let nodes = self.nodes.read();
        nodes.map.owner(slot).or_else(|| nodes.any())
    }

    /// Returns the node with this id. `None` if the node is not known, or was removed.
    pub(crate) fn node(&self, id: ServerId) -> Option<Arc<Node>> {
        self.nodes.read().get(id).cloned()
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.read().iter().cloned().collect()
    }

    /// Returns the nodes with at least one hash slot.
    pub(crate) fn serving(&self) -> Vec<ServerId> {
        self.nodes.read().map.serving().into_iter().collect()
    }

    /// Returns the node at `address`, created if necessary. `None` after [`close`](Self::close).
    pub(crate) fn get_or_create(&self, address: &Address) -> Option<Arc<Node>> {
        self.nodes.write().get_or_create(address, SystemClock.now())
    }

    /// Sets the owner of one hash slot to the node at `address`. Returns the node, with `true` if
    /// the owner has changed. `None` after [`close`](Self::close).
    pub(crate) fn set_owner(&self, slot: u16, address: &Address) -> Option<(Arc<Node>, bool)> {
        let (mut nodes, now) = (self.nodes.write(), SystemClock.now());
        let node = nodes.get_or_create(address, now)?;
        let before = nodes.map.owner(slot);
        nodes.set_owner(slot, address, now);
        let has_changed = nodes.map.owner(slot) != before;
        Some((node, has_changed))
    }

    /// Replaces the owners of all hash slots. After a takeover, aborts the pipelines of replaced
    /// nodes, and wakes the threads that wait for a failover. Returns whether any owner has
    /// changed.
    pub(crate) fn learn(&self, description: &Description) -> bool {
        let mut nodes = self.nodes.write();
        nodes.set_channels(description.channels);
        let (moves, mut replaced) = (nodes.map.moves(), nodes.map.serving());
        let has_changed = nodes.learn(&description.ranges, SystemClock.now());
        if nodes.map.moves() == moves {
            return has_changed;
        }
        let serving = nodes.map.serving();
        replaced.retain(|id| !serving.contains(id));
        let replaced: Vec<_> = replaced.iter().filter_map(|id| nodes.get(*id).cloned()).collect();
        let all: Vec<_> = nodes.iter().cloned().collect();
        drop(nodes);
        // The renewal thread may still wait for a replaced node that hangs, and has to renew its
        // holds at their new owners.
        for node in replaced {
            node.pipeline().abort();
        }
        for node in all {
            node.server().notify_move_listeners();
        }
        has_changed
    }

    /// Returns the number of takeovers and restarts.
    pub(crate) fn moves(&self) -> u64 {
        self.nodes.read().map.moves()
    }

    /// Returns whether the hash slot of `key` was taken over, or its node restarted, after the
    /// first `moves`.
    pub(crate) fn has_moved(&self, key: &str, moves: u64) -> bool {
        self.nodes.read().map.has_moved(hash_slot_of(key), moves)
    }

    /// Counts a restart of a node as a takeover of its hash slots.
    pub(crate) fn count_restart(&self, id: ServerId) {
        self.nodes.write().map.count_restart(id);
    }

    /// Subscribes a channel at the node of its hash slot. Returns whether there is a node.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) -> bool {
        self.subscriptions.subscribe(channel, &self.nodes)
    }

    /// Unsubscribes a channel at its node. The command is sent with a later command of the node.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        self.subscriptions.unsubscribe(channel, &self.nodes);
    }

    /// Sends the unflushed commands of the subscription connections of all nodes.
    pub(crate) fn flush(&self) {
        self.subscriptions.flush(&self.nodes);
    }

    /// Moves every channel to the current node of its hash slot. Returns whether every channel has
    /// a node.
    pub(crate) fn rebalance(&self) -> bool {
        let all_served = self.subscriptions.rebalance(&self.nodes);
        self.flush();
        all_served
    }

    /// Removes the nodes that have been unused for a while. Returns whether more nodes are unused.
    pub(crate) fn remove_unused(&self) -> bool {
        let (removed, others) = self.nodes.write().remove_unused(SystemClock.now());
        for node in removed {
            self.removed_connections.fetch_add(node.connections_made(), Ordering::Relaxed);
            // Connections in use end with the calls that use them.
            node.subscriber().close();
            // The renewal thread of this node has nothing left to do.
            node.server().notify_move_listeners();
        }
        others
    }

    /// Returns the counts of connections to all nodes, also to removed nodes.
    pub(crate) fn connections(&self) -> Connections {
        let made = self.removed_connections.load(Ordering::Relaxed);
        let removed = Connections { made, ..Connections::default() };
        let nodes = self.nodes.read();
        nodes.iter().map(|node| node.connections()).fold(removed, Connections::add)
    }

    /// Returns the failure of an operation if no node is known for its hash slot: `Closed` after
    /// [`close`](Self::close), otherwise a transient refusal.
    pub(crate) fn no_node(&self) -> Failure {
        if self.nodes.read().is_closed() {
            return Failure::Closed;
        }
        Failure::refused("CLUSTERDOWN", "no node is known to serve the slot")
    }

    /// Ends the calls under way at once with an error. A call that began before the abort also ends
    /// when the call reaches a node that was created afterwards. Later calls, the pipelines and the
    /// subscriptions continue.
    pub(crate) fn abort_calls(&self) {
        let nodes: Vec<_> = {
            let mut nodes = self.nodes.write();
            nodes.count_abort();
            nodes.iter().cloned().collect()
        };
        for node in nodes {
            node.abort_calls();
        }
    }

    /// Closes all nodes, and prevents the creation of nodes.
    pub(crate) fn close(&self) {
        let nodes: Vec<_> = {
            let mut nodes = self.nodes.write();
            nodes.close();
            nodes.iter().cloned().collect()
        };
        for node in nodes {
            node.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wheellock_fixture::Server;

    use super::*;
    use crate::store::redis::cluster::slot_map::SlotRange;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn only_the_pipeline_of_a_replaced_node_is_aborted() {
        let [first, second, third] = [Server::start(), Server::start(), Server::start()];
        let topology = Topology::new(Nodes::for_test());
        let range = |first, last, server: &Server| {
            let (host, port) = (server.address().ip().to_string(), server.address().port());
            SlotRange { first, last, address: Address { host, port } }
        };
        let learn = |lower: &Server| {
            let ranges = vec![range(0, 99, lower), range(100, 16_383, &second)];
            topology.learn(&Description { ranges, channels: Channels::Everywhere })
        };
        assert!(learn(&first));
        let nodes = [0, 100].map(|slot| topology.owner(slot).unwrap());
        // A connection that is intact stays.
        let connections = || {
            nodes.each_ref().map(|node| {
                node.pipeline().ensure_connected(LONG).unwrap();
                node.connections_made()
            })
        };
        assert_eq!([connections(), connections()], [[1, 1]; 2]);
        assert!(learn(&third));
        assert_eq!(connections(), [2, 1]);
    }
}
