//! The recorded runs of a job.

use std::time::{Duration, SystemTime};

use crate::ops::RunFields;

#[cfg(feature = "serde")]
use crate::model::serialize::known_unix_millis;

/// The record of the latest run of a slot of a job.
///
/// Returned by [`Job::runs`](crate::Job::runs). Times are by the server's clock. A field is `None`
/// if the value is unknown, because an older version of this crate did not record the value.
///
/// ```
/// use wheellock::{Client, RunState};
///
/// let job = Client::in_memory().job("report");
/// let _outcome = job.run_once("2026-11-23", |_run| Ok::<_, wheellock::Error>(()))?;
/// for run in job.runs()? {
///     println!("{}: {} on {}", run.slot, run.state, run.host.as_deref().unwrap_or("?"));
///     assert_eq!(run.state, RunState::Succeeded);
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunRecord {
    /// The slot.
    pub slot: String,
    /// The state of the run.
    pub state: RunState,
    /// The number of attempts at the slot, by all processes, this run included.
    pub attempts: u32,
    /// The fencing token of the run, as from [`JobRun::token`](crate::JobRun::token).
    pub token: u64,
    /// The owner of the run, as from [`LockGuard::owner`](crate::LockGuard::owner).
    pub owner: String,
    /// The host name of the machine of the run, truncated to 64 characters.
    pub host: Option<String>,
    /// When the run began.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "started_unix_ms", serialize_with = "known_unix_millis")
    )]
    pub started: Option<SystemTime>,
    /// When the end of the run was recorded. `None` also if the run has not ended, or if no end was
    /// recorded.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ended_unix_ms", serialize_with = "known_unix_millis")
    )]
    pub ended: Option<SystemTime>,
    /// The exit code of a run ended by [`JobRun::finish`](crate::JobRun::finish). `None` for any
    /// other run.
    pub exit_code: Option<i32>,
}

impl RunRecord {
    /// Converts the recorded `fields` of the latest run of `slot`. Returns `None` if no attempt
    /// counts, because the attempt was given back.
    pub(crate) fn of(slot: String, fields: RunFields) -> Option<Self> {
        let time = |millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        let state = match fields.success {
            Some(true) => RunState::Succeeded,
            Some(false) => RunState::Failed,
            None if fields.is_held => RunState::Running,
            None => RunState::Died,
        };
        (fields.attempts > 0).then(|| Self {
            slot,
            state,
            attempts: fields.attempts,
            token: fields.token,
            owner: fields.owner,
            host: fields.host,
            started: fields.started.and_then(time),
            ended: fields.ended.and_then(time),
            exit_code: fields.exit_code,
        })
    }
}

/// The state of a run: running, or how the run ended.
///
/// In [`RunRecord::state`]. The text of a state is one word, such as `succeeded`.
///
/// ```
/// assert_eq!(wheellock::RunState::Succeeded.to_string(), "succeeded");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RunState {
    /// The run has begun, no end was recorded, and the owner has the lock of the slot. The run of a
    /// dead process is in this state until the lease of the lock ends.
    Running,
    /// The run has succeeded: the slot does not run again while the server
    /// [remembers](crate::Job::with_retention) the slot.
    Succeeded,
    /// The closure returned an error, or the exit code was not zero. The slot may run again while
    /// attempts are left.
    Failed,
    /// The owner does not have the lock of the slot, and no end was recorded. The process has died,
    /// or was stopped or cut off from the server for longer than the lease; or the closure has
    /// panicked; or the run was dropped; or the record of the end did not reach the server. The
    /// slot may run again while attempts are left.
    Died,
}

impl std::fmt::Display for RunState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Died => "died",
        })
    }
}
