//! Holds a lock for a given time, and prints what happened. A shell can use it to make two commands
//! exclude each other. Kill, stop and restart it to see how a lock behaves.
//!
//! Look at three things. [`acquire`] can be cancelled while it waits. [`keep`] waits for three
//! events at once: the lock is lost, a signal came, the time is over. Its end relies on what
//! `unlock` returns.
//!
//! ```text
//! cargo run --example hold -- --redis redis://127.0.0.1/ orders:42 10
//! ```

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use crossbeam_channel::{Receiver, after, bounded, never, select};
use wheellock::{Client, Error as LockError, LockGuard, LostReason, Wait};

const USAGE: &str = "\
usage: hold [--redis URL] NAME [SECONDS] [--wait S] [--watchdog S | --lease S]

Takes the lock NAME, holds it for SECONDS, and releases it. Without SECONDS it
holds until a signal: SIGINT, SIGTERM and SIGHUP release the lock first.

  --redis URL    the server; without it, the environment variable REDIS_URL
  --wait S       wait for the lock for S seconds at most; without it, no limit
  --watchdog S   hold with a lease of S seconds that is renewed (30)
  --lease S      hold with a lease of S seconds that is not renewed
  --             what follows is not an option, even if it begins with a dash

Seconds are decimals. Lines on the standard output (the reasons are on the standard error):

  held NAME owner=OWNER
  released
  lost
  not acquired

Exit codes:

  0  held, and released
  1  an error, also of the command line
  3  not acquired: somebody else held it all the time, or a signal ended the wait
  4  lost: the lock was no longer held before it was released";

const RELEASED: u8 = 0;
const FAILED: u8 = 1;
const NOT_ACQUIRED: u8 = 3;
const LOST: u8 = 4;

fn main() -> ExitCode {
    let code = match Options::parse(env::args_os().skip(1), env::var("REDIS_URL").ok()) {
        Ok(Some(options)) => run(&options).unwrap_or_else(|error| {
            complain(&format!("hold: {error}"));
            FAILED
        }),
        Ok(None) => say(USAGE).map_or(FAILED, |()| RELEASED),
        Err(misuse) => {
            complain(&format!("hold: {misuse}\n\n{USAGE}"));
            FAILED
        }
    };
    ExitCode::from(code)
}

fn run(options: &Options) -> Result<u8, Box<dyn Error>> {
    // Before anything is held, so that no signal ends the process while it holds the lock.
    let signal = signals()?;
    let mut builder = Client::builder().url(&options.url);
    if let LeasePolicy::Watched(Some(lease)) = options.lease {
        builder = builder.watchdog_lease(lease);
    }
    let client = builder.build()?;
    let outcome = acquire_and_keep(&client, options, &signal);
    // A release without a reply is sent again for a second at most. This is rare.
    client.shutdown(Duration::from_secs(1));
    outcome
}

