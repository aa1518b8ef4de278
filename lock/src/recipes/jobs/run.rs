//! A run of a job: the methods for the closure, and the outcomes.

use std::borrow::Cow;
use std::fmt;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::locks::guard::{AnyThread, FromRawGuard as _, LockGuard, ThisThread};
use crate::model::lease::Lease;
use crate::ops::{FinishRun, JobKeys};
use crate::recipes::jobs::job::lost;

/// A run of a slot of a job, which holds the lock of the slot.
///
/// Passed to the closure of [`Job::run_once`](crate::Job::run_once), or returned by
/// [`Job::begin`](crate::Job::begin) in [`RunStart::Begun`]. The client renews the lock until the
/// closure returns, or until [`finish`](Self::finish) or the drop of the run.
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
/// A run from [`Job::begin`](crate::Job::begin) may be sent to another thread. Dropping such a run
/// without [`finish`](Self::finish) releases the lock. The attempt counts, and the run is listed as
/// [died](crate::RunState::Died).
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
    /// Returns the slot, as given to the call that began the run.
    #[must_use]
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// Returns the number of this attempt at the slot, counted from 1 over all processes.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the fencing token of the run, which is larger than the tokens of all earlier runs of
    /// this job, of any slot.
    ///
    /// Give the token to the resource. A resource that remembers the largest token, and refuses
    /// requests with a smaller token, is safe from a run that has lost the lock.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the guard of the slot's lock.
    ///
    /// The guard has further methods, such as [`remaining`](LockGuard::remaining), how long the
    /// lock is held for certain, and [`revocation`](LockGuard::revocation), a channel for requests
    /// to release the lock.
    pub fn guard(&self) -> &LockGuard<T> {
        &self.guard
    }

    /// Returns whether the slot's lock is held for certain. Local: no round trip.
    ///
    /// After `false` the result stays `false`. In the child of a fork the result is `false`.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Returns an error unless the slot's lock is held for certain. Local: no round trip.
    ///
    /// Call this method before each step that must not happen twice.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - the lock is no longer held, with the reason. Permanent for this run.
    pub fn check(&self) -> Result<(), Error> {
        self.guard.check()
    }

    /// Returns a channel that receives a single message if the slot's lock is lost: the reason.
    ///
    /// The channel closes without a message when the run ends with the lock held. Clones of the
    /// receiver share the message.
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
    /// Records the end of the run with `exit_code`, and releases the lock of the slot.
    ///
    /// The exit code zero means that the slot has run. Any other exit code means that this attempt
    /// has failed, and the slot may run again while attempts are left. `Ok` means that the server
    /// has recorded the end. Takes two round trips.
    ///
    /// # Errors
    ///
    /// The lock is released in any case. After an error the end of the run is not recorded, so the
    /// run is listed as [died](crate::RunState::Died), and the slot may run again.
    ///
    /// * [`Error::Lost`] - the lock of the run was lost before, and another process may have begun
    ///   the slot again. Permanent.
    /// * [`Error::Unreachable`], [`Error::Refused`] - the server could not be reached for twice the
    ///   [command timeout](crate::ClientBuilder::command_timeout), or refused the record.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout. The
    ///   end may be recorded.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process: the run and the lock
    ///   are the parent's. Permanent.
    ///
    /// An error of the release is not returned, as the end is recorded: the client finishes the
    /// release in the background.
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

/// The result of [`Job::begin`](crate::Job::begin): the begun run, or why no run has begun.
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
    /// The run has begun, and its lock is held until the run is finished or dropped.
    Begun(JobRun<'a, T>),
    /// The slot had run before, with success.
    RanAlready,
    /// Another run had the slot's lock until the end of the wait: of another process, thread or
    /// client, or another run of this thread.
    RunningElsewhere,
    /// The slot was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded.
    AttemptsUsedUp,
}

/// The outcome of [`Job::run_once`](crate::Job::run_once) and
/// [`Job::run_once_with`](crate::Job::run_once_with): whether the closure ran, and the result.
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
    /// The closure returned this value, and the server has recorded that the slot has run: no
    /// process runs the slot again while the server [remembers](crate::Job::with_retention) the
    /// slot.
    Ran(T),
    /// The slot had run before, with success. The closure was not called.
    RanAlready,
    /// Another run had the slot's lock until the end of the wait, or, without a wait, at the time
    /// of the call: a run of another process, thread or client, or another run of this thread. The
    /// closure was not called.
    RunningElsewhere,
    /// The slot was tried as often as [allowed](crate::Job::with_max_attempts), and no attempt has
    /// succeeded: each attempt has failed, or its process has died. The closure was not called.
    AttemptsUsedUp,
    /// The closure returned this error. The attempt counts. Any process may run the slot again
    /// while attempts are left. If the server does not record the failure, the run is listed as
    /// [died](crate::RunState::Died).
    Failed(E),
    /// The closure returned this value, but the server did not record the run, so the slot may run
    /// again.
    #[non_exhaustive]
    Unrecorded {
        /// The value returned by the closure.
        value: T,
        /// Why the run is not recorded. After [`Error::Lost`] the lock of the run was lost before
        /// the record, and another process may have begun the slot again. After any other error the
        /// server could not be reached, refused the record or did not answer, or the client was
        /// shut down. After [`Error::OutcomeUnknown`] the run may be recorded.
        error: Error,
    },
}
