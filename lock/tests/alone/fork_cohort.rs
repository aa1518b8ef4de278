//! Forks of a process whose threads hand a lock to each other: before a hand-over, between many,
//! and after one. What the child inherits is inert, the parent's threads go on, and the child gets
//! the lock among them.
//!
//! The standard library holds a lock while a thread starts or ends, and a child forked at that
//! moment can start no thread. So no thread starts or ends here while another one forks.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use wheellock::{Client, Error, LockGuard, LostReason};
use wheellock_fixture::{RawConnection, Server, wait_until};

use crate::common::expected::lost;
use crate::common::forked::Child;
use crate::ran_in_a_child;

const LIMIT: Duration = Duration::from_secs(120);
const THREADS: usize = 4;
/// How often the process is forked while its threads hand the lock over.
const FORKS: usize = 12;

/// Is inside, which no other thread of any process may be.
fn visit(server: &mut RawConnection, guard: &LockGuard) {
    assert!(guard.is_held());
    let entered = server.command(&["SETNX", "inside", guard.owner()]).integer();
    assert_eq!(entered, 1, "another thread is inside");
    assert_eq!(server.command(&["DEL", "inside"]).integer(), 1);
}

/// In a child: the guard holds nothing and releases nothing, and the lock can be had.
fn use_from_a_fork(client: &Client, url: &str, inherited: Option<LockGuard>) {
    let address: SocketAddr =
        url.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap();
    let mut server = RawConnection::open(address).unwrap();
    if let Some(guard) = inherited {
        let of_parent = server.command(&["HKEYS", "a"]).texts();
        assert!(!guard.is_held());
        let forked = lost("a", LostReason::Forked);
        assert_eq!(guard.check(), forked);
        assert_eq!(guard.remaining(), Duration::ZERO);
        // The parent holds it until this child has gone on: see `in_a_fork`.
        drop(guard);
        assert_eq!(server.command(&["HKEYS", "a"]).texts(), of_parent, "the fork released it");
        server.command(&["SET", "inert", "1"]);
    }
    assert_eq!(client.lock("a").try_lock().map(drop), Err(Error::Forked));
    // The parent's threads yield.
    let client = Client::connect(url).unwrap();
    let own = client.lock("a").try_lock_for(LIMIT).unwrap().unwrap();
    visit(&mut server, &own);
    own.unlock().unwrap();
}

/// Forks while this thread holds the lock, and keeps it until the child has dropped its copy.
fn fork_with(client: &Client, server: &Server, guard: LockGuard) -> (LockGuard, Child) {
    let mut held = Some(guard);
    let child = Child::doing(LIMIT, || {
        use_from_a_fork(client, &server.url(), held.take());
    });
    wait_until("the child has dropped its copy", LIMIT, || {
        server.command(&["DEL", "inert"]).integer() == 1
    });
    (held.unwrap(), child)
}

#[test]
fn fork_during_hand_overs_keeps_cohort_and_child_acquires_lock() {
    if ran_in_a_child(fork_during_hand_overs_keeps_cohort_and_child_acquires_lock) {
        return;
    }
    let server = Server::start();
    let client = Client::builder().url(&server.url()).build().unwrap();
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let last_owner = Mutex::new(String::new());
    let handed = || client.stats().hand_overs;
    let goes_on = || {
        let before = (handed(), rounds.load(Ordering::SeqCst));
        wait_until("the parent's threads hand the lock over", LIMIT, || {
            handed() > before.0 && rounds.load(Ordering::SeqCst) > before.1 + THREADS as u64
        });
    };
    thread::scope(|scope| {
        // 1. Before: this thread holds the lock, and the others wait.
        let guard = client.lock("a").lock().unwrap();
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut raw = RawConnection::open(server.address()).unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    let guard = client.lock("a").lock().unwrap();
                    visit(&mut raw, &guard);
                    guard.owner().clone_into(&mut last_owner.lock());
                    guard.unlock().unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_until("all wait", LIMIT, || client.stats().waiters == THREADS);
        let (guard, child) = fork_with(&client, &server, guard);
        assert!(guard.is_held());
        guard.unlock().unwrap();
        goes_on();
        child.wait();
        // 2. Between: the lock goes from thread to thread meanwhile.
        for _ in 0..FORKS {
            let before = handed();
            let child = Child::doing(LIMIT, || use_from_a_fork(&client, &server.url(), None));
            wait_until("a hand-over", LIMIT, || handed() > before);
            child.wait();
        }
        goes_on();
        // 3. After: this thread was given the lock by another.
        let mut guard = None;
        wait_until("this thread is given the lock", LIMIT, || {
            guard = None;
            let mine = guard.insert(client.lock("a").lock().unwrap());
            // Otherwise the server has granted it to this thread.
            *last_owner.lock() == mine.owner()
        });
        let (guard, child) = fork_with(&client, &server, guard.unwrap());
        assert!(guard.is_held());
        guard.unlock().unwrap();
        goes_on();
        child.wait();
        is_over.store(true, Ordering::SeqCst);
    });
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.lost), (0, 0, 0));
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}
