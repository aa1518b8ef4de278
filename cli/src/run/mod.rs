//! `wheellock run`: holds a lock while a command runs.
//!
//! This process holds the lock. Its children are the command ([`launch`]) and the [`guardian`],
//! which ends the command if this process is killed or stopped. Two more threads wait for signals
//! ([`signals`]) and for the command ([`job`]). Calls that a server may delay run on threads with a
//! time bound ([`bounded::within`]).

mod bounded;
pub(crate) mod guardian;
mod held;
mod job;
pub(crate) mod launch;
pub(crate) mod signals;
mod slot;

use std::error::Error;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Pid, Signal};
use wheellock::crossbeam_channel::{Receiver, Sender, bounded, never, select};
use wheellock::{Client, Clock as _, Error as LockError, LostReason, SystemClock};

use crate::arguments::{OnAsk, OnUnreachable, Run};
use crate::exit;
use crate::output::{complain, shown};
use crate::run::bounded::within;
use crate::run::guardian::Guardian;
use crate::run::held::{Acquired, Held};
use crate::run::job::Job;
use crate::run::signals::Signals;
use crate::run::slot::slot;
use crate::server;

/// The client's default lease. The guardian is notified six times in a lease.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Time limit for the server outside of a wait for the lock: for a single try, after a signal, and
/// for releases at the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The least time for a release, also after a loss or near the end of the lease.
const SHORTEST_RELEASE: Duration = Duration::from_millis(100);

/// Runs the command, and returns the exit code.
pub(crate) fn run(mut run: Run) -> Result<u8, Box<dyn Error>> {
    // 1. Signals are blocked before any other thread starts.
    let signals = Arc::new(Signals::block()?);
    let (interrupt, interrupted) = bounded(1);
    let job = Arc::new(Job::new(interrupt));
    take_signals(&signals, &job)?;
    let watcher = Watcher::start(&job)?;
    // 2. The slot is the time of the start.
    if let Some(format) = run.slot.take() {
        run.slot = Some(slot(&format, run.slot_zone.as_deref(), Timestamp::now())?);
    }
    let runner = Runner { run: Arc::new(run), signals, interrupted, job, watcher };
    // 3. The client. The wait for the lock begins here.
    let limit = runner.limit();
    let connect = {
        let run = Arc::clone(&runner.run);
        // A boxed error cannot be sent to this thread.
        move || server::connect(&run.server, run.watchdog).map_err(ConnectFailure::of)
    };
    let client = match within(limit, &runner.interrupted, Duration::ZERO, connect)? {
        Some(Ok(client)) => client,
        Some(Err(failure)) if failure.is_transient => {
            return runner.without_server(&failure.message).map(|end| end.code);
        }
        Some(Err(failure)) => return Err(failure.message.into()),
        None => return runner.unanswered().map(|end| end.code),
    };
    // 4. The lock and the command, repeated while a slot has attempts left.
    let outcome = runner.run_with_retries(&client, limit);
    // 5. Unacknowledged releases are sent again. This is rare.
    let until = match &outcome {
        Ok(End { until, .. }) => *until,
        Err(_) => SystemClock.now() + PATIENCE,
    };
    let is_released = matches!(outcome, Ok(End { is_released: true, .. }));
    let finish = move || {
        if !is_released {
            client.shutdown(until.saturating_duration_since(SystemClock.now()));
        }
        drop(client);
    };
    within(Some(until), &never(), Duration::ZERO, finish)?;
    outcome.map(|end| end.code)
}

/// A failure to connect.
struct ConnectFailure {
    message: String,
    /// The server cannot be reached, and the arguments are not at fault.
    is_transient: bool,
}

impl ConnectFailure {
    #[expect(clippy::needless_pass_by_value, reason = "it is for `map_err`")]
    fn of(error: Box<dyn Error>) -> Self {
        let is_transient = error.downcast_ref().is_some_and(LockError::is_retryable);
        Self { message: error.to_string(), is_transient }
    }
}

/// The end of an attempt.
struct End {
    /// The exit code.
    code: u8,
    /// Whether the server has acknowledged the release.
    is_released: bool,
    /// Time limit for the server.
    until: Instant,
    /// The command of a slot has failed by itself, and attempts are left.
    may_retry: bool,
}

