//! Permits that were acquired together: one guard, one release, one command timeout.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected::{self, Expected};
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{SLACK, SOON, TIMEOUT, built, pause, settle, timed};
use wheellock::{Client, ExpirableSemaphore, LostReason, Permits};
use wheellock_fixture::{Fault, Proxy, Request, Server, wait_until};

const MINUTE: Duration = Duration::from_secs(60);
const ACQUIRE: &str = include_str!("../../src/ops/scripts/permits_acquire.lua");

/// Every way in which permits can last.
fn terms(client: &Client, name: &str) -> [ExpirableSemaphore; 3] {
    let seats = client.expirable_semaphore(name);
    [seats.clone(), seats.clone().with_lease(MINUTE), seats.watched()]
}

fn lost(reason: LostReason) -> Expected {
    expected::lost("a", reason)
}

fn all_are_back(client: &Client, seats: &ExpirableSemaphore, permits: i64) {
    settle(client);
    assert_eq!((seats.available_permits(), seats.acquired_permits()), (Ok(permits), Ok(0)));
}

on_both_stores! {
    fn several_permits_can_be_released_or_dropped_by_any_thread(setup: &TestStore) {
        fn can_be_sent<T: Send + Sync>(_: &T) {}
        let client = setup.client();
        for seats in terms(&client, "a") {
            seats.set_permits(5).unwrap();
            let permits: Permits = seats.acquire_many(3).unwrap();
            can_be_sent(&permits);
            assert!(permits.is_valid() && permits.remaining() > Duration::from_secs(20));
            assert_eq!((permits.ids().len(), permits.name().as_str()), (3, "a"));
            thread::scope(|scope| scope.spawn(|| permits.release()).join().unwrap()).unwrap();
            drop(seats.try_acquire_many(5).unwrap().unwrap());
            all_are_back(&client, &seats, 5);
        }
        assert_eq!(client.stats().held, 0);
    }

    fn the_remaining_permits_are_released_after_one_was(setup: &TestStore) {
        let client = setup.client();
        for (seats, drops) in terms(&client, "a").into_iter().zip([true, false, false]) {
            seats.set_permits(4).unwrap();
            let permits = seats.acquire_many(3).unwrap();
            seats.release(&permits.ids()[1]).unwrap();
            if drops {
                drop(permits);
            } else {
                assert_eq!(permits.release(), lost(LostReason::Deleted));
            }
            all_are_back(&client, &seats, 4);
        }
    }

    fn ids_can_be_taken_out_and_released_one_by_one(setup: &TestStore) {
        let client = setup.client();
        for seats in terms(&client, "a") {
            seats.set_permits(3).unwrap();
            let ids = seats.acquire_many(3).unwrap().into_ids();
            assert_eq!(client.stats().held, 0, "they are not renewed any more");
            for (id, free) in ids.iter().zip(1..) {
                seats.release(id).unwrap();
                assert_eq!(seats.available_permits().unwrap(), free);
            }
        }
    }
}

#[test]
fn dropping_several_permits_waits_for_no_server_that_hangs() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(TIMEOUT));
    for seats in terms(&client, "a") {
        seats.set_permits(20).unwrap();
        let permits = seats.acquire_many(20).unwrap();
        server.pause();
        let ((), took) = timed(|| drop(permits));
        server.resume();
        // The first release of a kind is sent with its script, and waits for nothing either.
        assert!(took < TIMEOUT + SLACK, "{seats:?}: {took:?}");
        all_are_back(&client, &seats, 20);
    }
}

#[test]
fn several_permits_are_released_in_one_request() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()));
    for seats in terms(&client, "a") {
        seats.set_permits(20).unwrap();
        let permits = seats.acquire_many(20).unwrap();
        let before = server.command_calls("evalsha");
        permits.release().unwrap();
        assert_eq!(server.command_calls("evalsha") - before, 1);
    }
}

#[test]
fn late_grant_of_permits_is_released_within_command_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let timeout = Duration::from_secs(1);
    let client = built(Client::builder().url(&proxy.url()).command_timeout(timeout));
    let lease = Duration::from_millis(100);
    let seats = client.expirable_semaphore("a").with_lease(lease);
    seats.set_permits(20).unwrap();
    // So that the server knows the script. With a lease that does not end meanwhile.
    let lasting = seats.clone().with_lease(Duration::from_secs(60));
    lasting.acquire_many(20).unwrap().release().unwrap();
    let hash = server.command(&["SCRIPT", "LOAD", &crate::common::code(ACQUIRE)]).text();
    let is = move |request: &Request| request.name() == "EVALSHA" && request.argument(1) == hash;
    let kept = proxy.on(is, Fault::HoldReply);
    thread::scope(|scope| {
        let acquire = scope.spawn(|| seats.acquire_many(20).map(drop));
        kept.wait_for_hit(SOON);
        pause(lease);
        server.pause();
        kept.deliver();
        let (acquired, took) = timed(|| acquire.join().unwrap());
        server.resume();
        assert_eq!(acquired, lost(LostReason::Expired));
        assert!(took < timeout + SLACK, "{took:?}");
    });
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(seats.available_permits().unwrap(), 20);
}
