//! Shortest holds, jobs and elections.

use std::time::Duration;

use wheellock::{Error, Lock, RunOutcome};

use super::{Row, answered, release};
use crate::common::settle;
use crate::holding::RivalKind;
use crate::sends::Sends::{Command, Script};
use crate::stage::{Said, Stage};

const MIN_HOLDS: &str = "Shortest holds";
const JOBS: &str = "Jobs and leaders";

/// Longer than it takes to get to the release.
const MIN_HOLD: Duration = Duration::from_secs(3);

/// The slot of every job.
const SLOT: &str = "noon";

pub(super) const ROWS: &[Row] = &[
    Row::new((MIN_HOLDS, "lock", "LockGuard::unlock"), Script("keep"), release)
        .prepare(|stage| hold(stage, &stage.client.lock(&stage.name)))
        .rival(RivalKind::Lock),
    Row::new((MIN_HOLDS, "fair lock", "LockGuard::unlock"), Script("keep"), release)
        .prepare(|stage| hold(stage, &stage.client.fair_lock(&stage.name)))
        .rival(RivalKind::Lock),
    Row::new((MIN_HOLDS, "simple lock", "LockGuard::unlock"), Script("simple_keep"), release)
        .prepare(|stage| hold(stage, &stage.client.simple_lock(&stage.name)))
        .rival(RivalKind::SimpleLock),
    Row::new((MIN_HOLDS, "read", "LockGuard::unlock"), Script("read_keep"), release)
        .prepare(|stage| hold(stage, &stage.client.read_write_lock(&stage.name).read_lock()))
        .rival(RivalKind::WriteLock),
    Row::new((MIN_HOLDS, "write", "LockGuard::unlock"), Script("write_keep"), release)
        .prepare(|stage| hold(stage, &stage.client.read_write_lock(&stage.name).write_lock()))
        .rival(RivalKind::WriteLock),
    Row::new((JOBS, "has it run", "Job::run_once"), Command("HGET"), run)
        .prepare(|stage| run(stage).inspect(|_| settle(stage.client)))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "begin a run", "Job::run_once"), Script("run_begin"), run)
        .before(Script("acquire"))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "record a run", "Job::run_once"), Script("run_finish"), run)
        .before(Script("acquire"))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "who leads", "LeaderElection::leader"), Script("leader"), |stage| {
        stage.client.leader_election(&stage.name).leader().map(answered)
    })
    .prepare(|stage| stage.client.fenced_lock(&stage.name).lock().map(|guard| stage.keep(guard)))
    .rival(RivalKind::Lock)
    .lasting(|name| vec![format!("redisson_lock_token:{{{name}}}")]),
];

fn hold(stage: &Stage<'_>, lock: &Lock) -> Result<Said, Error> {
    lock.clone().with_min_hold(MIN_HOLD).lock().map(|guard| stage.keep(guard))
}

fn run(stage: &Stage<'_>) -> Result<Said, Error> {
    match stage.client.job(&stage.name).run_once(SLOT, |_| Ok::<_, Error>(()))? {
        RunOutcome::Ran(()) | RunOutcome::RanAlready => Ok(Said::Done),
        RunOutcome::RunningElsewhere | RunOutcome::AttemptsUsedUp => Ok(Said::Nothing),
        RunOutcome::Failed(error) | RunOutcome::Unrecorded { error, .. } => Err(error),
    }
}

fn record(name: &str) -> String {
    format!("wheellock_job_record:{{{name}}}:{SLOT}")
}

/// They have a time to live, of a week.
fn left_by_a_job(name: &str) -> Vec<String> {
    vec![record(name), format!("wheellock_job_token:{{{name}}}")]
}
