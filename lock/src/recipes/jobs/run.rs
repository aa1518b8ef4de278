//! One run of a job: what its closure may ask, and what became of it.

use std::borrow::Cow;
use std::fmt;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::locks::guard::{AnyThread, FromRawGuard as _, LockGuard, ThisThread};
use crate::model::lease::Lease;
use crate::ops::{FinishRun, JobKeys};
use crate::recipes::jobs::job::lost;

/// A run of a job's slot, for the closure that [runs](crate::Job::run_once) it. It holds the
/// slot's lock, which is renewed until the closure returns.
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
/// A run that [`Job::begin`](crate::Job::begin) began belongs to no thread, and
/// [`finish`](Self::finish) ends it. Dropping the run releases the lock; the attempt counts as one
/// whose process died.
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

    /// Which attempt at the slot it is, counted from one.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The fencing token: larger than that of every earlier run of this job, whatever its slot. A
    /// resource that refuses smaller tokens is safe from a run that has lost its lock and does not
    /// know it yet.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The guard of the slot's lock: whether it [is held](LockGuard::is_held), for how long, a
    /// channel that tells of a [loss](LockGuard::lost) or of a [revocation
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

    /// An error unless the slot's lock is held for certain. As
    /// [`LockGuard::check`](crate::LockGuard::check).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is no longer held, with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// A channel that gets one message if the slot's lock is lost. As
    /// [`LockGuard::lost`](crate::LockGuard::lost).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.guard.lost()
    }

    /// Records that the slot has run, or that this attempt has failed.
    pub(super) fn record(&self, is_done: bool, exit_code: Option<i32>) -> Result<(), Error> {
        let (raw, JobRun { keys, retention, .. }) = (self.guard.raw(), self);
        let (keys, owner) = (keys.clone(), raw.hold_owner().clone());
        let finish = FinishRun { keys, owner, retention: *retention, is_done, exit_code };
        let (core, _) = raw.parts();
        let is_recorded = core.running()?.ask(&finish, raw.lock_name())?;
        if is_recorded { Ok(()) } else { Err(lost(&self.guard)) }
    }
}

impl JobRun<'_, AnyThread> {
    /// Records how the run has ended, and releases the lock of the slot. With an exit code of zero
    /// the slot has run. With another one this attempt has failed, and the slot may be tried again
    /// while attempts are left.
    ///
    /// # Errors
    ///
    /// The run is not recorded, or perhaps not, and the slot may run again:
    ///
    /// * [`Error::Lost`] - the lock of the run was lost before, and another process may have begun
    ///   the slot anew. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - the server did
    ///   not do it, or did not answer. After `OutcomeUnknown` it may be recorded all the same.
    ///
    /// An error of the release is none of this call: the run is recorded.
    pub fn finish(self, exit_code: i32) -> Result<(), Error> {
        self.record(exit_code == 0, Some(exit_code))?;
        // What the server has not acknowledged is finished in the background.
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

/// What [`Job::begin`](crate::Job::begin) found or did.
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
    /// It has begun here.
    Begun(JobRun<'a, T>),
    /// It had run before.
    RanAlready,
    /// It runs elsewhere, and did so until the end of the wait.
    RunningElsewhere,
    /// It was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded.
    AttemptsUsedUp,
}

/// What [`Job::run_once`](crate::Job::run_once) found or did.
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
    /// It ran here, and is recorded: nobody runs this slot again.
    Ran(T),
    /// It had run before. The closure was not called.
    RanAlready,
    /// It runs elsewhere, and did so until the end of the wait. The closure was not called.
    RunningElsewhere,
    /// It was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded: each has failed, or its process has died. The closure was not called.
    AttemptsUsedUp,
    /// The closure returned this error. The attempt counts; another process, or this one, may try
    /// again if attempts are left.
    Failed(E),
    /// The closure returned this value, but the server did not record it, so the slot may run
    /// again.
    #[non_exhaustive]
    Unrecorded {
        /// What the closure returned.
        value: T,
        /// [`Error::Lost`]: the lock of the run was lost before, and another process may have
        /// begun the slot anew. Another error: the server did not do it, or did not answer; then
        /// it may be recorded all the same.
        error: Error,
    },
}
