//! Jobs that run once for each slot, on one process of all.

pub(crate) mod job;
pub(crate) mod record;
pub(crate) mod run;

pub use self::job::Job;
pub use self::record::{RunRecord, RunState};
pub use self::run::{JobRun, RunOutcome, RunStart};
