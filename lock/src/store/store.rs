//! Runs the operations of one client: in memory, on one server, or on the nodes of a cluster.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::error::Error;
use crate::model::sync::{Parker, park, pass_until};
use crate::ops::value::Value;
use crate::ops::{AnyOperation, Operation, Released, Untyped};
use crate::store::connections::Connections;
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::memory::{Memory, Sending, Session};
use crate::store::pipeline::{PipelineRequest, PipelineSource};
use crate::store::redis::address::url::{Location, Peer, Place};
use crate::store::redis::cluster::cluster::{Cluster, hash_slot_of_all};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::info::Info;
use crate::store::redis::node::node::Node;
use crate::store::redis::resp::hash_slot::hash_slot_of;
use crate::store::redis::sentinel::master::{Master, MasterEndpoint};
use crate::store::redis::sentinel::query::Sentinels;
use crate::store::server_id::{HashSlot, ServerId};
use crate::store::shutdown::CallGeneration;
use crate::store::unread::{ReleaseReply, SentUnread, UnreadReleases};

/// The destination of a client's operations. All variants run the same operations and deliver the
/// same messages. A client has one store for its life.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Session),
    /// One server, or the master reported by sentinels.
    Single(Box<Node>),
    Cluster(Cluster),
}

impl Store {
    /// Creates the store of a client of `memory`. Messages go to `listener`.
    pub(crate) fn memory(memory: &Memory, listener: Weak<dyn Listener>) -> Self {
        Self::Memory(memory.session(listener))
    }

    /// Creates the store for the servers at `location`, without connecting. With sentinels, starts
    /// a thread that watches for failovers. `connections` limits the connections for calls to each
    /// server.
    pub(crate) fn redis(
        location: Location,
        command_timeout: Duration,
        connections: Option<usize>,
        listener: Weak<dyn Listener>,
    ) -> Result<Self, Error> {
        let Location { place, access, .. } = location;
        let endpoint = match place {
            Place::Single(address) => MasterEndpoint::Fixed(Peer::Tcp(address)),
            #[cfg(unix)]
            Place::Unix(path) => MasterEndpoint::Fixed(Peer::Unix(path)),
            Place::Master { name, sentinels, sentinel_access } => {
                let sentinels = Sentinels::new(name, sentinels, sentinel_access, command_timeout);
                MasterEndpoint::Followed(Box::new(Master::new(sentinels)))
            }
            Place::Cluster(seeds) => {
                let cluster = Cluster::new(seeds, access, command_timeout, connections, listener);
                return Ok(Self::Cluster(cluster));
            }
        };
        let node = Node::single(endpoint, access, command_timeout, connections, listener)?;
        Ok(Self::Single(Box::new(node)))
    }

