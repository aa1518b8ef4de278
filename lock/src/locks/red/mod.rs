//! A lock on several independent servers, held while a majority of them has granted it.
//!
//! `acquire` asks all servers at the same time. Each server has threads of its own, so a server that
//! does not answer delays no other (DESIGN: red lock).

pub(crate) mod acquire;
pub(crate) mod answers;
pub(crate) mod attempt;
pub(crate) mod guard;
pub(crate) mod lane;
pub(crate) mod lock;
pub(crate) mod quorum;
pub(crate) mod requests;
pub(crate) mod servers;
