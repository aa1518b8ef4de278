//! The releases of a client, from the moment each begins until it is settled (DESIGN: release
//! queue, unread releases). Pure: time and topology are arguments.

pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod release;
