//! A run of a job: the methods for the closure, and the outcomes.

use std::borrow::Cow;
use std::fmt;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::locks::guard::{AnyThread, FromRawGuard as _, LockGuard, ThisThread};
use crate::model::lease::Lease;
use crate::ops::{FinishRun, JobKeys};
use crate::recipes::jobs::job::lost;

/// A run of a job's slot, for the [closure](crate::Job::run_once). The run holds the slot's lock,
/// which is renewed until the closure returns.
///
/// ```
/// use wheellock::{Client, Error, RunOutcome};
///
/// let job = Client::in_memory().job("report");
/// let outcome = job.run_once("2026-11-23", |run| {
///     for page in 0..3 {
///         run.check()?; // before each step that must not happen twice
///         println!("page {page} for {}, with the token {}", run.slot(), run.token());
///     }
///     Ok::<_, Error>(())
/// })?;
/// assert!(matches!(outcome, RunOutcome::Ran(())));
/// # Ok::<(), Error>(())
/// ```
///
/// A run from [`Job::begin`](crate::Job::begin) belongs to no thread, and is ended by
/// [`finish`](Self::finish). Dropping the run releases the lock; the attempt counts, and is listed
/// as [died](crate::RunState::Died).
#[must_use = "the run ends as soon as it is dropped"]
pub struct JobRun<'a, T = ThisThread> {
    pub(super) guard: LockGuard<T>,
    pub(super) slot: Cow<'a, str>,
    pub(super) attempt: u32,
    pub(super) token: u64,
    pub(super) keys: JobKeys,
    pub(super) retention: Lease,
}

impl<T> JobRun<'_, T> {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// The number of this attempt at the slot, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The fencing token: larger than the tokens of all earlier runs of this job, whatever the
    /// slot. If a resource refuses smaller tokens, a run with a lost lock cannot do harm before the
    /// loss is noticed.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The guard of the slot's lock: whether the lock [is held](LockGuard::is_held), for how long,
    /// and channels for a [loss](LockGuard::lost) and a [revocation
    /// request](LockGuard::revocation).
    pub fn guard(&self) -> &LockGuard<T> {
        &self.guard
    }

    /// Whether the slot's lock is held for certain. As
    /// [`LockGuard::is_held`](crate::LockGuard::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Returns an error unless the slot's lock is held for certain. As
    /// [`LockGuard::check`](crate::LockGuard::check).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - the lock is no longer held, with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// A channel for a single message if the slot's lock is lost. As
    /// [`LockGuard::lost`](crate::LockGuard::lost).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.guard.lost()
    }

    /// Records on the server that the slot has run if `is_done`, else that this attempt has failed.
    /// Returns the loss of the lock if the server does not record the run.
    pub(super) fn write_result(&self, is_done: bool, exit_code: Option<i32>) -> Result<(), Error> {
        let (raw, JobRun { keys, retention, .. }) = (self.guard.raw(), self);
        let (keys, owner) = (keys.clone(), raw.hold_owner().clone());
        let finish = FinishRun { keys, owner, retention: *retention, is_done, exit_code };
        let (core, _) = raw.parts();
        let is_recorded = core.running()?.ask(&finish, raw.lock_name())?;
        if is_recorded { Ok(()) } else { Err(lost(&self.guard)) }
    }
}

impl JobRun<'_, AnyThread> {
    /// Records the end of the run, and releases the lock of the slot. With an exit code of zero the
    /// slot has run. With any other code this attempt has failed, and the slot may be tried again
    /// while attempts are left.
    ///
    /// # Errors
    ///
    /// The run is not recorded, or perhaps not recorded, and the slot may run again:
    ///
    /// * [`Error::Lost`] - the lock of the run was lost before, and another process may have begun
    ///   the slot again. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - the server did
    ///   not record the run, or did not answer. After `OutcomeUnknown` the run may be recorded.
    ///
    /// An error of the release is not returned: the run is recorded.
    pub fn finish(self, exit_code: i32) -> Result<(), Error> {
        self.write_result(exit_code == 0, Some(exit_code))?;
        // An unacknowledged release is finished in the background.
        drop(self.guard.unlock());
        Ok(())
    }
}

impl<T> fmt::Debug for JobRun<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JobRun")
            .field("slot", &self.slot)
            .field("attempt", &self.attempt)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// The result of [`Job::begin`](crate::Job::begin).
///
/// ```
/// use wheellock::{Client, RunStart, Wait};
///
/// let job = Client::in_memory().job("backup");
/// let first = job.begin("2026-11-23", Wait::none())?;
/// assert!(matches!(first, RunStart::Begun(_)));
/// assert!(matches!(job.begin("2026-11-23", Wait::none())?, RunStart::RunningElsewhere));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a run that has begun ends as soon as it is dropped"]
pub enum RunStart<'a, T = AnyThread> {
    /// The run has begun here.
    Begun(JobRun<'a, T>),
    /// The slot had run before.
    RanAlready,
    /// The slot runs elsewhere, and did so until the end of the wait.
    RunningElsewhere,
    /// The slot was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded.
    AttemptsUsedUp,
}

/// The outcome of [`Job::run_once`](crate::Job::run_once).
///
/// ```
/// use wheellock::{Client, RunOutcome};
///
/// let job = Client::in_memory().job("report");
/// let outcome: RunOutcome<u32, String> = job.run_once("2026-11-23", |_| Ok(7))?;
/// match outcome {
///     RunOutcome::Ran(pages) => assert_eq!(pages, 7),
///     RunOutcome::RanAlready | RunOutcome::RunningElsewhere => println!("nothing to do"),
///     RunOutcome::Failed(reason) => eprintln!("it will be tried again: {reason}"),
///     RunOutcome::AttemptsUsedUp => eprintln!("it has failed too often"),
///     RunOutcome::Unrecorded { error, .. } => eprintln!("it may run again: {error}"),
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a run may have failed"]
pub enum RunOutcome<T, E> {
    /// The slot ran here and is recorded: nobody runs this slot again.
    Ran(T),
    /// The slot had run before. The closure was not called.
    RanAlready,
    /// The slot runs elsewhere, and did so until the end of the wait. The closure was not called.
    RunningElsewhere,
    /// The slot was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded: each has failed, or the process has died. The closure was not called.
    AttemptsUsedUp,
    /// The closure returned this error. The attempt counts. Any process may try again while
    /// attempts are left.
    Failed(E),
    /// The closure returned this value, but the server did not record the run, so the slot may run
    /// again.
    #[non_exhaustive]
    Unrecorded {
        /// The value returned by the closure.
        value: T,
        /// [`Error::Lost`]: the lock of the run was lost before, and another process may have
        /// begun the slot again. Any other error: the server did not record the run, or did not
        /// answer. After [`Error::OutcomeUnknown`] the run may be recorded.
        error: Error,
    },
}
