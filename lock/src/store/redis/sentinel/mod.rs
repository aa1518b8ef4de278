//! Redis Sentinel: finds the current master.
//!
//! This resolver is our own: the redis crate's client waits for a hanging sentinel without a limit,
//! and reports no failover.

pub(crate) mod master;
pub(crate) mod query;
pub(crate) mod report;
