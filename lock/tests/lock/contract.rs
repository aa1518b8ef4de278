//! What a lock does: one suite, run in memory, on a real server over every kind of connection, and
//! in a cluster.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::expected::lost;
use crate::common::is_wrong_type;
use crate::common::settle;
use crate::common::stores::{TestStore, on_every_road};
use wheellock::{Client, Clock, Error, LostReason, SystemClock};
use wheellock_fixture::{Reply, Server};

const LEASE: Duration = Duration::from_secs(30);

/// The number in an owner, after the client's identity.
fn number(client: &Client, owner: &str) -> u64 {
    owner.strip_prefix(&format!("{}:", client.id())).unwrap().parse().unwrap()
}

/// Whether another thread acquires the lock at once.
fn is_free_for_another_thread(client: &Client, name: &str) -> bool {
    std::thread::scope(|scope| {
        scope.spawn(|| client.lock(name).try_lock().unwrap().is_some()).join().unwrap()
    })
}

on_every_road! {
    fn held_lock_is_a_hash_of_the_owner_with_ttl_up_to_the_lease(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("orders:42").lock().unwrap();
        assert_eq!(setup.fields("orders:42"), [(guard.owner().to_owned(), "1".to_owned())]);
        number(&client, guard.owner());
        let left = setup.time_to_live("orders:42").unwrap();
        assert!(left <= LEASE && left > LEASE * 5 / 6, "{left:?}");
        guard.unlock().unwrap();
        assert!(!setup.is_there("orders:42"));
    }

    fn nesting_changes_the_count_and_last_unlock_deletes_the_key(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        assert_eq!(inner.owner(), outer.owner());
        assert_eq!(setup.fields("a"), [(outer.owner().to_owned(), "2".to_owned())]);
        assert_eq!(lock.hold_count(), 2);
        inner.unlock().unwrap();
        assert_eq!(setup.fields("a"), [(outer.owner().to_owned(), "1".to_owned())]);
        assert!(outer.is_held());
        outer.unlock().unwrap();
        assert!(!setup.is_there("a"));
        assert_eq!(lock.hold_count(), 0);
    }

    fn guards_of_one_hold_may_go_in_any_order(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        drop(outer);
        assert!(inner.is_held());
        assert!(!is_free_for_another_thread(&client, "a"));
        drop(inner);
        assert!(is_free_for_another_thread(&client, "a"));
    }

    fn two_lock_objects_of_one_name_on_one_thread_are_one_hold(setup: &TestStore) {
        let client = setup.client();
        let first = client.lock("a").lock().unwrap();
        let second = client.clone().lock("a").lock().unwrap();
        assert_eq!(setup.fields("a"), [(first.owner().to_owned(), "2".to_owned())]);
        assert_eq!(client.lock("a").hold_count(), 2);
        drop((first, second));
        settle(&client);
        assert!(!setup.is_there("a"));
    }

    fn every_outermost_hold_has_a_number_of_its_own(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        let numbers: Vec<u64> = (0..3)
            .map(|_| {
                let guard = lock.lock().unwrap();
                number(&client, guard.owner())
            })
            .collect();
        assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
    }

    fn another_thread_and_another_client_find_it_taken(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        assert_ne!(client.id(), other.id());
        let guard = client.lock("a").lock().unwrap();
        assert!(!is_free_for_another_thread(&client, "a"));
        assert!(other.lock("a").try_lock().unwrap().is_none());
        let left = other.lock("a").remaining_lease().unwrap().unwrap();
        assert!(left <= LEASE && left > LEASE * 5 / 6, "{left:?}");
        drop(guard);
        settle(&client);
        assert!(other.lock("a").try_lock().unwrap().is_some());
    }

    fn locks_of_different_names_know_nothing_of_each_other(setup: &TestStore) {
        let client = setup.client();
        let guards: Vec<_> = ["a", "A", "a ", "{a}", "a:1"]
            .map(|name| client.lock(name).try_lock().unwrap().unwrap())
            .into();
        assert_eq!(client.stats().held, guards.len());
    }

    fn a_waiter_gets_the_lock_when_it_is_released(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let guard = client.lock("a").lock().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| other.lock("a").lock().unwrap().unlock());
            wheellock_fixture::wait_until("it waits", LEASE, || other.stats().waiters == 1);
            guard.unlock().unwrap();
            waiter.join().unwrap().unwrap();
        });
    }

    fn a_lease_without_renewal_ends_by_itself(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let lease = Duration::from_millis(600);
        let guard = client.lock("a").with_lease(lease).lock().unwrap();
        assert!(setup.time_to_live("a").unwrap() <= lease);
        assert!(guard.remaining() <= lease);
        // There is no message: the end of the lease wakes the waiter.
        let next = other.lock("a").try_lock_for(LEASE).unwrap().unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().recv(), Ok(LostReason::Expired));
        let error = guard.unlock().unwrap_err();
        assert_eq!(error, lost("a", LostReason::Expired));
        assert!(next.is_held());
        assert_eq!(setup.fields("a"), [(next.owner().to_owned(), "1".to_owned())]);
    }

    fn nesting_with_a_shorter_lease_never_shortens_the_hold(setup: &TestStore) {
        let client = setup.client();
        let outer = client.lock("a").lock().unwrap();
        let short = Duration::from_millis(50);
        let inner = client.lock("a").with_lease(short).lock().unwrap();
        assert!(setup.time_to_live("a").unwrap() > short * 10);
        assert!(inner.remaining() > short * 10);
        inner.unlock().unwrap();
        assert!(setup.time_to_live("a").unwrap() > short * 10);
        assert!(outer.remaining() > short * 10);
    }

    fn a_strangers_release_changes_nothing_and_says_so(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let guard = client.lock("a").lock().unwrap();
        setup.delete("a");
        let holder = other.lock("a").lock().unwrap();
        let fields = setup.fields("a");
        let error = guard.unlock().unwrap_err();
        assert_eq!(error, lost("a", LostReason::TakenOver));
        assert_eq!(setup.fields("a"), fields);
        assert!(holder.is_held());
    }

    fn a_release_of_a_deleted_key_says_that_it_was_lost(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").lock().unwrap();
        setup.delete("a");
        let error = guard.unlock().unwrap_err();
        assert_eq!(error, lost("a", LostReason::Deleted));
    }

    fn nesting_in_a_lost_hold_makes_a_new_one_and_reports_the_loss(setup: &TestStore) {
        let client = setup.client();
        let old = client.lock("a").lock().unwrap();
        setup.delete("a");
        let new = client.lock("a").lock().unwrap();
        assert!(!old.is_held());
        assert_eq!(old.lost().recv(), Ok(LostReason::Deleted));
        assert!(new.is_held());
        assert_ne!(old.owner(), new.owner());
        assert_eq!(setup.fields("a"), [(new.owner().to_owned(), "1".to_owned())]);
        assert!(old.unlock().is_err());
        assert!(new.is_held());
        new.unlock().unwrap();
    }

    fn a_nested_unlock_of_a_hold_that_is_gone_says_so(setup: &TestStore) {
        let client = setup.client();
        let outer = client.lock("a").lock().unwrap();
        let inner = client.lock("a").lock().unwrap();
        setup.delete("a");
        let lost = lost("a", LostReason::Deleted);
        assert_eq!(inner.unlock(), lost.clone());
        assert!(!outer.is_held());
        assert_eq!(outer.unlock(), lost);
        assert!(!setup.is_there("a"));
    }

    fn force_unlock_frees_the_lock_and_notifies_the_holder(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").lock().unwrap();
        assert!(client.lock("a").force_unlock().unwrap());
        assert!(!guard.is_held());
        assert_eq!(guard.lost().recv(), Ok(LostReason::Deleted));
        assert!(!client.lock("a").force_unlock().unwrap());
        assert!(is_free_for_another_thread(&client, "a"));
    }

    fn a_clean_release_closes_the_lost_channel_without_a_message(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").lock().unwrap();
        let lost = guard.lost().clone();
        assert!(lost.try_recv().is_err_and(|error| error.is_empty()));
        guard.unlock().unwrap();
        assert!(lost.recv().is_err());
    }

    fn a_key_that_is_not_a_lock_is_a_clear_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        setup.put_text("data");
        let lock = client.lock("data");
        assert!(is_wrong_type(&lock.try_lock().unwrap_err(), "data"));
        assert!(is_wrong_type(&lock.lock().unwrap_err(), "data"));
        assert!(is_wrong_type(&lock.try_lock_for(Duration::from_secs(1)).unwrap_err(), "data"));
        assert!(is_wrong_type(&lock.force_unlock().unwrap_err(), "data"));
        assert!(setup.is_there("data"));
        assert_eq!(client.stats().held, 0);
    }

    fn a_hold_whose_key_was_overwritten_is_lost_and_the_data_stays(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("data").lock().unwrap();
        setup.put_text("data");
        let error = guard.unlock().unwrap_err();
        assert_eq!(error, lost("data", LostReason::TakenOver));
        assert!(setup.is_there("data"));
    }

    fn queries_distinguish_this_thread_and_the_server(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        assert!(!lock.is_locked().unwrap());
        assert_eq!(lock.remaining_lease().unwrap(), None);
        assert!(!lock.is_held_by_current_thread());
        let guard = lock.lock().unwrap();
        assert!(lock.is_locked().unwrap());
        assert!(lock.is_held_by_current_thread());
        assert_eq!(lock.hold_count(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!lock.is_held_by_current_thread()));
        });
        drop(guard);
        assert!(!lock.is_locked().unwrap());
    }

    fn a_wait_of_zero_and_a_deadline_in_the_past_try_once(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let past = SystemClock.now().checked_sub(LEASE).unwrap();
        assert!(client.lock("a").try_lock_for(Duration::ZERO).unwrap().is_some());
        assert!(client.lock("a").try_lock_until(past).unwrap().is_some());
        let _guard = client.lock("a").lock().unwrap();
        assert!(other.lock("a").try_lock_for(Duration::ZERO).unwrap().is_none());
        assert!(other.lock("a").try_lock_until(past).unwrap().is_none());
    }

    fn shutdown_releases_what_is_held_and_refuses_what_comes(setup: &TestStore) {
        let client = setup.client();
        let guards = ["a", "b"].map(|name| client.lock(name).lock().unwrap());
        let report = client.shutdown(LEASE);
        assert_eq!((report.released, report.unreleased.len()), (2, 0));
        for guard in guards {
            assert!(!guard.is_held());
            assert_eq!(guard.lost().recv(), Ok(LostReason::Shutdown));
            assert!(matches!(
                guard.unlock(),
                Err(Error::Lost { reason: LostReason::Shutdown, .. })
            ));
        }
        assert!(!setup.is_there("a") && !setup.is_there("b"));
        assert_eq!(client.lock("a").lock().unwrap_err(), Error::Shutdown);
        assert_eq!(client.lock("a").try_lock().unwrap_err(), Error::Shutdown);
        assert_eq!(client.lock("a").is_locked().unwrap_err(), Error::Shutdown);
        assert_eq!(client.shutdown(LEASE).released, 0);
    }

    fn a_guard_outlives_the_client_it_came_from(setup: &TestStore) {
        let guard = setup.client().lock("a").lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
        assert!(!setup.is_there("a"));
    }
}