impl End {
    fn released(code: u8) -> Self {
        let until = SystemClock.now() + PATIENCE;
        Self { code, is_released: true, until, may_retry: false }
    }

    /// The end of an attempt without a release.
    fn unreleased(code: u8) -> Self {
        Self { is_released: false, ..Self::released(code) }
    }
}

/// The cause of a command's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The command ended by itself, or by a forwarded signal.
    Command,
    /// Somebody asked for the lock.
    Asked,
    Lost,
}

/// The state shared by all attempts.
struct Runner {
    run: Arc<Run>,
    signals: Arc<Signals>,
    /// Gets a message for a signal that arrives while no command runs.
    interrupted: Receiver<()>,
    job: Arc<Job>,
    watcher: Watcher,
}

impl Runner {
    /// The end of the wait for the lock. `None` without a limit.
    fn limit(&self) -> Option<Instant> {
        let wait = if self.run.is_one_try() { Some(PATIENCE) } else { self.run.wait };
        wait.and_then(|wait| SystemClock.now().checked_add(wait))
    }

    /// The name and the slot, for messages.
    fn subject(&self) -> String {
        let name = shown(&self.run.name);
        match &self.run.slot {
            Some(slot) => format!("{name}, {}", shown(slot)),
            None => name,
        }
    }

    /// Repeats attempts while a retry is allowed, and returns the end of the final attempt.
    fn run_with_retries(
        &self,
        client: &Client,
        mut limit: Option<Instant>,
    ) -> Result<End, Box<dyn Error>> {
        let mut failed = None;
        loop {
            let end = self.run_once(client, limit, failed)?;
            if !end.may_retry {
                return Ok(end);
            }
            let (subject, pause) = (self.subject(), self.run.retry_pause);
            let (code, seconds) = (end.code, pause.as_secs_f64());
            complain(&format!("{subject}: exit code {code}; the next attempt is in {seconds} s"));
            if self.interrupted.recv_timeout(pause).is_ok() {
                return Ok(End::unreleased(self.signalled()));
            }
            (failed, limit) = (Some(code), self.limit());
        }
    }

