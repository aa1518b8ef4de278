//! A server: sends an operation through `calls` and returns the reply. An operation that no other
//! request may follow uses a second pool, `alone`.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::model::settings::ReplicaAcks;
use crate::ops::value::{ServerTime, Value};
use crate::ops::{AnyOperation, Grants, IsGrant};
use crate::store::connections::Connections;
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::redis::address::url::{Access, Address};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::call_connection::UnreadRequest;
use crate::store::redis::node::call_pool::{CallPool, Taken, hash_of};
use crate::store::redis::node::failover_watcher::FailoverWatcher;
use crate::store::redis::node::info::{self, Info};
use crate::store::redis::node::pipeline::Pipeline;
use crate::store::redis::node::pool::Limits;
use crate::store::redis::node::replica_acks;
use crate::store::redis::node::request::{
    MAX_SENDS, ReplyAction, classify, pack, too_many_resends,
};
use crate::store::redis::node::server::Server;
use crate::store::redis::node::subscriber::{RedirectSink, Subscriber};
use crate::store::redis::node::waiting_call::NoReply;
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::MasterEndpoint;
use crate::store::shutdown::CallGeneration;
use crate::store::unread::UnreadReleases;

/// A server that executes operations: the only server, or a node of a cluster.
pub(crate) struct Node {
    server: Arc<Server>,
    calls: Arc<CallPool>,
    /// Connections for operations that no other request may follow, and for renewals that a cluster
    /// redirects, which wait for no caller.
    alone: Arc<CallPool>,
    pipeline: Pipeline,
    subscriber: Subscriber,
    /// The watcher's thread ends when the node is dropped.
    failover_watcher: Option<FailoverWatcher>,
}

/// Largest number of connections for calls, to a near and to a far server.
///
/// Measured on two cores, in pairs of acquire and release relative to a connection for each thread:
/// with six connections, 8, 16, 32 and 64 threads make 1.14, 1.18, 1.31 and 1.42 times as many;
/// with eight 1.10, 1.00, 1.21 and 1.22. With a round trip of 0.5 ms, eight are too few.
const NEAR: usize = 6;
/// Largest number of connections for calls to a far server; see [`NEAR`].
const FAR: usize = 16;

/// Additional time for the first connection of a client. The connecting thread has the same time as
/// the waiting caller, but begins later, and knows the reason of a failure.
const CONNECT_GRACE: Duration = Duration::from_millis(90);

/// Longest wait for unread replies at the end of a client. With replies left unread, the system
/// resets the connection, and requests in flight may be lost.
const CLOSE_READ_TIMEOUT: Duration = Duration::from_millis(100);

impl Node {
    /// Creates a node of a cluster, or a server without sentinels, without connecting. Redirections
    /// of subscriptions are reported to `redirects`.
    pub(crate) fn new(
        server: Server,
        connections: Option<usize>,
        redirects: Option<Weak<dyn RedirectSink>>,
    ) -> Self {
        let server = Arc::new(server);
        let limits = Limits { near: connections.unwrap_or(NEAR), far: connections.unwrap_or(FAR) };
        Self {
            calls: CallPool::new(Arc::clone(&server), limits),
            alone: CallPool::new(Arc::clone(&server), Limits { near: limits.far, ..limits }),
            pipeline: Pipeline::new(Arc::clone(&server)),
            subscriber: Subscriber::new(Arc::clone(&server), redirects),
            server,
            failover_watcher: None,
        }
    }

    /// Creates the only server, without connecting. With sentinels, the server's address may
    /// change, and a thread watches for failovers.
    pub(crate) fn single(
        endpoint: MasterEndpoint,
        access: Access,
        command_timeout: Duration,
        connections: Option<usize>,
        listener: Weak<dyn Listener>,
    ) -> Result<Self, Error> {
        let (channels, replies) = (Channels::Everywhere, Arc::default());
        let server = Server::new(endpoint, access, command_timeout, channels, listener, replies);
        let mut node = Self::new(server, connections, None);
        if node.server.master().is_some() {
            node.failover_watcher = Some(FailoverWatcher::start(&node.server)?);
        }
        Ok(node)
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    pub(crate) fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    /// Makes a connection for calls. A failure after `timeout` is returned up to [`CONNECT_GRACE`]
    /// later.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout + CONNECT_GRACE);
        let connection = self.calls.take(&mut deadline, CallGeneration::NEVER_ABORTED)?;
        connection.give_back(deadline.read_at());
        Ok(())
    }

