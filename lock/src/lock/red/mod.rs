//! A lock on several independent servers, held while a majority of them has granted it.
//!
//! `acquire` asks all servers at the same time. Each server has worker threads of its own, so one
//! that does not answer delays no other (DESIGN: red lock).

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod pending;
pub(crate) mod queue;
pub(crate) mod quorum;
pub(crate) mod release;
pub(crate) mod tasks;
pub(crate) mod workers;
