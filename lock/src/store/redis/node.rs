//! One server: an operation is packed, sent on a connection of the pool, and its reply read.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::address::{Access, Address};
use super::channels::Channels;
use super::command::Command;
use super::connection::{Broken, Connection, Limit};
use super::eviction;
use super::follower::Follower;
use super::pipeline::{Astray, Pipeline};
use super::pool::Pool;
use super::replicas;
use super::server::Server;
use super::subscription::{Elsewhere, Subscription};
use super::whereabouts::Whereabouts;
use super::wire::{ROUNDS, Verdict, is_a_replicas, is_unknown_to_it, judge, pack, unsettled};
use crate::config::ReplicaAcks;
use crate::error::Error;
use crate::op::Operation;
use crate::store::{Failure, Listener, Stream};
use crate::value::{ServerTime, Value};

/// One server that takes operations: alone, or as one of several.
pub(super) struct Node {
    server: Arc<Server>,
    pool: Pool,
    pipeline: Pipeline,
    subscription: Subscription,
    /// Ends with the node.
    _follower: Option<Follower>,
}

impl Node {
    /// A server that may move.
    pub(super) fn new(
        whereabouts: Whereabouts,
        access: Access,
        command_timeout: Duration,
        connections: usize,
        listener: Weak<dyn Listener>,
    ) -> Result<Self, Error> {
        let server = Server::new(whereabouts, access, command_timeout, Channels::Everywhere);
        let server = Arc::new(server);
        let follower = server.master().map(|_| Follower::start(&server)).transpose()?;
        Ok(Self::with(server, follower, connections, listener, None))
    }

    /// A server of a cluster. Who knows the others stands `elsewhere`.
    pub(super) fn of(
        server: Server,
        connections: usize,
        listener: Weak<dyn Listener>,
        elsewhere: Option<Weak<dyn Elsewhere>>,
    ) -> Self {
        Self::with(Arc::new(server), None, connections, listener, elsewhere)
    }

    fn with(
        server: Arc<Server>,
        follower: Option<Follower>,
        connections: usize,
        listener: Weak<dyn Listener>,
        elsewhere: Option<Weak<dyn Elsewhere>>,
    ) -> Self {
        Self {
            _follower: follower,
            pool: Pool::new(Arc::clone(&server), connections.saturating_sub(2).max(1)),
            pipeline: Pipeline::new(Arc::clone(&server)),
            subscription: Subscription::new(Arc::clone(&server), listener, elsewhere),
            server,
        }
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Makes a connection and keeps it for the first caller.
    pub(super) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let connection = self.pool.take(&mut Limit::after(timeout))?;
        self.pool.give_back(connection);
        Ok(())
    }

    /// The policy of a server that may evict locks. `None` if it never evicts or does not say, within `timeout`.
    pub(super) fn eviction(&self, timeout: Duration) -> Option<String> {
        let mut limit = Limit::after(timeout);
        let mut connection = self.pool.take(&mut limit).ok()?;
        if let Ok(policy) = eviction::ask(&mut connection, &mut limit) {
            self.pool.give_back(connection);
            return policy;
        }
        self.pool.discard(connection);
        None
    }

    /// The same for the renewals' connection, if that was made since it was asked last.
    pub(super) fn eviction_of_new_server(&self, timeout: Duration) -> Option<String> {
        self.pipeline.eviction_of_new_server(timeout)
    }

    /// Where it is, if it stays there.
    pub(super) fn address(&self) -> Option<&Address> {
        self.server.address()
    }

    pub(super) fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    pub(super) fn connections_made(&self) -> u64 {
        self.server.connections.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        if let Some(master) = self.server.master() {
            master.close();
        }
        self.pool.close();
        self.subscription.close();
        self.pipeline.close();
    }

    /// Sends what the stream gives, and hands it the answers, except to what belongs to another node and can be sent
    /// `astray`. A failure is that of the connection, of which the stream knows.
    pub(super) fn stream<S: Stream>(
        &self,
        stream: &mut S,
        astray: Option<&mut Astray<S>>,
    ) -> Result<(), Failure> {
        self.pipeline.run(stream, astray)
    }

