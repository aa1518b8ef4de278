//! Where the operations of one client run: in memory, on one server, or on the nodes of a cluster.

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
use crate::store::owed::{Owed, OwedReply, SentUnread};
use crate::store::pipeline::{PipelineRequest, PipelineSource};
use crate::store::redis::address::url::{Location, Peer, Place};
use crate::store::redis::cluster::cluster::{Cluster, slot_of_all};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::info::Info;
use crate::store::redis::node::node::Node;
use crate::store::redis::resp::slot::slot_of;
use crate::store::redis::sentinel::master::{Master, MasterEndpoint};
use crate::store::redis::sentinel::query::Sentinels;
use crate::store::server_id::{HashSlot, ServerId};
use crate::store::shutdown::CallGeneration;

/// What runs a client's operations. All variants run the same operations and deliver the same
/// messages. A client has one store for its life.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Session),
    /// One server, or the master that sentinels name.
    Single(Box<Node>),
    Cluster(Cluster),
}

impl Store {
    pub(crate) fn memory(memory: &Memory, listener: Weak<dyn Listener>) -> Self {
        Self::Memory(memory.session(listener))
    }

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

    /// Makes a connection and keeps it for the first call.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Single(node) => node.connect(timeout),
            Self::Cluster(cluster) => cluster.connect(timeout),
        }
    }

    /// Asks the server, or each master of a cluster, whether it is there. Returns within `timeout`.
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

    /// Sends one operation once and returns its reply. It returns within `timeout`, whatever the
    /// server does.
    pub(crate) fn run<O: Operation>(
        &self,
        operation: &O,
        timeout: Duration,
        generation: CallGeneration,
    ) -> Result<O::Reply, Failure> {
        let value = self.execute(&Untyped(operation), timeout, generation)?;
        operation.decode(value).map_err(Failure::unexpected)
    }

    /// Sends one operation once and returns its reply as it came. It returns within `timeout`,
    /// whatever the server does.
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
                .map_err(|failure| match slot_of_all(&operation.request().keys) {
                    Err(cross_slot) if failure.is_in_several_slots() => cross_slot,
                    _ => failure,
                }),
            Self::Cluster(cluster) => cluster.execute(operation, timeout, generation),
        }
    }

    /// The servers that have keys, as far as is known.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        match self {
            Self::Memory(_) | Self::Single(_) => vec![ServerId::ONLY],
            Self::Cluster(cluster) => cluster.topology().serving(),
        }
    }

    /// As [`run`](Self::run), on this server, whatever the keys.
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

    /// Sends commands to one server, whatever their keys; see [`Node::ask_alone`]. No replies in
    /// memory. Returns within `timeout`.
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

    /// Whether one address has refused keys of several slots.
    pub(crate) fn separates_slots(&self) -> bool {
        matches!(self, Self::Single(node) if node.server().separates_slots())
    }

    /// The address of a node of a cluster.
    pub(crate) fn address_of(&self, server: ServerId) -> Option<String> {
        let Self::Cluster(cluster) = self else { return None };
        cluster.topology().node(server)?.address().map(ToString::to_string)
    }

    /// Sends a release once and does not wait for the reply, which is among the
    /// [owed replies](Self::take_owed_replies) once it was read. It returns within `timeout`. See
    /// [`Node::send_unread`].
    pub(crate) fn send_unread(
        &self,
        release: &dyn Operation<Reply = Released>,
        owed: Owed,
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
                node.send_unread(&operation, owed, &mut Deadline::after(timeout), generation)
            }
            Self::Cluster(cluster) => cluster.send_unread(&operation, owed, timeout, generation),
        }
        .map_or(SentUnread::NotSent, |()| SentUnread::Unread)
    }

    /// The replies of [`send_unread`](Self::send_unread) that were read, or never come. Each is
    /// returned once.
    pub(crate) fn take_owed_replies(&self) -> Vec<OwedReply> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Single(node) => node.server().owed_replies().take(),
            Self::Cluster(cluster) => cluster.take_owed_replies(),
        }
    }

    /// Reads the unread replies that have arrived from all servers, without waiting. True if some
    /// are still to come.
    pub(crate) fn read_unread(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Single(node) => node.read_unread(),
            Self::Cluster(cluster) => cluster.read_unread(),
        }
    }

    /// Sends the requests of the source on a connection that the server has for them, and passes
    /// the replies to it.
    pub(crate) fn run_pipeline<S: PipelineSource>(&self, server: ServerId, source: &mut S) {
        match self {
            Self::Memory(session) => {
                while let Some(PipelineRequest { operation, tag, timeout }) = source.next() {
                    let value = session.execute(&Untyped(&operation), timeout, Sending::Background);
                    let decode = |value| operation.decode(value).map_err(Failure::unexpected);
                    source.on_reply(tag, value.and_then(decode));
                }
            }
            // The source has got the failure.
            Self::Single(node) => drop(node.pipeline().run(source, None)),
            Self::Cluster(cluster) => cluster.run_pipeline(server, source),
        }
    }

    /// The slot of `key`. A single server has one slot for all keys until it
    /// refuses keys of several slots.
    pub(crate) fn hash_slot(&self, key: &str) -> HashSlot {
        match self {
            Self::Memory(_) => HashSlot::ONLY,
            Self::Single(node) if !node.server().separates_slots() => HashSlot::ONLY,
            Self::Single(_) | Self::Cluster(_) => HashSlot(slot_of(key)),
        }
    }

    /// The server that has `key`, as far as is known. It is one that [is known](Self::knows).
    pub(crate) fn server_of(&self, key: &str) -> ServerId {
        match self {
            Self::Memory(_) | Self::Single(_) => ServerId::ONLY,
            Self::Cluster(cluster) => cluster.server_of(key),
        }
    }

    /// Whether the server may still have keys.
    pub(crate) fn knows(&self, server: ServerId) -> bool {
        match self {
            Self::Memory(_) | Self::Single(_) => server == ServerId::ONLY,
            Self::Cluster(cluster) => cluster.topology().node(server).is_some(),
        }
    }

    /// The server of all keys, if there is one and always will be.
    pub(crate) fn only_server(&self) -> Option<ServerId> {
        match self {
            Self::Memory(_) | Self::Single(_) => Some(ServerId::ONLY),
            Self::Cluster(_) => None,
        }
    }

    /// Requests the messages of a channel. Returns at once; [`Listener::live`] reports when they
    /// arrive. Call [`flush`](Self::flush) afterwards, with no lock held.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.subscribe(channel),
            Self::Single(node) => node.subscriber().subscribe(channel),
            Self::Cluster(cluster) => cluster.subscribe(channel),
        }
    }

    /// Ends the request. Returns at once; the command is sent with the next subscription, or when
    /// there is nothing else to do.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        match self {
            Self::Memory(session) => session.unsubscribe(channel),
            Self::Single(node) => node.subscriber().unsubscribe(channel),
            Self::Cluster(cluster) => cluster.topology().unsubscribe(channel),
        }
    }

    /// Sends what [`subscribe`](Self::subscribe) and [`unsubscribe`](Self::unsubscribe) requested,
    /// in that order. Does not wait for a server and never fails: waiters of a channel that cannot
    /// be subscribed poll.
    pub(crate) fn flush(&self) {
        match self {
            Self::Memory(session) => session.flush(),
            Self::Single(node) => node.subscriber().flush(),
            Self::Cluster(cluster) => cluster.topology().flush(),
        }
    }

    /// Whether what fails now may succeed a moment later. A server comes back; a fault of the store
    /// in memory lasts until the test ends it, which never happens if the test waits for this call.
    pub(crate) fn may_recover_by_itself(&self) -> bool {
        !matches!(self, Self::Memory(_))
    }

    /// Whether a call that failed is worth another attempt. In memory after a fault of a single
    /// command.
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

    /// How often a server took over from another, or was restarted. Keys of the last one need not
    /// be on this one.
    pub(crate) fn moves(&self) -> u64 {
        match self {
            Self::Memory(session) => session.moves(),
            Self::Single(node) => node.server().moves(),
            Self::Cluster(cluster) => cluster.topology().moves(),
        }
    }

    /// Whether one of the failovers after the first `before` concerned the server that has `key`.
    pub(crate) fn has_moved(&self, key: &str, before: u64) -> bool {
        match self {
            Self::Memory(session) => session.moves() > before,
            Self::Single(node) => node.server().moves() > before,
            Self::Cluster(cluster) => cluster.topology().has_moved(key, before),
        }
    }

    /// Unparks this thread at each failover of the server, and when the server is no longer
    /// [known](Self::knows).
    pub(crate) fn wake_on_move(&self, server: ServerId, parker: &Parker) {
        match self {
            Self::Memory(session) => session.wake_on_move(parker),
            Self::Single(node) => node.server().wake_on_move(parker),
            Self::Cluster(cluster) => cluster.wake_on_move(server, parker),
        }
    }

    /// Closes connections to the server that nobody has needed for long. True if more may be closed
    /// later.
    pub(crate) fn close_unused(&self, server: ServerId) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Single(node) => node.close_unused(),
            Self::Cluster(cluster) => cluster.close_unused(server),
        }
    }

    pub(crate) fn connections(&self) -> Connections {
        match self {
            Self::Memory(_) => Connections::default(),
            Self::Single(node) => node.connections(),
            Self::Cluster(cluster) => cluster.connections(),
        }
    }

    /// What `INFO` reports of the servers. Returns within `timeout`.
    pub(crate) fn info(&self, timeout: Duration) -> Info {
        match self {
            Self::Memory(_) => Info::default(),
            Self::Single(node) => {
                node.info(timeout).map(|info| of_single(node, info)).unwrap_or_default()
            }
            Self::Cluster(cluster) => cluster.info(timeout),
        }
    }

    /// The run id of the server that has `key`, which changes with each start of the server. `None`
    /// if the server does not tell it. Returns within `timeout`.
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

    /// Whether the server behind a fixed address can grant locks, by its `INFO`: a node of a cluster
    /// cannot grant all, and a replica none until it becomes a master. Returns within `timeout`.
    pub(crate) fn check_target(&self, info: &Info, timeout: Duration) -> Result<(), Failure> {
        let Self::Single(node) = self else { return Ok(()) };
        if node.server().master().is_some() { Ok(()) } else { node.check_target(info, timeout) }
    }

    /// What `INFO` reports of a server, if its pipeline has a new connection since the last call. A
    /// restart counts as a [failover](Self::moves). Returns within `timeout`. Not while its
    /// pipeline runs.
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

    /// Makes sure that the server's pipeline has a working connection, if one can be made within
    /// `timeout`. Not while its pipeline runs.
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
            // No call waits there.
            Self::Memory(_) => {}
            Self::Single(node) => node.wait_for_calls(timeout),
            Self::Cluster(cluster) => cluster.wait_for_calls(timeout),
        }
    }

    /// Ends the calls under way with a failure, at once where they wait for a reply. Later calls,
    /// pipelines and messages go on.
    pub(crate) fn abort_calls(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Single(node) => node.abort_calls(),
            Self::Cluster(cluster) => cluster.abort_calls(),
        }
    }

    /// Closes idle connections and that of the subscriptions at once, those of calls when they end,
    /// and that of a pipeline when it ends, which this waits for. From then on calls get a failure.
    pub(crate) fn close(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Single(node) => node.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

/// A master that goes on writing alone matters only where sentinels may have named another.
fn of_single(node: &Node, info: Info) -> Info {
    Info { writes_alone: info.writes_alone && node.server().master().is_some(), ..info }
}
