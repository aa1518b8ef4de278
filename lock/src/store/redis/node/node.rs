//! One server: takes an operation, sends it on the connection that calls share and reads its
//! reply. What cannot share has a connection of the pool.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::model::settings::ReplicaAcks;
use crate::ops::operation::Script;
use crate::ops::value::{ServerTime, Value};
use crate::ops::{AnyOperation, Grants, IsGrant};
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::pipeline::SentDetached;
use crate::store::redis::address::url::{Access, Address};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::caller_connections::CallerConnections;
use crate::store::redis::node::failover_watcher::FailoverWatcher;
use crate::store::redis::node::info::{self, Info};
use crate::store::redis::node::pipeline::Pipeline;
use crate::store::redis::node::pool::{Pool, PooledConnection};
use crate::store::redis::node::replica_acks;
use crate::store::redis::node::request::{
    MAX_SENDS, ReplyAction, classify, classify_reply, pack, too_many_resends,
};
use crate::store::redis::node::server::Server;
use crate::store::redis::node::shared_connection::SharedConnection;
use crate::store::redis::node::subscriber::{RedirectSink, Subscriber};
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::MasterEndpoint;
use crate::store::shutdown::CallGeneration;

/// One server that executes operations: the only one, or a node of a cluster.
pub(crate) struct Node {
    server: Arc<Server>,
    /// For calls.
    callers: CallerConnections,
    /// For what needs a connection of its own.
    pool: Pool,
    pipeline: Pipeline,
    subscriber: Subscriber,
    /// Its thread ends when the node is dropped.
    failover_watcher: Option<FailoverWatcher>,
}

/// Takes the reply to an operation that no thread waits for.
pub(crate) type ReplyHandler = Box<dyn FnOnce(Result<Value, Failure>) + Send>;

/// The most connections that calls share. More than one is needed only while an earlier one does
/// not answer.
const MAX_SHARED: usize = 8;

/// How long the end of a client waits for replies to detached operations. With unread replies left,
/// the system resets the connection, and requests that are on their way may be lost.
const CLOSE_READ_TIMEOUT: Duration = Duration::from_millis(100);

impl Node {
    /// A node of a cluster, or a server without sentinels. Redirections of subscriptions are
    /// reported to `redirects`.
    pub(crate) fn new(
        server: Server,
        connections: usize,
        redirects: Option<Weak<dyn RedirectSink>>,
    ) -> Self {
        let server = Arc::new(server);
        // The pipeline and the subscriber have one connection each, and one is left for what
        // cannot share.
        let others = connections.saturating_sub(2);
        let shared = others.saturating_sub(1).clamp(1, MAX_SHARED);
        Self {
            callers: CallerConnections::new(Arc::clone(&server), shared),
            pool: Pool::new(Arc::clone(&server), others.saturating_sub(shared).max(1)),
            pipeline: Pipeline::new(Arc::clone(&server)),
            subscriber: Subscriber::new(Arc::clone(&server), redirects),
            server,
            failover_watcher: None,
        }
    }

    /// The only server. With sentinels, it may change.
    pub(crate) fn single(
        endpoint: MasterEndpoint,
        access: Access,
        command_timeout: Duration,
        connections: usize,
        listener: Weak<dyn Listener>,
    ) -> Result<Self, Error> {
        let channels = Channels::Everywhere;
        let server = Server::new(endpoint, access, command_timeout, channels, listener);
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

    /// Makes the connection of the calls.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout);
        self.callers.get(&mut deadline, CallGeneration::NEVER_ABORTED).map(drop)
    }

    /// `PING`, in one attempt, or two if a connection has ended.
    pub(crate) fn ping(
        &self,
        timeout: Duration,
        call_generation: CallGeneration,
    ) -> Result<(), Failure> {
        let mut deadline = Deadline::after(timeout);
        let ping = |deadline: &mut Deadline| {
            let connection = self.callers.get(deadline, call_generation)?;
            let reply = connection.call(Command::of(&["PING"]), 1, deadline);
            if connection.is_retired() {
                self.callers.prune();
            }
            match reply {
                Ok(Value::Refusal { code, message }) => {
                    Err(self.refused(&connection, code, message))
                }
                Ok(_) => Ok(()),
                // Without an answer, nothing has happened.
                Err(Broken::NotSent(error) | Broken::Unanswered(error)) => {
                    Err(self.server.not_sent(error))
                }
            }
        };
        let first = ping(&mut deadline);
        deadline.refresh();
        match first {
            Err(failure) if failure.is_connection_error() && deadline.left().is_ok() => {
                ping(&mut deadline)
                    .map_err(|later| if failure.says_more_than(&later) { failure } else { later })
            }
            first => first,
        }
    }

