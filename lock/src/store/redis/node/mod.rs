//! A server's connections: for calls, for the pipeline, and for the subscription.

pub(crate) mod call_connection;
pub(crate) mod call_pool;
pub(crate) mod failover_watcher;
pub(crate) mod info;
pub(crate) mod node;
pub(crate) mod nonblocking_writer;
pub(crate) mod outbox;
pub(crate) mod pipeline;
pub(crate) mod pool;
pub(crate) mod replica_acks;
pub(crate) mod request;
pub(crate) mod server;
pub(crate) mod server_clock;
pub(crate) mod subscriber;
pub(crate) mod waiting_call;
