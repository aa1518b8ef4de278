//! A cluster: an operation goes to the node that serves the slot of its keys.
//!
//! A node that does not serve a slot says who does, and what it sends away has not run; so that is followed at once. When
//! a node cannot be reached, the others are asked who has taken its place. One thread does that, at a [`Pace`]; callers
//! go on meanwhile, and try again as they do with a single server.
//!
//! Each node has a clock of its own, and a not-after is a moment by the clock of the node that it was sent to. When a
//! slot has another master, an earlier copy of an operation is still at the old one, which refuses it: the slot is not
//! its any more, or what it writes is lost with its office. The clocks are compared only to know when a release has
//! outlived all copies of its acquire. If the new master's runs ahead, that is believed too early; then a slot that goes
//! back to the old master within a command timeout could let a copy in, and its lock would stay until its lease ends.
//! Nobody would believe to hold it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashed_wheel::{Clock, Parker, SystemClock};
use parking_lot::{Mutex, RwLock};

use super::address::{Access, Address, Peer};
use super::audience::{Audience, Seat};
use super::channels::Channels;
use super::limit::Limit;
use super::members::Members;
use super::node::Node;
use super::pace::Pace;
use super::redirection::Redirection;
use super::server::Server;
use super::slot::{keeps_together, slot_of};
use super::subscription::Elsewhere;
use super::whereabouts::Whereabouts;
use super::wire::ROUNDS;
use crate::error::shortened;
use crate::op::Operation;
use crate::store::{Failure, Lane, Listener, Part, Stream};
use crate::value::Value;

