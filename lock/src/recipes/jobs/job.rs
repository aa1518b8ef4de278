//! A job: runs a closure once for each slot, on one process of all (DESIGN: jobs).

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
use crate::recipes::jobs::record::RunRecord;
use crate::recipes::jobs::run::{JobRun, RunOutcome, RunStart};

/// A job that runs once for each slot, on one process of all. Cheap to make, to clone and to
/// share; it holds nothing by itself. From [`Client::job`](crate::Client::job).
///
/// A slot is a text that says which run is meant, mostly a time: `2026-11-23` for a nightly job,
/// `2026-11-23T14:05Z` for one that runs every five minutes. Name it by UTC or with an offset: a
/// local time comes twice in the night in which clocks are set back. Every process computes it for
/// itself and calls [`run_once`](Self::run_once); one of them runs the closure. A slot that has run
/// is remembered for the [retention](Self::with_retention). A run that fails, panics or dies may be
/// taken over, up to a [number of attempts](Self::with_max_attempts). Runs of two slots do not
/// exclude each other.
///
/// **What it gives.** While all is well the closure runs once for each slot. A run whose process
/// is stopped for longer than its lease, or cut off from the server, is taken over, and may still
/// be at work: give the [token](JobRun::token) to the resource, and [check](JobRun::check) before
/// each step that must not happen twice. A process that dies between its work and the record of it
/// has worked, and the slot runs again. See [the guide](crate::guide::jobs).
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

/// A week: longer than a process that missed a slot asks for it.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_ATTEMPTS: u32 = 3;

impl Job {
    pub(crate) fn new(core: Arc<ClientCore>, prefix: &Prefix, name: &str) -> Self {
        let (name, retention) = (prefix.name(name), Lease::new(RETENTION));
        Self { core, name, retention, max_attempts: MAX_ATTEMPTS }
    }

    /// The same job, whose slots are remembered for `retention`, from the begin of the last attempt
    /// and from the end of the run. A week unless it is set.
    ///
    /// It must be longer than the time in which any process may ask for a slot: a slot that is
    /// forgotten runs again. It is between 10 ms and a hundred years; otherwise a run is an
    /// [`Error::InvalidLease`].
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = Lease::named("retention", retention);
        self
    }

    /// The same job, whose slots are tried `attempts` times at most, by all processes together.
    /// Three unless it is set; zero is one.
    ///
    /// An attempt is a call of the closure. An attempt that the server has counted, and whose
    /// closure was not called because the reply was lost, is given back in the background. The
    /// attempt of a process that dies just before the closure counts.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Runs `run` on this thread if the slot has not run and runs nowhere else, and records that it
    /// has run. Does not wait for a run elsewhere.
    ///
    /// A panic of `run` goes on through this call; the attempt counts as one that failed.
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

    /// Runs `run` as [`run_once`](Self::run_once) does, but while the slot runs elsewhere it waits
    /// for the outcome as long as [`wait`](Wait) says: if that run succeeds, the outcome is
    /// [`RanAlready`](RunOutcome::RanAlready), and if it fails or its process dies, the slot is
    /// taken over here. The limit and the cancel of the wait cover all that is asked before `run`
    /// is called.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock_with`](crate::Lock::try_lock_with), and [`Error::InvalidName`] for an
    /// empty slot. `run` was not called then. What happens after it was called is the outcome.
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
                // Without this record the run is listed as one that died.
                drop(this_run.record(false, None));
                return Ok(RunOutcome::Failed(error));
            }
        };
        Ok(match this_run.record(true, None) {
            Ok(()) => RunOutcome::Ran(value),
            Err(error) => RunOutcome::Unrecorded { value, error },
        })
    }

    /// Begins a run of the slot, for work that does not fit into a closure: the run may be sent to
    /// another thread, and [`JobRun::finish`] ends it. While the slot runs elsewhere, this waits as
    /// [`run_once_with`](Self::run_once_with) does.
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

    /// The latest run of each of the last 100 slots, the latest first: who ran it where and when,
    /// and how it ended. Two round trips.
    ///
    /// A slot is listed as long as it is [remembered](Self::with_retention), and unless it has more
    /// than 1,024 bytes.
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
        // A record may have ended since the slots were listed.
        let records = core.ask(&read, &name)?.into_iter().zip(slots);
        Ok(records.rev().filter_map(|(fields, slot)| RunRecord::of(slot, fields?)).collect())
    }

    fn begin_for<'a, T>(
        &self,
        slot: Cow<'a, str>,
        holder: &LocalHolder,
        wait: Wait<'_>,
    ) -> Result<RunStart<'a, T>, Error> {
        // 1. What the record says. Most calls end here.
        let (keys, retention) = (self.keys(&slot)?, self.retention.clone()?);
        let spec = self.spec(&keys);
        let wait = wait.begin(&*spec.core()?.clock);
        let has_run = HasRun(Arc::clone(&keys.record));
        if spec.call_within(&has_run, wait)? {
            return Ok(RunStart::RanAlready);
        }
        // 2. The lock of the slot, whose holder alone writes the record.
        let core = spec.core()?;
        let Some(raw) = acquire(&core, &spec, holder, wait)? else {
            // It may have been recorded meanwhile. After a wait there is no time to ask: another
            // process had the lock until its end.
            let has_run = !wait.waits && spec.call(&has_run)?;
            return Ok(if has_run { RunStart::RanAlready } else { RunStart::RunningElsewhere });
        };
        // 3. The attempt. Whatever ends the run releases the lock, a panic of a closure too.
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
                // Behind that. A server that did not answer just now is not waited for again. If
                // the lock was lost, that is reported.
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
                // An earlier copy may have come in time.
                if answer.late_copy_deadline.is_some() {
                    give_back(&core, &begin, answer.late_copy_deadline);
                }
                Err(lost(&guard))
            }
        }
    }

    /// All keys are in the slot of the job's name.
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

    fn spec(&self, keys: &JobKeys) -> LockSpec {
        let (core, prefix) = (Arc::clone(&self.core), Prefix::new(""));
        let mut spec = LockSpec::new(core, Kind::Reentrant, prefix, keys.lock.as_str());
        // A run does not run its own slot.
        spec.nesting = Nesting::Contends;
        spec
    }
}

/// Leaves it to the renewal thread to give back an attempt that the server may have counted, and
/// whose run does not start.
fn give_back(core: &ClientCore, begin: &BeginRun, late_copy_deadline: Option<ServerTime>) {
    let BeginRun { keys: JobKeys { lock, record, .. }, owner, retention, .. } = begin.clone();
    let give_back = Arc::new(GiveBackAttempt { record, owner: owner.clone() });
    let request = (lock, owner);
    let release = Release::of_request(request, give_back, retention.duration(), late_copy_deadline);
    // If too many are queued already, that is counted.
    core.watchdog.releases.queue_new(core.now(), release);
}

/// How the lock of a run was lost, which the server does not have.
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
