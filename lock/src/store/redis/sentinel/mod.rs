//! Redis Sentinel: which server is the master.

pub(crate) mod master;
pub(crate) mod query;
pub(crate) mod report;