    /// Makes a connection and retains the connection for the first call.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Single(node) => node.connect(timeout),
            Self::Cluster(cluster) => cluster.connect(timeout),
        }
    }

    /// Pings the server, or each node of a cluster. Returns within `timeout`.
    pub(crate) fn ping(
        &self,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<(), Failure> {
        match self {
            Self::Memory(session) => session.ping(),
            Self::Single(node) => node.ping(timeout, generation),
            Self::Cluster(cluster) => cluster.ping(timeout, generation),
        }
    }

    /// Sends one operation once and returns the decoded reply. Returns within `timeout`, whatever
    /// the server does.
    pub(crate) fn run<O: Operation>(
        &self,
        operation: &O,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<O::Reply, Failure> {
        let value = self.execute(&Untyped(operation), timeout, generation)?;
        operation.decode(value).map_err(Failure::unexpected)
    }

    /// Sends one operation once and returns the undecoded reply. Returns within `timeout`, whatever
    /// the server does.
    pub(crate) fn execute(
        &self,
        operation: &AnyOperation<'_>,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<Value, Failure> {
        match self {
            Self::Memory(session) => session.execute(operation, timeout, Sending::Call),
            Self::Single(node) => node
                .execute(operation, &mut Deadline::after(timeout), generation, false)
                .map_err(|failure| match hash_slot_of_all(&operation.request().keys) {
                    Err(cross_slot) if failure.is_in_several_hash_slots() => cross_slot,
                    _ => failure,
                }),
            Self::Cluster(cluster) => cluster.execute(operation, timeout, generation),
        }
    }

    /// Returns the servers that have keys, by the last known topology.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        match self {
            Self::Memory(_) | Self::Single(_) => vec![ServerId::ONLY],
            Self::Cluster(cluster) => cluster.topology().serving(),
        }
    }

    /// Like [`run`](Self::run), but on `server`, whatever the keys.
    pub(crate) fn run_on<O: Operation>(
        &self,
        server: ServerId,
        operation: &O,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<O::Reply, Failure> {
        let Self::Cluster(cluster) = self else {
            return self.run(operation, timeout, generation);
        };
        let value = cluster.execute_on(server, &Untyped(operation), timeout, generation)?;
        operation.decode(value).map_err(Failure::unexpected)
    }

    /// Sends commands to one server, whatever their keys; see [`Node::ask_alone`]. Returns no
    /// replies in memory. Returns within `timeout`.
    pub(crate) fn ask_server(
        &self,
        server: ServerId,
        commands: &[Vec<u8>],
        close: bool,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<Vec<Value>, Failure> {
        match self {
            Self::Memory(_) => Ok(Vec::new()),
            Self::Single(node) => node.ask_alone(commands, close, timeout, generation),
            Self::Cluster(cluster) => {
                let topology = cluster.topology();
                let node = topology.node(server).ok_or_else(|| topology.no_node())?;
                node.ask_alone(commands, close, timeout, generation)
            }
        }
    }

    /// Returns whether the only server has refused keys of several hash slots. `false` in memory
    /// and with a cluster.
    pub(crate) fn separates_hash_slots(&self) -> bool {
        matches!(self, Self::Single(node) if node.server().separates_hash_slots())
    }

    /// Returns the address of a node of a cluster. `None` without a cluster, and for an unknown
    /// node.
    pub(crate) fn address_of(&self, server: ServerId) -> Option<String> {
        let Self::Cluster(cluster) = self else { return None };
        cluster.topology().node(server)?.address().map(ToString::to_string)
    }

    /// Sends a release once, without waiting for the reply.
    /// [`take_release_replies`](Self::take_release_replies) returns the reply once it was read.
    /// Returns within `timeout`. See [`Node::send_unread`].
    pub(crate) fn send_unread(
        &self,
        release: &dyn Operation<Reply = Released>,
        unread: UnreadReleases,
        timeout: Duration,
        generation: CallGeneration,
    ) -> SentUnread {
        let operation = Untyped(release);
        match self {
            Self::Memory(session) => {
                let value = session.execute(&operation, timeout, Sending::Unread);
                let decode = |value| release.decode(value).map_err(Failure::unexpected);
                return SentUnread::Answered(value.and_then(decode));
            }
            Self::Single(node) => {
                node.send_unread(&operation, unread, &mut Deadline::after(timeout), generation)
            }
            Self::Cluster(cluster) => cluster.send_unread(&operation, unread, timeout, generation),
        }
        .map_or(SentUnread::NotSent, |()| SentUnread::Unread)
    }

    /// Returns each reply to [`send_unread`](Self::send_unread) once, after the reply was read or
    /// will never arrive.
    pub(crate) fn take_release_replies(&self) -> Vec<ReleaseReply> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Single(node) => node.server().release_replies().take(),
            Self::Cluster(cluster) => cluster.take_release_replies(),
        }
    }

    /// Reads the unread replies that have arrived from all servers, without waiting. Returns
    /// whether more replies are due.
    pub(crate) fn read_unread(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Single(node) => node.read_unread(),
            Self::Cluster(cluster) => cluster.read_unread(),
        }
    }

    /// Sends the requests of `source` on the server's connection for pipelines, and passes the
    /// replies to `source`.
    pub(crate) fn run_pipeline<S: PipelineSource>(&self, server: ServerId, source: &mut S) {
        match self {
            Self::Memory(session) => {
                while let Some(PipelineRequest { operation, tag, timeout }) = source.next() {
                    let value = session.execute(&Untyped(&operation), timeout, Sending::Background);
                    let decode = |value| operation.decode(value).map_err(Failure::unexpected);
                    source.on_reply(tag, value.and_then(decode));
                }
            }
            // The source has received the failure.
            Self::Single(node) => drop(node.pipeline().run(source, None)),
            Self::Cluster(cluster) => cluster.run_pipeline(server, source),
        }
    }

    /// Returns the hash slot of `key`. A single server has one hash slot for all keys until the
    /// server refuses keys of several hash slots.
    pub(crate) fn hash_slot(&self, key: &str) -> HashSlot {
        match self {
            Self::Memory(_) => HashSlot::ONLY,
            Self::Single(node) if !node.server().separates_hash_slots() => HashSlot::ONLY,
            Self::Single(_) | Self::Cluster(_) => HashSlot(hash_slot_of(key)),
        }
    }

    /// Returns the server of `key`, by the last known topology. The server is [known](Self::knows),
    /// unless the topology was never read.
    pub(crate) fn server_of(&self, key: &str) -> ServerId {
        match self {
            Self::Memory(_) | Self::Single(_) => ServerId::ONLY,
            Self::Cluster(cluster) => cluster.server_of(key),
        }
    }

    /// Returns whether `server` may still have keys.
    pub(crate) fn knows(&self, server: ServerId) -> bool {
        match self {
            Self::Memory(_) | Self::Single(_) => server == ServerId::ONLY,
            Self::Cluster(cluster) => cluster.topology().node(server).is_some(),
        }
    }

    /// Returns the server of all keys. `None` with a cluster.
    pub(crate) fn only_server(&self) -> Option<ServerId> {
        match self {
            Self::Memory(_) | Self::Single(_) => Some(ServerId::ONLY),
            Self::Cluster(_) => None,
        }
    }

    /// Requests the messages of a channel. Returns at once; [`Listener::live`] reports when
    /// messages begin to arrive. Call [`flush`](Self::flush) afterwards, with no lock held.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.subscribe(channel),
            Self::Single(node) => node.subscriber().subscribe(channel),
            Self::Cluster(cluster) => cluster.subscribe(channel),
        }
    }

    /// Ends the request for a channel. Returns at once; the command is sent with the next
    /// subscription, or when there is nothing else to do.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.unsubscribe(channel),
            Self::Single(node) => node.subscriber().unsubscribe(channel),
            Self::Cluster(cluster) => cluster.topology().unsubscribe(channel),
        }
    }

    /// Sends the commands of [`subscribe`](Self::subscribe) and [`unsubscribe`](Self::unsubscribe),
    /// in the order of the calls. Does not wait for a server and never fails: waiters poll if their
    /// channel cannot be subscribed.
    pub(crate) fn flush(&self) {
        match self {
            Self::Memory(session) => session.flush(),
            Self::Single(node) => node.subscriber().flush(),
            Self::Cluster(cluster) => cluster.topology().flush(),
        }
    }

    /// Returns whether a failed operation may succeed in a moment without a step of the program. A
    /// server recovers. A fault of the store in memory lasts until the test ends the fault, which
    /// never happens if the test waits for this call.
    pub(crate) fn may_recover_by_itself(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }

    /// Returns whether another attempt may help after a failed call. In memory, only a fault of a
    /// single command passes.
    pub(crate) fn may_answer_later(&self) -> bool {
        match self {
            Self::Memory(session) => session.may_answer_later(),
            Self::Single(_) | Self::Cluster(_) => true,
        }
    }

    /// Pauses between two attempts. In memory the time [passes](Clock::pass_until): nothing else
    /// may move the clock of a test while the test waits for this call.
    pub(crate) fn pause(
        &self,
        clock: &dyn Clock,
        parker: &Parker,
        until: Instant,
        cancel: Option<&Receiver<()>>,
    ) {
        match self {
            Self::Memory(_) => pass_until(clock, parker, until, cancel),
            Self::Single(_) | Self::Cluster(_) => park(clock, parker, Some(until), cancel),
        }
    }

    /// Returns how often a server took over from another server, or was restarted. Keys of the
    /// earlier server may be missing on the new server.
    pub(crate) fn moves(&self) -> u64 {
        match self {
            Self::Memory(session) => session.moves(),
            Self::Single(node) => node.server().moves(),
            Self::Cluster(cluster) => cluster.topology().moves(),
        }
    }

    /// Returns whether a failover after the first `before` failovers concerned the server of `key`.
    pub(crate) fn has_moved(&self, key: &str, before: u64) -> bool {
        match self {
            Self::Memory(session) => session.moves() > before,
            Self::Single(node) => node.server().moves() > before,
            Self::Cluster(cluster) => cluster.topology().has_moved(key, before),
        }
    }

    /// Unparks `parker` at each failover of the server, and when the server is no longer
    /// [known](Self::knows).
    pub(crate) fn wake_on_move(&self, server: ServerId, parker: &Parker) {
        match self {
            Self::Memory(session) => session.wake_on_move(parker),
            Self::Single(node) => node.server().wake_on_move(parker),
            Self::Cluster(cluster) => cluster.wake_on_move(server, parker),
        }
    }

    /// Closes connections to the server that were unused for long. Returns whether more may be
    /// closed later.
    pub(crate) fn close_unused(&self, server: ServerId) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Single(node) => node.close_unused(),
            Self::Cluster(cluster) => cluster.close_unused(server),
        }
    }

    /// Returns the counts of connections to all servers.
    pub(crate) fn connections(&self) -> Connections {
        match self {
            Self::Memory(_) => Connections::default(),
            Self::Single(node) => node.connections(),
            Self::Cluster(cluster) => cluster.connections(),
        }
    }

    /// Queries the `INFO` of the servers within `timeout`, and merges the replies. A server without
    /// a reply counts as harmless.
    pub(crate) fn info(&self, timeout: Duration) -> Info {
        match self {
            Self::Memory(_) => Info::default(),
            Self::Single(node) => {
                node.info(timeout).map(|info| of_single(node, info)).unwrap_or_default()
            }
            Self::Cluster(cluster) => cluster.info(timeout),
        }
    }

    /// Returns the run id of the server of `key`, which changes with each start of the server.
    /// `None` if the server does not report a run id. Returns within `timeout`.
    pub(crate) fn run_id(
        &self,
        key: &str,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<Option<String>, Failure> {
        match self {
            Self::Memory(_) => Ok(None),
            Self::Single(node) => node.run_id(timeout, generation),
            Self::Cluster(cluster) => cluster.run_id(key, timeout, generation),
        }
    }

    /// Checks by `INFO` that the server behind a fixed address can grant locks. A node of a cluster
    /// cannot grant all locks, and a replica cannot grant any until promoted to master. Returns
    /// within `timeout`.
    pub(crate) fn check_target(&self, info: &Info, timeout: Duration) -> Result<(), Failure> {
        let Self::Single(node) = self else { return Ok(()) };
        if node.server().master().is_some() { Ok(()) } else { node.check_target(info, timeout) }
    }

    /// Queries the `INFO` of a server if its pipeline has a new connection since the last call, and
    /// returns `None` otherwise. A restart counts as a [failover](Self::moves). Returns within
    /// `timeout`. Must not be called while the pipeline runs.
    pub(crate) fn info_of_new_server(&self, server: ServerId, timeout: Duration) -> Option<Info> {
        match self {
            Self::Memory(_) => None,
            Self::Single(node) => {
                let (info, restarted) = node.pipeline().info_of_new_server(timeout)?;
                if restarted {
                    node.server().count_move();
                }
                Some(of_single(node, info))
            }
            Self::Cluster(cluster) => cluster.info_of_new_server(server, timeout),
        }
    }

    /// Ensures a working connection for the server's pipeline, if one can be made within `timeout`.
    /// Must not be called while the pipeline runs.
    pub(crate) fn ensure_connected(&self, server: ServerId, timeout: Duration) {
        match self {
            Self::Memory(_) => {}
            Self::Single(node) => drop(node.pipeline().ensure_connected(timeout)),
            Self::Cluster(cluster) => cluster.ensure_connected(server, timeout),
        }
    }

    /// Waits until no call uses a connection, for at most `timeout` by the system's clock.
    pub(crate) fn wait_for_calls(&self, timeout: Duration) {
        match self {
            // Calls in memory use no connection.
            Self::Memory(_) => {}
            Self::Single(node) => node.wait_for_calls(timeout),
            Self::Cluster(cluster) => cluster.wait_for_calls(timeout),
        }
    }

    /// Ends the calls under way with a failure. Calls that wait for a reply end at once. Later
    /// calls, pipelines and messages continue.
    pub(crate) fn abort_calls(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Single(node) => node.abort_calls(),
            Self::Cluster(cluster) => cluster.abort_calls(),
        }
    }

    /// Closes the store; later calls return a failure. Idle connections and the connection of the
    /// subscriptions close at once, connections of calls when the calls end. Waits for running
    /// pipelines to end, and closes their connections.
    pub(crate) fn close(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Single(node) => node.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

/// Returns `info`, with `writes_alone` cleared unless sentinels are in use: only sentinels may have
/// promoted another master while the old master still accepts writes.
fn of_single(node: &Node, info: Info) -> Info {
    Info { writes_alone: info.writes_alone && node.server().master().is_some(), ..info }
}