    /// Sends an operation; with `asking`, one that another node has sent here, for a key that is on its way here.
    pub(super) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        limit: &mut Limit,
        asking: bool,
    ) -> Result<Value, Failure> {
        let mut connection = self.pool.take(limit)?;
        let acks = self.server.replica_acks().filter(|_| operation.may_grant());
        let mut whole = false;
        for _ in 0..ROUNDS {
            let not_after = self.server.clock.at(limit.deadline());
            let mut packed = pack(operation, not_after, whole, self.server.channels);
            if let Some(acks) = acks {
                packed.extend(replicas::pack(acks, *limit));
            }
            let called = if asking {
                ask(&mut connection, &packed, limit)
            } else {
                connection.call(&packed, limit)
            };
            let value = match called {
                Ok(value) => value,
                Err(broken) => {
                    self.pool.discard(connection);
                    let broken = match broken {
                        // What is missing may be of the question behind it.
                        Broken::NotSent(error) if acks.is_some() => Broken::Unanswered(error),
                        broken => broken,
                    };
                    return Err(self.server.failure(broken, not_after));
                }
            };
            match judge(&self.server.clock, value) {
                Verdict::Answer(value) => {
                    let Some(acks) = acks else {
                        self.pool.give_back(connection);
                        return Ok(value);
                    };
                    let enough = self.hear(connection, acks, limit, not_after)?;
                    // What was refused, no replica has to know.
                    return if operation.grants(&value) {
                        enough.map(|()| value)
                    } else {
                        Ok(value)
                    };
                }
                Verdict::SendWhole => whole = true,
                Verdict::SendAgain => {}
                Verdict::Refused { code, message } => {
                    if is_a_replicas(&code) {
                        self.server.is_no_master(connection.era);
                        self.pool.discard(connection);
                    } else if is_unknown_to_it(&code) {
                        self.pool.discard(connection);
                        return Err(self.server.unauthenticated(format!("{code} {message}")));
                    } else if acks.is_some() {
                        self.pool.retire(connection);
                    } else {
                        self.pool.give_back(connection);
                    }
                    return Err(Failure::Refused { code, message });
                }
            }
            if acks.is_some() {
                // Nothing ran, and the server may wait for replicas all the same.
                self.pool.retire(connection);
                connection = self.pool.take(limit)?;
            }
            limit.refresh();
        }
        self.pool.give_back(connection);
        Err(unsettled())
    }

    /// Waits for what is said of the replicas, after which the connection is free: a failure, if what was granted must
    /// not be kept.
    fn hear(
        &self,
        mut connection: Connection,
        acks: ReplicaAcks,
        limit: &mut Limit,
        not_after: ServerTime,
    ) -> Result<Result<(), Failure>, Failure> {
        match replicas::listen(&mut connection, acks, limit) {
            Ok(Some(enough)) => {
                self.pool.give_back(connection);
                Ok(enough)
            }
            Ok(None) => {
                self.pool.retire(connection);
                Ok(Err(replicas::too_few(acks, 0)))
            }
            Err(broken) => {
                self.pool.discard(connection);
                Err(self.server.failure(broken, not_after))
            }
        }
    }
}

/// Sends an operation with the word that makes a node take one for a slot that it does not serve yet.
fn ask(connection: &mut Connection, packed: &[u8], limit: &mut Limit) -> Result<Value, Broken> {
    let mut both = Command::of(&["ASKING"]);
    both.extend_from_slice(packed);
    let word = connection.call(&both, limit)?;
    limit.refresh();
    let answer = connection.receive(limit).map_err(Broken::Unanswered)?;
    // Without the word, it sends the operation away. Why it did not take the word says more.
    Ok(match (word, answer) {
        (word @ Value::Refusal { .. }, Value::Refusal { .. }) => word,
        (_, answer) => answer,
    })
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Node")
            .field("server", &self.server)
            .field("pool", &self.pool)
            .field("subscription", &self.subscription)
            .finish_non_exhaustive()
    }
}
