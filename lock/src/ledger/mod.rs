//! The releases of a client, from start until settled. Pure: time and topology are arguments.

pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod release;
