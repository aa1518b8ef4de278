//! Where an operation goes: to the one server there is, or that is the master now.
//!
//! Whatever has a key goes where the key is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hashed_wheel::Parker;

use super::address::{Location, Peer, Place};
use super::node::Node;
use super::sentinels::Sentinels;
use super::whereabouts::{Master, Whereabouts};
use crate::error::Error;
use crate::op::Operation;
use crate::store::{Failure, Lane, Listener, Part, Stream};
use crate::value::Value;

/// The servers that hold a client's keys.
#[derive(Debug)]
pub(crate) struct Redis {
    endpoint: Endpoint,
}

#[derive(Debug)]
enum Endpoint {
    Single(Node),
}

impl Redis {
    pub(crate) fn new(
        location: Location,
        command_timeout: Duration,
        connections: usize,
        listener: Weak<dyn Listener>,
    ) -> Result<Self, Error> {
        let Location { place, access, .. } = location;
        let whereabouts = match place {
            Place::Single(address) => Whereabouts::Fixed(Peer::Tcp(address)),
            #[cfg(unix)]
            Place::Unix(path) => Whereabouts::Fixed(Peer::Unix(path)),
            Place::Master { name, sentinels, sentinel_access } => {
                let timeout = command_timeout;
                let sentinels = Sentinels::new(name, sentinels, sentinel_access, timeout);
                Whereabouts::Followed(Box::new(Master::new(sentinels)))
            }
        };
        let node = Node::new(whereabouts, access, command_timeout, connections, listener)?;
        Ok(Self { endpoint: Endpoint::Single(node) })
    }

    /// Makes a connection and keeps it for the first caller.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let Endpoint::Single(node) = &self.endpoint;
        node.connect(timeout)
    }

    /// The policy of a server that may evict locks. `None` if it never evicts or does not say, within `timeout`.
    pub(crate) fn eviction(&self, timeout: Duration) -> Option<String> {
        let Endpoint::Single(node) = &self.endpoint;
        node.eviction(timeout)
    }

    /// The same for the connection of a stream, if that was made since it was asked last.
    pub(crate) fn eviction_of_new_server(&self, _lane: Lane, timeout: Duration) -> Option<String> {
        let Endpoint::Single(node) = &self.endpoint;
        node.eviction_of_new_server(timeout)
    }

    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        let Endpoint::Single(node) = &self.endpoint;
        node.subscription().want(channel);
    }

    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        let Endpoint::Single(node) = &self.endpoint;
        node.subscription().drop_want(channel);
    }

    pub(crate) fn flush(&self) {
        let Endpoint::Single(node) = &self.endpoint;
        node.subscription().flush();
    }

    pub(crate) fn connections_made(&self) -> u64 {
        let Endpoint::Single(node) = &self.endpoint;
        node.connections_made()
    }

    pub(crate) fn close(&self) {
        let Endpoint::Single(node) = &self.endpoint;
        node.close();
    }

    /// How often the server changed. What was on the last need not be on this one.
    pub(crate) fn moves(&self) -> u64 {
        let Endpoint::Single(node) = &self.endpoint;
        node.server().moves()
    }

    /// Wakes this one whenever the server changes.
    pub(crate) fn wake_on_move(&self, parker: &Parker) {
        let Endpoint::Single(node) = &self.endpoint;
        node.server().wake_on_move(parker);
    }

    /// One server does with all keys what it does with one.
    pub(crate) fn part_of(&self, _key: &str) -> Part {
        let Endpoint::Single(_) = &self.endpoint;
        Part::ONLY
    }

    /// One server has all keys.
    pub(crate) fn lane_of(&self, _key: &str) -> Lane {
        let Endpoint::Single(_) = &self.endpoint;
        Lane::ONLY
    }

    pub(crate) fn knows(&self, lane: Lane) -> bool {
        let Endpoint::Single(_) = &self.endpoint;
        lane == Lane::ONLY
    }

    /// Whether one server has all keys and always will.
    pub(crate) fn is_one_server(&self) -> bool {
        matches!(self.endpoint, Endpoint::Single(_))
    }

    /// Sends what the stream gives, and hands it the answers.
    pub(crate) fn stream<S: Stream>(&self, _lane: Lane, stream: &mut S) {
        let Endpoint::Single(node) = &self.endpoint;
        node.stream(stream);
    }

    pub(crate) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let Endpoint::Single(node) = &self.endpoint;
        node.execute(operation, timeout)
    }
}
