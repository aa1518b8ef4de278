//! A lock released on one side is acquired by a waiter of the other side at once.

use std::thread;
use std::time::Duration;

use crate::kind::{Exclusive, Held, Kind};
use crate::shared::{JAVA, LIMIT, Tries, alone, connect, fresh, now, start, warm_up};

/// The lease of a wait that asks for one.
const LEASE: Duration = Duration::from_secs(20);

/// Takes a lock, however long that takes.
type Way = fn(&dyn Exclusive) -> Box<dyn Held>;

/// How a waiter of ours may take the lock, without an end of its patience and with one.
const WAYS: [Way; 3] = [
    |lock| lock.lock().unwrap(),
    |lock| lock.leased(LEASE).lock().unwrap(),
    |lock| lock.try_lock_for(LIMIT).unwrap().unwrap(),
];

pub(crate) fn a_release_in_java_hands_over_to_rust_at_once(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(kind, &client, &java);
    for release in ["unlock", "forceUnlock"] {
        for way in WAYS {
            let name = fresh(kind.word);
            let lock = (kind.open)(&client, &name);
            java.call(kind.word, &name, "lock");
            let tries = Tries::begin();
            thread::scope(|scope| {
                let waiter = start(scope, || {
                    let held = way(&*lock);
                    let owned_at = now();
                    assert!(held.is_held());
                    held.unlock().unwrap();
                    owned_at
                });
                tries.wait_until_asleep(kind.tries);
                assert!(!waiter.is_finished(), "it took a lock that was held");
                let released = java.send(kind.word, &name, release).answer();
                assert!(released.said.is_ok(), "{:?}", released.said);
                let took = waiter.join().unwrap().saturating_duration_since(released.at);
                assert!(took < kind.at_once, "owned {took:?} after {release}");
            });
        }
    }
}

pub(crate) fn a_release_in_rust_hands_over_to_java_at_once(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(kind, &client, &java);
    let release = |lock: &dyn Exclusive, held: Box<dyn Held>, by_force: bool| {
        if by_force { lock.force_unlock().map(drop) } else { held.unlock() }
    };
    for by_force in [false, true] {
        for way in ["lock", "lock lease=20000", "tryLock wait=30000 lease=20000"] {
            let name = fresh(kind.word);
            let lock = (kind.open)(&client, &name);
            let held = lock.lock().unwrap();
            let tries = Tries::begin();
            let waiting = java.send(kind.word, &name, way);
            tries.wait_until_asleep(kind.tries);
            assert!(waiting.is_under_way(), "it took a lock that was held");
            if kind.word == "write" {
                java.wait_until_asleep();
            }
            release(&*lock, held, by_force).unwrap();
            let released_at = now();
            let owned = waiting.answer();
            assert!(matches!(owned.said.as_deref(), Ok("" | "true")), "{way}: {:?}", owned.said);
            let took = owned.at.saturating_duration_since(released_at);
            assert!(took < kind.at_once, "{way}: owned after {took:?}");
            java.call(kind.word, &name, "unlock");
        }
    }
}

pub(crate) fn a_wait_ends_in_time_on_both_sides(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name);
    let wait = Duration::from_millis(200);
    let late = wait + kind.at_once;

    java.call(kind.word, &name, "lock");
    let begun = now();
    assert!(lock.try_lock_for(wait).unwrap().is_none());
    let waited = now().saturating_duration_since(begun);
    assert!(waited >= wait && waited < late, "Rust waited {waited:?}");
    java.call(kind.word, &name, "unlock");

    let held = lock.lock().unwrap();
    let begun = now();
    let answer = java.send(kind.word, &name, "tryLock wait=200 lease=20000").answer();
    assert_eq!(answer.said.as_deref(), Ok("false"));
    let waited = answer.at.saturating_duration_since(begun);
    // Java counts whole milliseconds, so its wait may be a part of one short.
    let at_least = wait.saturating_sub(Duration::from_millis(1));
    assert!(waited >= at_least && waited < late, "Java waited {waited:?}");
    held.unlock().unwrap();
}
