//! Jobs: a closure runs once for each slot, on a single process.

pub(crate) mod job;
pub(crate) mod run;
pub(crate) mod run_record;

pub use self::job::Job;
pub use self::run::{JobRun, RunOutcome, RunStart};
pub use self::run_record::{RunRecord, RunState};
