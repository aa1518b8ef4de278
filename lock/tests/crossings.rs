//! Ends that cross with something else: another guard, another waiter, a second copy, a lease that runs out unseen.

mod common;

use std::thread;
use std::time::Duration;

use common::{SOON, Script, World, built, timed};
use wheellock::{Client, Clock, SystemClock};
use wheellock_fixture::{Fault, Server, wait_until};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

#[test]
fn a_write_lease_that_ends_while_its_holder_reads_lets_others_read() {
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
    reading.unlock().unwrap();
    assert!(server.command(&["HGETALL", "a"]).texts().is_empty());
}

#[test]
fn a_forced_end_that_is_sent_twice_leaves_who_came_in_between_alone() {
    let world = World::new();
    let client = world.retrying();
    let (first, second) = (world.rival(), world.rival());
    let held = first.lock("a").lock().unwrap();
    let swallowed = world.on(Script::ForceRelease, "a", Fault::SwallowReply);
    thread::scope(|scope| {
        let forced = scope.spawn(|| client.lock("a").force_unlock());
        swallowed.wait_for_hit(SOON);
        let guard = second.lock("a").lock().unwrap();
        // The second copy has been answered.
        assert_eq!(forced.join().unwrap(), Ok(true));
        assert_eq!(world.hash("a").len(), 1);
        guard.unlock().unwrap();
    });
    assert!(held.unlock().is_err());
}

#[test]
fn who_is_next_in_line_knows_when_a_lease_ends_that_was_granted_before_him() {
    let server = Server::start();
    let (holder, waiters) = (connect(&server), connect(&server));
    let held = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let guard = waiters.lock("a").with_lease(ms(400)).lock().unwrap();
            // It ends by itself, and nobody is told.
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
fn of_two_guards_of_one_owner_that_go_at_the_same_time_none_is_lost() {
    let world = World::new();
    let client = world.patient();
    let lock = client.lock("a").with_owner("request 7");
    let (one, other) = (lock.lock().unwrap(), lock.lock().unwrap());
    let delayed = world.on(Script::Recount, "a", Fault::HoldRequest);
    thread::scope(|scope| {
        let first = scope.spawn(|| one.unlock());
        delayed.wait_for_hit(SOON);
        assert_eq!(other.unlock(), Ok(()));
        delayed.deliver();
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    assert!(!world.exists("a"));
}

#[test]
fn a_fair_wait_ends_about_in_time_while_the_server_hangs() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let _held = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| timed(|| waiter.fair_lock("a").try_lock_for(ms(800)).is_ok()));
        wait_until("it waits", SOON, || waiter.stats().waiters == 1);
        server.pause();
        let (_, took) = waiting.join().unwrap();
        server.resume();
        assert!(took < ms(800) + ms(250) + common::SLACK, "{took:?}");
    });
}
