//! Measurements of locks: pairs of lock and unlock, and hand-overs to another client.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::error::Error;
use crate::locks::guard::LockGuard;
use crate::locks::lock::Lock;
use crate::model::panics::drop_payload;
use crate::model::sync::{Parker, SystemClock, park, thread};

/// The lease of the scratch lock, which frees the lock if this process ends while holding the lock.
const LEASE: Duration = Duration::from_secs(5);

/// Limits of the measurement of pairs: duration and number.
const PAIRS_FOR: Duration = Duration::from_millis(300);
const MOST_PAIRS: usize = 2_000;

/// Limits of the measurement of hand-overs: duration and number.
const HAND_OVERS_FOR: Duration = Duration::from_millis(700);
const MOST_HAND_OVERS: usize = 50;

/// Timeout of an acquire. A waiter not woken by a message acquires within a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// The interval of polling for the waiter, and a pause for the waiter's thread to fall asleep.
const LOOK: Duration = Duration::from_micros(100);
const SETTLING: Duration = Duration::from_millis(1);

pub(super) fn now() -> Instant {
    SystemClock.now()
}

fn pause(time: Duration) {
    park(&SystemClock, &Parker::new(), Some(now() + time), None);
}

fn scratch(client: &Client, name: &str) -> Lock {
    client.lock(name).with_lease(LEASE)
}

/// The durations of pairs of lock and unlock, or the first error.
pub(super) fn pairs(client: &Client, name: &str) -> Result<Vec<Duration>, Error> {
    let lock = scratch(client, name);
    let begun = now();
    let mut times = Vec::new();
    for round in 0..=MOST_PAIRS {
        let sent = now();
        acquire(&lock, PATIENCE)?.unlock()?;
        let answered = now();
        // The first pair is not counted: it includes making connections and loading scripts.
        if round > 0 {
            times.push(answered.saturating_duration_since(sent));
        }
        if !times.is_empty() && answered.saturating_duration_since(begun) >= PAIRS_FOR {
            break;
        }
    }
    Ok(times)
}

/// The durations from just before a release until the waiter of `rival` has the lock.
pub(super) fn hand_overs(
    client: &Client,
    rival: &Client,
    name: &str,
) -> Result<Vec<Duration>, Error> {
    let (lock, awaited) = (scratch(client, name), scratch(rival, name));
    let (begin, rounds) = bounded::<()>(1);
    let (report, acquired) = bounded(1);
    let waiter = thread::Builder::new()
        .name("lock-member".to_owned())
        .spawn(move || wait(&awaited, &rounds, &report))
        .map_err(|error| Error::Thread { reason: error.into() })?;
    let times = measure(&lock, rival, &begin, &acquired);
    // Ends the waiter.
    drop(begin);
    drop(acquired);
    waiter.join().unwrap_or_else(drop_payload);
    times
}

fn measure(
    lock: &Lock,
    rival: &Client,
    begin: &Sender<()>,
    acquired: &Receiver<Result<Instant, Error>>,
) -> Result<Vec<Duration>, Error> {
    let start = now();
    let mut times = Vec::new();
    for round in 0..=MOST_HAND_OVERS {
        let guard = acquire(lock, PATIENCE)?;
        // Fails if the waiter has ended; then a report is queued.
        begin.send(()).ok();
        let deadline = now() + PATIENCE;
        while rival.stats().waiters == 0 && acquired.is_empty() && now() < deadline {
            pause(LOOK);
        }
        pause(SETTLING);
        let released = now();
        guard.unlock()?;
        // Arrives at the latest twice the command timeout after the waiter's `PATIENCE`.
        let Ok(outcome) = acquired.recv() else { return Ok(times) };
        let time = outcome?.saturating_duration_since(released);
        if round > 0 {
            times.push(time);
        }
        if !times.is_empty() && now().saturating_duration_since(start) >= HAND_OVERS_FOR {
            break;
        }
    }
    Ok(times)
}

/// The waiter: acquires and releases once for each round, and reports the instant of the grant.
fn wait(lock: &Lock, rounds: &Receiver<()>, report: &Sender<Result<Instant, Error>>) {
    for () in rounds {
        let outcome = acquire(lock, PATIENCE).and_then(|guard| {
            let acquired = now();
            guard.unlock().map(|()| acquired)
        });
        if report.send(outcome).is_err() {
            return;
        }
    }
}

/// Acquires the scratch lock. Nobody else uses the name, so a refusal means a missing release.
fn acquire(lock: &Lock, patience: Duration) -> Result<LockGuard, Error> {
    lock.try_lock_for(patience)?.ok_or_else(|| Error::Refused {
        operation: "acquire",
        code: "TIMEOUT".to_owned(),
        message: "the scratch lock is not free".to_owned(),
    })
}
