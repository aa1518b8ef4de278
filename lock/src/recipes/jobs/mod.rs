//! Jobs: a closure runs once for each slot, on a single process.

pub(crate) mod job;
pub(crate) mod record;
pub(crate) mod run;

pub use self::job::Job;
pub use self::record::{RunRecord, RunState};
pub use self::run::{JobRun, RunOutcome, RunStart};