    /// `INFO`, if the server answers within `timeout`.
    pub(crate) fn info(&self, timeout: Duration) -> Option<Info> {
        self.ask_info(&mut Deadline::after(timeout), CallGeneration::NEVER_ABORTED).ok()
    }

    /// The server's run id; `None` if it does not tell it. It is asked for after each new
    /// connection.
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

    fn ask_info(
        &self,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
    ) -> Result<Info, Failure> {
        let connection = self.callers.get(deadline, call_generation)?;
        let connections = self.connections_made();
        let reply = connection.call(info::command(), 1, deadline);
        if connection.is_retired() {
            self.callers.prune();
        }
        let info = match reply {
            Ok(reply) => Info::of(&reply),
            // Without an answer, nothing has happened.
            Err(Broken::NotSent(error) | Broken::Unanswered(error)) => {
                return Err(self.server.not_sent(error));
            }
        };
        self.server.learn_run_id(&info, connection.generation);
        self.server.learn_info(&info, connections);
        Ok(info)
    }

    /// The server's address, if it is fixed.
    pub(crate) fn address(&self) -> Option<&Address> {
        self.server.address()
    }

    pub(crate) fn connections_made(&self) -> u64 {
        self.server.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        if let Some(master) = self.server.master() {
            master.close();
        }
        self.callers.close(CLOSE_READ_TIMEOUT);
        self.pool.close();
        self.subscriber.close();
        self.pipeline.close();
    }

    /// Waits until no caller uses a connection, for at most `longest`.
    pub(crate) fn wait_for_calls(&self, longest: Duration) {
        let mut deadline = Deadline::after(longest);
        self.callers.wait_until_unused(longest);
        self.pool.wait_until_unused(deadline.refresh().left().unwrap_or_default());
    }

    /// The calls in progress fail at once. The pipeline and the subscriber go on.
    pub(crate) fn abort_calls(&self) {
        self.callers.abort_calls();
        self.pool.abort_calls();
    }

