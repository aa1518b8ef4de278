//! How renewals are sent: what a real server is asked, and what one hold's trouble costs the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Parker;
use wheellock::{Client, Clock, Error, LockGuard, LostReason, ManualClock, Memory, SystemClock};
use wheellock_fixture::{Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn all_held(guards: &[LockGuard]) -> bool {
    guards.iter().all(LockGuard::is_held)
}

#[test]
fn a_key_for_which_the_server_refuses_the_whole_script_harms_no_other() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all"]);
    let clock = ManualClock::new();
    let client = Client::builder()
        .url(&format!("redis://locks:secret@{}/", server.address()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let guards: Vec<_> =
        (0..60).map(|number| client.lock(&format!("open:{number}")).lock().unwrap()).collect();
    let forbidden = client.lock("forbidden").lock().unwrap();
    // From now on any script with this key in it is refused as a whole.
    server.command(&["ACL", "SETUSER", "locks", "resetkeys", "~open:*"]);

    clock.advance(SECOND * 10);
    assert_eq!(client.stats().renewed, 60);
    assert!(forbidden.is_held(), "it may yet be allowed again");
    clock.advance(SECOND * 20);
    assert_eq!(forbidden.lost().try_recv(), Ok(LostReason::ServerUnreachable));
    assert!(all_held(&guards));
    assert_eq!(client.stats().lost, 1);
}

#[test]
fn a_refusal_that_passes_is_outlived() {
    let server = Server::start();
    server.command(&["ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all"]);
    let clock = ManualClock::new();
    let client = Client::builder()
        .url(&format!("redis://locks:secret@{}/", server.address()))
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    let guard = client.lock("a").lock().unwrap();
    server.command(&["ACL", "SETUSER", "locks", "resetkeys"]);
    clock.advance(SECOND * 20);
    assert!(client.stats().unanswered_renewals > 0);
    server.command(&["ACL", "SETUSER", "locks", "~*"]);
    clock.advance(SECOND * 60);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn the_size_of_a_script_is_a_setting() {
    let server = Server::start();
    let clock = ManualClock::new();
    let client = Client::builder()
        .url(&server.url())
        .clock(Arc::new(clock.clone()))
        .renewal_batch(5, 10)
        .build()
        .unwrap();
    let guards: Vec<_> =
        (0..300).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    // All due at once: in scripts for those that are behind.
    clock.jump(SECOND * 15);
    wait_until("all are renewed", SECOND * 10, || client.stats().renewed == 300);
    assert_eq!(client.stats().renewal_scripts, 30);
    assert!(all_held(&guards));
}

#[test]
fn a_size_out_of_its_bounds_is_refused() {
    for (keys, behind) in [(0, 10), (10, 9), (10, 1001)] {
        let refused =
            Client::builder().in_memory(&Memory::new()).renewal_batch(keys, behind).build();
        assert!(
            matches!(refused, Err(Error::InvalidSetting { setting: "renewal_batch", .. })),
            "{keys}, {behind}"
        );
    }
}

#[test]
fn a_thousand_holds_that_a_hanging_server_keeps_waiting_cost_one_attempt_at_a_time() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).renewal_batch(5, 10).build().unwrap();
    let guards: Vec<_> =
        (0..1000).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    memory.set_unreachable(true);
    clock.jump(SECOND * 15);
    // One of a hundred scripts asked; in memory there is no pipeline. The others wait with it.
    assert_eq!(client.stats().renewal_scripts, 1);
    memory.set_unreachable(false);
    clock.advance(SECOND * 10);
    assert!(all_held(&guards));
    assert!(client.stats().renewed >= 1000);
}

#[test]
fn the_statistics_say_how_large_scripts_were_how_late_renewals_came_and_why_holds_were_lost() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guards: Vec<_> =
        (0..200).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    assert_eq!(client.stats().renewal_lateness.count, 0);
    // Due after ten seconds at the latest: late by what the process stood still beyond.
    clock.jump(SECOND * 15);
    let stats = client.stats();
    assert_eq!((stats.renewed, stats.renewal_lateness.count), (200, 200));
    assert!(stats.renewal_lateness.p50 > SECOND * 5, "{:?}", stats.renewal_lateness);
    assert_eq!(stats.renewal_round_trip.count, 8);
    assert_eq!((stats.renewal_keys_p50, stats.renewal_keys_max), (25, 25));

    memory.delete("lock 7");
    memory.set_unreachable(true);
    clock.advance(SECOND * 25);
    memory.set_unreachable(false);
    assert!(client.stats().renewal_retries > 200);
    clock.advance(SECOND * 10);
    assert_eq!(client.stats().losses.because(LostReason::Deleted), 1);
    memory.set_unreachable(true);
    clock.advance(SECOND * 31);
    let stats = client.stats();
    assert_eq!(stats.losses.because(LostReason::ServerUnreachable), 199);
    assert_eq!((stats.lost, stats.losses.total()), (200, 200));
    assert!(!guards.iter().any(LockGuard::is_held));
}

