//! Shortest holds, jobs and elections.

use std::time::Duration;

use wheellock::{Error, Lock, RunOutcome};

use super::numbers::{hear_nothing, undo};
use super::{Row, answered, release};
use crate::cell_run::{CellRun, Returned};
use crate::common::settle;
use crate::holding::RivalKind;
use crate::sends::Sends::{Command, Script};

const MIN_HOLDS: &str = "Shortest holds";
const JOBS: &str = "Jobs and leaders";

/// Longer than it takes to get to the release.
const MIN_HOLD: Duration = Duration::from_secs(3);

/// The slot of every job.
const SLOT: &str = "noon";

pub(super) const ROWS: &[Row] = &[
    Row::new((MIN_HOLDS, "lock", "LockGuard::unlock"), Script("keep"), release)
        .prepare(|run| hold(run, &run.client.lock(&run.name)))
        .rival(RivalKind::Lock),
    Row::new((MIN_HOLDS, "fair lock", "LockGuard::unlock"), Script("keep"), release)
        .prepare(|run| hold(run, &run.client.fair_lock(&run.name)))
        .rival(RivalKind::Lock),
    Row::new((MIN_HOLDS, "simple lock", "LockGuard::unlock"), Script("simple_keep"), release)
        .prepare(|run| hold(run, &run.client.simple_lock(&run.name)))
        .rival(RivalKind::SimpleLock),
    Row::new((MIN_HOLDS, "read", "LockGuard::unlock"), Script("read_keep"), release)
        .prepare(|run| hold(run, &run.client.read_write_lock(&run.name).read_lock()))
        .rival(RivalKind::WriteLock),
    Row::new((MIN_HOLDS, "write", "LockGuard::unlock"), Script("write_keep"), release)
        .prepare(|run| hold(run, &run.client.read_write_lock(&run.name).write_lock()))
        .rival(RivalKind::WriteLock),
    Row::new((JOBS, "has it run", "Job::run_once"), Command("HGET"), run_job)
        .prepare(|run| run_job(run).inspect(|_| settle(run.client)))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "begin a run", "Job::run_once"), Script("run_begin"), run_job)
        .before(Script("acquire"))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "give an attempt back", "in the background"), Script("run_give_back"), undo)
        .prepare(begin_and_hear_nothing)
        .foreign(record)
        .lasting(left_by_a_job)
        .in_the_background(),
    Row::new((JOBS, "record a run", "Job::run_once"), Script("run_finish"), run_job)
        .before(Script("acquire"))
        .foreign(record)
        .lasting(left_by_a_job),
    Row::new((JOBS, "list the runs", "Job::runs"), Command("ZRANGE"), runs)
        .prepare(|run| run_job(run).inspect(|_| settle(run.client)))
        .foreign(|name| format!("wheellock_job_runs:{{{name}}}"))
        .lasting(left_by_a_job),
    Row::new((JOBS, "read the runs", "Job::runs"), Script("run_read"), runs)
        .prepare(|run| run_job(run).inspect(|_| settle(run.client)))
        .lasting(left_by_a_job),
    Row::new((JOBS, "who leads", "LeaderElection::leader"), Script("leader"), |run| {
        run.client.leader_election(&run.name).leader().map(answered)
    })
    .prepare(|run| run.client.fenced_lock(&run.name).lock().map(|guard| run.retain(guard)))
    .rival(RivalKind::Lock)
    .lasting(|name| vec![format!("redisson_lock_token:{{{name}}}")]),
];

fn hold(run: &CellRun<'_>, lock: &Lock) -> Result<Returned, Error> {
    lock.clone().with_min_hold(MIN_HOLD).lock().map(|guard| run.retain(guard))
}

fn run_job(run: &CellRun<'_>) -> Result<Returned, Error> {
    match run.client.job(&run.name).run_once(SLOT, |_| Ok::<_, Error>(()))? {
        RunOutcome::Ran(()) | RunOutcome::RanAlready => Ok(Returned::Done),
        RunOutcome::RunningElsewhere | RunOutcome::AttemptsUsedUp => Ok(Returned::Nothing),
        RunOutcome::Failed(error) | RunOutcome::Unrecorded { error, .. } => Err(error),
    }
}

fn runs(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.client.job(&run.name).runs().map(answered)
}

fn begin_and_hear_nothing(run: &CellRun<'_>) -> Result<Returned, Error> {
    hear_nothing(run, "run_begin", || run_job(run).unwrap_err(), "run_give_back")
}

fn record(name: &str) -> String {
    format!("wheellock_job_record:{{{name}}}:{SLOT}")
}

/// They have a time to live, of a week.
fn left_by_a_job(name: &str) -> Vec<String> {
    let of_job = |key: &str| format!("wheellock_job_{key}:{{{name}}}");
    vec![record(name), of_job("token"), of_job("runs")]
}
