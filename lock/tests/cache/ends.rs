//! How a cached lock ends: its time, too many, a loss, the end of its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wheellock_fixture::wait_until;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built};
use crate::{TIME, cache, cached, is_free, use_once};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn it_is_released_when_its_time_is_over() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    use_once(&cached(&client, "a"));
    setup.clock.advance(TIME / 2);
    assert!(!is_free(&rival, "a"));
    // The ticker looks at the next tick.
    setup.clock.advance(TIME / 2 + MILLISECOND * 10);
    wait_until("it is free", SOON, || is_free(&rival, "a"));
    assert_eq!(client.stats().cache.expired, 1);
    assert_eq!((client.stats().held, client.stats().cache.cached), (0, 0));
}

#[test]
fn its_time_is_not_prolonged_by_use() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let lock = cached(&client, "a");
    use_once(&lock);
    for _ in 0..3 {
        setup.clock.advance(TIME / 4);
        use_once(&lock);
    }
    let guard = lock.lock().unwrap();
    setup.clock.advance(TIME / 4);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert!(is_free(&rival, "a"), "the use in which its time ends is the last");
    // The next hold has a time of its own.
    use_once(&lock);
    assert!(!is_free(&rival, "a"));
}

#[test]
fn its_time_ends_between_two_renewals() {
    const GIVEN: Duration = Duration::from_secs(9);
    const SECOND: Duration = Duration::from_secs(1);
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let lock = client.lock("a").with_cache(GIVEN);
    for uses in [1, 2] {
        // Renewed after ten seconds, cached or in use.
        let first = lock.lock().unwrap();
        setup.clock.advance(SECOND * 5);
        first.unlock().unwrap();
        if uses == 1 {
            setup.clock.advance(SECOND * 8);
        } else {
            let second = lock.lock().unwrap();
            setup.clock.advance(SECOND * 7);
            second.unlock().unwrap();
            setup.clock.advance(SECOND);
        }
        assert_eq!(client.stats().cache.cached, 1);
        assert!(client.stats().renewed >= uses);
        assert!(!is_free(&rival, "a"));
        setup.clock.advance(SECOND + MILLISECOND * 10);
        wait_until("it is free", SOON, || is_free(&rival, "a"));
        assert_eq!(client.stats().cache.expired, uses);
    }
}

#[test]
fn of_too_many_the_one_that_is_idle_longest_is_released() {
    let setup = InMemory::new();
    let client = built(setup.builder().max_cached_locks(3));
    let rival = setup.client();
    let locks = ["a", "b", "c", "d"].map(|name| cached(&client, name));
    for lock in &locks[..3] {
        use_once(lock);
        setup.clock.advance(MILLISECOND);
    }
    use_once(&locks[0]);
    setup.clock.advance(MILLISECOND);
    use_once(&locks[3]);
    wait_until("b is free", SOON, || is_free(&rival, "b"));
    let free = ["a", "c", "d"].map(|name| is_free(&rival, name));
    assert_eq!((free, client.stats().cache.evicted), ([false; 3], 1));
    // What is in use is not released, and what is cached beyond the limit is.
    let _guards = [0, 2, 3].map(|lock| locks[lock].lock().unwrap());
    use_once(&cached(&client, "e"));
    wait_until("e is free", SOON, || is_free(&rival, "e"));
    assert!(client.holds().iter().all(|hold| hold.name != "e"));
}

#[test]
fn with_a_limit_of_zero_nothing_is_cached() {
    let setup = InMemory::new();
    let client = built(setup.builder().max_cached_locks(0));
    use_once(&cached(&client, "a"));
    wait_until("it is free", SOON, || is_free(&setup.client(), "a"));
}

#[test]
fn a_loss_is_dropped_in_silence_and_counted() {
    let setup = InMemory::new();
    let lost = Arc::new(AtomicU32::new(0));
    let reported = Arc::clone(&lost);
    let client = built(setup.builder().on_lost(move |_| {
        reported.fetch_add(1, Ordering::Relaxed);
    }));
    let second = Duration::from_secs(1);
    let lock = client.lock("a").with_cache(second * 10);
    let guard = lock.lock().unwrap();
    setup.clock.advance(second * 5);
    guard.unlock().unwrap();
    // The renewal before ten seconds are over finds that it is gone.
    setup.memory.delete("a");
    setup.clock.advance(second * 5);
    wait_until("it is lost", SOON, || client.stats().cache.lost == 1);
    assert_eq!((client.stats().lost, client.stats().held), (0, 0));
    use_once(&lock);
    assert_eq!(lost.load(Ordering::Relaxed), 0);
}

#[test]
fn its_own_client_can_force_its_release() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = cached(&client, "a");
    use_once(&lock);
    assert!(lock.force_unlock().unwrap());
    assert_eq!((client.stats().cache.lost, client.stats().lost), (1, 0));
    let commands = setup.memory.commands();
    use_once(&lock);
    assert!(setup.memory.commands() > commands, "it is acquired anew");
}

#[test]
fn after_a_pause_of_the_process_it_is_acquired_anew() {
    let setup = InMemory::new();
    let client = setup.client();
    let lock = cached(&client, "a");
    use_once(&lock);
    // Nothing but the clock has run: the ticker has not looked yet, or has.
    setup.clock.advance(Duration::from_secs(60));
    let rival = setup.client().lock("a").try_lock().unwrap().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    rival.unlock().unwrap();
    use_once(&lock);
}

on_all_stores! {
    fn a_shutdown_releases_it(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        cache(&client, "a");
        assert!(!is_free(&rival, "a"));
        let report = client.shutdown(SOON);
        assert_eq!(report.released, 1);
        assert!(is_free(&rival, "a"));
    }

    fn the_end_of_the_last_client_releases_it(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let clone = client.clone();
        cache(&client, "a");
        drop(client);
        assert!(!is_free(&rival, "a"));
        drop(clone);
        wait_until("it is free", SOON, || is_free(&rival, "a"));
    }
}
