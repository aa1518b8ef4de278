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

/// A job to run once for each slot, on a single process. A job is cheap to create, to clone and to
/// share, and holds no lock. Created by [`Client::job`](crate::Client::job).
///
/// A slot is a text naming a run, mostly by a time: `2026-11-23` for a nightly job,
/// `2026-11-23T14:05Z` for a job every five minutes. Use UTC or an offset: a local time occurs
/// twice in the night in which clocks are set back. Every process computes the slot and calls
/// [`run_once`](Self::run_once); a single process runs the closure. A slot that has run is
/// remembered for the [retention](Self::with_retention). A run that fails, panics or dies may be
/// taken over, up to a [number of attempts](Self::with_max_attempts). Runs of two slots do not
/// exclude each other.
///
/// **Guarantees.** Without faults the closure runs once for each slot. If a process is stopped for
/// longer than the lease, or cut off from the server, the run is taken over, and the first process
/// may still be at work: give the [token](JobRun::token) to the resource, and
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

    /// Sets the time for which a slot is remembered, from the begin of the last attempt and from
    /// the end of the run. The default is a week.
    ///
    /// The retention must be longer than the time in which any process may ask for a slot: a
    /// forgotten slot runs again. The retention is between 10 ms and a hundred years; otherwise
    /// every run returns [`Error::InvalidLease`].
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = Lease::named("retention", retention);
        self
    }

    /// Sets the most attempts at a slot, by all processes together. The default is three; zero
    /// counts as one.
    ///
    /// An attempt is a call of the closure. If the server has counted an attempt, and the closure
    /// was not called because the reply was lost, the attempt is given back in the background. The
    /// attempt of a process that dies just before the closure counts.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Calls `run` on this thread and records the end of the run, if the slot has not run, runs
    /// nowhere else now, and has attempts left. Otherwise returns at once, without a call of `run`.
    /// The [`RunOutcome`] says which case it was; an error of `run` is [`RunOutcome::Failed`].
    ///
    /// A panic of `run` passes through this call. The attempt counts, and is listed as
    /// [died](crate::RunState::Died).
    ///
    /// # Errors
    ///
    /// As [`run_once_with`](Self::run_once_with).
    pub fn run_once<T, E>(
        &self,
        slot: &str,
        run: impl FnOnce(&JobRun<'_>) -> Result<T, E>,
    ) -> Result<RunOutcome<T, E>, Error> {
        self.run_once_with(slot, Wait::none(), run)
    }

    /// Runs `run` as [`run_once`](Self::run_once) does, but waits for the outcome of a run
    /// elsewhere as long as [`wait`](Wait) says. If the run elsewhere succeeds, the outcome is
    /// [`RanAlready`](RunOutcome::RanAlready). If the run fails or the process dies, this call
    /// takes the slot over. The limit and the cancellation of the wait cover all requests before
    /// the call of `run`.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock_with`](crate::Lock::try_lock_with), and [`Error::InvalidName`] for an
    /// empty slot. After an error, `run` was not called. Everything after the call of `run` is
    /// reported as the outcome.
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

    /// Begins a run of the slot, for work outside of a closure: the run may be sent to another
    /// thread, and is ended by [`JobRun::finish`]. While the slot runs elsewhere, this call waits
    /// as [`run_once_with`](Self::run_once_with) does.
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
    /// As [`run_once_with`](Self::run_once_with).
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn begin<'a>(
        &self,
        slot: &str,
        wait: impl Into<Wait<'a>>,
    ) -> Result<RunStart<'static>, Error> {
        self.begin_for(Cow::Owned(slot.to_owned()), &LocalHolder::Guard, wait.into())
    }

    /// Returns the latest run of each of the last 100 slots, the latest first: the owner, the
    /// machine, the times and the end. Takes two round trips.
    ///
    /// A slot is listed while [remembered](Self::with_retention), unless the slot has more than
    /// 1,024 bytes.
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
    /// As [`Lock::holder`](crate::Lock::holder).
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
