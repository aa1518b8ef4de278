//! One run of a job: what its closure may ask, and what became of it.

use std::fmt;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::lock::guard::LockGuard;

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
pub struct JobRun<'a> {
    guard: LockGuard,
    slot: &'a str,
    attempt: u32,
    token: u64,
}

impl<'a> JobRun<'a> {
    pub(crate) fn new(guard: LockGuard, slot: &'a str, attempt: u32, token: u64) -> Self {
        Self { guard, slot, attempt, token }
    }

    pub(crate) fn into_guard(self) -> LockGuard {
        self.guard
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> &str {
        self.slot
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
}

impl fmt::Debug for JobRun<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JobRun")
            .field("slot", &self.slot)
            .field("attempt", &self.attempt)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
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
