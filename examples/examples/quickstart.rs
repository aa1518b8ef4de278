//! A lock from being taken to its recovery from a crash, as a timeline.
//!
//! Each chapter is one function, with the calls that matter. Look at `remaining_lease` going down and up in [`renewed`],
//! at the time between the release and the next holder in [`handed_over`], and at what ends the wait in [`recovered`].
//!
//! ```text
//! cargo run --example quickstart
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wheellock::{Client, Clock as _, Error as LockError, LockGuard, Memory, SystemClock};
use wheellock_fixture::Server;

const USAGE: &str = "\
usage: quickstart [--redis URL | --spawn]

  --redis URL   on this server; without it, on the one in REDIS_URL
  --spawn       on a temporary server, started for this run
  without any   in memory, inside this process";

/// Short, so that a few seconds show it all. The default is 30 s.
const LEASE: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let arguments: Vec<_> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let url = env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    let told = match (arguments.as_slice(), url) {
        (["--help" | "-h"], _) => {
            println!("{USAGE}");
            Ok(())
        }
        (["--redis", url], _) => on_a_server(url, "--redis names it"),
        (["--spawn"], _) => on_a_temporary_server(),
        ([], Some(url)) => on_a_server(&url, "REDIS_URL names it"),
        ([], None) => in_memory(),
        // The part of the victim in the last chapter, played by a process of its own.
        (["--victim", name], Some(url)) => hold_until_killed(&url, name),
        _ => {
            eprintln!("quickstart: these arguments are not understood\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_memory() -> Result<(), Box<dyn Error>> {
    println!("Locks: in memory, because no server is named (--redis URL, REDIS_URL, --spawn).");
    println!(
        "They exclude the threads of this process only. The calls are the same as on a server."
    );
    tell(&Place::Memory(Memory::new()))
}

fn on_a_server(url: &str, why: &str) -> Result<(), Box<dyn Error>> {
    println!("Locks: on a Redis server, because {why}.");
    println!("They exclude the threads of all processes that use this server.");
    tell(&Place::Server(url.to_owned()))
}

fn on_a_temporary_server() -> Result<(), Box<dyn Error>> {
    let server = Server::try_start()?;
    println!("Locks: on a Redis server at {}, started for this run.", server.address());
    println!("They exclude the threads of all processes that use this server.");
    tell(&Place::Server(server.url()))
}

/// The story: two clients, as two processes would be, and one lock.
fn tell(place: &Place) -> Result<(), Box<dyn Error>> {
    let (ann, ben) = (place.client()?, place.client()?);
    let name = format!("quickstart:{}", ann.id());
    let time = Timeline { start: SystemClock.now() };

    chapter("Taken");
    let guard = ann.lock(&name).lock()?;
    time.line("Ann", &format!("has the lock, with a lease of {LEASE:?}"));
    time.line("Ann", &format!("is {} on the server", guard.owner()));

    contended(&time, &ben, &name)?;
    renewed(&time, &ann, &name, &guard)?;
    handed_over(&time, &ben, &name, guard)?;
    nested(&time, &ben, &name)?;
    recovered(&time, place, &ben, &name)?;

    time.line("end", "the lock is free, and nothing of it is left");
    Ok(())
}

/// Contention is an answer, not an error.
fn contended(time: &Timeline, ben: &Client, name: &str) -> Result<(), Box<dyn Error>> {
    chapter("Contended");
    let lock = ben.lock(name);
    if lock.try_lock()?.is_none() {
        time.line("Ben", "tries: no, somebody else holds it");
    }
    let wait = Duration::from_millis(200);
    if lock.try_lock_for(wait)?.is_none() {
        time.line("Ben", &format!("waits for {wait:?}: no"));
    }
    Ok(())
}

/// The watchdog renews the lease at a third of it, so a hold may last longer than its lease.
fn renewed(
    time: &Timeline,
    ann: &Client,
    name: &str,
    guard: &LockGuard,
) -> Result<(), Box<dyn Error>> {
    chapter("Renewed");
    let lock = ann.lock(name);
    let until = SystemClock.now() + LEASE + LEASE / 3;
    let mut before = Duration::MAX;
    while SystemClock.now() < until {
        let Some(left) = lock.remaining_lease()? else {
            break;
        };
        let what = if left > before { "renewed" } else { "" };
        let bar = "#".repeat(usize::try_from(left.as_millis() / 50)?);
        time.line("Ann", &format!("{:>5} ms left {bar:<30} {what}", left.as_millis()));
        before = left;
        pause(Duration::from_millis(200));
    }
    let renewals = ann.stats().renewed;
    time.line("Ann", &format!("holds it: {}, after {renewals} renewals", guard.is_held()));
    Ok(())
}

/// A release wakes a waiter; it does not sleep and ask.
fn handed_over(
    time: &Timeline,
    ben: &Client,
    name: &str,
    guard: LockGuard,
) -> Result<(), Box<dyn Error>> {
    chapter("Handed over");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            time.line("Ben", "waits, without a limit");
            let guard = ben.lock(name).lock()?;
            let granted = SystemClock.now();
            time.line("Ben", "has it");
            guard.unlock()?;
            time.line("Ben", "releases it");
            Ok::<Instant, LockError>(granted)
        });
        while ben.stats().waiters == 0 && !waiter.is_finished() {
            pause(Duration::from_millis(1));
        }
        pause(Duration::from_millis(300));
        time.line("Ann", "releases it");
        let released = SystemClock.now();
        guard.unlock()?;
        let granted = waiter.join().map_err(|_| "the waiter panicked")??;
        let between = granted.saturating_duration_since(released);
        time.line("Ben", &format!("had it {between:.1?} after Ann's release began"));
        Ok(())
    })
}

