//! What became of a job's slot.

use crate::error::Error;

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
    Unrecorded {
        /// What the closure returned.
        value: T,
        /// [`Error::Lost`]: the lock of the run was lost before, and another process may have
        /// begun the slot anew. Another error: the server did not do it, or did not answer; then
        /// it may be recorded all the same.
        error: Error,
    },
}
