//! Where an operation goes: to the one server there is, or that is the master now; or to the node of a cluster that
//! serves its keys.
//!
//! Whatever has a key goes where the key is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hashed_wheel::Parker;

use super::address::{Location, Peer, Place};
use super::cluster::Cluster;
use super::connection::Limit;
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
    Single(Box<Node>),
    Cluster(Cluster),
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
            Place::Cluster(seeds) => {
                let cluster = Cluster::new(seeds, access, command_timeout, connections, listener);
                return Ok(Self { endpoint: Endpoint::Cluster(cluster) });
            }
        };
        let node = Node::new(whereabouts, access, command_timeout, connections, listener)?;
        Ok(Self { endpoint: Endpoint::Single(Box::new(node)) })
    }

    /// Makes a connection and keeps it for the first caller.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        match &self.endpoint {
            Endpoint::Single(node) => node.connect(timeout),
            Endpoint::Cluster(cluster) => cluster.connect(timeout),
        }
    }

    /// The policy of a server that may evict locks. `None` if it never evicts or does not say, within `timeout`.
    pub(crate) fn eviction(&self, timeout: Duration) -> Option<String> {
        match &self.endpoint {
            Endpoint::Single(node) => node.eviction(timeout),
            Endpoint::Cluster(cluster) => cluster.eviction(timeout),
        }
    }

    /// The same for the connection of a stream, if that was made since it was asked last.
    pub(crate) fn eviction_of_new_server(&self, lane: Lane, timeout: Duration) -> Option<String> {
        match &self.endpoint {
            Endpoint::Single(node) => node.eviction_of_new_server(timeout),
            Endpoint::Cluster(cluster) => cluster.eviction_of_new_server(lane, timeout),
        }
    }

    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        match &self.endpoint {
            Endpoint::Single(node) => node.subscription().want(channel),
            Endpoint::Cluster(cluster) => cluster.subscribe(channel),
        }
    }

    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        match &self.endpoint {
            Endpoint::Single(node) => node.subscription().drop_want(channel),
            Endpoint::Cluster(cluster) => cluster.unsubscribe(channel),
        }
    }

    pub(crate) fn flush(&self) {
        match &self.endpoint {
            Endpoint::Single(node) => node.subscription().flush(),
            Endpoint::Cluster(cluster) => cluster.flush(),
        }
    }

    pub(crate) fn connections_made(&self) -> u64 {
        match &self.endpoint {
            Endpoint::Single(node) => node.connections_made(),
            Endpoint::Cluster(cluster) => cluster.connections_made(),
        }
    }

    pub(crate) fn close(&self) {
        match &self.endpoint {
            Endpoint::Single(node) => node.close(),
            Endpoint::Cluster(cluster) => cluster.close(),
        }
    }

    /// How often the server changed. What was on the last need not be on this one.
    pub(crate) fn moves(&self) -> u64 {
        match &self.endpoint {
            Endpoint::Single(node) => node.server().moves(),
            // Every hold is asked for again and again, also one that is not prolonged.
            Endpoint::Cluster(_) => 0,
        }
    }

    /// Wakes this one whenever the server changes, or the node of the lane is let go.
    pub(crate) fn wake_on_move(&self, lane: Lane, parker: &Parker) {
        match &self.endpoint {
            Endpoint::Single(node) => node.server().wake_on_move(parker),
            Endpoint::Cluster(cluster) => cluster.wake_on_leave(lane, parker),
        }
    }

    /// One server does with all keys what it does with one.
    pub(crate) fn part_of(&self, key: &str) -> Part {
        match &self.endpoint {
            Endpoint::Single(_) => Part::ONLY,
            Endpoint::Cluster(_) => Cluster::part_of(key),
        }
    }

    pub(crate) fn lane_of(&self, key: &str) -> Lane {
        match &self.endpoint {
            Endpoint::Single(_) => Lane::ONLY,
            Endpoint::Cluster(cluster) => cluster.lane_of(key),
        }
    }

    pub(crate) fn knows(&self, lane: Lane) -> bool {
        match &self.endpoint {
            Endpoint::Single(_) => lane == Lane::ONLY,
            Endpoint::Cluster(cluster) => cluster.knows(lane),
        }
    }

    /// Whether one server has all keys and always will.
    pub(crate) fn is_one_server(&self) -> bool {
        matches!(self.endpoint, Endpoint::Single(_))
    }

    /// Sends what the stream gives, and hands it the answers.
    pub(crate) fn stream<S: Stream>(&self, lane: Lane, stream: &mut S) {
        match &self.endpoint {
            // The stream has been told of what failed.
            Endpoint::Single(node) => drop(node.stream(stream, None)),
            Endpoint::Cluster(cluster) => cluster.stream(lane, stream),
        }
    }

    pub(crate) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        match &self.endpoint {
            Endpoint::Single(node) => node.execute(operation, &mut Limit::after(timeout), false),
            Endpoint::Cluster(cluster) => cluster.execute(operation, timeout),
        }
    }
}