#[test]
fn only_the_last_unlock_publishes_0_on_the_redisson_channel() {
    let server = Server::start();
    let mut listener = server.connection();
    drop(listener.command(&["SUBSCRIBE", "redisson_lock__channel:{a}"]));
    let client = Client::connect(&server.url()).unwrap();
    let outer = client.lock("a").lock().unwrap();
    let inner = client.lock("a").lock().unwrap();
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    assert!(client.lock("a").lock().unwrap().unlock().is_ok());
    for _ in 0..2 {
        let message = listener.receive().unwrap().texts();
        assert_eq!(message, ["message", "redisson_lock__channel:{a}", "0"]);
    }
    assert_eq!(client.lock("a").hold_count(), 0);
}

#[test]
fn a_redisson_hold_excludes_and_its_release_wakes() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    // As RLock writes it: a thread's number, any count.
    let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:47";
    drop(server.command(&["HSET", "a", java, "3"]));
    drop(server.command(&["PEXPIRE", "a", "30000"]));
    assert!(client.lock("a").try_lock().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").lock().unwrap().unlock());
        wheellock_fixture::wait_until("it is subscribed", LEASE, || {
            let reply = server.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{a}"]);
            matches!(&reply, Reply::Array(parts) if parts.last() == Some(&Reply::Integer(1)))
        });
        drop(server.command(&["DEL", "a"]));
        drop(server.command(&["PUBLISH", "redisson_lock__channel:{a}", "0"]));
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_lost_key_is_reported_at_the_next_renewal() {
    let server = Server::start();
    let lease = Duration::from_millis(900);
    let client = Client::builder().url(&server.url()).watchdog_lease(lease).build().unwrap();
    for order in [&["DEL", "a"][..], &["FLUSHALL"]] {
        let guard = client.lock("a").lock().unwrap();
        drop(server.command(order));
        // A third of the lease would do; two thirds leave room for a slow machine, and the lease's
        // own end comes later.
        assert_eq!(guard.lost().recv_timeout(lease * 2 / 3), Ok(LostReason::Deleted));
        assert!(!guard.is_held());
        assert!(guard.unlock().is_err());
    }
}
