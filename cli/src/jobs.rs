//! `wheellock jobs`: the last runs of a job.

use std::error::Error;
use std::time::SystemTime;

use jiff::{Timestamp, TimestampRound, Unit};
use wheellock::RunRecord;

use crate::arguments::Jobs;
use crate::exit;
use crate::output::{complain, printable, say, shown};
use crate::server;

/// Prints the last runs, and returns the exit code.
pub(crate) fn jobs(jobs: &Jobs) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&jobs.server, None)?;
    let runs = client.job(&jobs.name).runs()?;
    if runs.is_empty() {
        complain(&format!("{}: no run is remembered", shown(&jobs.name)));
        return Ok(exit::NOT_ACQUIRED);
    }
    for run in runs.iter().take(jobs.limit.into()) {
        say(&if jobs.json { serde_json::to_string(run)? } else { line(run) })?;
    }
    Ok(exit::SUCCESS)
}

/// Formats a run, such as `2026-11-28 02: succeeded on db3, attempt 1, 2026-11-28T02:00:01Z, 12.3
/// s, exit code 0`.
fn line(run: &RunRecord) -> String {
    let host = run.host.as_ref().map(|host| format!(" on {}", printable(host)));
    let mut parts = vec![
        format!("{}: {}{}", printable(&run.slot), run.state, host.unwrap_or_default()),
        format!("attempt {}", run.attempts),
    ];
    parts.extend(run.started.and_then(second).map(|started| started.to_string()));
    let took = run.started.zip(run.ended).and_then(|(from, to)| to.duration_since(from).ok());
    parts.extend(took.map(|took| format!("{:.1} s", took.as_secs_f64())));
    parts.extend(run.exit_code.map(|code| format!("exit code {code}")));
    parts.join(", ")
}

/// Rounds `time` down to the second. `None` if no calendar has the time.
fn second(time: SystemTime) -> Option<Timestamp> {
    let round = TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Trunc);
    Timestamp::try_from(time).and_then(|time| time.round(round)).ok()
}