    /// Executes one operation. With `asking`, another node has redirected it to this one, to which
    /// its slot is migrating.
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
        // What waits for replicas would hold up others, and a renewal waits for no caller.
        if acks.is_some() || call_generation == CallGeneration::NEVER_ABORTED {
            return self.execute_alone(operation, deadline, call_generation, asking, acks);
        }
        let mut connection = self.callers.get(deadline, call_generation)?;
        let (mut send_body, mut has_moved) = (false, false);
        for _ in 0..MAX_SENDS {
            // 1. Send the operation.
            let not_after = self.server.clock.at(deadline.instant());
            let sent_at = deadline.read_at();
            let mut packed = pack(operation, not_after, send_body, self.server.channels);
            let mut replies = 1;
            if asking {
                packed = behind_asking(&packed);
                replies = 2;
            }
            let called = connection.call(packed, replies, deadline);
            if connection.is_retired() {
                self.callers.prune();
            }

            // 2. What the reply means.
            let reply = match called {
                Ok(reply) => reply,
                // The connection ended, or is not used any more, before the turn of this call.
                Err(Broken::NotSent(error))
                    if error.kind() != io::ErrorKind::TimedOut
                        && connection.is_retired()
                        && !std::mem::replace(&mut has_moved, true) =>
                {
                    deadline.refresh();
                    connection = self.callers.get(deadline, call_generation)?;
                    continue;
                }
                Err(broken) => {
                    self.pool.discard_idle();
                    return Err(self.server.no_reply(broken, not_after));
                }
            };
            match classify(self.server.reply_context(), operation, sent_at, reply) {
                ReplyAction::Return(value) => return Ok(value),
                ReplyAction::Fail { code, message } => {
                    return Err(self.refused(&connection, code, message));
                }
                ReplyAction::SendBody => send_body = true,
                ReplyAction::Resend => {}
            }

            // 3. Nothing ran: send it again.
            deadline.refresh();
            if connection.is_retired() {
                connection = self.callers.get(deadline, call_generation)?;
            }
        }
        Err(too_many_resends())
    }

    /// Sends one operation and returns when it is written, without waiting for its reply, which
    /// goes to `on_reply`. An error means that it was not sent and never will be; `on_reply` is
    /// dropped then. Otherwise `on_reply` is called once: with the reply, or with the failure that
    /// a call would have got. Nothing is sent again for it: a wrong estimate of the server's time is
    /// a transient failure, and a redirection is refused.
    ///
    /// `on_reply` is called by whichever thread reads, with nothing locked, perhaps before this
    /// returns. It must not block. On a connection with too many unread replies, the reply is
    /// waited for, and on one that has been idle for long nothing is sent (DESIGN: shared
    /// connection).
    pub(crate) fn send_detached(
        &self,
        operation: &AnyOperation<'_>,
        server_time: fn(&Value) -> Option<ServerTime>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
        on_reply: ReplyHandler,
    ) -> Result<SentDetached, Failure> {
        let connection = self.callers.get(deadline, call_generation)?;
        let not_after = self.server.clock.at(deadline.instant());
        let sent_at = deadline.read_at();
        // A script's text: the server may have forgotten the script, and no caller may be there to
        // send it again.
        let packed = pack(operation, not_after, true, self.server.channels);
        let script = operation.request().script_sent();
        let (server, on) = (Arc::clone(&self.server), Arc::downgrade(&connection));
        let handler = move |reply: Result<Value, Broken>| {
            on_reply(match reply {
                Ok(reply) => detached_reply(&server, &on, script, server_time, sent_at, reply),
                Err(broken) => Err(server.no_reply(broken, not_after)),
            });
        };
        let sent = connection.send_detached(packed, deadline, Box::new(handler));
        if connection.is_retired() {
            self.callers.prune();
        }
        sent.map_err(|broken| self.server.no_reply(broken, not_after))
    }

    /// Reads the replies to detached operations that have arrived, without waiting for anything.
    /// True if some are still to come.
    pub(crate) fn read_detached(&self) -> bool {
        self.callers.read_detached()
    }

    /// The failure of an operation that was refused on the shared connection.
    fn refused(
        &self,
        connection: &Arc<SharedConnection>,
        code: String,
        message: String,
    ) -> Failure {
        let (failure, is_unusable) = self.server.refused(code, message, connection.generation);
        if is_unusable {
            self.callers.discard(connection);
            self.pool.discard_idle();
        }
        failure
    }

    /// Executes one operation on a connection that nobody else uses meanwhile.
    fn execute_alone(
        &self,
        operation: &AnyOperation<'_>,
        deadline: &mut Deadline,
        call_generation: CallGeneration,
        asking: bool,
        acks: Option<(ReplicaAcks, IsGrant)>,
    ) -> Result<Value, Failure> {
        let mut connection = self.pool.take(deadline, call_generation)?;
        let mut send_body = false;
        for _ in 0..MAX_SENDS {
            // 1. Send the operation, and behind it the question for the replicas.
            let not_after = self.server.clock.at(deadline.instant());
            let sent_at = deadline.read_at();
            let mut packed = pack(operation, not_after, send_body, self.server.channels);
            if let Some((acks, _)) = acks {
                packed.extend(replica_acks::pack_wait(acks, *deadline));
            }
            let called = if asking {
                call_asking(&mut connection, &packed, deadline)
            } else {
                connection.call(&packed, deadline)
            };

            // 2. What the reply means.
            let reply = match called {
                Ok(reply) => reply,
                Err(broken) => {
                    self.discard(connection);
                    let broken = match broken {
                        // Perhaps only part of `WAIT` is missing, and the operation runs.
                        Broken::NotSent(error) if acks.is_some() => Broken::Unanswered(error),
                        broken => broken,
                    };
                    return Err(self.server.no_reply(broken, not_after));
                }
            };
            match classify(self.server.reply_context(), operation, sent_at, reply) {
                ReplyAction::Return(value) => {
                    let Some((acks, is_grant)) = acks else {
                        self.pool.give_back(connection);
                        return Ok(value);
                    };
                    let acknowledged = self.receive_acks(connection, acks, deadline, not_after)?;
                    // What was not granted needs no replica.
                    return if is_grant(&value) { acknowledged.map(|()| value) } else { Ok(value) };
                }
                ReplyAction::Fail { code, message } => {
                    let (failure, is_unusable) =
                        self.server.refused(code, message, connection.generation);
                    if is_unusable {
                        self.discard(connection);
                    } else if acks.is_some() {
                        // The reply to `WAIT` was not read.
                        drop(connection);
                    } else {
                        self.pool.give_back(connection);
                    }
                    return Err(failure);
                }
                ReplyAction::SendBody => send_body = true,
                ReplyAction::Resend => {}
            }

            // 3. Nothing ran: send it again. The server may still wait for replicas on this
            //    connection, so that needs another.
            if acks.is_some() {
                drop(connection);
                connection = self.pool.take(deadline, call_generation)?;
            }
            deadline.refresh();
        }
        self.pool.give_back(connection);
        Err(too_many_resends())
    }

    /// Closes a connection that broke, and the idle ones to the same server.
    fn discard(&self, connection: PooledConnection<'_>) {
        self.pool.discard(connection);
        self.callers.discard_idle();
    }

    /// Receives the reply to `WAIT` and frees the connection. The inner failure means that a grant
    /// must not be kept.
    fn receive_acks(
        &self,
        mut connection: PooledConnection<'_>,
        acks: ReplicaAcks,
        deadline: &mut Deadline,
        not_after: ServerTime,
    ) -> Result<Result<(), Failure>, Failure> {
        match replica_acks::receive(&mut connection, acks, deadline) {
            Ok(Some(acknowledged)) => {
                self.pool.give_back(connection);
                Ok(acknowledged)
            }
            Ok(None) => {
                drop(connection);
                Ok(Err(replica_acks::too_few(acks, 0)))
            }
            Err(broken) => {
                self.discard(connection);
                Err(self.server.no_reply(broken, not_after))
            }
        }
    }
}

