//! A job: runs a closure once for each slot, on a single process.
//!
//! The record of a slot is read before the lock is acquired. So a slot already run costs one round
//! trip, and a process that only asks does not hold the lock, which would look like a run. If the
//! reply to the begin is lost, the closure is not called: the client queues a request to give the
//! attempt back, and behind this request the release of the lock.
//!
//! All keys have the job's name in braces, and so are in a single slot of a cluster. A name with
//! braces has the name's length in front, so no two jobs or slots share a key.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::acquire::acquire;
use crate::core::client_core::ClientCore;
use crate::core::spec::{LockSpec, Nesting};
use crate::error::{Error, LostReason};
use crate::ledger::release::Release;
use crate::locks::guard::{FromRawGuard, LockGuard, ThisThread};
use crate::model::kind::Kind;
use crate::model::label::host;
use crate::model::lease::Lease;
use crate::model::name::{LockName, Prefix};
use crate::model::owner::LocalHolder;
use crate::model::wait::Wait;
use crate::ops::value::ServerTime;
use crate::ops::{BeginRun, GiveBackAttempt, HasRun, JobKeys, ListRuns, ReadRuns, RunBegun};
use crate::recipes::jobs::run::{JobRun, RunOutcome, RunStart};
use crate::recipes::jobs::run_record::RunRecord;

/// Work that is to run once for each slot, on one of several processes.
///
/// Created by [`Client::job`](crate::Client::job). A job is cheap to create, to clone and to share,
/// and holds no lock.
///
/// A slot is a text which names a run, mostly by a time: `2026-11-23` for a nightly job,
/// `2026-11-23T14:05Z` for a job every five minutes. Use UTC or an offset: a local time occurs
/// twice in the night in which clocks are set back. Every process computes the slot and calls
/// [`run_once`](Self::run_once); a single process runs the closure. The server remembers a slot
/// that has run for the [retention](Self::with_retention). If a run fails or panics, or if its
/// process dies, another call may run the slot again, up to a [number of
/// attempts](Self::with_max_attempts). Two slots of a job may run at the same time.
///
/// **Guarantees.** Without faults the closure runs once for each slot. If a process is stopped or
/// cut off from the server for longer than the client's
/// [lease](crate::ClientBuilder::watchdog_lease), another process may run the slot again, while the
/// first process is still at work: give the [token](JobRun::token) to the resource, and
/// [check](JobRun::check) before each step that must not happen twice. If a process dies between
/// the work and the record of the work, the slot runs again. See [the guide](crate::guide::jobs).
///
/// ```
/// use wheellock::{Client, RunOutcome};
///
/// let job = Client::in_memory().job("report");
/// let mut runs = 0;
/// for _ in 0..3 {
///     let _outcome = job.run_once("2026-11-23", |_run| {
///         runs += 1;
///         Ok::<_, std::io::Error>(())
///     })?;
/// }
/// assert_eq!(runs, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone)]
pub struct Job {
    core: Arc<ClientCore>,
    name: Result<LockName, Error>,
    retention: Result<Lease, Error>,
    max_attempts: u32,
}

/// The default retention: a week, longer than any late process asks for a missed slot.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// The default of the most attempts at a slot.
const MAX_ATTEMPTS: u32 = 3;

impl Job {
    /// Returns the job `name` of the client `core`, with default settings.
    pub(crate) fn new(core: Arc<ClientCore>, prefix: &Prefix, name: &str) -> Self {
        let (name, retention) = (prefix.name(name), Lease::new(RETENTION));
        Self { core, name, retention, max_attempts: MAX_ATTEMPTS }
    }

