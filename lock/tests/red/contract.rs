//! What a lock on a majority of servers does: one suite, run in memory and on real servers.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected::{self, Expected};
use crate::common::stores::TestStore;
use crate::common::{SLACK, SOON, is_wrong_type, timed};
use crossbeam_channel::bounded;
use wheellock::{Client, LostReason, RedGuard, RedLock};
use wheellock_fixture::wait_until;

/// Each function becomes two tests, on three servers of each store.
macro_rules! on_three_of_both_stores {
    ($(fn $name:ident($servers:ident: &[TestStore; 3]) $body:block)*) => {
        $(fn $name($servers: &[TestStore; 3]) $body)*

        mod in_memory {
            $(#[test] fn $name() {
                super::$name(&[(); 3].map(|()| super::TestStore::in_memory()));
            })*
        }

        mod on_servers {
            $(#[test] fn $name() {
                super::$name(&[(); 3].map(|()| super::TestStore::on_a_server()));
            })*
        }
    };
}

fn clients(servers: &[TestStore; 3]) -> [Client; 3] {
    servers.each_ref().map(TestStore::client)
}

fn lock(servers: &[TestStore; 3]) -> RedLock {
    // All answer here, however busy the machine is.
    Client::red_lock(&clients(servers), "a").with_server_timeout(Duration::from_secs(5))
}

/// Waits until all servers have answered and joined.
fn everywhere<T>(guard: RedGuard<T>) -> RedGuard<T> {
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    guard
}

/// How often it is held on each server, as that has it.
fn counts(servers: &[TestStore; 3]) -> [Vec<String>; 3] {
    servers
        .each_ref()
        .map(|server| server.fields("a").into_iter().map(|(_, count)| count).collect())
}

fn wait_for_nothing_left(servers: &[TestStore]) {
    wait_until("nothing is left", SOON, || {
        servers.iter().all(|server| server.fields("a").is_empty())
    });
}

fn lost(reason: LostReason) -> Expected {
    expected::lost("a", reason)
}

on_three_of_both_stores! {
    fn it_is_one_hold_on_each_server_until_it_is_released(servers: &[TestStore; 3]) {
        let lock = lock(servers);
        let guard = everywhere(lock.lock().unwrap());
        assert!(guard.is_held() && guard.check().is_ok() && lock.is_held_by_current_thread());
        assert_eq!(counts(servers), [(); 3].map(|()| vec!["1".to_owned()]));
        for server in servers {
            let left = server.time_to_live("a").unwrap();
            assert!(left >= guard.remaining() && left <= Duration::from_secs(30), "{left:?}");
        }
        guard.unlock().unwrap();
        wait_for_nothing_left(servers);
        assert!(!lock.is_held_by_current_thread());
    }

    fn a_majority_of_others_keeps_it_out_and_a_minority_does_not(servers: &[TestStore; 3]) {
        let rivals = clients(servers);
        let lock = lock(servers);
        let _first = rivals[0].lock("a").lock().unwrap();
        let guard = lock.try_lock().unwrap().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
        wait_for_nothing_left(&servers[1..]);
        let _second = rivals[1].lock("a").lock().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        wait_for_nothing_left(&servers[2..]);
    }

    fn a_wait_ends_in_time_and_leaves_nothing(servers: &[TestStore; 3]) {
        let guard = everywhere(lock(servers).lock().unwrap());
        let wait = Duration::from_millis(700);
        let (none, took) = timed(|| lock(servers).try_lock_for(wait).unwrap());
        assert!(none.is_none());
        assert!(took >= wait * 49 / 50 && took < wait + SLACK, "{took:?}");
        guard.unlock().unwrap();
        wait_for_nothing_left(servers);
    }

    fn a_waiter_gets_it_soon_after_its_release(servers: &[TestStore; 3]) {
        let guard = lock(servers).lock().unwrap();
        thread::scope(|scope| {
            let (got, has_got) = bounded(1);
            scope.spawn(move || {
                let guard = lock(servers).lock().unwrap();
                got.send(()).unwrap();
                drop(guard);
            });
            assert!(has_got.recv_timeout(Duration::from_millis(100)).is_err(), "it is taken");
            let (got, took) = timed(|| {
                guard.unlock().unwrap();
                has_got.recv_timeout(SOON)
            });
            got.unwrap();
            // Between two tries there are 128 ms at most.
            assert!(took < SLACK, "{took:?}");
        });
        wait_for_nothing_left(servers);
    }

    fn the_same_thread_nests_and_another_does_not(servers: &[TestStore; 3]) {
        let lock = lock(servers);
        let outer = everywhere(lock.lock().unwrap());
        let inner = everywhere(lock.try_lock().unwrap().unwrap());
        assert_eq!(counts(servers), [(); 3].map(|()| vec!["2".to_owned()]));
        thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_lock().unwrap().is_none())).join().unwrap();
        });
        inner.unlock().unwrap();
        assert!(outer.is_held());
        wait_until("one level is left", SOON, || {
            counts(servers) == [(); 3].map(|()| vec!["1".to_owned()])
        });
        outer.unlock().unwrap();
        wait_for_nothing_left(servers);
    }

    fn that_of_an_owner_is_released_by_another_thread(servers: &[TestStore; 3]) {
        let lock = lock(servers);
        let owned = lock.clone().with_owner("task");
        let outer = everywhere(owned.lock().unwrap());
        assert!(owned.is_held_by_current_thread() && !lock.is_held_by_current_thread());
        assert!(lock.try_lock().unwrap().is_none());
        let inner = thread::scope(|scope| scope.spawn(|| owned.lock().unwrap()).join().unwrap());
        thread::scope(|scope| scope.spawn(|| outer.unlock()).join().unwrap()).unwrap();
        assert!(inner.is_held());
        inner.unlock().unwrap();
        wait_for_nothing_left(servers);
    }

    fn the_loss_of_the_majority_is_told_and_that_of_one_is_not(servers: &[TestStore; 3]) {
        let clients = clients(servers);
        let guard = everywhere(Client::red_lock(&clients, "a").lock().unwrap());
        clients[0].lock("a").force_unlock().unwrap();
        assert!(guard.is_held() && guard.lost().is_empty());
        assert_eq!(guard.held_on(), 2);
        clients[1].lock("a").force_unlock().unwrap();
        assert!(!guard.is_held());
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
        assert_eq!(guard.check(), lost(LostReason::Deleted));
        assert_eq!(guard.unlock(), lost(LostReason::Deleted));
        wait_for_nothing_left(servers);
    }

    fn with_a_lease_it_ends_by_itself(servers: &[TestStore; 3]) {
        let lease = Duration::from_secs(2);
        // Without a server timeout of its own, which must not be more than a third of the lease.
        let guard = Client::red_lock(&clients(servers), "a").with_lease(lease).lock().unwrap();
        assert!(guard.remaining() <= lease);
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Expired));
        assert_eq!(guard.unlock(), lost(LostReason::Expired));
        wait_for_nothing_left(servers);
    }

    fn wrong_key_type_is_tolerated_on_a_minority_not_on_a_majority(servers: &[TestStore; 3]) {
        let lock = lock(servers);
        servers[0].put_text("a");
        lock.lock().unwrap().unlock().unwrap();
        servers[1].put_text("a");
        assert!(is_wrong_type(&lock.lock().unwrap_err(), "a"));
        wait_for_nothing_left(&servers[2..]);
    }
}
