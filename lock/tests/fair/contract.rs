//! What a fair lock does: one suite, run in memory and on a real server.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_both_stores};
use crossbeam_channel::{bounded, unbounded};
use wheellock::{Client, Error, LostReason, Wait};
use wheellock_fixture::wait_until;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until this number of a client's threads were refused. Then they are queued.
fn wait_for_waiters(client: &Client, count: usize) {
    wait_until("the threads wait", LIMIT, || client.stats().waiters == count);
}

/// Whether the lock is free and its queue is empty.
fn is_free_for_all(client: &Client, name: &str) -> bool {
    thread::scope(|scope| {
        scope.spawn(|| client.fair_lock(name).try_lock().unwrap().is_some()).join().unwrap()
    })
}

on_both_stores! {
    fn a_fair_hold_is_the_hash_of_a_plain_one_and_excludes_it(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let guard = client.fair_lock("a").lock().unwrap();
        assert_eq!(setup.fields("a"), [(guard.owner().to_owned(), "1".to_owned())]);
        assert!(rival.lock("a").try_lock().unwrap().is_none());
        assert!(rival.fair_lock("a").is_locked().unwrap());
        let left = rival.fair_lock("a").remaining_lease().unwrap().unwrap();
        assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30), "{left:?}");
        guard.unlock().unwrap();
        assert!(!rival.fair_lock("a").is_locked().unwrap());
        let _plain = rival.lock("a").lock().unwrap();
        assert!(client.fair_lock("a").try_lock().unwrap().is_none());
    }

    fn a_fair_hold_is_nested_and_counted(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fair_lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.try_lock().unwrap().unwrap();
        let plain = client.lock("a").lock().unwrap();
        assert_eq!(setup.fields("a"), [(outer.owner().to_owned(), "3".to_owned())]);
        assert_eq!(lock.hold_count(), 3);
        outer.unlock().unwrap();
        assert!(inner.is_held());
        inner.unlock().unwrap();
        assert_eq!(setup.fields("a"), [(plain.owner().to_owned(), "1".to_owned())]);
        plain.unlock().unwrap();
        assert!(setup.fields("a").is_empty());
    }

    fn non_reentrant_fair_lock_refuses_second_hold_on_same_thread(setup: &TestStore) {
        let client = setup.client();
        let lock = client.non_reentrant_fair_lock("a");
        let guard = lock.lock().unwrap();
        assert!(matches!(lock.lock(), Err(Error::AlreadyHeld { .. })));
        assert!(matches!(lock.try_lock(), Err(Error::AlreadyHeld { .. })));
        assert_eq!(setup.fields("a"), [(guard.owner().to_owned(), "1".to_owned())]);
        guard.unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
    }

    fn waiters_of_several_clients_are_served_in_order(setup: &TestStore) {
        let clients: Vec<Client> = (0..3).map(|_| setup.client()).collect();
        let holder = setup.client();
        let guard = holder.fair_lock("a").lock().unwrap();
        let (served, order) = unbounded();
        thread::scope(|scope| {
            for place in 0..9 {
                let (client, served) = (&clients[place % 3], served.clone());
                scope.spawn(move || {
                    let guard = client.fair_lock("a").lock().unwrap();
                    served.send(place).unwrap();
                    guard.unlock().unwrap();
                });
                wait_for_waiters(client, place / 3 + 1);
            }
            guard.unlock().unwrap();
        });
        drop(served);
        assert_eq!(order.iter().collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    }

    fn a_single_try_neither_queues_nor_overtakes(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.client());
        let guard = holder.fair_lock("a").lock().unwrap();
        assert!(setup.client().fair_lock("a").try_lock().unwrap().is_none());
        let (release, released) = bounded::<()>(0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = waiter.fair_lock("a").lock().unwrap();
                released.recv().ok();
                guard.unlock().unwrap();
            });
            wait_for_waiters(&waiter, 1);
            // Free, with a waiter to be served.
            setup.delete("a");
            assert!(!is_free_for_all(&holder, "a"));
            drop(release);
            waiting.join().unwrap();
        });
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        assert!(is_free_for_all(&holder, "a"), "the one that tried blocks no other");
    }

    fn a_waiter_that_gives_up_leaves_the_queue_before_it_returns(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.client());
        let guard = holder.fair_lock("a").lock().unwrap();
        let wait = Duration::from_millis(700);
        assert!(waiter.fair_lock("a").try_lock_for(wait).unwrap().is_none());
        let (cancel, cancelled) = bounded(1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.fair_lock("a").try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop));
            wait_for_waiters(&waiter, 1);
            cancel.send(()).unwrap();
            assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled { .. })));
        });
        guard.unlock().unwrap();
        assert!(is_free_for_all(&holder, "a"));
        assert_eq!(waiter.stats().waiters, 0);
    }

    fn shutdown_wakes_waiters_and_waits_until_queue_is_empty(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.client());
        let guard = holder.fair_lock("a").lock().unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> =
                (0..5).map(|_| scope.spawn(|| waiter.fair_lock("a").lock().map(drop))).collect();
            wait_for_waiters(&waiter, 5);
            assert!(waiter.shutdown(LIMIT).unreleased.is_empty());
            guard.unlock().unwrap();
            assert!(is_free_for_all(&holder, "a"));
            for thread in waiting {
                assert!(matches!(thread.join().unwrap(), Err(Error::Shutdown)));
            }
        });
    }

    fn d17_the_unlock_of_a_fair_lock_that_is_gone_says_so(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let guard = client.fair_lock("a").lock().unwrap();
        setup.delete("a");
        let lost = guard.unlock();
        assert!(
            matches!(lost, Err(Error::Lost { reason: LostReason::Deleted, .. })), "{lost:?}"
        );
        let guard = client.fair_lock("a").lock().unwrap();
        setup.delete("a");
        let rivals = rival.fair_lock("a").lock().unwrap();
        let lost = guard.unlock();
        assert!(
            matches!(lost, Err(Error::Lost { reason: LostReason::TakenOver, .. })), "{lost:?}"
        );
        assert!(rivals.is_held());
        assert_eq!(setup.fields("a").len(), 1, "the other's hold is not touched");
    }

    fn a_forced_unlock_grants_to_the_head_of_the_queue(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.client());
        assert!(!holder.fair_lock("a").force_unlock().unwrap());
        let guard = holder.fair_lock("a").lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.fair_lock("a").lock().unwrap().unlock());
            wait_for_waiters(&waiter, 1);
            assert!(holder.fair_lock("a").force_unlock().unwrap());
            waiting.join().unwrap().unwrap();
        });
        assert!(!guard.is_held());
    }

    fn a_deleted_or_expired_lock_goes_to_the_head_of_the_queue(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.client());
        let short = Duration::from_millis(800);
        for delete in [true, false] {
            let _lost = if delete {
                let guard = holder.fair_lock("a").lock().unwrap();
                thread::scope(|scope| {
                    let waiting = scope.spawn(|| waiter.fair_lock("a").try_lock_for(LIMIT).map(|got| got.is_some()));
                    wait_for_waiters(&waiter, 1);
                    setup.delete("a");
                    assert!(waiting.join().unwrap().unwrap());
                });
                guard
            } else {
                let guard = holder.fair_lock("a").with_lease(short).lock().unwrap();
                let got = waiter.fair_lock("a").try_lock_for(LIMIT).unwrap();
                assert!(got.is_some());
                guard
            };
        }
    }

    fn a_key_that_is_no_lock_is_an_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        setup.put_text("a");
        let lock = client.fair_lock("a");
        assert!(matches!(lock.lock(), Err(Error::WrongType { .. })));
        assert!(matches!(lock.try_lock(), Err(Error::WrongType { .. })));
        assert!(matches!(lock.force_unlock(), Err(Error::WrongType { .. })));
        assert!(lock.is_locked().unwrap());
    }

    fn foreign_data_at_queue_keys_fails_acquire_but_not_release(
        setup: &TestStore
    ) {
        let client = setup.client();
        let lock = client.fair_lock("a");
        for key in ["redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"] {
            let guard = lock.lock().unwrap();
            let forced = lock.clone().with_owner("another");
            setup.put_text(key);
            guard.unlock().unwrap();
            assert!(setup.fields("a").is_empty());
            wait_until("no release is queued", LIMIT, || client.stats().queued_releases == 0);
            assert!(matches!(lock.lock(), Err(Error::WrongType { .. })), "{key}");
            assert!(matches!(lock.try_lock(), Err(Error::WrongType { .. })), "{key}");
            assert!(setup.fields("a").is_empty(), "{key}: nothing was taken");
            setup.delete(key);
            let guard = lock.lock().unwrap();
            setup.put_text(key);
            assert!(forced.force_unlock().unwrap());
            assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
            setup.delete(key);
        }
    }
}
