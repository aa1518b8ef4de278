//! The workload of a client that holds a million locks: they are acquired by many threads, renewed,
//! dropped, acquired again, and released by a shutdown.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use wheellock::{Client, LockGuard};
use wheellock_fixture::RawConnection;

use crate::harness::clock::now;
use crate::harness::measured::{Numbers, ready_and_wait};
use crate::harness::process::{percent_of, resident_bytes};
use crate::watchdog::holders::{HolderConfig, lock_name, url};
use crate::watchdog::server_load::ServerLoad;

const THREADS: usize = 16;
/// How long the shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(60);

/// What a thread is told to do with its share of the locks. It answers with a number.
#[derive(Clone, Copy, Debug)]
enum Task {
    Acquire,
    /// The number of those that are not held.
    Lost,
    Drop,
}

/// Acquires locks, measures for `window` when the report says so, drops all, and acquires them
/// again for a shutdown.
pub(crate) fn million(config: &HolderConfig, held: usize, window: Duration) -> Numbers {
    let client = Client::builder()
        .url(&url(config.address))
        .watchdog_lease(config.lease)
        .build()
        .expect("the server is there");
    let mut observer = RawConnection::open(config.address).expect("the server listens");
    thread::scope(|scope| {
        let threads: Vec<HolderThread> = (0..THREADS)
            .map(|number| {
                let share = held * number / THREADS..held * (number + 1) / THREADS;
                let ((tasks, to_do), (done, answers)) = (channel(), channel());
                let client = &client;
                scope.spawn(move || hold(client, share, &to_do, &done));
                HolderThread { tasks, answers }
            })
            .collect();
        let before = resident_bytes();
        let acquired = seconds(|| at_once(&threads, Task::Acquire));
        ready_and_wait();
        let (start, load) = (now(), ServerLoad::read(&mut observer));
        let percent = percent_of(window);
        let (load, took) = (ServerLoad::read(&mut observer).since(load), now() - start);
        let memory = resident_bytes() - before;
        let stats = client.stats();
        assert!(stats.panics == 0, "a turn of the renewal thread panicked");
        let lost = at_once(&threads, Task::Lost);
        let dropped = seconds(|| in_turn(&threads, Task::Drop));
        let kept = ServerLoad::read(&mut observer).keys;
        at_once(&threads, Task::Acquire);
        let mut unreleased = 0;
        let shutdown = seconds(|| unreleased = client.shutdown(SHUTDOWN).unreleased.len());
        let left = ServerLoad::read(&mut observer).keys;
        let held = as_f64(held);
        vec![
            ("rate", held / acquired / 1000.0),
            ("percent", percent),
            ("server-percent", 100.0 * load.processor / took.as_secs_f64()),
            ("renewals", load.renewals / took.as_secs_f64()),
            ("lateness", stats.renewal_lateness.p99.as_secs_f64() * 1000.0),
            ("memory", memory / held),
            ("lost", as_f64(lost).max(held - load.keys)),
            ("dropped", dropped),
            ("kept", kept),
            ("shutdown", shutdown),
            ("left", left.max(as_f64(unreleased))),
        ]
    })
}

/// A thread with a share of the locks: a guard stays on the thread that acquired it.
struct HolderThread {
    tasks: Sender<Task>,
    answers: Receiver<usize>,
}

impl HolderThread {
    fn send(&self, task: Task) {
        self.tasks.send(task).expect("the thread waits for tasks");
    }

    fn answer(&self) -> usize {
        self.answers.recv().expect("the thread answers each task")
    }
}

/// All threads do it at the same time. Returns the sum of their answers.
fn at_once(threads: &[HolderThread], task: Task) -> usize {
    for thread in threads {
        thread.send(task);
    }
    threads.iter().map(HolderThread::answer).sum()
}

/// One thread after the other.
fn in_turn(threads: &[HolderThread], task: Task) -> usize {
    let one = |thread: &HolderThread| {
        thread.send(task);
        thread.answer()
    };
    threads.iter().map(one).sum()
}

/// One thread: holds its share of the locks, until there are no more tasks.
fn hold(client: &Client, share: Range<usize>, tasks: &Receiver<Task>, done: &Sender<usize>) {
    let mut guards: Vec<LockGuard> = Vec::with_capacity(share.len());
    for task in tasks {
        let answer = match task {
            Task::Acquire => {
                guards.extend(share.clone().map(|number| {
                    client.lock(&lock_name(number)).lock().expect("the lock is free")
                }));
                guards.len()
            }
            Task::Lost => guards.iter().filter(|guard| !guard.is_held()).count(),
            Task::Drop => {
                guards.clear();
                0
            }
        };
        done.send(answer).expect("the measuring thread waits for the answer");
    }
}

fn seconds<R>(work: impl FnOnce() -> R) -> f64 {
    let start = now();
    work();
    (now() - start).as_secs_f64()
}

fn as_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::NAN, f64::from)
}
