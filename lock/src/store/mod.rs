//! Where operations run: on a server, on the nodes of a cluster, or in memory.

pub(crate) mod connections;
pub(crate) mod failure;
pub(crate) mod faults;
pub(crate) mod listener;
pub(crate) mod memory;
pub(crate) mod pipeline;
pub(crate) mod redis;
pub(crate) mod retry;
pub(crate) mod server_id;
pub(crate) mod shutdown;
pub(crate) mod store;
pub(crate) mod unread;

pub(crate) use crate::store::failure::Failure;
pub use crate::store::faults::{Fault, Faults};
pub(crate) use crate::store::listener::Listener;
pub use crate::store::memory::Memory;
pub(crate) use crate::store::pipeline::{PipelineRequest, PipelineSource};
pub(crate) use crate::store::redis::address::url::{Access, Location};
pub(crate) use crate::store::redis::node::info::Info;
pub(crate) use crate::store::server_id::{HashSlot, ServerId};
pub(crate) use crate::store::store::Store;
pub(crate) use crate::store::unread::{ReleaseReply, SentUnread, UnreadReleases};
