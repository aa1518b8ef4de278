//! A Redis Cluster: sends an operation to the node that serves the hash slot of its keys.
//!
//! A node without this hash slot redirects the operation to the hash slot's node. A redirected
//! operation has not run, so the client sends the operation there at once: at most [`MAX_SENDS`]
//! sends within the attempt's time. When a node cannot be reached, the topology is refreshed in the
//! background; callers retry as with a single server.
//!
//! A not-after is a time by the clock of the receiving node. After a hash slot has moved, an
//! earlier copy of an operation can only reach the old owner. The old owner refuses the copy, or
//! the copy's write is lost because this node is no longer a master. The clocks of two nodes are
//! compared in one case only: to decide whether a release has outlived all copies of its acquire.
//! If the clock of the new owner is ahead, the decision is too early. If the hash slot then moves
//! back within a command timeout, a copy may still be accepted. Its lock stays, without a holder,
//! until the lease ends.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::truncated;
use crate::model::sync::Parker;
use crate::ops::value::Value;
use crate::ops::{AnyOperation, Operation as _, Untyped};
use crate::store::connections::Connections;
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::pipeline::PipelineSource;
use crate::store::redis::address::url::{Access, Address};
use crate::store::redis::cluster::nodes::NodeFactory;
use crate::store::redis::cluster::refresh::{Refresher, with_shares};
use crate::store::redis::cluster::topology::Topology;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::info::Info;
use crate::store::redis::node::pipeline::Redirected;
use crate::store::redis::node::request::MAX_SENDS;
use crate::store::redis::resp::hash_slot::{hash_slot_of, shares_hash_slot_with_derived};
use crate::store::redis::resp::redirect::Redirection;
use crate::store::server_id::ServerId;
use crate::store::shutdown::CallGeneration;
use crate::store::unread::{ReleaseReplies, ReleaseReply, UnreadReleases};

/// One cluster, as a destination of operations.
pub(crate) struct Cluster {
    refresher: Arc<Refresher>,
    release_replies: Arc<ReleaseReplies>,
}

impl Cluster {
    /// Creates a cluster known by the nodes `seeds`, without connecting. `connections` limits the
    /// connections for calls to each node.
    pub(crate) fn new(
        seeds: Vec<Address>,
        access: Access,
        command_timeout: Duration,
        connections: Option<usize>,
        listener: Weak<dyn Listener>,
    ) -> Self {
        let redirects = None;
        let release_replies = Arc::<ReleaseReplies>::default();
        let factory = NodeFactory {
            access,
            command_timeout,
            connections,
            listener,
            release_replies: Arc::clone(&release_replies),
            redirects,
        };
        Self { refresher: Refresher::new(seeds, factory), release_replies }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.refresher.topology
    }

