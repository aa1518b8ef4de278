//! Another client that caches the lock asks for it.

use std::thread;
use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::{Server, wait_until};

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{LIMIT, SOON, built, ended, limited_user, wait_for_a_waiter};
use crate::{TIME, cache, cached, is_free, use_once};

on_all_stores! {
    fn a_refused_try_has_a_cached_lock_released(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        cache(&client, "a");
        let lock = cached(&other, "a");
        // Whoever only tries is refused once, although nobody is inside.
        wait_until("it is released", SOON, || lock.try_lock().unwrap().is_some());
        wait_until("it was asked for", SOON, || client.stats().cache.cached == 0);
    }

    fn a_waiter_has_a_cached_lock_at_once(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let long = Duration::from_secs(9);
        // For so long it is not released by itself.
        wait_until("it is cached", SOON, || {
            use_once(&client.lock("a").with_cache(long));
            client.stats().cache.cached > 0
        });
        let lock = other.lock("a").with_cache(long);
        let guard = lock.try_lock_for(LIMIT).unwrap();
        assert!(guard.is_some());
        assert_eq!(client.stats().cache.revoked, 1);
    }
}

#[test]
fn a_client_that_cannot_hear_others_caches_nothing() {
    let server = Server::start();
    let url = limited_user(&server, &["resetchannels", "&redisson_*"]);
    let client = built(Client::builder().url(&url));
    for _ in 0..3 {
        use_once(&cached(&client, "a"));
        assert_eq!(client.stats().cache.cached, 0);
    }
}

#[test]
fn a_lock_in_use_is_released_by_its_next_release() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), setup.client());
    let guard = cached(&client, "a").lock().unwrap();
    assert!(cached(&other, "a").try_lock().unwrap().is_none());
    // However long that takes.
    setup.clock.advance(Duration::from_secs(5));
    guard.unlock().unwrap();
    assert!(is_free(&other, "a"));
}

#[test]
fn a_name_that_is_wanted_is_not_cached_for_a_second() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), setup.client());
    let lock = cached(&client, "a");
    use_once(&lock);
    assert!(cached(&other, "a").try_lock().unwrap().is_none());
    wait_until("it is free", SOON, || is_free(&other, "a"));
    use_once(&lock);
    assert!(is_free(&other, "a"));
    use_once(&cached(&client, "b"));
    assert!(!is_free(&other, "b"), "other names are");
    setup.clock.advance(Duration::from_secs(1));
    use_once(&lock);
    assert!(!is_free(&other, "a"));
}

#[test]
fn the_holder_is_told_once_for_each_acquire() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), built(setup.builder()));
    let guard = cached(&client, "a").lock().unwrap();
    let lock = cached(&other, "a");
    let before = setup.memory.commands();
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(setup.memory.commands(), before + 2);
    // A client that caches nothing tells nothing.
    assert!(other.lock("a").try_lock().unwrap().is_none());
    assert_eq!(setup.memory.commands(), before + 3);
    drop(guard);
}

#[test]
fn if_the_message_is_lost_a_waiter_has_it_when_its_time_is_over() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), setup.client());
    use_once(&cached(&client, "a"));
    setup.memory.lose_messages(true);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| use_once(&cached(&other, "a")));
        wait_for_a_waiter(&other);
        setup.memory.lose_messages(false);
        setup.clock.advance(TIME + Duration::from_millis(10));
        ended(&other, waiter);
    });
    assert_eq!((client.stats().cache.expired, client.stats().cache.revoked), (1, 0));
}

#[test]
fn a_waiter_asks_again_when_it_polls() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), setup.client());
    let long = Duration::from_secs(9);
    use_once(&client.lock("a").with_cache(long));
    setup.memory.lose_messages(true);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| use_once(&other.lock("a").with_cache(long)));
        wait_for_a_waiter(&other);
        setup.memory.lose_messages(false);
        // A waiter polls once a second.
        setup.clock.advance(Duration::from_millis(1100));
        ended(&other, waiter);
    });
    assert_eq!((client.stats().cache.expired, client.stats().cache.revoked), (0, 1));
}
