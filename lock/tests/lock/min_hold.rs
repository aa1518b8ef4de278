//! A shortest hold: what is released early stays for the rest of its time, and ends by itself.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{ProxiedServer, Script, now, pause, settle};
use wheellock::{Client, Error, Lock};
use wheellock_fixture::{Fault, Server};

const SECOND: Duration = Duration::from_secs(1);

/// A lock of each kind, with a rival of it that it excludes.
fn kinds(client: &Client) -> Vec<(&'static str, Lock, Lock)> {
    let both = client.read_write_lock("rw");
    let alike = |lock: Lock| (lock.clone(), lock);
    let pairs = [
        ("lock", alike(client.lock("plain"))),
        ("non-reentrant", alike(client.non_reentrant_lock("single"))),
        ("fair", alike(client.fair_lock("fair"))),
        ("spin", alike(client.spin_lock("spin"))),
        ("simple", alike(client.simple_lock("simple"))),
        ("write", alike(both.write_lock())),
        (
            "read",
            (client.read_write_lock("rw2").read_lock(), client.read_write_lock("rw2").write_lock()),
        ),
    ];
    pairs.into_iter().map(|(kind, (lock, rival))| (kind, lock, rival)).collect()
}

on_all_stores! {
    fn release_before_min_hold_ends_keeps_the_lock_for_the_rest(setup: &TestStore) {
        let client = setup.client();
        for (kind, lock, rival) in kinds(&client) {
            for dropped in [false, true] {
                let lock = lock.clone().with_min_hold(SECOND * 600);
                let guard = lock.lock().unwrap();
                let name = guard.name();
                if dropped { drop(guard) } else { guard.unlock().unwrap() }
                settle(&client);
                let left = setup.time_to_live(&name).unwrap();
                assert!(left > SECOND * 590 && left <= SECOND * 600, "{kind}: {left:?}");
                assert!(!lock.is_held_by_current_thread(), "{kind}");
                assert!(rival.try_lock().unwrap().is_none(), "{kind}");
                assert!(rival.force_unlock().unwrap() || lock.force_unlock().unwrap(), "{kind}");
                rival.try_lock().unwrap().unwrap().unlock().unwrap();
            }
        }
    }

    fn a_lock_without_a_minimum_hold_again_is_a_lock_as_before(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a").with_min_hold(SECOND).with_min_hold(Duration::ZERO);
        lock.lock().unwrap().unlock().unwrap();
        assert!(!setup.is_there("a"));
        // With a minimum hold, a cache would be an error.
        lock.with_cache(SECOND).lock().unwrap().unlock().unwrap();
    }

    fn a_shortest_hold_that_is_over_frees_the_lock_at_the_release(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fenced_lock("a").with_min_hold(Duration::from_millis(10));
        let guard = lock.lock().unwrap();
        pause(Duration::from_millis(11));
        guard.unlock().unwrap();
        assert!(!setup.is_there("a"));
    }

    fn the_rest_of_a_lease_stands_if_it_is_kept(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a").with_lease(SECOND * 60);
        lock.lock().unwrap().keep_until_lease_ends().unwrap();
        let left = setup.time_to_live("a").unwrap();
        assert!(left > SECOND * 50 && left <= SECOND * 60, "{left:?}");
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(client.stats().held, 0);
    }

    fn a_hold_that_is_kept_goes_on_while_other_guards_are_left(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
        inner.keep_until_lease_ends().unwrap();
        assert!(outer.is_held());
        outer.unlock().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        assert!(setup.time_to_live("a").unwrap() > SECOND * 20);
    }

    fn the_longest_shortest_hold_of_nested_guards_counts(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        let outer = lock.lock().unwrap();
        for seconds in [100, 600, 200] {
            lock.clone().with_min_hold(SECOND * seconds).lock().unwrap().unlock().unwrap();
        }
        outer.unlock().unwrap();
        let left = setup.time_to_live("a").unwrap();
        assert!(left > SECOND * 590, "{left:?}");
    }

    fn a_writer_that_still_reads_is_released_at_once(setup: &TestStore) {
        let client = setup.client();
        let both = client.read_write_lock("a");
        let writer = both.write_lock().with_min_hold(SECOND * 600).lock().unwrap();
        let reader = both.read_lock().lock().unwrap();
        writer.unlock().unwrap();
        assert!(both.write_lock().with_owner("other").try_lock().unwrap().is_none());
        assert!(both.read_lock().with_owner("other").try_lock().unwrap().is_some());
        reader.unlock().unwrap();
        settle(&client);
        assert!(both.write_lock().try_lock().unwrap().is_some());
    }

    fn a_reader_that_is_kept_does_not_end_with_other_readers(setup: &TestStore) {
        let client = setup.client();
        let both = client.read_write_lock("a");
        let other = both.read_lock().with_owner("other").lock().unwrap();
        both.read_lock().with_min_hold(SECOND * 600).lock().unwrap().unlock().unwrap();
        other.unlock().unwrap();
        let left = setup.time_to_live("a").unwrap();
        assert!(left > SECOND * 590, "{left:?}");
        assert!(both.write_lock().try_lock().unwrap().is_none());
        assert!(both.read_lock().try_lock().unwrap().is_some());
    }

    fn a_shutdown_leaves_what_is_kept_alone_and_counts_it(setup: &TestStore) {
        let client = setup.client();
        let lock = |name| client.lock(name).with_min_hold(SECOND * 600);
        drop(lock("a").lock().unwrap());
        let kept = lock("b").lock().unwrap();
        let released = client.lock("c").lock().unwrap();
        let report = client.shutdown(SECOND * 10);
        assert_eq!((report.kept, report.released), (2, 1));
        assert!(report.unreleased.is_empty());
        assert!(!kept.is_held() && !released.is_held());
        assert!(setup.time_to_live("a").unwrap() > SECOND * 590);
        assert!(setup.time_to_live("b").unwrap() > SECOND * 590);
        assert!(!setup.is_there("c"));
    }

    fn a_member_of_a_multi_lock_has_no_shortest_hold(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a").with_min_hold(SECOND * 600);
        client.multi_lock(&[&lock, &client.lock("b")]).lock().unwrap().unlock().unwrap();
        assert!(!setup.is_there("a"));
    }

    fn a_shortest_hold_has_the_limits_of_a_lease(setup: &TestStore) {
        let lock = setup.client().lock("a");
        for wrong in [Duration::from_millis(9), Duration::MAX] {
            let refused = lock.clone().with_min_hold(wrong).lock();
            assert!(matches!(refused, Err(Error::InvalidLease { .. })), "{refused:?}");
        }
        lock.with_min_hold(Duration::ZERO).lock().unwrap().unlock().unwrap();
        assert!(!setup.is_there("a"));
    }
}

