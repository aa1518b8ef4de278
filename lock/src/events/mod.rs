//! What a client reports to its user: lost and long holds, warnings, statistics.
//!
//! Callbacks are foreign code. They run on a thread of their own, with no lock of this crate held
//! (DESIGN: events, foreign code).

pub(crate) mod acquires;
pub(crate) mod callbacks;
pub(crate) mod dispatcher;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod tracing;
pub(crate) mod wakers;
