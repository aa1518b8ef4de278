//! One run of a job: what its closure may ask.

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
