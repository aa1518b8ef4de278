//! A lock on several independent servers, held while granted by a majority of the servers.
//!
//! `acquire` asks all servers at the same time. Each server has separate threads, so an
//! unresponsive server delays no other server.

pub(crate) mod acquire;
pub(crate) mod answers;
pub(crate) mod attempt;
pub(crate) mod guard;
pub(crate) mod lane;
pub(crate) mod lock;
pub(crate) mod quorum;
pub(crate) mod requests;
pub(crate) mod servers;
