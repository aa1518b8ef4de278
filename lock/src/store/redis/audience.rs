//! At which node of a cluster each channel is listened to.
//!
//! The lock here is taken before that of the members and of any subscription, and after that of the waiters. So nobody
//! is told of a message while it is held.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::members::Members;
use super::node::Node;
use super::slot::slot_of;
use crate::store::Lane;

#[derive(Debug, Default)]
pub(super) struct Audience {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where, or nowhere as long as nobody serves the slot. A channel that is not listened to is polled.
    places: HashMap<Arc<str>, Option<Lane>>,
    /// Nodes that have been wished something of since the last flush.
    touched: BTreeSet<Lane>,
}

impl Audience {
    /// Wishes for a channel where it is served. Whether anybody serves it.
    pub(super) fn want(
        &self,
        channel: &Arc<str>,
        seat: impl Fn() -> Seat,
        node: impl Fn(Lane) -> Option<Arc<Node>>,
    ) -> bool {
        let mut state = self.state.lock();
        // Looked up under the lock: whoever learns of another place afterwards finds the channel here, and moves it.
        let seat = seat();
        let place = seat.as_ref().map(|(lane, _)| *lane);
        let before = state.places.insert(Arc::clone(channel), place).flatten();
        // Somebody else has wished for it where it was.
        if let Some(old) = before.filter(|old| Some(*old) != place) {
            if let Some(node) = node(old) {
                node.subscription().drop_want(channel);
            }
            state.touched.insert(old);
        }
        let Some((lane, node)) = seat else { return false };
        node.subscription().want(channel);
        state.touched.insert(lane);
        true
    }

    pub(super) fn drop_want(&self, channel: &Arc<str>, node: impl Fn(Lane) -> Option<Arc<Node>>) {
        let place = self.state.lock().places.remove(channel).flatten();
        if let Some(node) = place.and_then(node) {
            node.subscription().drop_want(channel);
        }
    }

    /// Those that have been wished something of.
    pub(super) fn take_touched(&self) -> BTreeSet<Lane> {
        std::mem::take(&mut self.state.lock().touched)
    }

    /// Moves every channel to the node that serves it now. Flush those that were touched afterwards. Whether each has
    /// one.
    pub(super) fn resettle(&self, members: &RwLock<Members>) -> bool {
        let mut state = self.state.lock();
        let members = members.read();
        let State { places, touched } = &mut *state;
        let mut all = true;
        for (channel, place) in places {
            let owner = members.owner(slot_of(channel));
            all &= owner.is_some();
            if *place == owner {
                continue;
            }
            if let Some(node) = place.and_then(|place| members.node(place)) {
                node.subscription().drop_want(channel);
                touched.extend(*place);
            }
            if let Some(node) = owner.and_then(|owner| members.node(owner)) {
                node.subscription().want(channel);
                touched.extend(owner);
            }
            *place = owner;
        }
        all
    }
}

/// A node that serves, with its number.
pub(super) type Seat = Option<(Lane, Arc<Node>)>;

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::store::Listener;
    use crate::store::redis::address::{Access, Address, Peer};
    use crate::store::redis::channels::Channels;
    use crate::store::redis::server::Server;
    use crate::store::redis::whereabouts::Whereabouts;

    #[derive(Debug)]
    struct Nobody;

    impl Listener for Nobody {
        fn live(&self, _: &str) {}

        fn message(&self, _: &str, _: &str) {}

        fn refused(&self, _: &str) {}
    }

    fn node(port: u16) -> Arc<Node> {
        let peer = Peer::Tcp(Address { host: "127.0.0.1".to_owned(), port });
        let timeout = Duration::from_secs(1);
        let channels = Channels::Sharded;
        let server = Server::new(Whereabouts::Fixed(peer), Access::default(), timeout, channels);
        Arc::new(Node::of(server, 1, Weak::<Nobody>::new(), None))
    }

    #[test]
    fn a_channel_whose_slot_has_moved_between_two_wishes_is_listened_to_at_one_place() {
        let (audience, channel) = (Audience::default(), Arc::from("a"));
        let nodes = [1, 2].map(|number| (Lane(number), node(1)));
        let node = |lane| nodes.iter().find(|(own, _)| *own == lane).map(|(_, node)| node.clone());
        for place in [0, 0, 1, 1] {
            assert!(audience.want(&channel, || Some(nodes[place].clone()), node));
        }
        let wishes = |place: usize| format!("{:?}", nodes[place].1.subscription());
        assert!(wishes(0).contains("wanted: 0"), "{}", wishes(0));
        assert!(wishes(1).contains("wanted: 1"), "{}", wishes(1));
        // Both are told.
        assert_eq!(audience.take_touched(), [Lane(1), Lane(2)].into());
        audience.drop_want(&channel, node);
        assert!(wishes(1).contains("wanted: 0"), "{}", wishes(1));
    }
}
