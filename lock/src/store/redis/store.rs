//! Where an operation goes: to the one server there is.
//!
//! Whatever has a key goes where the key is.

use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(unix)]
use super::address::Peer;
use super::address::{Location, Place};
use super::node::Node;
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
    ) -> Self {
        let Location { place, access, .. } = location;
        let endpoint = match place {
            Place::Single(address) => {
                Endpoint::Single(Node::new(address, access, command_timeout, connections, listener))
            }
            #[cfg(unix)]
            Place::Unix(path) => {
                let peer = Peer::Unix(path);
                Endpoint::Single(Node::new(peer, access, command_timeout, connections, listener))
            }
        };
        Self { endpoint }
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

    /// One server does with all keys what it does with one.
    pub(crate) fn part_of(&self, _key: &str) -> Part {
        let Endpoint::Single(_) = &self.endpoint;
        Part::ONLY
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