    /// Queries the topology, and connects to one of the nodes. Returns the last failure if no node
    /// can be reached.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout);
        self.refresher.ensure_topology(&mut deadline)?;
        let mut failure = self.topology().no_node();
        for (node, share) in with_shares(&self.topology().nodes(), deadline) {
            match node.connect(share) {
                Ok(()) => return Ok(()),
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    /// Sends `PING` to all nodes. Returns the first failure.
    pub(crate) fn ping(
        &self,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout);
        self.refresher.ensure_topology(&mut deadline)?;
        let nodes = self.topology().nodes();
        if nodes.is_empty() {
            return Err(self.topology().no_node());
        }
        with_shares(&nodes, deadline)
            .try_for_each(|(node, share)| node.ping(share, call_generation))
            .inspect_err(|failure| self.refresher.report_failure(failure))
    }

    /// Sends `INFO` to all nodes, and merges the replies.
    pub(crate) fn info(&self, timeout: Duration) -> Info {
        let nodes = self.topology().nodes();
        with_shares(&nodes, Deadline::after(timeout))
            .filter_map(|(node, share)| node.info(share))
            .fold(Info::default(), |before, info| Info {
                evicting: before.evicting.or(info.evicting),
                has_replicas: before.has_replicas || info.has_replicas,
                writes_alone: before.writes_alone || info.writes_alone,
                ..Info::default()
            })
    }

    /// Returns the run id of the node of `key`. `None` if there is no node, or the node reports no
    /// run id.
    pub(crate) fn run_id(
        &self,
        key: &str,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Option<String>, Failure> {
        let mut deadline = Deadline::after(timeout);
        self.refresher.ensure_topology(&mut deadline)?;
        let Some(node) = self.topology().node(self.server_of(key)) else { return Ok(None) };
        let left = deadline.refresh().left().unwrap_or_default();
        node.run_id(left, call_generation)
            .inspect_err(|failure| self.refresher.report_failure(failure))
    }

    /// Queries the `INFO` of node `id` if its pipeline has a new connection since the last call,
    /// and returns `None` otherwise. Counts a restart of the node.
    pub(crate) fn info_of_new_server(&self, id: ServerId, timeout: Duration) -> Option<Info> {
        let node = self.topology().node(id)?;
        let (info, was_restarted) = node.pipeline().info_of_new_server(timeout)?;
        if was_restarted {
            self.topology().count_restart(id);
            node.server().notify_move_listeners();
        }
        Some(info)
    }

    /// Ensures a working connection for the pipeline of node `id`, if one can be made within
    /// `timeout`. A failure requests a refresh of the topology.
    pub(crate) fn ensure_connected(&self, id: ServerId, timeout: Duration) {
        let Some(node) = self.topology().node(id) else { return };
        if let Err(failure) = node.pipeline().ensure_connected(timeout) {
            self.refresher.report_failure(&failure);
        }
    }

    /// Closes connections to the node that were unused for long. Returns whether more may be closed
    /// later.
    pub(crate) fn close_unused(&self, server: ServerId) -> bool {
        self.topology().node(server).is_some_and(|node| node.close_unused())
    }

    /// Returns the counts of connections to all nodes, with connections for queries of the
    /// topology.
    pub(crate) fn connections(&self) -> Connections {
        self.refresher.connections()
    }

    /// Returns the node that serves a key by the last known topology, or else any node.
    /// [`ServerId::ONLY`] without nodes.
    pub(crate) fn server_of(&self, key: &str) -> ServerId {
        self.topology().owner_or_any(hash_slot_of(key)).unwrap_or(ServerId::ONLY)
    }

    /// Unparks `parker` after takeovers and restarts, and when the node is removed.
    pub(crate) fn wake_on_move(&self, id: ServerId, parker: &Parker) {
        if let Some(node) = self.topology().node(id) {
            node.server().wake_on_move(parker);
        }
    }

    /// Subscribes a channel at the node of its hash slot. Requests a refresh of the topology if
    /// there is no node.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        if !self.topology().subscribe(channel) {
            self.refresher.refresh_soon(false);
        }
    }

    /// Waits until no call uses a connection, for at most `longest`.
    pub(crate) fn wait_for_calls(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        for node in self.topology().nodes() {
            node.wait_for_calls(deadline.refresh().left().unwrap_or_default());
        }
    }

    /// Ends the calls under way with a failure. Later calls continue.
    pub(crate) fn abort_calls(&self) {
        self.topology().abort_calls();
    }

    /// Closes all nodes, and ends the thread that refreshes the topology.
    pub(crate) fn close(&self) {
        self.refresher.close();
    }

    /// Sends one operation to the node of its hash slot, follows redirections, and returns the
    /// reply.
    pub(crate) fn execute(
        &self,
        operation: &AnyOperation<'_>,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Value, Failure> {
        self.execute_at(None, operation, timeout, call_generation)
    }

    /// Sends one operation to node `id`, whatever the keys. Follows no redirection.
    pub(crate) fn execute_on(
        &self,
        id: ServerId,
        operation: &AnyOperation<'_>,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Value, Failure> {
        let node = self.topology().node(id).ok_or_else(|| self.topology().no_node())?;
        node.execute(operation, &mut Deadline::after(timeout), call_generation, false)
            .inspect_err(|failure| self.refresher.report_failure(failure))
    }

