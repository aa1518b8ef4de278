//! Which locks can be cached, and for how long.

use std::time::Duration;

use wheellock::{AnyLock, Client, Error, Lock, OwnedGuard};

use crate::TIME;
use crate::common::in_memory::InMemory;

const SECOND: Duration = Duration::from_secs(1);

fn refusal<T>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::InvalidSetting { setting: "with_cache", .. }) => error.to_string(),
        Err(other) => format!("another error: {other}"),
        Ok(_) => "no error".to_owned(),
    }
}

#[test]
fn only_a_plain_watched_lock_can_be_cached() {
    let client = Client::in_memory();
    let kinds: [(Lock, &str); 5] = [
        (client.fair_lock("a"), "only `lock`"),
        (client.spin_lock("a"), "only `lock`"),
        (client.simple_lock("a"), "only `lock`"),
        (client.non_reentrant_lock("a"), "only `lock`"),
        (client.read_write_lock("a").write_lock(), "only `lock`"),
    ];
    for (lock, reason) in kinds {
        let refused = refusal(lock.with_cache(TIME).try_lock());
        assert!(refused.contains(reason), "{refused}");
    }
    let leased = client.lock("a").with_lease(SECOND).with_cache(TIME);
    let leased_after = client.lock("a").with_cache(TIME).with_lease(SECOND);
    for lock in [leased, leased_after] {
        let refused = refusal(lock.lock());
        assert!(refused.contains("a lease of its own"), "{refused}");
    }
    let kept = client.lock("a").with_cache(TIME).with_min_hold(SECOND);
    assert!(refusal(kept.lock()).contains("a minimum hold"));
    let named: Lock<OwnedGuard> = client.lock("a").with_cache(TIME).with_owner("b");
    assert!(refusal(named.lock()).contains("a named owner"));
    let (cached, plain) = (client.lock("a").with_cache(TIME), client.lock("b"));
    let members: [&dyn AnyLock; 2] = [&cached, &plain];
    assert!(refusal(client.multi_lock(&members).lock()).contains("a member"));
    assert_eq!(client.stats().held, 0);
}

#[test]
fn the_time_is_between_a_millisecond_and_a_third_of_the_lease() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND * 3);
    let lock = |time| client.lock("a").with_cache(time);
    for time in [Duration::ZERO, Duration::from_micros(999), Duration::from_millis(1001)] {
        let refused = refusal(lock(time).lock());
        assert!(refused.contains("a third of the lease, 1s"), "{refused}");
    }
    for time in [Duration::from_millis(1), SECOND] {
        lock(time).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(client.stats().cache.hits, 1);
}