    /// Sends `PING`, and a second `PING` if a connection or an authentication has ended.
    pub(crate) fn ping(
        &self,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout);
        let mut ping = || {
            let (reply, generation) =
                self.ask(&Command::of(&["PING"]), &mut deadline, call_generation)?;
            match reply {
                Value::Refusal { code, message } => Err(self.refused(code, message, generation)),
                _ => Ok(()),
            }
        };
        match ping() {
            Err(failure) if failure.is_connection_error() || failure.is_authentication_end() => {
                ping().map_err(|later| if failure.says_more_than(&later) { failure } else { later })
            }
            first => first,
        }
    }

    /// Sends a command without effect, so a missing reply counts as not sent. Returns the reply and
    /// the generation of its connection.
    fn ask(
        &self,
        command: &[u8],
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<(Value, u64), Failure> {
        deadline.refresh().left().map_err(|error| self.server.not_sent(error))?;
        let encode = |request: &mut Vec<u8>| request.extend_from_slice(command);
        match self.calls.call(encode, "", deadline, call_generation) {
            Ok(answer) => Ok((answer.value, answer.generation)),
            Err(NoReply::NoConnection(failure)) => Err(failure),
            Err(NoReply::Broken(Broken::NotSent(error) | Broken::Unanswered(error))) => {
                Err(self.server.not_sent(error))
            }
        }
    }

    /// Sends commands in one round trip, on a connection without other requests. Returns a reply or
    /// refusal for each command. Commands that may leave the connection subscribed need `close`.
    pub(crate) fn ask_alone(
        &self,
        commands: &[Vec<u8>],
        close: bool,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Vec<Value>, Failure> {
        let mut deadline = Deadline::after(timeout);
        let mut connection = self.alone.take(&mut deadline, call_generation)?;
        connection
            .send(&commands.concat(), &mut deadline)
            .map_err(|error| self.server.not_sent(error))?;
        let receive = |_| connection.receive(&mut deadline);
        let replies: io::Result<Vec<Value>> = commands.iter().map(receive).collect();
        let replies = replies.map_err(|error| self.server.not_sent(error))?;
        if !close {
            connection.give_back(deadline.refresh().read_at());
        }
        Ok(replies)
    }

    /// Queries `INFO`. `None` without a reply within `timeout`.
    pub(crate) fn info(&self, timeout: Duration) -> Option<Info> {
        self.ask_info(&mut Deadline::after(timeout), CallGeneration::NEVER_ABORTED).ok()
    }

    /// Checks by `info` that the server can grant locks. A service may hide a cluster behind one
    /// address: `INFO` reports the cluster, but the service refuses `CLUSTER SLOTS`. Then the
    /// address serves all locks.
    pub(crate) fn check_target(&self, info: &Info, timeout: Duration) -> Result<(), Failure> {
        if info.is_cluster {
            let slots = Command::of(&["CLUSTER", "SLOTS"]);
            let mut deadline = Deadline::after(timeout);
            let reply = self.ask(&slots, &mut deadline, CallGeneration::NEVER_ABORTED);
            // A node of a cluster also refuses a user without the permission.
            if matches!(reply?, (Value::Refusal { code, .. }, _) if code != "NOPERM") {
                return Ok(());
            }
        }
        self.server.check_target(info)
    }

    /// Returns the server's run id, or `None` if `INFO` has no run id. Sends `INFO` if a connection
    /// was made since the last `INFO`.
    pub(crate) fn run_id(
        &self,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<Option<String>, Failure> {
        let info = match self.server.last_info() {
            Some(info) => info,
            None => self.ask_info(&mut Deadline::after(timeout), call_generation)?,
        };
        Ok(info.run_id)
    }

    /// Queries `INFO`, and stores the result for [`run_id`](Self::run_id).
    fn ask_info(
        &self,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Info, Failure> {
        let connections = self.connections_made();
        let (reply, generation) = self.ask(&info::command(), deadline, call_generation)?;
        let info = Info::of(&reply);
        self.server.learn_run_id(&info, generation);
        self.server.learn_info(&info, connections);
        Ok(info)
    }

    /// Returns the server's address, if fixed.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.server.address()
    }

    /// Returns the number of connections made since the start.
    pub(crate) fn connections_made(&self) -> u64 {
        self.server.connections.load(Ordering::Relaxed)
    }

    /// Closes connections for calls that were unused for long. Returns whether more may be closed
    /// later.
    pub(crate) fn close_unused(&self) -> bool {
        // Both, without a short circuit.
        let (calls, alone) = (self.calls.close_unused(), self.alone.close_unused());
        calls || alone
    }

    pub(crate) fn connections(&self) -> Connections {
        Connections {
            made: self.connections_made(),
            open: self.server.open_sockets(),
            in_use: self.calls.in_use() + self.alone.in_use(),
        }
    }

    /// Closes the node: later calls fail. Waits shortly for unread replies, and for a running
    /// pipeline to end.
    pub(crate) fn close(&self) {
        if let Some(master) = self.server.master() {
            master.close();
        }
        self.calls.close(CLOSE_READ_TIMEOUT);
        self.alone.close(Duration::ZERO);
        self.subscriber.close();
        self.pipeline.close();
    }

    /// Waits until no caller uses a connection, for at most `longest`.
    pub(crate) fn wait_for_calls(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        self.calls.wait_until_unused(longest);
        self.alone.wait_until_unused(deadline.refresh().left().unwrap_or_default());
    }

    /// Fails the calls in progress at once. The pipeline and the subscriber continue.
    pub(crate) fn abort_calls(&self) {
        self.calls.abort_calls();
        self.alone.abort_calls();
    }

    /// Sends an operation and returns the reply. Sends the operation again while nothing has run,
    /// at most [`MAX_SENDS`] times. With `asking`, another node has redirected the operation to
    /// this node, because its hash slot is migrating.
    pub(crate) fn execute(
        &self,
        operation: &AnyOperation<'_>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
        asking: bool,
    ) -> Result<Value, Failure> {
        let acks = match operation.grants() {
            Grants::Nothing => None,
            Grants::If(is_grant) => self.server.replica_acks().map(|acks| (acks, is_grant)),
        };
        // `WAIT` would delay later requests on the connection, a renewal waits for no caller, and
        // `ASKING` affects the next request on its connection.
        if acks.is_some() || asking || call_generation == CallGeneration::NEVER_ABORTED {
            return self.execute_alone(operation, deadline, call_generation, asking, acks);
        }
        let request = operation.request();
        let key = request.keys.first().map_or("", |key| key.as_ref());
        let (mut send_body, mut has_moved) = (false, false);
        for _ in 0..MAX_SENDS {
            // 1. Send the operation.
            let not_after = self.server.clock.at(deadline.instant());
            let sent_at = deadline.read_at();
            let encode = |request: &mut Vec<u8>| {
                pack(request, operation, not_after, send_body, self.server.channels);
            };
            let called = self.calls.call(encode, key, deadline, call_generation);

            // 2. Interpret the reply.
            let answer = match called {
                Ok(answer) => answer,
                Err(NoReply::NoConnection(failure)) => return Err(failure),
                // The connection ended before the request was written: retry once.
                Err(NoReply::Broken(Broken::NotSent(error)))
                    if error.kind() != io::ErrorKind::TimedOut
                        && !std::mem::replace(&mut has_moved, true) =>
                {
                    deadline.refresh();
                    continue;
                }
                Err(NoReply::Broken(broken)) => {
                    self.alone.suspect_idle(deadline.read_at());
                    return Err(self.server.no_reply(broken, not_after));
                }
            };
            let reply = answer.value;
            match classify(self.server.reply_context(), operation, sent_at, reply) {
                ReplyAction::Return(value) => return Ok(value),
                ReplyAction::Fail { code, message } => {
                    return Err(self.refused(code, message, answer.generation));
                }
                ReplyAction::SendBody => send_body = true,
                ReplyAction::Resend => {}
            }

            // 3. Nothing ran: send the operation again.
            deadline.refresh();
        }
        Err(too_many_resends())
    }

    /// Sends a release without waiting for the reply, and returns once the release is written. The
    /// next reader of the connection puts the reply into the server's `ReleaseReplies`. `None` if
    /// nothing was sent: no idle connection may leave another reply unread, or all were idle for so
    /// long that they may have been closed unnoticed.
    ///
    /// Nobody needs the reply to a dropped guard's release, unless the release failed. Without the
    /// wait, an uncontended lock and drop takes a tenth less time on one core, and half with a core
    /// each for client and server. `CLIENT REPLY SKIP` would save no more, and would hide
    /// `NOSCRIPT`, `READONLY` and `MOVED`.
    pub(crate) fn send_unread(
        &self,
        operation: &AnyOperation<'_>,
        unread: UnreadReleases,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Option<()> {
        let not_after = self.server.clock.at(deadline.instant());
        // As text: a server may forget scripts at any time, by `SCRIPT FLUSH` or, from Redis 7.4
        // on, by itself, and no caller may be left to send the release again.
        let mut packed = Vec::new();
        pack(&mut packed, operation, not_after, true, self.server.channels);
        let request = operation.request();
        let key = hash_of(request.keys.first().map_or("", |key| key.as_ref()));
        let (script, bytes) = (request.script_sent(), packed.len());
        let request = UnreadRequest { unread, script, not_after, bytes, key };
        self.calls.send_unread(&packed, request, deadline, call_generation).ok()
    }

    /// Reads the unread replies that have arrived, without waiting. Returns whether some replies
    /// are still missing.
    pub(crate) fn read_unread(&self) -> bool {
        self.calls.read_unread(self.server.command_timeout)
    }

    /// Returns the failure of an operation refused on a connection of `generation`. Closes the idle
    /// connections if the refusal makes all connections unusable.
    fn refused(&self, code: String, message: String, generation: u64) -> Failure {
        let (failure, is_unusable) = self.server.refused(code, message, generation);
        if is_unusable {
            self.calls.close_idle();
            self.alone.close_idle();
        }
        failure
    }

    /// Executes an operation on a connection without other requests. With `acks`, a grant also
    /// needs the acknowledgements of replicas.
    fn execute_alone(
        &self,
        operation: &AnyOperation<'_>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
        asking: bool,
        acks: Option<(ReplicaAcks, IsGrant)>,
    ) -> Result<Value, Failure> {
        let mut connection = self.alone.take(deadline, call_generation)?;
        let mut send_body = false;
        for _ in 0..MAX_SENDS {
            // 1. Send the operation, followed by the query for replicas.
            let not_after = self.server.clock.at(deadline.instant());
            let sent_at = deadline.read_at();
            let mut packed = Vec::new();
            pack(&mut packed, operation, not_after, send_body, self.server.channels);
            if let Some((acks, _)) = acks {
                packed.extend(replica_acks::pack(acks, &self.server.replicas, *deadline));
            }
            let called = if asking {
                call_asking(&mut connection, &packed, deadline)
            } else {
                connection.call(&packed, deadline)
            };

            // 2. Interpret the reply.
            let reply = match called {
                Ok(reply) => reply,
                Err(broken) => {
                    self.discard(connection, deadline.read_at());
                    let broken = match broken {
                        // Perhaps only part of `WAIT` was not sent, and the operation runs.
                        Broken::NotSent(error) if acks.is_some() => Broken::Unanswered(error),
                        broken => broken,
                    };
                    return Err(self.server.no_reply(broken, not_after));
                }
            };
            match classify(self.server.reply_context(), operation, sent_at, reply) {
                ReplyAction::Return(value) => {
                    let Some((acks, is_grant)) = acks else {
                        connection.give_back(deadline.read_at());
                        return Ok(value);
                    };
                    let acknowledged = self.receive_acks(connection, acks, deadline, not_after)?;
                    // A refused acquire needs no replica.
                    return if is_grant(&value) { acknowledged.map(|()| value) } else { Ok(value) };
                }
                ReplyAction::Fail { code, message } => {
                    let (failure, is_unusable) =
                        self.server.refused(code, message, connection.generation);
                    if is_unusable {
                        self.discard(connection, deadline.read_at());
                    } else if acks.is_some() {
                        // The reply to `WAIT` is unread.
                        drop(connection);
                    } else {
                        connection.give_back(deadline.read_at());
                    }
                    return Err(failure);
                }
                ReplyAction::SendBody => send_body = true,
                ReplyAction::Resend => {}
            }

            // 3. Nothing ran: send the operation again. On this connection the server may still
            //    wait for replicas, so use another connection.
            if acks.is_some() {
                drop(connection);
                connection = self.alone.take(deadline, call_generation)?;
            }
            deadline.refresh();
        }
        connection.give_back(deadline.read_at());
        Err(too_many_resends())
    }

    /// Closes a broken connection, and suspects the idle connections, which lead to the same
    /// server.
    fn discard(&self, connection: Taken<'_>, now: Instant) {
        drop(connection);
        self.calls.suspect_idle(now);
        self.alone.suspect_idle(now);
    }

    /// Receives the reply to `WAIT` and frees the connection. The inner failure means that the
    /// grant must be rolled back.
    fn receive_acks(
        &self,
        mut connection: Taken<'_>,
        acks: ReplicaAcks,
        deadline: &mut Deadline,
        not_after: ServerTime,
    ) -> Result<Result<(), Failure>, Failure> {
        let replicas = &self.server.replicas;
        match replica_acks::receive(&mut connection, acks, replicas, deadline) {
            Ok(Some(acknowledged)) => {
                connection.give_back(deadline.read_at());
                Ok(acknowledged)
            }
            Ok(None) => {
                drop(connection);
                let connected = replicas.load(Ordering::Relaxed);
                Ok(Err(replica_acks::too_few(acks, connected, 0)))
            }
            Err(broken) => {
                self.discard(connection, deadline.read_at());
                Err(self.server.no_reply(broken, not_after))
            }
        }
    }
}

/// Sends an operation after `ASKING`, so that a node accepts the operation for a hash slot
/// migrating to the node.
fn call_asking(
    connection: &mut Connection,
    packed: &[u8],
    deadline: &mut Deadline,
) -> Result<Value, Broken> {
    let asking = connection.call(&behind_asking(packed), deadline)?;
    deadline.refresh();
    let reply = connection.receive(deadline).map_err(Broken::Unanswered)?;
    // If `ASKING` is refused, the node redirects the operation. The first refusal has the reason.
    Ok(match (asking, reply) {
        (asking @ Value::Refusal { .. }, Value::Refusal { .. }) => asking,
        (_, reply) => reply,
    })
}

/// Returns `ASKING`, followed by the bytes of `packed`.
fn behind_asking(packed: &[u8]) -> Vec<u8> {
    let mut both = Command::of(&["ASKING"]);
    both.extend_from_slice(packed);
    both
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Node").field(&self.server).finish()
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock, SystemClock};
    use wheellock_fixture::wait_until;

    use super::*;
    use crate::model::kind::Kind;
    use crate::model::name::LockName;
    use crate::model::owner::ClientId;
    use crate::model::release_no::ReleaseNo;
    use crate::ops::Untyped;
    use crate::ops::by_kind::HoldId;
    use crate::store::listener::NoListener;
    use crate::store::redis::address::url::Peer;
    use crate::store::unread::ReleaseReply;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn close_reads_available_replies_and_waits_only_briefly() {
        let server = wheellock_fixture::Server::start();
        let (host, port) = (server.address().ip().to_string(), server.address().port());
        for hangs in [false, true] {
            let peer = Peer::Tcp(Address { host: host.clone(), port });
            let (endpoint, access) = (MasterEndpoint::Fixed(peer), Access::default());
            let listener = Weak::<NoListener>::new();
            let node = Node::single(endpoint, access, TIMEOUT, None, listener).unwrap();
            node.connect(TIMEOUT).unwrap();
            if hangs {
                server.pause();
            }
            let (name, owner) = (LockName::parse("a").unwrap(), ClientId::random().next_owner());
            let release = HoldId { kind: Kind::Reentrant, name, owner }.release();
            let begun = SystemClock.now();
            let unread = UnreadReleases { releases: vec![ReleaseNo(1)], sent_at: begun };
            let (mut deadline, generation) = (Deadline::after(TIMEOUT), CallGeneration(0));
            node.send_unread(&Untyped(&*release), unread, &mut deadline, generation).unwrap();
            if !hangs {
                wait_until("it is answered", TIMEOUT, || server.command_calls("eval") > 0);
            }
            let begun = SystemClock.now();
            node.close();
            let took = SystemClock.now() - begun;
            let replies = node.server().release_replies().take();
            let [ReleaseReply { unread, reply }] = &*replies else { panic!("{replies:?}") };
            assert_eq!((&*unread.releases, reply.is_ok()), (&[ReleaseNo(1)][..], !hangs));
            assert!(took < TIMEOUT / 2, "{took:?}");
            server.resume();
        }
    }
}
