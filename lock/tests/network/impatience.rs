//! Callers with short limits beside patient callers, on the connections of one client: what the
//! hasty callers give up costs the patient callers nothing.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "figures for a reader, who asks for them")]

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::common::{ProxiedServer, SOON, Script, built, now, pause, settle};
use wheellock::Client;
use wheellock_fixture::{Fault, Server};

/// Written by a test that keeps the machine busy, read by a test of how late something ends.
pub(crate) static BUSY: RwLock<()> = RwLock::new(());

/// How many tries all threads make together.
const TRIES_A_SECOND: u32 = 10_000;
/// A busy machine answers within that time, and a client that loses its connections again and again
/// does not.
const PATIENCE: Duration = Duration::from_secs(3);
const STALL: Duration = Duration::from_millis(500);
/// After a stall, how long calls may still suffer.
const RECOVERY: Duration = Duration::from_secs(1);
/// How long the threads go on, before the stall and after the recovery.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(3);
/// Thousands of threads share the memory.
const STACK: usize = 256 * 1024;

/// One try of a patient thread.
struct Try {
    begun: Instant,
    took: Duration,
    /// Why the lock was not acquired.
    failure: Option<String>,
}

/// How many threads there are: `CROWD_THREADS`, or as many as a large program has.
fn threads() -> u32 {
    env::var("CROWD_THREADS").map_or(2000, |threads| threads.parse().unwrap())
}

/// How long the hasty thread of that number waits for an answer. Every third is hasty.
fn hasty_limit(number: u32) -> Option<Duration> {
    number.is_multiple_of(3).then(|| Duration::from_millis(1 + u64::from(number / 3 % 10)))
}

/// Tries a lock of its own at regular times, the last time at `over` or later.
fn try_again_and_again(
    client: &Client,
    (number, threads): (u32, u32),
    (start, over): (Instant, Instant),
) -> Vec<Try> {
    let lock = client.lock(&format!("own {number}"));
    let period = Duration::from_secs(1) * threads / TRIES_A_SECOND;
    let mut next = start + period * number / threads;
    let mut tries = Vec::new();
    loop {
        pause(next.saturating_duration_since(now()));
        let begun = now();
        if let Some(limit) = hasty_limit(number) {
            // In time or not: nobody asks.
            drop(lock.try_lock_for(limit));
        } else {
            let failure = match lock.try_lock() {
                Ok(Some(_)) => None,
                Ok(None) => Some("somebody else has the lock".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            tries.push(Try { begun, took: now().saturating_duration_since(begun), failure });
        }
        if next >= over {
            return tries;
        }
        // A thread that is late leaves tries out: the machine has no time for them.
        while next <= now() {
            next += period;
        }
    }
}

#[test]
fn a_call_that_gives_up_leaves_its_connection_to_the_next_call() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let give_up = || {
        let held = setup.on(Script::Acquire, "given up", Fault::HoldReply);
        let refused = client.lock("given up").try_lock_for(Duration::from_millis(1));
        assert!(refused.is_err(), "nobody has answered");
        held.wait_for_hit(SOON);
        held.deliver();
        client.lock("other").lock().unwrap().unlock().unwrap();
        settle(&client);
    };
    // Makes the connections that this takes: what was acquired is released by a renewal thread.
    (0..2).for_each(|_| give_up());
    let made = client.stats().connections_made;
    (0..5).for_each(|_| give_up());
    assert_eq!(client.stats().connections_made, made);
}

#[test]
fn patient_calls_are_answered_before_and_soon_after_a_stall() {
    let _busy = BUSY.write();
    let threads = threads();
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(PATIENCE));
    // All threads are there by then.
    let start = now() + Duration::from_millis(300);
    let over = start + BEFORE + STALL + RECOVERY + AFTER;
    let (tries, paused, resumed) = thread::scope(|scope| {
        let crowd: Vec<_> = (0..threads)
            .map(|number| {
                let client = &client;
                let run = move || try_again_and_again(client, (number, threads), (start, over));
                thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run).unwrap()
            })
            .collect();
        pause((start + BEFORE).saturating_duration_since(now()));
        let paused = now();
        server.pause();
        pause(STALL);
        server.resume();
        let resumed = now();
        let tries: Vec<Vec<Try>> = crowd.into_iter().map(|thread| thread.join().unwrap()).collect();
        (tries, paused, resumed)
    });

    let well = resumed + RECOVERY;
    let is_checked = |tried: &&Try| tried.begun + tried.took < paused || tried.begun >= well;
    let all = tries.iter().flatten();
    let failed: Vec<&String> =
        all.clone().filter(is_checked).filter_map(|tried| tried.failure.as_ref()).collect();
    let mut took: Vec<Duration> = all.clone().filter(is_checked).map(|tried| tried.took).collect();
    took.sort_unstable();
    println!(
        "{threads} threads, a stall: {} patient tries, of which {} failed; {} to be answered: \
         median {:?}, worst {:?}, {} failed; {} connections made",
        all.clone().count(),
        all.filter(|tried| tried.failure.is_some()).count(),
        took.len(),
        took[took.len() / 2],
        took[took.len() - 1],
        failed.len(),
        client.stats().connections_made,
    );
    assert!(failed.is_empty(), "{} failed, such as: {}", failed.len(), failed[0]);
    for (number, tries) in (0..).zip(&tries) {
        let is_hasty = hasty_limit(number).is_some();
        let goes_on = is_hasty || tries.iter().any(|tried| tried.begun >= well);
        assert!(goes_on, "thread {number} is stuck");
    }
}