    /// Sends a release to the node of its hash slot, without waiting for the reply; see
    /// `Node::send_unread`. `None` if nothing was sent.
    pub(crate) fn send_unread(
        &self,
        operation: &AnyOperation<'_>,
        unread: UnreadReleases,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Option<()> {
        let slot = hash_slot_of_all(&operation.request().keys).ok()?;
        let mut deadline = Deadline::after(timeout);
        self.refresher.ensure_topology(&mut deadline).ok()?;
        let Some(node) = self.topology().owner(slot) else {
            self.refresher.refresh_soon(false);
            return None;
        };
        node.send_unread(operation, unread, &mut deadline, call_generation)
    }

    /// Removes and returns the replies to unread releases. A transient failure requests a refresh
    /// of the topology; a redirection is a failure, and is not followed.
    pub(crate) fn take_release_replies(&self) -> Vec<ReleaseReply> {
        let replies = self.release_replies.take();
        for failure in replies.iter().filter_map(|ReleaseReply { reply, .. }| reply.as_ref().err())
        {
            self.refresher.report_failure(failure);
        }
        replies
    }

    /// Reads the unread replies that have arrived from all nodes, without waiting. Returns whether
    /// some replies are still missing.
    pub(crate) fn read_unread(&self) -> bool {
        // `count` reads from every node; `any` would stop at the first node with unread replies.
        self.topology().nodes().iter().filter(|node| node.read_unread()).count() > 0
    }

    /// Sends an operation to the node of `redirection`, or else to the node of its hash slot, and
    /// follows further redirections. Returns the reply.
    fn execute_at(
        &self,
        mut redirection: Option<Redirection>,
        operation: &AnyOperation<'_>,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Value, Failure> {
        let slot = hash_slot_of_all(&operation.request().keys)?;
        let mut deadline = Deadline::after(timeout);
        self.refresher.ensure_topology(&mut deadline)?;
        for _ in 0..MAX_SENDS {
            // 1. Choose the node.
            let (node, asking) = match redirection.take() {
                None => (self.topology().owner(slot), false),
                Some(Redirection::Moved { slot, to }) => {
                    (self.refresher.learn_owner(slot, &to), false)
                }
                Some(Redirection::Ask { to }) => (self.topology().get_or_create(&to), true),
            };
            let Some(node) = node else {
                self.refresher.refresh_soon(false);
                return Err(self.topology().no_node());
            };
            // 2. Send the operation.
            let failure = match node.execute(operation, &mut deadline, call_generation, asking) {
                Err(failure) => failure,
                answered => return answered,
            };
            // 3. Follow a redirection.
            if let Failure::Refused { code, message } = &failure {
                redirection =
                    node.address().and_then(|asked| Redirection::parse(code, message, asked));
            }
            if redirection.is_none() {
                self.refresher.report_failure(&failure);
                return Err(failure);
            }
            deadline.refresh();
        }
        Err(Failure::refused("TRYAGAIN", "each node redirected the command to another"))
    }

    /// Sends the operations of `source` on the pipeline of one node. Operations that this node
    /// redirects are then sent to their nodes one by one.
    pub(crate) fn run_pipeline<S: PipelineSource>(&self, id: ServerId, source: &mut S) {
        loop {
            let mut redirected = Vec::new();
            if let Some(node) = self.topology().node(id) {
                if let Err(failure) = node.pipeline().run(source, Some(&mut redirected)) {
                    self.refresher.report_failure(&failure);
                }
            } else {
                // The node was removed.
                let requests = std::iter::from_fn(|| source.next());
                redirected.extend(requests.map(|request| (request, None)));
            }
            if redirected.is_empty() {
                return;
            }
            self.execute_redirected(source, redirected);
        }
    }

    /// Executes redirected operations one by one, and passes the replies to `source`. All
    /// operations share one timeout, and the first failure of a connection fails all later
    /// operations, because the remaining work of `source` must not wait.
    fn execute_redirected<S: PipelineSource>(&self, source: &mut S, redirected: Redirected<S>) {
        let timeouts = redirected.iter().map(|(request, _)| request.timeout);
        let mut deadline = Deadline::after(timeouts.max().unwrap_or_default());
        let mut broken: Option<Failure> = None;
        for (request, redirection) in redirected {
            let operation = &request.operation;
            let reply = match (&broken, deadline.refresh().left()) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Err(_)) => Err(not_followed()),
                (None, Ok(left)) => {
                    let timeout = request.timeout.min(left);
                    let generation = CallGeneration::NEVER_ABORTED;
                    self.execute_at(redirection, &Untyped(operation), timeout, generation)
                }
            };
            if let Err(failure @ (Failure::NotSent { .. } | Failure::Unknown { .. })) = &reply {
                broken = Some(failure.clone());
            }
            let decode = |value| operation.decode(value).map_err(Failure::unexpected);
            source.on_redirected_reply(request.tag, reply.and_then(decode));
        }
    }
}

/// Returns the failure of a redirected operation without time left. The operation did not run.
fn not_followed() -> Failure {
    Failure::refused("MOVED", "no time was left to follow the redirection")
}

/// Returns the hash slot of all these keys, or zero without keys.
///
/// The failure names a key with derived names in several hash slots, or else a key outside the hash
/// slot of the first key.
pub(crate) fn hash_slot_of_all(keys: &[&str]) -> Result<u16, Failure> {
    let cross_slot = |name: &str| Failure::CrossSlot { name: truncated(name) };
    let Some(first) = keys.first() else { return Ok(0) };
    let slot = hash_slot_of(first);
    match keys.iter().find(|key| !shares_hash_slot_with_derived(key) || hash_slot_of(key) != slot) {
        Some(key) => {
            Err(cross_slot(if shares_hash_slot_with_derived(first) { key } else { first }))
        }
        None => Ok(slot),
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("seeds", &self.refresher.seeds())
            .field("nodes", &self.topology().nodes())
            .finish_non_exhaustive()
    }
}