fn acquire_and_keep(
    client: &Client,
    options: &Options,
    signal: &Receiver<()>,
) -> Result<u8, Box<dyn Error>> {
    match acquire(client, options, signal) {
        Ok(Some(guard)) => keep(guard, options, signal),
        Ok(None) => not_acquired("somebody else held it all the time"),
        Err(LockError::Cancelled { .. }) => not_acquired("a signal ended the wait"),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the lock. `None` if the time is over first.
fn acquire(
    client: &Client,
    options: &Options,
    signal: &Receiver<()>,
) -> Result<Option<LockGuard>, LockError> {
    let mut lock = client.lock(&options.name);
    if let LeasePolicy::Fixed(lease) = options.lease {
        lock = lock.with_lease(lease);
    }
    // A message in the channel ends the wait. Any thread can send it.
    let wait = options.wait.map_or(Wait::forever(), Wait::at_most);
    lock.try_lock_with(wait.or_cancelled(signal))
}

/// Holds the lock until its time is over, a signal comes, or it is lost.
fn keep(guard: LockGuard, options: &Options, signal: &Receiver<()>) -> Result<u8, Box<dyn Error>> {
    say(&format!("held {} owner={}", printable(&options.name), guard.owner()))?;
    let over = options.hold.map_or_else(never, after);
    select! {
        // This comes at once: work that must not continue without the lock stops here.
        recv(guard.lost()) -> reason => {
            let reason = reason.unwrap_or(LostReason::Expired);
            return lost(reason);
        }
        recv(signal) -> _ => {}
        recv(over) -> _ => {}
    }
    // It may have been lost just now. `unlock` knows.
    match guard.unlock() {
        Ok(()) => {
            say("released")?;
            Ok(RELEASED)
        }
        Err(LockError::Lost { reason, .. }) => lost(reason),
        Err(error) => Err(error.into()),
    }
}

fn not_acquired(reason: &str) -> Result<u8, Box<dyn Error>> {
    complain(&format!("hold: {reason}"));
    say("not acquired")?;
    Ok(NOT_ACQUIRED)
}

fn lost(reason: LostReason) -> Result<u8, Box<dyn Error>> {
    complain(&format!("hold: {reason}"));
    say("lost")?;
    Ok(LOST)
}

/// A channel that gets a message at the first SIGINT, SIGTERM or SIGHUP.
fn signals() -> Result<Receiver<()>, ctrlc::Error> {
    let (sender, signal) = bounded(1);
    ctrlc::set_handler(move || {
        // A full channel means that a signal has been seen already.
        sender.try_send(()).ok();
    })?;
    Ok(signal)
}

/// The options of the command line.
struct Options {
    url: String,
    name: String,
    hold: Option<Duration>,
    wait: Option<Duration>,
    lease: LeasePolicy,
}

/// How long a hold lasts.
#[derive(Clone, Copy)]
enum LeasePolicy {
    /// It is renewed, with this lease or the client's default.
    Watched(Option<Duration>),
    /// It ends after this time.
    Fixed(Duration),
}

impl Options {
    /// `None` if help is asked for.
    fn parse(
        arguments: impl Iterator<Item = OsString>,
        url_of_environment: Option<String>,
    ) -> Result<Option<Self>, String> {
        let mut url = url_of_environment.filter(|url| !url.is_empty());
        let (mut wait, mut watchdog, mut lease) = (None, None, None);
        let mut words = Vec::new();
        let mut options_end = false;
        let mut arguments = arguments.map(|argument| {
            argument
                .into_string()
                .map_err(|argument| format!("{} is not UTF-8", argument.display()))
        });
        while let Some(argument) = arguments.next() {
            let argument = argument?;
            if options_end || !argument.starts_with('-') {
                words.push(argument);
                continue;
            }
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            let mut value = || match value.clone() {
                Some(value) => Ok(value),
                None => arguments.next().unwrap_or_else(|| Err(format!("{option} needs a value"))),
            };
            match option {
                "--help" | "-h" => return Ok(None),
                "--" => options_end = true,
                "--redis" => url = Some(value()?),
                "--wait" => wait = Some(seconds(option, &value()?)?),
                "--watchdog" => watchdog = Some(seconds(option, &value()?)?),
                "--lease" => lease = Some(seconds(option, &value()?)?),
                _ => return Err(format!("there is no option {option}")),
            }
        }
        let lease = match (watchdog, lease) {
            (Some(_), Some(_)) => {
                return Err("a hold has a --watchdog or a --lease, not both".to_owned());
            }
            (watchdog, None) => LeasePolicy::Watched(watchdog),
            (None, Some(lease)) => LeasePolicy::Fixed(lease),
        };
        let mut words = words.into_iter();
        let name = words.next().ok_or("which lock? NAME is missing")?;
        let hold = words.next().map(|text| seconds("SECONDS", &text)).transpose()?;
        if let Some(word) = words.next() {
            return Err(format!("{word:?} is one word too many"));
        }
        let url = url.ok_or("which server? Give --redis URL or set REDIS_URL")?;
        Ok(Some(Self { url, name, hold, wait, lease }))
    }
}

/// Seconds as a decimal. Negative, too large and other text is refused.
fn seconds(what: &str, text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{what}: {text:?} is not a number of seconds"))
}

/// A name as one line: control characters are escaped.
fn printable(name: &str) -> String {
    let shown = |letter: char| {
        if letter.is_control() { letter.escape_default().collect() } else { String::from(letter) }
    };
    name.chars().map(shown).collect()
}

/// Writes a line and flushes it. A reader that is gone is an error, not a panic.
fn say(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn complain(line: &str) {
    // A failure cannot be reported anywhere.
    writeln!(io::stderr(), "{line}").ok();
}
