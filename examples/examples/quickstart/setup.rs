//! What the chapters need around the lock: the command line, the server, a process to kill, and the
//! timeline.

use std::env;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wheellock::{Client, Clock as _, Error as LockError, Memory, SystemClock};
use wheellock_fixture::Server;

const USAGE: &str = "\
usage: quickstart [--redis URL | --spawn]

  --redis URL   use this server; without it, the one in REDIS_URL
  --spawn       use a temporary server, started for this run
  without any   use locks in memory, inside this process";

/// Short, so that a few seconds show everything. The default is 30 s.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// Where the locks are.
pub(crate) enum Backend {
    Memory(Memory),
    Server(String),
}

impl Backend {
    pub(crate) fn client(&self) -> Result<Client, LockError> {
        let builder = Client::builder().watchdog_lease(LEASE);
        match self {
            Self::Memory(memory) => builder.in_memory(memory).build(),
            Self::Server(url) => builder.url(url).build(),
        }
    }
}

type Chapters = fn(&Backend) -> Result<(), Box<dyn Error>>;

/// Runs the chapters on the backend that the command line asks for.
pub(crate) fn run(chapters: Chapters) -> ExitCode {
    let arguments: Vec<_> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let url = env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    let outcome = match (arguments.as_slice(), url) {
        (["--help" | "-h"], _) => {
            println!("{USAGE}");
            Ok(())
        }
        (["--redis", url], _) => on_a_server(chapters, url, "--redis names it"),
        (["--spawn"], _) => on_a_temporary_server(chapters),
        ([], Some(url)) => on_a_server(chapters, &url, "REDIS_URL names it"),
        ([], None) => in_memory(chapters),
        // The process that is killed in the last chapter.
        (["--victim", name], Some(url)) => hold_until_killed(&url, name),
        _ => {
            eprintln!("quickstart: these arguments are not understood\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_memory(chapters: Chapters) -> Result<(), Box<dyn Error>> {
    println!("Locks: in memory, because no server is named (--redis URL, REDIS_URL, --spawn).");
    println!(
        "They exclude the threads of this process only. The calls are the same as on a server."
    );
    chapters(&Backend::Memory(Memory::new()))
}

fn on_a_server(chapters: Chapters, url: &str, why: &str) -> Result<(), Box<dyn Error>> {
    println!("Locks: on a Redis server, because {why}.");
    println!("They exclude the threads of all processes that use this server.");
    chapters(&Backend::Server(url.to_owned()))
}

fn on_a_temporary_server(chapters: Chapters) -> Result<(), Box<dyn Error>> {
    let server = Server::try_start()?;
    println!("Locks: on a Redis server at {}, started for this run.", server.address());
    println!("They exclude the threads of all processes that use this server.");
    chapters(&Backend::Server(server.url()))
}

/// Cleo acquires the lock and dies without a release. Returns when that was.
pub(crate) fn die_with_the_lock(
    time: &Timeline,
    backend: &Backend,
    name: &str,
) -> Result<Instant, Box<dyn Error>> {
    match backend {
        Backend::Memory(_) => {
            // A thread cannot be killed. A guard that is forgotten stands for it: no release is
            // ever sent. A dead process does not renew either, so the lease is one without a
            // watchdog.
            let cleo = backend.client()?;
            std::mem::forget(cleo.lock(name).with_lease(LEASE).lock()?);
            time.line("Cleo", "acquires it");
            let died = now();
            time.line("Cleo", "forgets the guard, which stands for a process that dies");
            Ok(died)
        }
        Backend::Server(url) => {
            let mut cleo = Victim::start(url, name)?;
            time.line("Cleo", "acquires it, in a process of its own");
            let died = now();
            cleo.process.kill()?;
            time.line("Cleo", "is killed: no release, no renewal");
            Ok(died)
        }
    }
}

/// This program again, as a process that holds the lock until it is killed.
struct Victim {
    process: Child,
}

impl Victim {
    /// Returns when the process holds the lock.
    fn start(url: &str, name: &str) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(env::current_exe()?)
            .args(["--victim", name])
            // Not an argument, which all users of the machine can read: it may contain a password.
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take();
        let victim = Self { process };
        let mut line = String::new();
        BufReader::new(output.ok_or("no pipe")?).read_line(&mut line)?;
        if line.trim() == "held" {
            Ok(victim)
        } else {
            Err("the other process did not acquire the lock".into())
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // A failure means that it has ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn hold_until_killed(url: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let client = Backend::Server(url.to_owned()).client()?;
    let _guard = client.lock(name).lock()?;
    println!("held");
    // The pipe closes when the other process ends, so this one ends too.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Prints lines with the time since its start.
pub(crate) struct Timeline {
    start: Instant,
}

impl Timeline {
    pub(crate) fn start() -> Self {
        Self { start: now() }
    }

    pub(crate) fn line(&self, client: &str, what: &str) {
        let seconds = (now() - self.start).as_secs_f64();
        println!("{}", format!("{seconds:7.3} s  {client:<4}  {what}").trim_end());
    }
}

pub(crate) fn chapter(title: &str) {
    println!("\n{title}");
}

pub(crate) fn now() -> Instant {
    SystemClock.now()
}

#[expect(clippy::disallowed_methods, reason = "the timeline shows real time")]
pub(crate) fn pause(duration: Duration) {
    thread::sleep(duration);
}
