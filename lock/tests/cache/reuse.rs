//! The next acquire has a cached lock without a request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use wheellock::{OwnHolder, Wait};
use wheellock_fixture::wait_until;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{LIMIT, SOON, now};
use crate::{TIME, cached, is_free, use_once};

#[test]
fn the_next_acquire_of_any_thread_asks_nothing() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = cached(&client, "a");
    use_once(&lock);
    let commands = setup.memory.commands();
    use_once(&lock);
    drop(lock.try_lock().unwrap().unwrap());
    drop(lock.try_lock_for(TIME).unwrap().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| use_once(&lock)).join().unwrap();
        scope.spawn(|| use_once(&cached(&client, "a"))).join().unwrap();
    });
    // A handle that leaves nothing behind takes what is there, and its release goes to the server.
    let guard = client.lock("a").lock().unwrap();
    assert_eq!(setup.memory.commands(), commands);
    assert_eq!(client.stats().cache.hits, 6);
    guard.unlock().unwrap();
    assert_eq!(client.stats().cache.cached, 0);
    assert!(is_free(&setup.client(), "a"));
}

#[test]
fn a_guard_of_a_cached_lock_is_as_any_other() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = cached(&client, "a");
    use_once(&lock);
    let guard = lock.lock().unwrap();
    assert!(guard.is_held() && lock.is_held_by_current_thread());
    assert_eq!(lock.hold_count(), 1);
    let inner = lock.lock().unwrap();
    assert_eq!(lock.hold_count(), 2);
    inner.unlock().unwrap();
    assert!(guard.is_held());
    let lost = guard.lost().clone();
    guard.unlock().unwrap();
    // The channel of a guard that is released closes, although the hold goes on.
    assert!(lost.try_recv().is_err_and(|error| error.is_disconnected()));
    assert!(!lock.is_held_by_current_thread());
    let next = lock.lock().unwrap();
    assert!(next.lost().try_recv().is_err_and(|error| error.is_empty()));
}

#[test]
fn a_cached_lock_is_listed_as_nobodys() {
    let setup = InMemory::new();
    let client = setup.client();
    use_once(&cached(&client, "a"));
    let holds = client.holds();
    assert_eq!(holds.len(), 1);
    assert_eq!(holds[0].holder, OwnHolder::Cached);
    assert_eq!((client.stats().held, client.stats().cache.cached), (1, 1));
    assert!(cached(&client, "a").is_locked().unwrap());
    let holder = || cached(&client, "a").holder().unwrap().unwrap();
    assert!(holder().may_be_cached);
    let _guard = cached(&client, "a").lock().unwrap();
    assert!(!holder().may_be_cached);
}

#[test]
fn a_sendable_lock_is_cached_too() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = client.lock("a").with_cache(TIME).sendable();
    drop(lock.lock().unwrap());
    let commands = setup.memory.commands();
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none(), "it does not nest");
    thread::scope(|scope| scope.spawn(move || drop(guard)).join().unwrap());
    drop(lock.lock().unwrap());
    // Only the refused try has asked.
    assert_eq!(setup.memory.commands(), commands + 1);
}

#[test]
fn an_acquire_that_takes_no_cached_lock_has_it_released() {
    let setup = InMemory::new();
    let client = setup.client();
    let leased = client.lock("a").with_lease(Duration::from_secs(1));
    let named = client.lock("a").with_owner("b");
    use_once(&cached(&client, "a"));
    drop(leased.try_lock().unwrap().expect("nobody is inside"));
    use_once(&cached(&client, "a"));
    drop(named.lock().unwrap());
    use_once(&cached(&client, "a"));
    drop(client.fenced_lock("a").try_lock_for(LIMIT).unwrap().expect("nobody is inside"));
    assert_eq!(client.stats().cache.revoked, 3);
}

#[test]
fn others_see_that_a_lock_may_be_cached() {
    let setup = TestStore::on_a_server();
    let [client, plain, observer] = [setup.client(), setup.client(), setup.client()];
    let _guard = cached(&client, "a").lock().unwrap();
    let _plain = plain.lock("b").lock().unwrap();
    let may_be = |name: &str| observer.lock(name).holder().unwrap().unwrap().may_be_cached;
    // Its client writes that down after a second.
    wait_until("it may be cached", SOON, || may_be("a"));
    assert!(!may_be("b"));
}

on_all_stores! {
    fn threads_of_two_clients_are_inside_one_at_a_time(setup: &TestStore) {
        const THREADS: usize = 4;
        const TIMES: u32 = 200;
        let clients = [setup.client(), setup.client()];
        let (inside, uses) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let lock = cached(&clients[thread % 2], "a");
                let (inside, uses) = (&inside, &uses);
                scope.spawn(move || {
                    for _ in 0..TIMES {
                        let guard = lock.try_lock_with(Wait::at_most(LIMIT)).unwrap().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        uses.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        });
        assert_eq!(uses.into_inner(), TIMES * u32::try_from(THREADS).unwrap());
    }

    fn threads_of_one_client_pass_a_cached_lock_on_without_a_pause(setup: &TestStore) {
        const TIMES: u32 = 300;
        let client = setup.client();
        let begun = now();
        thread::scope(|scope| {
            for _ in 0..4 {
                let lock = cached(&client, "a");
                scope.spawn(move || (0..TIMES).for_each(|_| use_once(&lock)));
            }
        });
        // One waiter that sleeps beside a cached lock would sleep for its whole time each time.
        assert!(now() - begun < TIME * TIMES, "waiters slept");
    }
}