/// The lock is reentrant: a thread that holds it takes it again, and each guard counts.
fn nested(time: &Timeline, ben: &Client, name: &str) -> Result<(), Box<dyn Error>> {
    chapter("Nested");
    let lock = ben.lock(name);
    let outer = lock.lock()?;
    time.line("Ben", &format!("takes it: count {}", lock.hold_count()));
    let inner = lock.lock()?;
    time.line("Ben", &format!("takes it again: count {}", lock.hold_count()));
    inner.unlock()?;
    time.line("Ben", &format!("releases one: count {}", lock.hold_count()));
    outer.unlock()?;
    time.line("Ben", &format!("releases the other: locked: {}", lock.is_locked()?));
    Ok(())
}

/// Nobody releases the lock of a process that died. It is free when the lease ends, and that wakes the waiter.
fn recovered(
    time: &Timeline,
    place: &Place,
    ben: &Client,
    name: &str,
) -> Result<(), Box<dyn Error>> {
    chapter("Recovered from a crash");
    let died = match place {
        Place::Memory(_) => {
            // A thread cannot be killed. A guard that is forgotten stands for it: no release is ever sent. So that
            // nothing renews it either, as nothing would in a dead process, its lease is one without a watchdog.
            let cleo = place.client()?;
            std::mem::forget(cleo.lock(name).with_lease(LEASE).lock()?);
            time.line("Cleo", "takes it");
            let died = SystemClock.now();
            time.line("Cleo", "forgets the guard, which stands for a process that dies");
            died
        }
        Place::Server(url) => {
            let mut cleo = Victim::start(url, name)?;
            time.line("Cleo", "takes it, in a process of its own");
            let died = SystemClock.now();
            cleo.process.kill()?;
            time.line("Cleo", "is killed: no release, no renewal");
            died
        }
    };
    time.line("Ben", "waits");
    let guard = ben.lock(name).lock()?;
    let waited = SystemClock.now() - died;
    time.line("Ben", &format!("has it {waited:.1?} later: the lease of {LEASE:?} had ended"));
    guard.unlock()?;
    Ok(())
}

/// Where the locks are.
enum Place {
    Memory(Memory),
    Server(String),
}

impl Place {
    fn client(&self) -> Result<Client, LockError> {
        let builder = Client::builder().watchdog_lease(LEASE);
        match self {
            Self::Memory(memory) => builder.in_memory(memory).build(),
            Self::Server(url) => builder.url(url).build(),
        }
    }
}

/// This program once more, as a process that holds the lock until it is killed.
struct Victim {
    process: Child,
}

impl Victim {
    /// Returns when it holds the lock.
    fn start(url: &str, name: &str) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(env::current_exe()?)
            .args(["--victim", name])
            // Not among the arguments, which everybody on the machine can read: it may hold a password.
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let victim = Self { process };
        let mut line = String::new();
        BufReader::new(output.ok_or("no pipe")?).read_line(&mut line)?;
        if line.trim() == "held" { Ok(victim) } else { Err("the other process has no lock".into()) }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Failures mean that it has ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn hold_until_killed(url: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let client = Place::Server(url.to_owned()).client()?;
    let _guard = client.lock(name).lock()?;
    println!("held");
    // The pipe closes with the process at its other end, so none is left behind.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Timeline {
    start: Instant,
}

impl Timeline {
    fn line(&self, who: &str, what: &str) {
        let seconds = (SystemClock.now() - self.start).as_secs_f64();
        println!("{}", format!("{seconds:7.3} s  {who:<4}  {what}").trim_end());
    }
}

fn chapter(title: &str) {
    println!("\n{title}");
}

#[expect(clippy::disallowed_methods, reason = "the timeline shows real time pass")]
fn pause(duration: Duration) {
    thread::sleep(duration);
}
