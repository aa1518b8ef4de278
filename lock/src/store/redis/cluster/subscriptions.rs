//! Assigns each channel to a node of a cluster, where the channel is subscribed.
//!
//! A channel is subscribed at the node of its hash slot, where both sharded and unsharded messages
//! arrive. When a hash slot moves, the server ends the subscriptions of its channels. Each channel
//! is subscribed again at once, because the refusal names the new node. Once the new node has
//! confirmed, waiters query their locks, so no message in between is missed.
//!
//! Lock order: the waiters, then the lock here, then the nodes and the state of a subscriber. No
//! listener is called with the lock held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::sync::{Mutex, RwLock};
use crate::store::redis::cluster::nodes::Nodes;
use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::store::server_id::ServerId;

/// The subscribed channels of a client, each at one node of a cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterSubscriptions {
    state: Mutex<ChannelOwners>,
}

/// The node of each channel, and the nodes with commands to send.
#[derive(Debug, Default)]
struct ChannelOwners {
    /// The node of each channel. `None` while no node serves the channel's hash slot; waiters then
    /// poll.
    owners: BTreeMap<Arc<str>, Option<ServerId>>,
    /// Nodes with unflushed commands.
    unflushed: BTreeSet<ServerId>,
}

impl ClusterSubscriptions {
    /// Subscribes a channel at the node of its hash slot. Returns whether there is a node. Call
    /// [`flush`](Self::flush) afterwards.
    pub(crate) fn subscribe(&self, channel: &Arc<str>, nodes: &RwLock<Nodes>) -> bool {
        let mut state = self.state.lock();
        // Read under the lock: if the owner changes later, `rebalance` finds the channel here.
        let nodes = nodes.read();
        let owner = nodes.map.owner(hash_slot_of(channel));
        let earlier = state.owners.insert(Arc::clone(channel), owner).flatten();
        resubscribe(channel, earlier, owner, &nodes, &mut state.unflushed);
        owner.is_some()
    }

    /// Unsubscribes a channel at its node. The command is sent with a later command of the node.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>, nodes: &RwLock<Nodes>) {
        let owner = self.state.lock().owners.remove(channel).flatten();
        if let Some(node) = owner.and_then(|owner| nodes.read().get(owner).cloned()) {
            node.subscriber().unsubscribe(channel);
        }
    }

    /// Sends the unflushed commands of all nodes.
    pub(crate) fn flush(&self, nodes: &RwLock<Nodes>) {
        let unflushed = std::mem::take(&mut self.state.lock().unflushed);
        for id in unflushed {
            let node = nodes.read().get(id).cloned();
            if let Some(node) = node {
                node.subscriber().flush();
            }
        }
    }

    /// Moves every channel to the current node of its hash slot; call [`flush`](Self::flush)
    /// afterwards. Returns whether every channel has a node.
    pub(crate) fn rebalance(&self, nodes: &RwLock<Nodes>) -> bool {
        let mut state = self.state.lock();
        let nodes = nodes.read();
        let ChannelOwners { owners, unflushed } = &mut *state;
        let mut all_served = true;
        for (channel, present) in owners {
            let owner = nodes.map.owner(hash_slot_of(channel));
            all_served &= owner.is_some();
            if *present != owner {
                resubscribe(channel, *present, owner, &nodes, unflushed);
                *present = owner;
            }
        }
        all_served
    }
}

/// Unsubscribes a channel at its `earlier` owner, if different, and subscribes the channel at
/// `owner`. Records the nodes in `unflushed`.
fn resubscribe(
    channel: &Arc<str>,
    earlier: Option<ServerId>,
    owner: Option<ServerId>,
    nodes: &Nodes,
    unflushed: &mut BTreeSet<ServerId>,
) {
    if let Some(node) = earlier.filter(|id| Some(*id) != owner).and_then(|id| nodes.get(id)) {
        node.subscriber().unsubscribe(channel);
        unflushed.extend(earlier);
    }
    if let Some(node) = owner.and_then(|id| nodes.get(id)) {
        node.subscriber().subscribe(channel);
        unflushed.extend(owner);
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock, SystemClock};

    use super::*;
    use crate::store::redis::address::url::Address;
    use crate::store::redis::cluster::slot_map::SlotRange;

    #[test]
    fn channel_resubscribed_after_a_slot_move_is_at_a_single_node() {
        let (subscriptions, channel) = (ClusterSubscriptions::default(), Arc::from("a"));
        let nodes = RwLock::new(Nodes::for_test());
        let [first, second] = [1, 2].map(|port| Address { host: "127.0.0.1".to_owned(), port });
        for address in [&first, &first, &second, &second] {
            let range = SlotRange { first: 0, last: 16_383, address: address.clone() };
            nodes.write().learn(&[range], SystemClock.now());
            assert!(subscriptions.subscribe(&channel, &nodes));
        }
        let node = |address| nodes.write().get_or_create(address, SystemClock.now()).unwrap();
        let wanted = |address| node(address).subscriber().wanted();
        assert_eq!((wanted(&first), wanted(&second)), (0, 1));
        assert_eq!(subscriptions.state.lock().unflushed.len(), 2, "both have commands");
        subscriptions.unsubscribe(&channel, &nodes);
        assert_eq!(wanted(&second), 0);
    }
}