    /// Waits for the lock, and runs the command. `failed` is the exit code of the previous attempt.
    fn run_once(
        &self,
        client: &Client,
        limit: Option<Instant>,
        failed: Option<u8>,
    ) -> Result<End, Box<dyn Error>> {
        // Leaving the server's queue after the wait may take a moment.
        let end = match limit {
            Some(limit) if !self.run.is_one_try() => limit.checked_add(PATIENCE),
            limit => limit,
        };
        let acquire = {
            let (run, client) = (Arc::clone(&self.run), client.clone());
            let interrupted = self.interrupted.clone();
            move || Held::acquire(&client, &run, limit, &interrupted)
        };
        match within(end, &self.interrupted, PATIENCE, acquire)? {
            None => self.unanswered(),
            Some(Ok(Acquired::Held(held))) => self.hold(held),
            Some(Ok(Acquired::Busy)) => Ok(self.not_run(self.not_acquired(), self.run.on_conflict)),
            Some(Ok(Acquired::RanAlready)) => Ok(self.not_run("this slot has run", exit::SUCCESS)),
            Some(Ok(Acquired::AttemptsUsedUp)) => {
                complain(&format!("{}: this slot was tried as often as allowed", self.subject()));
                Ok(End::released(failed.unwrap_or(exit::ATTEMPTS_USED_UP)))
            }
            Some(Err(LockError::Cancelled { .. })) => Ok(End::unreleased(self.signalled())),
            Some(Err(error)) if error.is_retryable() => self.without_server(&error.to_string()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    fn not_run(&self, why: &str, code: u8) -> End {
        if !self.run.quiet {
            complain(&format!("{}: {why}", self.subject()));
        }
        End::unreleased(code)
    }

    /// Runs the command while the lock is held, and releases the lock.
    fn hold(&self, held: Held) -> Result<End, Box<dyn Error>> {
        let (run, job) = (&self.run, &self.job);
        let mut guardian = Guardian::start(run.kill_after)
            .map_err(|error| format!("the guardian process cannot be started: {error}"))?;
        guardian.held_for(|| held.remaining());
        // The system may have taken long to grant the thread or the process.
        if held.loss().is_some() {
            guardian.dismiss();
            return Ok(self.release(held, exit::LOST));
        }
        let started = job
            .start(&mut self.prepare(&held))
            .map_err(|error| format!("a process for the command cannot be started: {error}"))?;
        let Some(mut child) = started else {
            guardian.dismiss();
            return Ok(self.release(held, self.signalled()));
        };
        let group = Pid::from_child(&child);
        guardian.watch(group);
        self.watcher.watch(group);
        let cause = self.supervise(&held, &mut guardian);
        if cause == Cause::Lost {
            // Kill the processes left in the group.
            job.send(Signal::KILL);
        }
        // In this order: once the command is reaped, the id may belong to another process.
        guardian.dismiss();
        job.end();
        let code = exit_code(
            child.wait().map_err(|error| format!("how the command ended is not known: {error}"))?,
        );
        let is_last = held.attempt().is_none_or(|attempt| attempt > run.retries);
        let has_failed = cause == Cause::Command && code != 0 && !job.was_told_to_end();
        let end = self.release(held, if cause == Cause::Lost { exit::LOST } else { code });
        Ok(End { may_retry: has_failed && !is_last && end.code == code, ..end })
    }

    /// Waits for the end of the command, and returns the cause. Ends the command if the lock is
    /// lost or asked for.
    fn supervise(&self, held: &Held, guardian: &mut Guardian) -> Cause {
        let (run, job, watcher) = (&self.run, &self.job, &self.watcher);
        let lost = held.lost();
        let mut cause = Cause::Command;
        let mut asked = match run.on_ask {
            OnAsk::Term => held.revocation(),
            OnAsk::Ignore => never(),
        };
        // Frequent enough for the guardian to know of the last renewal or the renewal before.
        let pause = run.watchdog.unwrap_or(DEFAULT_LEASE) / 6;
        let reason = loop {
            select! {
                recv(watcher.ended) -> _ => {
                    let Some(reason) = held.loss() else { return cause };
                    // On a busy machine, the guardian may have been first.
                    let subject = self.subject();
                    complain(&format!("{subject}: lost: {reason}; the command has ended"));
                    return Cause::Lost;
                }
                recv(lost) -> reason => break reason.unwrap_or(LostReason::Expired),
                recv(asked) -> revocation => {
                    asked = never();
                    if let Ok(revocation) = revocation {
                        let (subject, reason) = (self.subject(), shown(&revocation.reason));
                        complain(&format!(
                            "{subject}: asked to let it go ({reason}); the command is ended"
                        ));
                        cause = Cause::Asked;
                        job.send(Signal::TERM);
                    }
                }
                default(pause.min(held.remaining())) => {
                    if let Some(reason) = held.loss() {
                        break reason;
                    }
                    guardian.held_for(|| held.remaining());
                }
            }
        };
        complain(&format!("{}: lost: {reason}; the command is ended", self.subject()));
        job.send(Signal::TERM);
        select! {
            recv(watcher.ended) -> _ => {}
            default(run.kill_after) => {
                job.send(Signal::KILL);
                // An error means that the watcher's thread is gone, so there is nothing to wait
                // for.
                watcher.ended.recv().ok();
            }
        }
        Cause::Lost
    }

    /// Releases the lock. The result has `code`, or [`exit::LOST`] after a loss. The wait for the
    /// server ends with the lease, and after a second at most.
    fn release(&self, held: Held, code: u8) -> End {
        let subject = self.subject();
        let until = SystemClock.now() + held.remaining().clamp(SHORTEST_RELEASE, PATIENCE);
        let release = move || held.release(code);
        let error = match within(Some(until), &never(), Duration::ZERO, release) {
            Ok(Some(Ok(()))) => return End::released(code),
            Ok(Some(Err(LockError::Lost { reason, .. }))) => {
                if code != exit::LOST {
                    complain(&format!("{subject}: lost before it was released: {reason}"));
                }
                return End::released(exit::LOST);
            }
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) => "the server has not answered the release".to_owned(),
            Err(error) => format!("a thread for the release cannot be started: {error}"),
        };
        complain(&format!("{error}. At the latest {subject} is free when its lease ends"));
        if self.run.slot.is_some() {
            complain("how the command ended is perhaps not recorded: the slot may run again");
        }
        End { is_released: false, until, ..End::released(code) }
    }

    fn prepare(&self, held: &Held) -> Command {
        let mut command = launch::command(&self.signals.blocked(), &self.run.command);
        command.env("WHEELLOCK_NAME", &self.run.name);
        // Variables of an outer `wheellock run` belong to another lock.
        let mut set = |variable: &str, value: Option<String>| match value {
            Some(value) => drop(command.env(variable, value)),
            None => drop(command.env_remove(variable)),
        };
        set("WHEELLOCK_OWNER", held.owner());
        set("WHEELLOCK_TOKEN", held.token().map(|token| token.to_string()));
        set("WHEELLOCK_SLOT", self.run.slot.clone());
        set("WHEELLOCK_ATTEMPT", held.attempt().map(|attempt| attempt.to_string()));
        command
    }

    fn not_acquired(&self) -> &'static str {
        match self.run.permits {
            Some(_) => "not acquired, all its permits are taken",
            None if self.run.fair => "not acquired, others hold it or wait for it",
            None if self.run.slot.is_some() => "not run, another machine is at it",
            None => "not acquired, another owner holds it",
        }
    }

    /// The end of an attempt if a call of the client has not returned by the end of the wait or
    /// after a signal.
    fn unanswered(&self) -> Result<End, Box<dyn Error>> {
        if self.job.signal().is_some() {
            return Ok(End::unreleased(self.signalled()));
        }
        self.without_server(&format!(
            "{}: no answer from the server in the time to wait",
            self.subject()
        ))
    }

    /// Runs the command without the lock, or returns the error `why`, as `--on-unreachable` says.
    fn without_server(&self, why: &str) -> Result<End, Box<dyn Error>> {
        match self.run.on_unreachable {
            OnUnreachable::Fail => Err(why.into()),
            OnUnreachable::Run => {
                complain(&format!("{why}. The command runs without the lock"));
                let end = self.hold(Held::Nothing)?;
                Ok(End { is_released: false, ..end })
            }
        }
    }

    /// Reports a signal received before the start of the command, and returns the exit code.
    fn signalled(&self) -> u8 {
        let number = self.job.signal().map_or(0, Signal::as_raw);
        if !self.run.quiet {
            let subject = self.subject();
            complain(&format!("{subject}: signal {number} came before the command was started"));
        }
        exit::signalled(number)
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILED),
        (None, Some(signal)) => exit::signalled(signal),
        (None, None) => exit::FAILED,
    }
}

