//! `wheellock run`: holds a lock while a command runs.
//!
//! This process holds the lock. The command is its child ([`launch`]), and so is the [`guardian`],
//! which ends the command if this process is killed or stopped. Two more threads wait for signals
//! and for the command ([`job`]). What a server may keep waiting is on a thread that nobody waits
//! for longer than [`bounded::within`] says (DESIGN: command under a lock).

mod bounded;
pub(crate) mod guardian;
mod held;
mod job;
pub(crate) mod launch;
mod signals;

use std::error::Error;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use wheellock::crossbeam_channel::{Receiver, Sender, bounded, never, select};
use wheellock::{Clock as _, Error as LockError, LostReason, SystemClock};

use crate::arguments::{OnAsk, Run};
use crate::exit;
use crate::output::{complain, shown};
use crate::run::bounded::within;
use crate::run::guardian::Guardian;
use crate::run::held::Held;
use crate::run::job::Job;
use crate::run::signals::Signals;
use crate::server;

/// The client's default, of which the guardian is told several times in a lease.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How long the server is waited for if nobody waits for the lock: for one try, after a signal, and
/// for releases at the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// A hold whose lease is almost over, or that is lost, may take this long to be released.
const SHORTEST_RELEASE: Duration = Duration::from_millis(100);

/// Runs the command, and returns the exit code.
pub(crate) fn run(run: &Arc<Run>) -> Result<u8, Box<dyn Error>> {
    // 1. Before any other thread starts.
    let signals = Arc::new(Signals::block()?);
    let (interrupt, interrupted) = bounded(1);
    let job = Arc::new(Job::new(interrupt));
    take_signals(&signals, &job)?;
    let watcher = Watcher::start(&job)?;
    // 2. The client. The wait for the lock begins here.
    let wait = if run.is_one_try() { Some(PATIENCE) } else { run.wait };
    let limit = wait.and_then(|wait| SystemClock.now().checked_add(wait));
    let connect = {
        let run = Arc::clone(run);
        // The error of another thread.
        move || server::connect(&run.server, run.watchdog).map_err(|error| error.to_string())
    };
    let Some(client) = within(limit, &interrupted, Duration::ZERO, connect)? else {
        return unanswered(run, &job);
    };
    let client = client?;
    // 3. The lock. A wait that is over leaves the server's queue, which may take a little.
    let end =
        if run.is_one_try() { limit } else { limit.and_then(|limit| limit.checked_add(PATIENCE)) };
    let acquire = {
        let (run, client, interrupted) = (Arc::clone(run), client.clone(), interrupted.clone());
        move || Held::acquire(&client, &run, limit, &interrupted)
    };
    let outcome = match within(end, &interrupted, PATIENCE, acquire)? {
        None => return unanswered(run, &job),
        Some(Ok(Some(held))) => {
            let command = &mut prepare(run, &signals, &held);
            hold(run, held, &job, &watcher, command)
        }
        Some(Ok(None)) => {
            if !run.quiet {
                complain(&not_acquired(run));
            }
            Ok(End::unreleased(run.on_conflict))
        }
        Some(Err(LockError::Cancelled { .. })) => Ok(End::unreleased(signalled(run, &job))),
        Some(Err(error)) => Err(error.into()),
    };
    // 4. What the server has not acknowledged is sent again. This is rare.
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

/// How it ended.
struct End {
    /// The exit code.
    code: u8,
    /// Whether the server has acknowledged the release.
    is_released: bool,
    /// How long the server may be waited for.
    until: Instant,
}

impl End {
    fn released(code: u8) -> Self {
        Self { code, is_released: true, until: SystemClock.now() + PATIENCE }
    }

    /// It was not acquired.
    fn unreleased(code: u8) -> Self {
        Self { is_released: false, ..Self::released(code) }
    }
}

/// Runs the command while the lock is held, and releases the lock.
fn hold(
    run: &Run,
    held: Held,
    job: &Job,
    watcher: &Watcher,
    command: &mut Command,
) -> Result<End, Box<dyn Error>> {
    let mut guardian = Guardian::start(run.kill_after)
        .map_err(|error| format!("the guardian process cannot be started: {error}"))?;
    guardian.held_for(|| held.remaining());
    // The system may have taken long to grant the thread or the process.
    if held.loss().is_some() {
        guardian.dismiss();
        return Ok(release(run, held, exit::LOST));
    }
    let started = job
        .start(command)
        .map_err(|error| format!("a process for the command cannot be started: {error}"))?;
    let Some(mut child) = started else {
        guardian.dismiss();
        return Ok(release(run, held, signalled(run, job)));
    };
    let group = Pid::from_child(&child);
    guardian.watch(group);
    watcher.watch(group);
    let is_lost = supervise(run, &held, job, watcher, &mut guardian);
    if is_lost {
        // What is left of the group has been asked to end as well.
        job.send(Signal::KILL);
    }
    // In this order: once the command is reaped, its id may belong to another process.
    guardian.dismiss();
    job.end();
    let code = exit_code(
        child.wait().map_err(|error| format!("how the command ended is not known: {error}"))?,
    );
    Ok(release(run, held, if is_lost { exit::LOST } else { code }))
}

/// Waits until the command has ended. If the lock is lost, ends the command. Returns whether it is.
fn supervise(
    run: &Run,
    held: &Held,
    job: &Job,
    watcher: &Watcher,
    guardian: &mut Guardian,
) -> bool {
    let lost = held.lost();
    let mut asked = match run.on_ask {
        OnAsk::Term => held.revocation(),
        OnAsk::Ignore => never(),
    };
    // Often enough that the guardian always knows of the last renewal or the one before.
    let pause = run.watchdog.unwrap_or(DEFAULT_LEASE) / 6;
    let reason = loop {
        select! {
            recv(watcher.ended) -> _ => {
                let Some(reason) = held.loss() else { return false };
                // The guardian may have been first, on a busy machine.
                let name = shown(&run.name);
                complain(&format!("{name}: lost: {reason}; the command has ended"));
                return true;
            }
            recv(lost) -> reason => break reason.unwrap_or(LostReason::Expired),
            recv(asked) -> revocation => {
                asked = never();
                if let Ok(revocation) = revocation {
                    let (name, reason) = (shown(&run.name), shown(&revocation.reason));
                    complain(&format!("{name}: asked to let it go ({reason}); the command is ended"));
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
    complain(&format!("{}: lost: {reason}; the command is ended", shown(&run.name)));
    job.send(Signal::TERM);
    select! {
        recv(watcher.ended) -> _ => {}
        default(run.kill_after) => {
            job.send(Signal::KILL);
            // A failure means that the thread is gone, and with it what could be waited for.
            watcher.ended.recv().ok();
        }
    }
    true
}

/// Releases the lock, and returns `code` unless it was lost. The server is waited for until the
/// lease ends, and for a second at most.
fn release(run: &Run, held: Held, code: u8) -> End {
    let name = shown(&run.name);
    let until = SystemClock.now() + held.remaining().clamp(SHORTEST_RELEASE, PATIENCE);
    let error = match within(Some(until), &never(), Duration::ZERO, move || held.release()) {
        Ok(Some(Ok(()))) => return End::released(code),
        Ok(Some(Err(LockError::Lost { reason, .. }))) => {
            if code != exit::LOST {
                complain(&format!("{name}: lost before it was released: {reason}"));
            }
            return End::released(exit::LOST);
        }
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => "the server has not answered the release".to_owned(),
        Err(error) => format!("a thread for the release cannot be started: {error}"),
    };
    complain(&format!("{error}. At the latest {name} is free when its lease ends"));
    End { code, is_released: false, until }
}

fn prepare(run: &Run, signals: &Signals, held: &Held) -> Command {
    let mut command = launch::command(&signals.blocked(), &run.command);
    command.env("WHEELLOCK_NAME", &run.name).env("WHEELLOCK_OWNER", held.owner());
    match held.token() {
        Some(token) => command.env("WHEELLOCK_TOKEN", token.to_string()),
        // That of a `wheellock run` around this one is another lock's.
        None => command.env_remove("WHEELLOCK_TOKEN"),
    };
    command
}

fn not_acquired(run: &Run) -> String {
    let name = shown(&run.name);
    match run.permits {
        Some(_) => format!("{name}: not acquired, all its permits are taken"),
        None if run.fair => format!("{name}: not acquired, others hold it or wait for it"),
        None => format!("{name}: not acquired, another owner holds it"),
    }
}

/// The wait is over, or a signal came, and a call of the client has not returned.
fn unanswered(run: &Run, job: &Job) -> Result<u8, Box<dyn Error>> {
    if job.signal().is_some() {
        return Ok(signalled(run, job));
    }
    Err(format!("{}: no answer from the server in the time to wait", shown(&run.name)).into())
}

/// A signal came before the command was started. It is not started any more.
fn signalled(run: &Run, job: &Job) -> u8 {
    let number = job.signal().map_or(0, Signal::as_raw);
    if !run.quiet {
        let name = shown(&run.name);
        complain(&format!("{name}: signal {number} came before the command was started"));
    }
    exit::signalled(number)
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILED),
        (None, Some(signal)) => exit::signalled(signal),
        (None, None) => exit::FAILED,
    }
}

/// Starts the thread that takes signals. It ends with the process.
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

/// The thread that waits for the command. It is there before the command is.
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
            let Ok(group) = started.recv() else { return };
            // A failure means that the system has reaped the command, as its parent was started
            // with SIGCHLD ignored. Then the exit code is not known, and that is reported there.
            job.watch(group).ok();
            // A failure means that nothing waits for it.
            end.send(()).ok();
        };
        thread::Builder::new().name("command".to_owned()).spawn(watch)?;
        Ok(Self { start, ended })
    }

    fn watch(&self, group: Pid) {
        // The channel has room for the one message.
        self.start.try_send(group).ok();
    }
}
