//! Ends that race with something else: another guard, another waiter, a second copy, a lease that
//! expires unseen.

use std::thread;
use std::time::Duration;

use crate::common::{ProxiedServer, SOON, Script, built, settle};
use wheellock::{Client, Clock, SystemClock};
use wheellock_fixture::{Fault, Server, wait_until};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

#[test]
fn an_expired_write_lease_of_a_reader_lets_others_read() {
    let server = Server::start();
    let (one, other) = (connect(&server), connect(&server));
    let prices = one.read_write_lock("a");
    let writing = prices.write_lock().with_lease(ms(400)).lock().unwrap();
    let reading = prices.read_lock().lock().unwrap();
    assert!(writing.lost().recv_timeout(SOON).is_ok());
    assert!(writing.unlock().is_err());
    assert!(reading.is_held());
    let beside = other.read_write_lock("a").read_lock().try_lock_for(SOON).unwrap();
    assert!(beside.is_some());
    drop(beside);
    settle(&other);
    reading.unlock().unwrap();
    assert!(server.command(&["HGETALL", "a"]).texts().is_empty());
}

#[test]
fn a_force_unlock_that_is_sent_twice_spares_a_newer_holder() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let (first, second) = (setup.rival(), setup.rival());
    let held = first.lock("a").lock().unwrap();
    let swallowed = setup.on(Script::ForceRelease, "a", Fault::SwallowReply);
    thread::scope(|scope| {
        let forced = scope.spawn(|| client.lock("a").force_unlock());
        swallowed.wait_for_hit(SOON);
        let guard = second.lock("a").lock().unwrap();
        // The second copy has been answered.
        assert_eq!(forced.join().unwrap(), Ok(true));
        assert_eq!(setup.hash("a").len(), 1);
        guard.unlock().unwrap();
    });
    assert!(held.unlock().is_err());
}

#[test]
fn the_next_waiter_knows_when_an_earlier_lease_ends() {
    let server = Server::start();
    let (holder, waiters) = (connect(&server), connect(&server));
    let held = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let guard = waiters.lock("a").with_lease(ms(400)).lock().unwrap();
            // It expires, and no message is sent.
            std::mem::forget(guard);
            SystemClock.now()
        });
        wait_until("the first waits", SOON, || waiters.stats().waiters == 1);
        let second = scope.spawn(|| {
            let _guard = waiters.lock("a").lock().unwrap();
            SystemClock.now()
        });
        wait_until("the second waits", SOON, || waiters.stats().waiters == 2);
        held.unlock().unwrap();
        let after = second.join().unwrap() - first.join().unwrap();
        assert!(after < ms(400 + 850), "{after:?}, where a lost message costs a second");
    });
}

#[test]
fn two_guards_of_one_owner_can_be_dropped_at_once() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let lock = client.lock("a").with_owner("request 7");
    let (one, other) = (lock.lock().unwrap(), lock.lock().unwrap());
    let delayed = setup.on(Script::Recount, "a", Fault::HoldRequest);
    thread::scope(|scope| {
        let first = scope.spawn(|| one.unlock());
        delayed.wait_for_hit(SOON);
        assert_eq!(other.unlock(), Ok(()));
        delayed.deliver();
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    assert!(!setup.exists("a"));
}
