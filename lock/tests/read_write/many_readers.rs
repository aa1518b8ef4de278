//! Many readers of one lock, some of them dead: what a release costs, and which readers it removes.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{SOON, built};
use wheellock::{Client, Lock, ManualClock, Memory, OwnedGuard};
use wheellock_fixture::{Server, wait_until};

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(1);

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

/// Readers of many holders, each with that lease.
fn readers(lock: &Lock, count: usize, lease: Duration) -> Vec<OwnedGuard> {
    (0..count)
        .map(|reader| {
            let lock = lock.clone().with_owner(&format!("{lease:?} {reader}"));
            lock.with_lease(lease).lock().unwrap()
        })
        .collect()
}

/// Waits until no more than so many levels of readers are left on the server.
fn wait_until_dead(server: &Server, alive: usize) {
    wait_until("the leases are over", SOON, || {
        server.command(&["KEYS", "*:rwlock_timeout:*"]).array().len() == alive
    });
}

#[test]
fn the_fields_of_readers_that_died_go_while_others_read() {
    let server = Server::start();
    let lock = connect(&server).read_write_lock("a").read_lock();
    let staying = connect(&server).read_write_lock("a").read_lock().lock().unwrap();
    // As a process leaves them that was killed, when its leases are over.
    for dead in 0..50 {
        server.command(&["HSET", "a", &format!("dead:{dead}"), "1"]);
    }
    assert_eq!(server.command(&["HLEN", "a"]).integer(), 52);
    wait_until("their fields are gone", SOON, || {
        lock.lock().unwrap().unlock().unwrap();
        server.command(&["HLEN", "a"]).integer() == 2
    });
    assert!(staying.is_held());
    staying.unlock().unwrap();
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}

#[test]
fn a_leave_among_many_looks_at_a_few() {
    const MANY: usize = 300;
    let server = Server::start();
    let (many, one) = (connect(&server), connect(&server));
    let _readers = readers(&many.read_write_lock("a").read_lock(), MANY, HOUR);
    let lock = one.read_write_lock("a").read_lock();
    for lease in [HOUR * 2, Duration::from_secs(1)] {
        let guard = lock.clone().with_lease(lease).lock().unwrap();
        let before = server.command_calls("pttl");
        guard.unlock().unwrap();
        let looked = server.command_calls("pttl") - before;
        assert!(looked < 20, "with a lease of {lease:?} it looked {looked} times");
    }
    assert_eq!(server.command(&["HLEN", "a"]).integer(), i64::try_from(MANY + 1).unwrap());
    assert!(server.command(&["PTTL", "a"]).integer() > 3_500_000);
}

#[test]
fn a_release_among_dead_readers_removes_no_live_one() {
    let server = Server::start();
    let lock = connect(&server).read_write_lock("a").read_lock();
    let living = connect(&server).read_write_lock("a").read_lock();
    let writer = connect(&server).read_write_lock("a").write_lock();
    for round in 0..4 {
        let staying = living.clone().with_lease(HOUR).lock().unwrap();
        let dead = connect(&server).read_write_lock("a").read_lock();
        std::mem::forget(readers(&dead, 50, SHORT));
        wait_until_dead(&server, 1);
        lock.lock().unwrap().unlock().unwrap();
        assert!(writer.try_lock().unwrap().is_none(), "round {round}");
        assert!(server.command(&["PTTL", "a"]).integer() > 3_500_000, "round {round}");
        staying.unlock().unwrap();
        server.command(&["DEL", "a"]);
    }
}

#[test]
fn a_lock_that_only_dead_readers_are_left_of_is_free() {
    let server = Server::start();
    let lock = connect(&server).read_write_lock("a").read_lock();
    let dead = connect(&server).read_write_lock("a").read_lock();
    let writer = connect(&server).read_write_lock("a").write_lock();
    let guard = lock.lock().unwrap();
    std::mem::forget(readers(&dead, 50, SHORT));
    wait_until_dead(&server, 1);
    assert!(writer.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert!(writer.try_lock().unwrap().is_some());
}

#[test]
fn in_memory_too_the_dead_go_and_the_living_stay() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = || built(Client::builder().in_memory(&memory));
    let (lock, living, dead) = (client(), client(), client());
    let staying = living.read_write_lock("a").read_lock().lock().unwrap();
    std::mem::forget(readers(&dead.read_write_lock("a").read_lock(), 50, SHORT));
    clock.advance(SHORT * 2);
    for _ in 0..10 {
        lock.read_write_lock("a").read_lock().lock().unwrap().unlock().unwrap();
    }
    assert_eq!(memory.fields("a").len(), 2, "{:?}", memory.fields("a"));
    assert!(staying.is_held());
    staying.unlock().unwrap();
    assert!(memory.fields("a").is_empty());
}