/// Starts the thread for signals, which ends with the process.
fn take_signals(signals: &Arc<Signals>, job: &Arc<Job>) -> io::Result<()> {
    let (signals, job) = (Arc::clone(signals), Arc::clone(job));
    let take = move || {
        loop {
            match signals.wait() {
                Ok(signal) => job.take(signal),
                Err(error) => {
                    complain(&format!("no more signals can be received: {error}"));
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(take).map(drop)
}

/// The thread that waits for each command, started before the first command.
struct Watcher {
    start: Sender<Pid>,
    ended: Receiver<()>,
}

impl Watcher {
    fn start(job: &Arc<Job>) -> io::Result<Self> {
        let (start, started) = bounded(1);
        let (end, ended) = bounded(1);
        let job = Arc::clone(job);
        let watch = move || {
            for group in started {
                // An error means that the system has reaped the command, as this process was
                // started with SIGCHLD ignored. Then `hold` reports an unknown exit code.
                job.watch(group).ok();
                // A failure means that nobody waits for the command any more.
                end.send(()).ok();
            }
        };
        thread::Builder::new().name("command".to_owned()).spawn(watch)?;
        Ok(Self { start, ended })
    }

    fn watch(&self, group: Pid) {
        // The channel has room for a message.
        self.start.try_send(group).ok();
    }
}