/// A thread of the same client, one of another, in the order in which they came.
fn waits_until_the_shortest_hold_is_over(lock: &Lock, rival: &Lock, seconds: u32) {
    let begun = now();
    let guard = lock.clone().with_min_hold(SECOND * seconds).lock().unwrap();
    thread::scope(|scope| {
        let own = lock.clone();
        let waiters = [own, rival.clone()].map(|lock| {
            scope.spawn(move || {
                lock.lock().unwrap().unlock().unwrap();
                now()
            })
        });
        guard.unlock().unwrap();
        for waiter in waiters {
            let waited = waiter.join().unwrap() - begun;
            assert!(waited >= SECOND * seconds, "{waited:?}");
            // Not for what its lease was.
            assert!(waited < SECOND * 20, "{waited:?}");
        }
    });
}

#[test]
fn waiters_have_the_lock_when_the_shortest_hold_is_over() {
    let server = Server::start();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let own = kinds(&client);
    thread::scope(|scope| {
        for ((kind, lock, rival), (_, _, others)) in own.iter().zip(kinds(&other)) {
            let lock = if *kind == "read" { rival } else { lock };
            scope.spawn(move || waits_until_the_shortest_hold_is_over(lock, &others, 1));
        }
    });
}

#[test]
fn kept_hold_is_not_renewed_and_ends_on_a_manual_clock() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = client.lock("a").with_min_hold(SECOND * 50);
    let guard = lock.lock().unwrap();
    setup.clock.advance(SECOND * 35);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    let renewed = client.stats().renewed;
    assert_eq!(setup.time_to_live("a"), SECOND * 15);
    setup.clock.advance(SECOND * 14);
    assert!(lock.try_lock().unwrap().is_none());
    setup.clock.advance(SECOND);
    assert!(lock.try_lock().unwrap().is_some());
    assert_eq!(client.stats().renewed, renewed);
}

#[test]
fn release_with_lost_reply_keeps_min_hold_and_copy_adds_no_time() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let lock = client.lock("a").with_min_hold(SECOND * 600);
    for fault in [Fault::SwallowReply, Fault::DropRequest] {
        let guard = lock.lock().unwrap();
        let aim = setup.on(Script::Keep, "a", fault);
        guard.unlock().unwrap();
        assert_eq!(aim.hits(), 1);
        let left = setup.server.command(&["PTTL", "a"]).integer();
        assert!((590_000..=600_000).contains(&left), "{left}");
        assert_eq!(setup.server.command(&["HLEN", "a"]).integer(), 1);
        assert!(client.lock("a").force_unlock().unwrap());
    }
}