#[test]
fn connections_are_counted_so_that_it_shows_when_they_break() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let before = client.stats().connections_made;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    client.lock("a").lock().unwrap().unlock().unwrap();
    assert!(client.stats().connections_made > before);
}

/// The system's clock, until it breaks on the renewal thread.
#[derive(Debug, Default)]
struct Fragile {
    broken: AtomicBool,
}

impl Clock for Fragile {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let here = thread::current();
        assert!(
            here.name() != Some("lock-renewal") || !self.broken.load(Ordering::SeqCst),
            "the clock breaks, as this test wants it"
        );
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn if_the_renewal_thread_is_gone_every_watched_hold_is_lost_at_once_and_no_leased_one() {
    let clock = Arc::new(Fragile::default());
    let memory = Memory::with_clock(clock.clone());
    let client =
        Client::builder().in_memory(&memory).watchdog_lease(SECOND * 3600).build().unwrap();
    let watched = client.lock("a").lock().unwrap();
    let leased = client.lock("b").with_lease(SECOND * 3600).lock().unwrap();
    let other = client.lock("c").lock().unwrap();
    clock.broken.store(true, Ordering::SeqCst);
    // A release that gets no answer is the renewal thread's to finish. It wakes, and breaks when it sleeps again.
    memory.set_unreachable(true);
    drop(other);
    assert!(watched.lost().recv_timeout(SECOND * 20).is_ok());
    assert!(!watched.is_held() && leased.is_held());
    assert_eq!(client.stats().panics, 1);
}

/// A manual clock that panics once on the renewal thread, when it has been read so often there.
#[derive(Debug)]
struct Trap {
    clock: ManualClock,
    /// Zero while it is not set.
    readings: AtomicUsize,
}

impl Clock for Trap {
    fn now(&self) -> Instant {
        let here = thread::current();
        if here.name() == Some("lock-renewal") {
            let left = self.readings.load(Ordering::SeqCst);
            self.readings.store(left.saturating_sub(1), Ordering::SeqCst);
            assert!(left != 1, "the clock breaks once, as this test wants it");
        }
        self.clock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.clock.park(parker, deadline, interrupt);
    }
}

#[test]
fn replies_that_a_panic_left_unread_are_never_taken_for_others() {
    let server = Server::start();
    let clock = ManualClock::new();
    let trap = Arc::new(Trap { clock: clock.clone(), readings: AtomicUsize::new(0) });
    let client = Client::builder()
        .url(&server.url())
        .clock(trap.clone())
        .renewal_batch(5, 10)
        .build()
        .unwrap();
    let _guards: Vec<_> =
        (0..300).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    // Ten scripts are sent, each with a look at the clock. The next look is at the first answer.
    trap.readings.store(11, Ordering::SeqCst);
    clock.jump(SECOND * 15);
    assert_eq!(client.stats().panics, 1);

    let connections = client.stats().connections_made;
    let guard = client.lock("later").lock().unwrap();
    clock.advance(SECOND * 60);
    assert!(guard.is_held());
    assert_eq!(client.stats().unanswered_renewals, 0);
    assert_eq!(client.stats().connections_made, connections + 1, "the old one was dropped");
}

#[test]
fn a_server_that_has_become_a_replica_is_left_and_looked_for_anew() {
    let server = Server::start();
    let clock = ManualClock::new();
    let client =
        Client::builder().url(&server.url()).clock(Arc::new(clock.clone())).build().unwrap();
    let guard = client.lock("a").lock().unwrap();
    clock.advance(SECOND * 10);
    assert_eq!(client.stats().renewed, 1);
    let connections = client.stats().connections_made;
    // Of nobody: it keeps its keys and refuses to write.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    clock.advance(SECOND * 10);
    assert!(client.stats().unanswered_renewals > 0);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    clock.advance(SECOND * 10);
    assert!(guard.is_held());
    assert!(client.stats().connections_made > connections, "whoever answers the name by then");
}
