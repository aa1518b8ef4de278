//! Jobs that run once for each slot, on one process of all.

pub(crate) mod job;
pub(crate) mod run;

pub use self::job::Job;
pub use self::run::{JobRun, RunOutcome};
