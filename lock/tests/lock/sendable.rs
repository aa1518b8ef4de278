//! Sendable locks: each acquire has an owner of its own, and its guard goes to any thread.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_all_stores};
use wheellock::{Client, Error, Lock, LostReason, OwnedGuard, RedLock};
use wheellock_fixture::wait_until;

const LIMIT: Duration = Duration::from_secs(60);

/// One of each kind, each of a name of its own, except the lock of readers.
fn each_exclusive_kind(client: &Client) -> Vec<Lock<OwnedGuard>> {
    vec![
        client.lock("reentrant").sendable(),
        client.non_reentrant_lock("non-reentrant").sendable(),
        client.fair_lock("fair").sendable(),
        client.non_reentrant_fair_lock("non-reentrant fair").sendable(),
        client.fenced_lock("fenced").sendable(),
        client.spin_lock("spin").sendable(),
        client.simple_lock("simple").sendable(),
        client.read_write_lock("write").write_lock().sendable(),
    ]
}

/// Releases it on another thread.
fn unlock_elsewhere(guard: OwnedGuard) -> Result<(), Error> {
    thread::scope(|scope| scope.spawn(|| guard.unlock()).join().unwrap())
}

on_all_stores! {
    fn no_kind_nests_and_every_guard_is_released_by_any_thread(setup: &TestStore) {
        let client = setup.client();
        for lock in each_exclusive_kind(&client) {
            let name = lock.name();
            let guard = lock.lock().unwrap();
            assert!(lock.try_lock().unwrap().is_none(), "{name}: this thread");
            // On a busy machine its one try may be cut off.
            let waited = lock.clone().try_lock_for(Duration::from_millis(1));
            assert!(!matches!(waited, Ok(Some(_))), "{name}: {waited:?}");
            assert!(!lock.is_held_by_current_thread() && lock.hold_count() == 0, "{name}");
            assert!(guard.is_held() && lock.is_locked().unwrap(), "{name}");
            unlock_elsewhere(guard).unwrap();
            let again = lock.try_lock().unwrap();
            assert!(again.is_some_and(|guard| guard.is_held()), "{name}: it is free again");
        }
    }

    fn sendable_wait_in_the_holder_thread_ends_on_release_elsewhere(setup: &TestStore) {
        let client = setup.client();
        for lock in each_exclusive_kind(&client) {
            let guard = lock.lock().unwrap();
            thread::scope(|scope| {
                let watching = client.clone();
                let releases = scope.spawn(move || {
                    wait_until("it waits", LIMIT, || watching.stats().waiters == 1);
                    guard.unlock()
                });
                let next = lock.try_lock_for(LIMIT).unwrap();
                assert!(next.is_some(), "{}", lock.name());
                releases.join().unwrap().unwrap();
            });
        }
    }

    fn it_excludes_the_threads_and_the_named_owners_of_its_client(setup: &TestStore) {
        let client = setup.client();
        let (plain, sendable) = (client.lock("a"), client.lock("a").sendable());
        let guard = sendable.lock().unwrap();
        assert!(plain.try_lock().unwrap().is_none());
        assert!(plain.clone().with_owner("task").try_lock().unwrap().is_none());
        guard.unlock().unwrap();
        let guard = plain.lock().unwrap();
        assert!(sendable.try_lock().unwrap().is_none());
        assert!(plain.try_lock().unwrap().is_some(), "the thread nests");
        guard.unlock().unwrap();
        assert!(sendable.try_lock().unwrap().is_some());
    }

    fn readers_share_it_and_none_reads_under_a_writer(setup: &TestStore) {
        let client = setup.client();
        let prices = client.read_write_lock("prices");
        let (read, write) = (prices.read_lock().sendable(), prices.write_lock().sendable());
        let readers = [read.lock().unwrap(), read.lock().unwrap()];
        assert_ne!(readers[0].owner(), readers[1].owner());
        assert!(write.try_lock().unwrap().is_none(), "it waits, and is no upgrade");
        assert!(matches!(prices.write_lock().try_lock(), Ok(None)));
        readers.into_iter().try_for_each(unlock_elsewhere).unwrap();
        let writer = write.lock().unwrap();
        assert!(read.try_lock().unwrap().is_none());
        unlock_elsewhere(writer).unwrap();
        assert!(read.try_lock().unwrap().is_some());
    }

    fn its_fenced_guards_have_growing_tokens(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fenced_lock("a").sendable();
        let first = lock.lock().unwrap();
        let token = first.token();
        assert_eq!(lock.last_token().unwrap(), token);
        unlock_elsewhere(first).unwrap();
        assert!(lock.lock().unwrap().token() > token && token.is_some());
    }

    fn it_is_renewed_or_leased_and_tells_of_a_loss(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a").sendable();
        let guard = lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert_eq!(guard.lost().recv_timeout(LIMIT), Ok(LostReason::Deleted));
        assert!(matches!(unlock_elsewhere(guard), Err(Error::Lost { .. })));
        let guard = lock.with_lease(Duration::from_secs(1)).lock().unwrap();
        assert_eq!(guard.lost().recv_timeout(LIMIT), Ok(LostReason::Expired));
    }

    fn a_sendable_multi_lock_does_not_nest(setup: &TestStore) {
        let client = setup.client();
        let (order, stock) = (client.lock("{a}:order"), client.fenced_lock("{a}:stock"));
        let both = client.multi_lock(&[&order, &stock]).sendable();
        let guard = both.lock().unwrap();
        assert!(both.try_lock().unwrap().is_none() && !both.is_held_by_current_thread());
        thread::scope(|scope| scope.spawn(|| guard.unlock()).join().unwrap()).unwrap();
        assert!(both.try_lock().unwrap().is_some());

        // Of sendable locks, and so of no thread, but its guard stays here.
        let of_sendable = client.multi_lock(&[&order.sendable(), &stock]);
        let guard = of_sendable.lock().unwrap();
        assert!(of_sendable.try_lock().unwrap().is_none());
        guard.unlock().unwrap();
    }

    fn read_and_write_lock_of_a_name_form_no_sendable_multi_lock(setup: &TestStore) {
        let client = setup.client();
        let prices = client.read_write_lock("prices");
        let both = client.multi_lock(&[&prices.read_lock(), &prices.write_lock()]);
        assert!(both.try_lock().unwrap().is_some(), "one thread may have both");
        let refused = both.sendable().try_lock();
        assert!(matches!(refused, Err(Error::InvalidSetting { setting: "multi_lock", .. })));
        let (read, write) = (prices.read_lock().sendable(), prices.write_lock().sendable());
        let refused = client.multi_lock(&[&read, &write]).try_lock();
        assert!(matches!(refused, Err(Error::InvalidSetting { setting: "multi_lock", .. })));
    }
}

#[test]
fn a_sendable_red_lock_does_not_nest() {
    let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    let lock: RedLock<_> = Client::red_lock(&clients, "a").sendable();
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    thread::scope(|scope| scope.spawn(|| guard.unlock()).join().unwrap()).unwrap();
    assert!(lock.try_lock().unwrap().is_some());
}
