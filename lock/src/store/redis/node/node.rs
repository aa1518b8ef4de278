//! One server: takes an operation, sends it on a connection of the pool and reads its reply.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::model::settings::ReplicaAcks;
use crate::ops::Operation;
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::listener::Listener;
use crate::store::pipeline::PipelineSource;
use crate::store::redis::address::url::{Access, Address};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::failover_watcher::FailoverWatcher;
use crate::store::redis::node::info::{self, Info};
use crate::store::redis::node::pipeline::{Pipeline, Redirected};
use crate::store::redis::node::pool::{Pool, PooledConnection};
use crate::store::redis::node::replica_acks;
use crate::store::redis::node::request::{
    MAX_SENDS, ReplyAction, classify, pack, too_many_resends,
};
use crate::store::redis::node::server::Server;
use crate::store::redis::node::subscriber::{RedirectSink, Subscriber};
use crate::store::redis::resp::encode::Command;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::sentinel::master::MasterEndpoint;
use crate::store::shutdown::CallGeneration;

/// One server that executes operations: the only one, or a node of a cluster.
pub(crate) struct Node {
    server: Arc<Server>,
    pool: Pool,
    pipeline: Pipeline,
    subscriber: Subscriber,
    /// Its thread ends when the node is dropped.
    failover_watcher: Option<FailoverWatcher>,
}

impl Node {
    /// A node of a cluster, or a server without sentinels. Redirections of subscriptions are
    /// reported to `redirects`.
    pub(crate) fn new(
        server: Server,
        connections: usize,
        listener: Weak<dyn Listener>,
        redirects: Option<Weak<dyn RedirectSink>>,
    ) -> Self {
        let server = Arc::new(server);
        Self {
            // The pipeline and the subscriber have one connection each.
            pool: Pool::new(Arc::clone(&server), connections.saturating_sub(2).max(1)),
            pipeline: Pipeline::new(Arc::clone(&server)),
            subscriber: Subscriber::new(Arc::clone(&server), listener, redirects),
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
        let server = Server::new(endpoint, access, command_timeout, Channels::Everywhere);
        let mut node = Self::new(server, connections, listener, None);
        if node.server.master().is_some() {
            node.failover_watcher = Some(FailoverWatcher::start(&node.server)?);
        }
        Ok(node)
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    /// Connects, and keeps the connection for the first caller.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let connection =
            self.pool.take(&mut Deadline::after(timeout), CallGeneration::NEVER_ABORTED)?;
        self.pool.give_back(connection);
        Ok(())
    }

    /// `INFO`, if the server answers within `timeout`.
    pub(crate) fn info(&self, timeout: Duration) -> Option<Info> {
        let mut deadline = Deadline::after(timeout);
        let mut connection = self.pool.take(&mut deadline, CallGeneration::NEVER_ABORTED).ok()?;
        if let Ok(info) = info::query(&mut connection, &mut deadline) {
            self.server.learn_run_id(&info, connection.generation);
            self.pool.give_back(connection);
            return Some(info);
        }
        self.pool.discard(connection);
        None
    }

    /// `INFO` on the pipeline's connection, if that was made since the last call. And whether the
    /// server was restarted.
    pub(crate) fn info_of_new_server(&self, timeout: Duration) -> Option<(Info, bool)> {
        self.pipeline.info_of_new_server(timeout)
    }

    /// Connects the pipeline, if it has no connection or the server has closed it.
    pub(crate) fn ensure_connected(&self, timeout: Duration) -> Result<(), Failure> {
        self.pipeline.ensure_connected(timeout)
    }

    /// Ends a wait of the pipeline for a reply. The server is not a master any more.
    pub(crate) fn abort_pipeline(&self) {
        self.pipeline.abort();
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
        self.pool.close();
        self.subscriber.close();
        self.pipeline.close();
    }

    /// Waits until no caller uses a connection, for at most `longest`.
    pub(crate) fn wait_for_calls(&self, longest: Duration) {
        self.pool.wait_until_unused(longest);
    }

    /// The calls in progress fail at once. The pipeline and the subscriber go on.
    pub(crate) fn abort_calls(&self) {
        self.pool.abort_calls();
    }

    /// Sends the operations of `source` on one connection and hands it their replies; see
    /// [`Pipeline::run`].
    pub(crate) fn run_pipeline<S: PipelineSource>(
        &self,
        source: &mut S,
        redirected: Option<&mut Redirected<S>>,
    ) -> Result<(), Failure> {
        self.pipeline.run(source, redirected)
    }

    /// Executes one operation. With `asking`, another node has sent it here, because its slot is
    /// migrating to this one.
    pub(crate) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        deadline: &mut Deadline,
        call: CallGeneration,
        asking: bool,
    ) -> Result<Value, Failure> {
        let mut connection = self.pool.take(deadline, call)?;
        let acks = self.server.replica_acks().filter(|_| operation.may_grant());
        let mut send_body = false;
        for _ in 0..MAX_SENDS {
            // 1. Send the operation, and behind it the question for the replicas.
            let not_after = self.server.clock.at(deadline.instant());
            let sent_at = deadline.read_at();
            let mut packed = pack(operation, not_after, send_body, self.server.channels);
            if let Some(acks) = acks {
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
                    self.pool.discard(connection);
                    let broken = match broken {
                        // Perhaps only part of `WAIT` is missing, and the operation runs.
                        Broken::NotSent(error) if acks.is_some() => Broken::Unanswered(error),
                        broken => broken,
                    };
                    return Err(self.server.no_reply(broken, not_after));
                }
            };
            match classify(&self.server.clock, operation, sent_at, reply) {
                ReplyAction::Return(value) => {
                    let Some(acks) = acks else {
                        self.pool.give_back(connection);
                        return Ok(value);
                    };
                    let acknowledged = self.receive_acks(connection, acks, deadline, not_after)?;
                    // What was not granted needs no replica.
                    return if operation.grants(&value) {
                        acknowledged.map(|()| value)
                    } else {
                        Ok(value)
                    };
                }
                ReplyAction::Fail { code, message } => {
                    let (failure, is_unusable) =
                        self.server.refused(code, message, connection.generation);
                    if is_unusable {
                        self.pool.discard(connection);
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
                connection = self.pool.take(deadline, call)?;
            }
            deadline.refresh();
        }
        self.pool.give_back(connection);
        Err(too_many_resends())
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
                self.pool.discard(connection);
                Err(self.server.no_reply(broken, not_after))
            }
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
    let mut both = Command::of(&["ASKING"]);
    both.extend_from_slice(packed);
    let asking = connection.call(&both, deadline)?;
    deadline.refresh();
    let reply = connection.receive(deadline).map_err(Broken::Unanswered)?;
    // If `ASKING` is refused, the node redirects the operation. The first refusal tells why.
    Ok(match (asking, reply) {
        (asking @ Value::Refusal { .. }, Value::Refusal { .. }) => asking,
        (_, reply) => reply,
    })
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Node").field(&self.server).finish()
    }
}