    /// Sets how long the server remembers a slot. The default is a week.
    ///
    /// The time counts from the begin of the latest attempt, and anew from the end of the run. A
    /// forgotten slot runs again, with all attempts. So the retention must be longer than each run,
    /// and longer than the time in which any process may ask for a slot.
    ///
    /// The retention is between 10 ms and a hundred years; a fraction of a millisecond is ignored.
    /// With any other retention, [`run_once`](Self::run_once),
    /// [`run_once_with`](Self::run_once_with) and [`begin`](Self::begin) return
    /// [`Error::InvalidLease`].
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = Lease::named("retention", retention);
        self
    }

    /// Sets the maximum number of attempts at a slot, by all processes together. The default is
    /// three; zero counts as one.
    ///
    /// After the last attempt has failed, a call does not run the slot any more, and reports
    /// [`AttemptsUsedUp`](RunOutcome::AttemptsUsedUp) until the server
    /// [forgets](Self::with_retention) the slot.
    ///
    /// An attempt is a call of the closure, or a run returned by [`begin`](Self::begin). If the
    /// server has counted an attempt, but its reply is lost, the call returns an error instead, and
    /// the client gives the attempt back in the background. The attempt of a process that dies just
    /// before the closure counts.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Calls `run` on this thread, unless the slot has run, runs elsewhere now, or has no attempts
    /// left.
    ///
    /// The lock of the slot is held and renewed during the call of `run`. Then this call records on
    /// the server whether `run` has succeeded, and releases the lock. The [`RunOutcome`] says
    /// whether `run` was called, and the result; an error of `run` is [`RunOutcome::Failed`]. If
    /// `run` is not to be called, this call does not wait for a run elsewhere. A slot that has run
    /// costs one round trip.
    ///
    /// A panic of `run` passes through this call. The attempt counts, and [`runs`](Self::runs)
    /// lists the run as [died](crate::RunState::Died).
    ///
    /// # Errors
    ///
    /// After an error, `run` was not called. The errors are listed at
    /// [`run_once_with`](Self::run_once_with).
    pub fn run_once<T, E>(
        &self,
        slot: &str,
        run: impl FnOnce(&JobRun<'_>) -> Result<T, E>,
    ) -> Result<RunOutcome<T, E>, Error> {
        self.run_once_with(slot, Wait::none(), run)
    }

    /// Calls `run` as [`run_once`](Self::run_once) does, but waits for the end of a run elsewhere,
    /// as long as [`wait`](Wait) says.
    ///
    /// If the run elsewhere succeeds, the outcome is [`RanAlready`](RunOutcome::RanAlready). If the
    /// run fails or its process dies, this call runs the slot, if attempts are left. If the wait
    /// ends first, the outcome is [`RunningElsewhere`](RunOutcome::RunningElsewhere). The limit and
    /// the cancellation of the wait apply to all requests before the call of `run`, and not to
    /// `run`.
    ///
    /// # Errors
    ///
    /// After an error, `run` was not called. If the server has counted the attempt, the client
    /// gives the attempt back in the background. A failure after the call of `run` is a
    /// [`RunOutcome`] and no error.
    ///
    /// * [`Error::InvalidName`] - the job's name is invalid, the slot is empty, or both together
    ///   are too long. Permanent.
    /// * [`Error::InvalidLease`] - the [retention](Self::with_retention) is out of bounds.
    ///   Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server did not answer until the
    ///   end of the wait, or for twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout). Also `OutcomeUnknown` if the slot is
    ///   perhaps free, but the server has not acknowledged an earlier release by this client.
    ///   Transient.
    /// * [`Error::Refused`], [`Error::Authentication`] - the server refused a command or the user.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the lock. Transient.
    /// * [`Error::WrongType`] - a key of the job holds other data. Permanent.
    /// * [`Error::Lost`] - the lock of the slot was lost before the call of `run`. The same call
    ///   may succeed later.
    /// * [`Error::Cancelled`] - the wait was cancelled.
    /// * [`Error::Deadlock`] - only with [`OnDeadlock::Fail`](crate::OnDeadlock::Fail). Transient.
    /// * [`Error::AlreadyHeld`] - this thread already runs the slot, and the wait has no limit.
    /// * [`Error::WatchdogGone`] - the client's renewal thread has ended. Permanent.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn run_once_with<'a, T, E>(
        &self,
        slot: &str,
        wait: impl Into<Wait<'a>>,
        run: impl FnOnce(&JobRun<'_>) -> Result<T, E>,
    ) -> Result<RunOutcome<T, E>, Error> {
        let holder = LocalHolder::current_thread();
        let started = self.begin_for::<ThisThread>(Cow::Borrowed(slot), &holder, wait.into())?;
        let this_run = match started {
            RunStart::Begun(this_run) => this_run,
            RunStart::RanAlready => return Ok(RunOutcome::RanAlready),
            RunStart::RunningElsewhere => return Ok(RunOutcome::RunningElsewhere),
            RunStart::AttemptsUsedUp => return Ok(RunOutcome::AttemptsUsedUp),
        };
        let value = match run(&this_run) {
            Ok(value) => value,
            Err(error) => {
                // Without this record the run is listed as died.
                drop(this_run.write_result(false, None));
                return Ok(RunOutcome::Failed(error));
            }
        };
        Ok(match this_run.write_result(true, None) {
            Ok(()) => RunOutcome::Ran(value),
            Err(error) => RunOutcome::Unrecorded { value, error },
        })
    }

    /// Begins a run of the slot, for work outside of a closure.
    ///
    /// The returned [`RunStart`] has the run, or says why no run has begun. The lock of the slot is
    /// held and renewed until [`JobRun::finish`] or the drop of the run. The run may be sent to
    /// another thread. If the slot runs elsewhere, this call waits for the end of this run as long
    /// as [`wait`](Wait) says.
    ///
    /// ```
    /// use wheellock::{Client, RunStart, Wait};
    ///
    /// let job = Client::in_memory().job("backup");
    /// match job.begin("2026-11-23", Wait::none())? {
    ///     RunStart::Begun(run) => {
    ///         let exit_code = 0; // of a process, for example
    ///         run.finish(exit_code)?;
    ///     }
    ///     RunStart::RanAlready | RunStart::RunningElsewhere => println!("nothing to do"),
    ///     RunStart::AttemptsUsedUp => eprintln!("it has failed too often"),
    /// }
    /// assert_eq!(job.runs()?[0].exit_code, Some(0));
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error, no run has begun. The errors are listed at
    /// [`run_once_with`](Self::run_once_with); [`Error::AlreadyHeld`] does not occur.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn begin<'a>(
        &self,
        slot: &str,
        wait: impl Into<Wait<'a>>,
    ) -> Result<RunStart<'static>, Error> {
        self.begin_for(Cow::Owned(slot.to_owned()), &LocalHolder::Guard, wait.into())
    }

    /// Returns the latest run of each of the 100 slots that have run last, the latest begin first.
    ///
    /// A slot of more than 1,024 bytes is not listed, nor is a slot that the server has
    /// [forgotten](Self::with_retention). The whole list ends one retention after the latest begin
    /// of a run. Takes two round trips, or one if no slot is listed.
    ///
    /// ```
    /// use wheellock::{Client, RunState};
    ///
    /// let job = Client::in_memory().job("report");
    /// let _outcome = job.run_once("2026-11-23", |_run| Err::<(), _>("the disk is full"))?;
    /// let runs = job.runs()?;
    /// assert_eq!((runs[0].slot.as_str(), runs[0].attempts), ("2026-11-23", 1));
    /// assert_eq!(runs[0].state, RunState::Failed);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The call changes nothing on the server, and may be repeated.
    ///
    /// * [`Error::InvalidName`] - the job's name is invalid. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] - the server did not answer for twice
    ///   the [command timeout](crate::ClientBuilder::command_timeout). Transient.
    /// * [`Error::Refused`], [`Error::Authentication`] - the server refused a command or the user.
    /// * [`Error::WrongType`] - the key of the list holds other data. Permanent.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    pub fn runs(&self) -> Result<Vec<RunRecord>, Error> {
        let (core, name) = (self.core.running()?, self.name.clone()?);
        let slots = core.ask(&ListRuns(name.job_runs()), &name)?;
        let keys = slots.iter().map(|slot| {
            let JobKeys { lock, record, .. } = self.keys(slot)?;
            Ok((Arc::from(lock.as_str()), record))
        });
        let read = ReadRuns { keys: keys.collect::<Result<_, Error>>()? };
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        // A record may have expired since the slots were listed.
        let records = core.ask(&read, &name)?.into_iter().zip(slots);
        Ok(records.rev().filter_map(|(fields, slot)| RunRecord::of(slot, fields?)).collect())
    }

    /// Begins a run of `slot` for `holder`, unless the record says that the slot has run. While the
    /// slot runs elsewhere, waits within the limit of `wait`. Returns the begun run, which holds
    /// the slot's lock, or why there is none. After an error the attempt, if counted, is given back
    /// in the background.
    fn begin_for<'a, T>(
        &self,
        slot: Cow<'a, str>,
        holder: &LocalHolder,
        wait: Wait<'_>,
    ) -> Result<RunStart<'a, T>, Error> {
        // 1. Read the record. Most calls end here.
        let (keys, retention) = (self.keys(&slot)?, self.retention.clone()?);
        let spec = self.spec(&keys);
        let wait = wait.begin(&*spec.core()?.clock);
        let has_run = HasRun(Arc::clone(&keys.record));
        if spec.call_within(&has_run, wait)? {
            return Ok(RunStart::RanAlready);
        }
        // 2. Acquire the lock of the slot: only the holder writes the record.
        let core = spec.core()?;
        let Some(raw) = acquire(&core, &spec, holder, wait)? else {
            // The slot may have been recorded meanwhile. After a wait there is no time for a query:
            // another process had the lock until the end of the wait.
            let has_run = !wait.waits && spec.call(&has_run)?;
            return Ok(if has_run { RunStart::RanAlready } else { RunStart::RunningElsewhere });
        };
        // 3. Begin the attempt. Every end of the run releases the lock, a panic of the closure too.
        let begin = BeginRun {
            keys,
            slot: Arc::from(&*slot),
            owner: raw.hold_owner().clone(),
            host: Arc::from(host()),
            max_attempts: self.max_attempts,
            retention,
        };
        let answer = match core.call_in(&begin, wait) {
            Ok(answer) => answer,
            Err(error) => {
                if error.failure.may_have_run() || error.late_copy_deadline.is_some() {
                    give_back(&core, &begin, error.late_copy_deadline);
                }
                // Queued behind the attempt. This call does not wait for the silent server again. A
                // loss of the lock is reported.
                drop(raw.defer_release());
                return Err(core.error_in(error, &begin, &begin.keys.lock, wait));
            }
        };
        let guard = LockGuard::<T>::from_raw(raw);
        match answer.reply {
            RunBegun::Begun { attempt, token } => {
                let BeginRun { keys, retention, .. } = begin;
                Ok(RunStart::Begun(JobRun { guard, slot, attempt, token, keys, retention }))
            }
            RunBegun::RanAlready => Ok(RunStart::RanAlready),
            RunBegun::AttemptsUsedUp => Ok(RunStart::AttemptsUsedUp),
            RunBegun::NotHeld => {
                // An earlier copy may have arrived in time.
                if answer.late_copy_deadline.is_some() {
                    give_back(&core, &begin, answer.late_copy_deadline);
                }
                Err(lost(&guard))
            }
        }
    }

    /// Returns the keys of `slot`, all in the cluster slot of the job's name, or an error for an
    /// empty slot or an invalid name.
    fn keys(&self, slot: &str) -> Result<JobKeys, Error> {
        let name = self.name.clone()?;
        if slot.is_empty() {
            let reason = "the slot of a job is empty".to_owned();
            return Err(Error::InvalidName { name: name.shown(), reason });
        }
        Ok(JobKeys {
            lock: LockName::parse(&name.job("lock", slot))?,
            record: Arc::from(name.job("record", slot)),
            tokens: name.job_tokens(),
            runs: name.job_runs(),
        })
    }

    /// Returns the spec of the slot's lock: a plain lock that refuses nesting as contention.
    fn spec(&self, keys: &JobKeys) -> LockSpec {
        let (core, prefix) = (Arc::clone(&self.core), Prefix::new(""));
        let mut spec = LockSpec::new(core, Kind::Reentrant, prefix, keys.lock.as_str());
        // A run does not run the same slot again.
        spec.nesting = Nesting::Contends;
        spec
    }
}

/// Queues a request that gives the attempt of `begin` back. The server may have counted the
/// attempt, and the run does not start. The renewal thread sends the request.
fn give_back(core: &ClientCore, begin: &BeginRun, late_copy_deadline: Option<ServerTime>) {
    let BeginRun { keys: JobKeys { lock, record, .. }, owner, retention, .. } = begin.clone();
    let give_back = Arc::new(GiveBackAttempt { record, owner: owner.clone() });
    let id = (lock, owner);
    let release = Release::by_operation(id, give_back, retention.duration(), late_copy_deadline);
    // If too many releases are queued already, the refusal is counted.
    core.watchdog.releases.queue_new(core.now(), release);
}

/// Returns the loss of the lock of a run, according to `guard`; if the guard knows of no loss, the
/// reason is that the server does not know the lock.
pub(super) fn lost<T>(guard: &LockGuard<T>) -> Error {
    let deleted = || Error::Lost { name: guard.name(), reason: LostReason::Deleted };
    guard.check().err().unwrap_or_else(deleted)
}

impl fmt::Debug for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map(LockName::shown);
        formatter
            .debug_struct("Job")
            .field("name", &name)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}