/// The nodes of one cluster.
pub(super) struct Cluster {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    /// Where to ask when nobody else answers.
    pub(super) seeds: Vec<Address>,
    access: Access,
    pub(super) command_timeout: Duration,
    /// For each node: one that hangs must not keep the connections that the others need.
    connections: usize,
    listener: Weak<dyn Listener>,
    pub(super) members: RwLock<Members>,
    pub(super) audience: Audience,
    pub(super) pace: Pace,
    /// Held by who asks before anything is known.
    pub(super) first_look: Mutex<()>,
    /// Connections to nodes that have left, and those that were only made to ask. Relaxed: a number to look at.
    pub(super) other_connections: AtomicU64,
    /// Those who are asked who serves what. Kept, as each asks for its credentials and its address one at a time.
    pub(super) asked: Mutex<HashMap<Address, Arc<Server>>>,
    pub(super) itself: Weak<Shared>,
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<Address>,
        access: Access,
        command_timeout: Duration,
        connections: usize,
        listener: Weak<dyn Listener>,
    ) -> Self {
        let shared = Arc::new_cyclic(|itself| Shared {
            seeds,
            access,
            command_timeout,
            connections,
            listener,
            members: RwLock::new(Members::new()),
            audience: Audience::default(),
            pace: Pace::new(),
            first_look: Mutex::new(()),
            other_connections: AtomicU64::new(0),
            asked: Mutex::default(),
            itself: itself.clone(),
        });
        Self { shared }
    }

    /// Asks the seeds, and makes a connection to a node that they name.
    pub(super) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let mut limit = Limit::after(timeout);
        self.shared.know(&mut limit)?;
        let mut failure = self.shared.nobody();
        let nodes = self.shared.nodes();
        for (node, share) in nodes.iter().zip(shares(nodes.len())) {
            match node.connect(limit.refresh().left().unwrap_or_default() / share) {
                Ok(()) => return Ok(()),
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    /// The policy of the first node that may evict locks.
    pub(super) fn eviction(&self, timeout: Duration) -> Option<String> {
        let mut limit = Limit::after(timeout);
        let nodes = self.shared.nodes();
        nodes.iter().zip(shares(nodes.len())).find_map(|(node, share)| {
            node.eviction(limit.refresh().left().unwrap_or_default() / share)
        })
    }

    pub(super) fn eviction_of_new_server(&self, lane: Lane, timeout: Duration) -> Option<String> {
        self.shared.node(lane)?.eviction_of_new_server(timeout)
    }

    pub(super) fn connections_made(&self) -> u64 {
        let theirs: u64 = self.shared.nodes().iter().map(|node| node.connections_made()).sum();
        theirs + self.shared.other_connections.load(Ordering::Relaxed)
    }

    /// The node that serves a key now, as far as is known.
    pub(super) fn lane_of(&self, key: &str) -> Lane {
        let members = self.shared.members.read();
        // Any other node says who it is.
        members.owner(slot_of(key)).or_else(|| members.any()).unwrap_or(Lane::ONLY)
    }

    pub(super) fn knows(&self, lane: Lane) -> bool {
        self.shared.members.read().node(lane).is_some()
    }

    /// Wakes this one when the node of a lane is let go.
    pub(super) fn wake_on_leave(&self, lane: Lane, parker: &Parker) {
        if let Some(node) = self.shared.node(lane) {
            node.server().wake_on_move(parker);
        }
    }

    pub(super) fn part_of(key: &str) -> Part {
        Part(slot_of(key))
    }

    pub(super) fn subscribe(&self, channel: &Arc<str>) {
        let slot = slot_of(channel);
        let node = |lane| self.shared.node(lane);
        if !self.shared.audience.want(channel, || self.shared.seat(slot), node) {
            self.shared.look_around_soon(false);
        }
    }

    pub(super) fn unsubscribe(&self, channel: &Arc<str>) {
        self.shared.audience.drop_want(channel, |lane| self.shared.node(lane));
    }

    pub(super) fn flush(&self) {
        self.shared.flush();
    }

    pub(super) fn close(&self) {
        self.shared.pace.close();
        let nodes = {
            let mut members = self.shared.members.write();
            members.close();
            members.nodes().cloned().collect::<Vec<_>>()
        };
        for node in nodes {
            node.close();
        }
    }

    pub(super) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        self.shared.execute(operation, timeout, None)
    }

    /// Sends what the stream gives on a connection of one node. What belongs to another goes there, one after the other.
    pub(super) fn stream<S: Stream>(&self, lane: Lane, stream: &mut S) {
        loop {
            let mut astray = Vec::new();
            if let Some(node) = self.shared.node(lane) {
                if let Err(failure) = node.stream(stream, Some(&mut astray)) {
                    self.shared.failed(&failure);
                }
            } else {
                // It has left.
                astray.extend(std::iter::from_fn(|| stream.next()).map(|request| (request, None)));
            }
            if astray.is_empty() {
                return;
            }
            let mut broken: Option<Failure> = None;
            // For all of them: whoever gave them has more to do.
            let longest =
                astray.iter().map(|(request, _)| request.timeout).max().unwrap_or_default();
            let limit = Limit::after(longest);
            for (request, named) in astray {
                let answer = match &broken {
                    // The next may be at another node, but whoever gave all these is waiting.
                    Some(failure) => Err(failure.clone()),
                    None => match { limit }.refresh().left() {
                        Ok(left) => {
                            let timeout = request.timeout.min(left);
                            self.shared.execute(&request.operation, timeout, named)
                        }
                        Err(_) => Err(not_followed()),
                    },
                };
                if let Err(failure @ (Failure::NotSent { .. } | Failure::Unknown { .. })) = &answer
                {
                    broken = Some(failure.clone());
                }
                let decode = |value| request.operation.decode(value).map_err(Failure::unexpected);
                let answer = answer.and_then(decode);
                stream.answered_elsewhere(request.note, answer);
            }
        }
    }
}

/// It did not run, and goes where it belongs next time.
fn not_followed() -> Failure {
    let message = "it was not followed in time".to_owned();
    Failure::Refused { code: "MOVED".to_owned(), message }
}