/// What the reply to a detached operation means.
fn detached_reply(
    server: &Server,
    connection: &Weak<SharedConnection>,
    script: Option<&'static Script>,
    server_time: fn(&Value) -> Option<ServerTime>,
    sent_at: Instant,
    reply: Value,
) -> Result<Value, Failure> {
    match classify_reply(server.reply_context(), script, server_time, sent_at, reply) {
        ReplyAction::Return(value) => Ok(value),
        ReplyAction::SendBody | ReplyAction::Resend => Err(too_many_resends()),
        ReplyAction::Fail { code, message } => {
            let connection = connection.upgrade();
            // Without its connection, nothing is left that could be unusable.
            let generation = connection.as_ref().map_or(u64::MAX, |on| on.generation);
            let (failure, is_unusable) = server.refused(code, message, generation);
            if let Some(connection) = connection.filter(|_| is_unusable) {
                connection.retire();
            }
            Err(failure)
        }
    }
}

/// Sends an operation behind `ASKING`, with which a node accepts it for a slot that is migrating to
/// it.
fn call_asking(
    connection: &mut Connection,
    packed: &[u8],
    deadline: &mut Deadline,
) -> Result<Value, Broken> {
    let asking = connection.call(&behind_asking(packed), deadline)?;
    deadline.refresh();
    let reply = connection.receive(deadline).map_err(Broken::Unanswered)?;
    // If `ASKING` is refused, the node redirects the operation. The first refusal tells why.
    Ok(match (asking, reply) {
        (asking @ Value::Refusal { .. }, Value::Refusal { .. }) => asking,
        (_, reply) => reply,
    })
}

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
    use std::sync::mpsc::channel;

    use hashed_wheel::{Clock, SystemClock};
    use wheellock_fixture::wait_until;

    use super::*;
    use crate::model::name::LockName;
    use crate::ops::{Number, Untyped};
    use crate::store::listener::NoListener;
    use crate::store::redis::address::url::Peer;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_close_reads_what_is_there_and_waits_no_longer_than_a_moment() {
        let server = wheellock_fixture::Server::start();
        let (host, port) = (server.address().ip().to_string(), server.address().port());
        for hangs in [false, true] {
            let peer = Peer::Tcp(Address { host: host.clone(), port });
            let (endpoint, access) = (MasterEndpoint::Fixed(peer), Access::default());
            let listener = Weak::<NoListener>::new();
            let node = Node::single(endpoint, access, TIMEOUT, 8, listener).unwrap();
            node.connect(TIMEOUT).unwrap();
            if hangs {
                server.pause();
            }
            let (tell, told) = channel();
            let on_reply = Box::new(move |reply: Result<Value, Failure>| {
                tell.send(reply.is_ok()).unwrap();
            });
            let number = Number(LockName::parse("a").unwrap());
            let (number, mut deadline) = (Untyped(&number), Deadline::after(TIMEOUT));
            let generation = CallGeneration(0);
            let sent = node.send_detached(&number, |_| None, &mut deadline, generation, on_reply);
            assert!(matches!(sent, Ok(SentDetached::Unread)), "{sent:?}");
            if !hangs {
                wait_until("it is answered", TIMEOUT, || server.command_calls("getrange") > 0);
            }
            let begun = SystemClock.now();
            node.close();
            let took = SystemClock.now() - begun;
            assert_eq!(told.try_recv(), Ok(!hangs));
            assert!(took < TIMEOUT / 2, "{took:?}");
            server.resume();
        }
    }
}
