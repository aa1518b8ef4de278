//! Real processes with a cached lock: one is killed, one is stopped beyond the lease.
//!
//! A child process is this test program again, with its role in the environment. It runs only
//! [`child_role`], a test that does nothing without a role.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never};
use hashed_wheel::Parker;
use wheellock::{Client, Clock, Lock, SystemClock};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::common::{LIMIT, now};
use crate::use_once;

/// The watchdog's lease in the children.
const LEASE: Duration = Duration::from_secs(6);
/// As long as a lock with this lease can be cached. A child is killed or stopped within this time.
const LONGEST: Duration = Duration::from_secs(2);
/// What a busy machine may take for anything that takes no time.
const AT_ONCE: Duration = Duration::from_secs(2);

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

/// Starts a child process, and waits until it has cached the lock `a`.
fn child(role: &str, server: &Server) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "processes::child_role", "--nocapture", "--test-threads=2"]);
    let mut child = TestProcess::spawn(command.env(ROLE, role).env("SERVER", server.url()));
    child.wait_for_line("cached", LIMIT);
    child
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    let url = env::var("SERVER").unwrap();
    let clock = Arc::new(TryFirst::default());
    let builder = Client::builder().url(&url).watchdog_lease(LEASE);
    let client = builder.clock(Arc::clone(&clock) as _).build().unwrap();
    let lock = client.lock("a").with_cache(LONGEST);
    match role.as_str() {
        "be killed" => be_killed(&client, &lock),
        "be stopped" => be_stopped(&client, &lock, &clock),
        other => panic!("there is no role {other:?}"),
    }
}

/// Has the lock cached that a renewal has kept beyond its first lease.
fn cache_renewed(client: &Client, lock: &Lock) {
    // This client hears others by the end of the hold, so the first release leaves the lock here.
    let guard = lock.lock().unwrap();
    wait_until("the lock is renewed", LIMIT, || client.stats().renewed > 0);
    guard.unlock().unwrap();
    assert_eq!(client.stats().cache.cached, 1);
    println!("cached");
}

fn be_killed(client: &Client, lock: &Lock) {
    cache_renewed(client, lock);
    loop {
        SystemClock.park(&Parker::new(), None, &never());
    }
}

/// The system's time. A thread that a stop of the process has left parked beyond the lease goes on
/// after the next try: that try meets the lock as the stop has left it.
#[derive(Debug, Default)]
struct TryFirst {
    has_tried: AtomicBool,
}

impl Clock for TryFirst {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let before = now();
        SystemClock.park(parker, deadline, interrupt);
        if now().saturating_duration_since(before) > LEASE {
            wait_until("the try is over", LIMIT, || self.has_tried.load(Ordering::Acquire));
        }
    }
}

fn be_stopped(client: &Client, lock: &Lock, clock: &TryFirst) {
    let mut last = now();
    cache_renewed(client, lock);
    // The test stops this process in this loop, for as long as no turn of the loop takes.
    loop {
        let at = now();
        if at.saturating_duration_since(last) > LEASE {
            break;
        }
        last = at;
    }
    // An error is no guard either: the thread that releases the cached lock is still parked.
    println!("woke taken={}", lock.try_lock().is_ok_and(|guard| guard.is_some()));
    clock.has_tried.store(true, Ordering::Release);
    wait_until("nothing is held", LIMIT, || client.stats().held == 0);
    println!("hits={}", client.stats().cache.hits);
    use_once(lock);
    println!("took");
    client.shutdown(LIMIT);
}

/// When the lease of the lock `a` ends if nobody renews the lock. The server counts whole
/// milliseconds.
fn end_of_lease(server: &Server) -> Instant {
    let asked_at = now();
    let millis = server.command(&["PTTL", "a"]).integer();
    assert!(millis > 0, "the lock is free");
    asked_at + Duration::from_millis(millis.unsigned_abs())
}

#[test]
fn lock_cached_by_a_killed_process_is_free_at_lease_end() {
    let server = Server::start();
    let [asking, plain] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let mut killed = child("be killed", &server);
    killed.kill();
    let end = end_of_lease(&server);
    assert!(end > now() + LEASE / 2, "the last renewal was not at the last third of the lease");
    let locks = [asking.lock("a").with_cache(LONGEST), plain.lock("a")];
    for lock in &locks {
        assert!(lock.try_lock().unwrap().is_none());
    }
    let mut owned = thread::scope(|scope| {
        // Neither leaves the lock with its client, so that the next has the lock at once.
        let waiters = [asking.lock("a"), plain.lock("a")].map(|lock| {
            let use_and_tell = move || {
                let guard = lock.lock().unwrap();
                let at = now();
                guard.unlock().unwrap();
                at
            };
            thread::Builder::new().spawn_scoped(scope, use_and_tell).unwrap()
        });
        waiters.map(|waiter| waiter.join().unwrap())
    });
    owned.sort_unstable();
    let early = end.saturating_duration_since(owned[0]);
    assert!(early <= Duration::from_millis(2), "owned {early:?} before the lease ended");
    let late = owned[1].saturating_duration_since(end);
    assert!(late < AT_ONCE, "owned {late:?} after the lease ended");
}

#[test]
fn process_stopped_past_its_lease_gets_no_cached_lock() {
    let server = Server::start();
    let mut stopped = child("be stopped", &server);
    stopped.pause();
    let end = end_of_lease(&server);
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("a").try_lock_for(LIMIT).unwrap().expect("the lease ends");
    assert!(now() + Duration::from_millis(2) >= end);
    // The child looks at its clock for longer than its lease.
    wait_until("a lease and more has passed", LIMIT, || now() > end + LEASE);
    stopped.resume();
    let woke = stopped.wait_for_line("woke", LIMIT);
    assert_eq!(woke, "woke taken=false");
    assert_eq!(stopped.wait_for_line("hits", LIMIT), "hits=0");
    assert!(guard.is_held());
    guard.unlock().unwrap();
    stopped.wait_for_line("took", LIMIT);
    assert_eq!(stopped.wait_for_exit(LIMIT), 0);
}
