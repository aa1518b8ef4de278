//! Jobs that run once for each slot, on one process of all.

pub(crate) mod job;
pub(crate) mod outcome;
pub(crate) mod run;

pub use self::job::Job;
pub use self::outcome::RunOutcome;
pub use self::run::JobRun;
