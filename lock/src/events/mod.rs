//! Reports of a client to its user: lost and long holds, warnings, statistics.
//!
//! Callbacks are foreign code: they run on a separate thread, with no lock of this crate held.

pub(crate) mod acquires;
pub(crate) mod callbacks;
pub(crate) mod dispatcher;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod tracing;
pub(crate) mod wakers;
