//! Measures the latency of lock and unlock pairs, and of hand-overs to a second client.

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

/// The duration of the measurement of pairs.
const PAIRS_FOR: Duration = Duration::from_millis(300);
/// The maximum number of measured pairs.
const MOST_PAIRS: usize = 2_000;

/// The duration of the measurement of hand-overs.
const HAND_OVERS_FOR: Duration = Duration::from_millis(700);
/// The maximum number of measured hand-overs.
const MOST_HAND_OVERS: usize = 50;

/// The timeout of each acquire. A waiter without a notification acquires within a second.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which the releasing thread checks whether there is a waiter.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// The pause before a release, in which the waiter's thread falls asleep.
const PAUSE_BEFORE_RELEASE: Duration = Duration::from_millis(1);

/// Returns the time of the system's clock, whatever the client's clock.
pub(super) fn now() -> Instant {
    SystemClock.now()
}

/// Pauses for `time` of the system's clock.
fn pause(time: Duration) {
    park(&SystemClock, &Parker::new(), Some(now() + time), None);
}

/// Returns the scratch lock `name` of `client`, with the lease [`LEASE`].
fn scratch(client: &Client, name: &str) -> Lock {
    client.lock(name).with_lease(LEASE)
}

/// Locks and unlocks the scratch lock `name` repeatedly. Returns the duration of each pair but the
/// first, or the first error.
pub(super) fn pairs(client: &Client, name: &str) -> Result<Vec<Duration>, Error> {
    let lock = scratch(client, name);
    let begun = now();
    let mut times = Vec::new();
    for round in 0..=MOST_PAIRS {
        let sent = now();
        acquire(&lock, ACQUIRE_TIMEOUT)?.unlock()?;
        let answered = now();
        // The first pair is not counted: it opens connections and loads scripts.
        if round > 0 {
            times.push(answered.saturating_duration_since(sent));
        }
        if !times.is_empty() && answered.saturating_duration_since(begun) >= PAIRS_FOR {
            break;
        }
    }
    Ok(times)
}

/// Releases the scratch lock `name` repeatedly while a thread with the client `rival` waits for the
/// lock. Returns the durations from just before a release until the waiter has the lock, or the
/// first error.
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
    // Both drops end the waiter's thread.
    drop(begin);
    drop(acquired);
    waiter.join().unwrap_or_else(drop_payload);
    times
}

/// Runs the releasing side of the hand-overs: acquires `lock`, sends to `begin`, waits until
/// `rival` has a waiter, and releases. Receives the time of the waiter's grant from `acquired`.
/// Returns the duration of each hand-over but the first.
fn measure(
    lock: &Lock,
    rival: &Client,
    begin: &Sender<()>,
    acquired: &Receiver<Result<Instant, Error>>,
) -> Result<Vec<Duration>, Error> {
    let start = now();
    let mut times = Vec::new();
    for round in 0..=MOST_HAND_OVERS {
        let guard = acquire(lock, ACQUIRE_TIMEOUT)?;
        // The waiter receives the message, or has ended with a report.
        begin.send(()).ok();
        let deadline = now() + ACQUIRE_TIMEOUT;
        while rival.stats().waiters == 0 && acquired.is_empty() && now() < deadline {
            pause(CHECK_INTERVAL);
        }
        pause(PAUSE_BEFORE_RELEASE);
        let released = now();
        guard.unlock()?;
        // The outcome arrives within `ACQUIRE_TIMEOUT` plus twice the command timeout.
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

/// Acquires and releases `lock` once for each of `rounds`, and sends the time of the grant, or the
/// error, to `report`. Returns when either channel is closed.
fn wait(lock: &Lock, rounds: &Receiver<()>, report: &Sender<Result<Instant, Error>>) {
    for () in rounds {
        let outcome = acquire(lock, ACQUIRE_TIMEOUT).and_then(|guard| {
            let acquired = now();
            guard.unlock().map(|()| acquired)
        });
        if report.send(outcome).is_err() {
            return;
        }
    }
}

/// Acquires `lock` within `patience`. A timeout is an error: nobody else uses the name, so the lock
/// was not released.
fn acquire(lock: &Lock, patience: Duration) -> Result<LockGuard, Error> {
    lock.try_lock_for(patience)?.ok_or_else(|| Error::Refused {
        operation: "acquire",
        code: "TIMEOUT".to_owned(),
        message: "the scratch lock is not free".to_owned(),
    })
}
