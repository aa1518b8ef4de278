//! A lock from its acquire to the recovery from a crash, as a timeline.
//!
//! Each chapter is one function with the calls that matter. [`setup`] holds the rest: the command
//! line, the server and the process that is killed in the last chapter. Look at three things:
//!
//! * [`renewed`]: the remaining lease goes down, and up again;
//! * [`handed_over`]: the time from the release until the waiter has the lock;
//! * [`recovered`]: what ends the wait after the holder has died.
//!
//! ```text
//! cargo run --example quickstart
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

mod setup;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use wheellock::{Client, Error as LockError, LockGuard};

use crate::setup::{Backend, LEASE, Timeline, chapter, now, pause};

fn main() -> ExitCode {
    setup::run(chapters)
}

/// Two clients, as two processes would have them, and one lock.
fn chapters(backend: &Backend) -> Result<(), Box<dyn Error>> {
    let (ann, ben) = (backend.client()?, backend.client()?);
    let name = format!("quickstart:{}", ann.id());
    let time = Timeline::start();

    chapter("Acquired");
    let guard = ann.lock(&name).lock()?;
    time.line("Ann", &format!("has the lock, with a lease of {LEASE:?}"));
    time.line("Ann", &format!("is {} on the server", guard.owner()));

    contended(&time, &ben, &name)?;
    renewed(&time, &ann, &name, &guard)?;
    handed_over(&time, &ben, &name, guard)?;
    nested(&time, &ben, &name)?;
    recovered(&time, backend, &ben, &name)?;

    time.line("end", "the lock is free, and nothing is left on the server");
    Ok(())
}

/// Contention is a result, not an error.
fn contended(time: &Timeline, ben: &Client, name: &str) -> Result<(), LockError> {
    chapter("Contended");
    let lock = ben.lock(name);
    if lock.try_lock()?.is_none() {
        time.line("Ben", "tries: no, another owner holds it");
    }
    let wait = Duration::from_millis(200);
    if lock.try_lock_for(wait)?.is_none() {
        time.line("Ben", &format!("waits for {wait:?}: no"));
    }
    Ok(())
}

/// The watchdog renews the lease every third of it, so a hold can last longer than its lease.
fn renewed(
    time: &Timeline,
    ann: &Client,
    name: &str,
    guard: &LockGuard,
) -> Result<(), Box<dyn Error>> {
    chapter("Renewed");
    let lock = ann.lock(name);
    let end = now() + LEASE + LEASE / 3;
    let mut before = Duration::MAX;
    while now() < end {
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

/// A release wakes a waiter, which does not poll.
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
            let acquired = now();
            time.line("Ben", "has it");
            guard.unlock()?;
            time.line("Ben", "releases it");
            Ok::<_, LockError>(acquired)
        });
        while ben.stats().waiters == 0 && !waiter.is_finished() {
            pause(Duration::from_millis(1));
        }
        pause(Duration::from_millis(300));
        time.line("Ann", "releases it");
        let released = now();
        guard.unlock()?;
        let acquired = waiter.join().map_err(|_| "the waiter panicked")??;
        let between = acquired.saturating_duration_since(released);
        time.line("Ben", &format!("had it {between:.1?} after Ann's release began"));
        Ok(())
    })
}

/// The lock is reentrant: a thread that holds it can acquire it again, and each guard counts.
fn nested(time: &Timeline, ben: &Client, name: &str) -> Result<(), LockError> {
    chapter("Nested");
    let lock = ben.lock(name);
    let outer = lock.lock()?;
    time.line("Ben", &format!("acquires it: count {}", lock.hold_count()));
    let inner = lock.lock()?;
    time.line("Ben", &format!("acquires it again: count {}", lock.hold_count()));
    inner.unlock()?;
    time.line("Ben", &format!("releases one: count {}", lock.hold_count()));
    outer.unlock()?;
    time.line("Ben", &format!("releases the other: locked: {}", lock.is_locked()?));
    Ok(())
}

/// A process that dies does not release its lock. The lock is free when the lease ends, and the
/// waiter acquires it then.
fn recovered(
    time: &Timeline,
    backend: &Backend,
    ben: &Client,
    name: &str,
) -> Result<(), Box<dyn Error>> {
    chapter("Recovered from a crash");
    let died = setup::die_with_the_lock(time, backend, name)?;
    time.line("Ben", "waits");
    let guard = ben.lock(name).lock()?;
    let waited = now() - died;
    time.line("Ben", &format!("has it {waited:.1?} later: the lease of {LEASE:?} had ended"));
    guard.unlock()?;
    Ok(())
}
