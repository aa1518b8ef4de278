//! Threads that take a lock in turn: each tries it right after another has dropped its guard.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use wheellock::{Client, Lock};
use wheellock_fixture::Server;

use super::{pause, settle};

/// How long each of the other threads rests between two tries. So many connections are in use at
/// times, and the machine is not busy.
const REST: Duration = Duration::from_millis(20);

/// Tries the lock once and drops the guard.
fn take_and_drop(lock: &Lock, number: usize) {
    match lock.try_lock() {
        Ok(Some(guard)) => drop(guard),
        Ok(None) => panic!("try {number} met the hold of a guard that was dropped before"),
        Err(error) => panic!("try {number}: {error}"),
    }
}

/// Two threads take the lock `turns` in turn, so many times together, beside `others` that use locks
/// of their own. No try meets a hold that a thread of the client has dropped before. Returns how
/// many tries all threads made, and how many of them the server was asked for a second time.
pub(crate) fn take_in_turn(
    client: &Client,
    server: &Server,
    times: usize,
    others: usize,
) -> (u64, u64) {
    let scripts = || server.command_calls("evalsha") + server.command_calls("eval");
    settle(client);
    let asked_before = scripts();
    let (is_over, tries) = (AtomicBool::new(false), AtomicU64::new(0));
    let (is_over, tries) = (&is_over, &tries);
    let take = |lock: &Lock, number| {
        tries.fetch_add(1, Ordering::Relaxed);
        take_and_drop(lock, number);
    };
    thread::scope(|scope| {
        for number in 0..others {
            scope.spawn(move || {
                let lock = client.lock(&format!("other {number}"));
                while !is_over.load(Ordering::Relaxed) {
                    take(&lock, number);
                    pause(REST);
                }
            });
        }
        let _ends = Ends(is_over);
        let ((pass, passed), (pass_back, passed_back)) = (bounded(0), bounded(0));
        let second = scope.spawn(move || {
            let lock = client.lock("turns");
            for number in (1..times).step_by(2) {
                // The first has ended, and says why.
                let Ok(()) = passed.recv() else { return };
                take(&lock, number);
                let Ok(()) = pass_back.send(()) else { return };
            }
        });
        let lock = client.lock("turns");
        for number in (0..times).step_by(2) {
            take(&lock, number);
            let Ok(()) = pass.send(()) else { break };
            let Ok(()) = passed_back.recv() else { break };
        }
        drop((pass, passed_back));
        second.join().unwrap();
    });
    settle(client);
    let tries = tries.load(Ordering::Relaxed);
    // Each try is one script, and its release another.
    (tries, (scripts() - asked_before).saturating_sub(tries * 2))
}

/// Ends the other threads, also if a try fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
