//! How many threads a red lock has, and that they end with it. Counts the threads of the process.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::time::Duration;

use crate::ran_in_a_child;
use wheellock::Client;
use wheellock_fixture::wait_until;

const SERVERS: usize = 5;
/// Threads at most: a server that answers quickly while callers stand in line has up to eight. One
/// looks after missing parts.
const MOST: usize = SERVERS * 8 + 1;
const SOON: Duration = Duration::from_secs(10);

/// Threads of red locks. A thread names itself, a little after it begins.
fn threads() -> usize {
    fs::read_dir("/proc/self/task")
        .unwrap()
        // It may end while we look.
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|comm| comm.trim() == "lock-member")
        .count()
}

/// Threads of this process.
fn all_threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn red_lock_uses_few_threads_per_server_and_ends_them_on_drop() {
    if ran_in_a_child(red_lock_uses_few_threads_per_server_and_ends_them_on_drop) {
        return;
    }
    let clients: Vec<Client> = (0..SERVERS).map(|_| Client::in_memory()).collect();
    let before = all_threads();
    let lock = Client::red_lock(&clients, "a");
    assert_eq!(all_threads(), before, "none before it is used");
    for _ in 0..50 {
        lock.lock().unwrap().unlock().unwrap();
        assert!(all_threads() <= before + MOST);
    }
    wait_until("each has its name", SOON, || threads() >= SERVERS);

    let other = lock.with_name("b");
    drop(other.lock().unwrap());
    let clone = lock.clone();
    let guard = lock.lock().unwrap();
    drop((lock, other));
    assert!(threads() <= MOST, "all names and clones have the same");
    drop(clone);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    wait_until("its threads have ended", SOON, || threads() == 0);
    wait_until("nothing else was begun", SOON, || all_threads() == before);

    for _ in 0..10 {
        drop(Client::red_lock(&clients, "a").lock().unwrap());
    }
    wait_until("the threads of all have ended", SOON, || all_threads() == before);
}
