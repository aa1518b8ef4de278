//! One server: the connection of its calls, its pool, its pipeline and its subscription.

pub(crate) mod call_queue;
pub(crate) mod caller_connections;
pub(crate) mod failover_watcher;
pub(crate) mod info;
pub(crate) mod mailbox;
pub(crate) mod node;
pub(crate) mod nonblocking_writer;
pub(crate) mod outbox;
pub(crate) mod participant;
pub(crate) mod pipeline;
pub(crate) mod pool;
pub(crate) mod replica_acks;
pub(crate) mod request;
pub(crate) mod round_trip;
pub(crate) mod server;
pub(crate) mod server_clock;
pub(crate) mod shared_calls;
pub(crate) mod shared_connection;
pub(crate) mod stream_halves;
pub(crate) mod subscriber;