impl Shared {
    /// Sends an operation to the node of its slot, or where the node that was asked has named another.
    fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
        mut named: Option<Redirection>,
    ) -> Result<Value, Failure> {
        let slot = slot_of_all(&operation.keys())?;
        let mut limit = Limit::after(timeout);
        self.know(&mut limit)?;
        for _ in 0..ROUNDS {
            let (node, asking) = match named.take() {
                None => (self.seat(slot).map(|(_, node)| node), false),
                Some(Redirection::Moved { slot, to }) => (self.moved(slot, &to), false),
                Some(Redirection::Ask { to }) => (self.admit(&to), true),
            };
            let Some(node) = node else {
                self.look_around_soon(false);
                return Err(self.nobody());
            };
            let failure = match node.execute(operation, &mut limit, asking) {
                Err(failure) => failure,
                answered => return answered,
            };
            if let Failure::Refused { code, message } = &failure {
                named = node.address().and_then(|asked| Redirection::parse(code, message, asked));
            }
            if named.is_none() {
                self.failed(&failure);
                return Err(failure);
            }
            limit.refresh();
        }
        Err(Failure::Refused {
            code: "TRYAGAIN".to_owned(),
            message: "each node sent the command to another".to_owned(),
        })
    }

    /// Something failed. If it may be for a change in the cluster, that is looked for.
    fn failed(&self, failure: &Failure) {
        // While a slot is on its way its keys are refused, and nothing has changed yet.
        let on_its_way = matches!(failure, Failure::Refused { code, .. } if code == "TRYAGAIN");
        if failure.passes() && !on_its_way {
            self.look_around_soon(false);
        }
    }

    /// A slot is served by another node than was believed.
    pub(super) fn moved(&self, slot: u16, to: &Address) -> Option<Arc<Node>> {
        let (node, is_news) = {
            let (mut members, now) = (self.members.write(), SystemClock.now());
            let node = members.admit(to, now, |address, channels| self.make(address, channels))?;
            let before = members.owner(slot);
            members.moved(slot, to, now);
            (node, members.owner(slot) != before)
        };
        self.look_around_soon(is_news);
        Some(node)
    }

    pub(super) fn admit(&self, address: &Address) -> Option<Arc<Node>> {
        let now = SystemClock.now();
        self.members.write().admit(address, now, |address, channels| self.make(address, channels))
    }

    pub(super) fn make(&self, address: Address, channels: Channels) -> Node {
        let elsewhere = self.itself.clone() as Weak<dyn Elsewhere>;
        let server = self.server(address, channels);
        Node::of(server, self.connections, self.listener.clone(), Some(elsewhere))
    }

    pub(super) fn server(&self, address: Address, channels: Channels) -> Server {
        let whereabouts = Whereabouts::Fixed(Peer::Tcp(address));
        Server::new(whereabouts, self.access.clone(), self.command_timeout, channels)
    }

    fn seat(&self, slot: u16) -> Seat {
        let members = self.members.read();
        let lane = members.owner(slot)?;
        Some((lane, Arc::clone(members.node(lane)?)))
    }

    fn node(&self, lane: Lane) -> Option<Arc<Node>> {
        self.members.read().node(lane).cloned()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.members.read().nodes().cloned().collect()
    }

    pub(super) fn nobody(&self) -> Failure {
        if self.members.read().is_closed() {
            return Failure::Closed;
        }
        Failure::Refused {
            code: "CLUSTERDOWN".to_owned(),
            message: "no node is known to serve the slot".to_owned(),
        }
    }

    pub(super) fn flush(&self) {
        for lane in self.audience.take_touched() {
            if let Some(node) = self.node(lane) {
                node.subscription().flush();
            }
        }
    }
}

/// The slot of all these, or an error that names the one whose names do not keep together.
fn slot_of_all(keys: &[&str]) -> Result<u16, Failure> {
    let scattered = |name: &str| Failure::Scattered { name: shortened(name) };
    let Some(first) = keys.first() else { return Ok(0) };
    let slot = slot_of(first);
    match keys.iter().find(|key| !keeps_together(key) || slot_of(key) != slot) {
        Some(key) => Err(scattered(if keeps_together(first) { key } else { first })),
        None => Ok(slot),
    }
}

/// In how many parts each of so many divides the time that is left, so that all have their share.
pub(super) fn shares(number: usize) -> impl Iterator<Item = u32> {
    (1..=u32::try_from(number).unwrap_or(u32::MAX)).rev()
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("seeds", &self.shared.seeds)
            .field("nodes", &self.shared.nodes())
            .finish_non_exhaustive()
    }
}
