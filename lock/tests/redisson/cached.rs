//! A lock that a client of ours keeps between two uses: for Java that client holds the lock, and
//! Java has the lock when the time is over.

use std::time::Duration;

use wheellock::{Client, Lock, LockGuard};
use wheellock_fixture::wait_until;

use crate::AT_ONCE;
use crate::TRIES;
use crate::child::setting;
use crate::counting::{Counting, TIMES, count, count_in_threads};
use crate::shared::{JAVA, LIMIT, SECOND_JAVA, SERVER, Tries, alone, connect, fresh, now};

const WORD: &str = "lock";
/// As long as a lock stays here for Java to wait for.
const LONG: Duration = Duration::from_secs(2);
/// Of a client's wheel.
const TICK: Duration = Duration::from_millis(10);
/// Long before the end of the lease, which is 30 s.
const LATEST: Duration = Duration::from_secs(15);
/// As long as a lock stays here where Java and Rust take turns.
const SHORT: Duration = Duration::from_millis(5);
/// How often one thread counts whose lock is cached: a section of its own takes a tenth of a
/// millisecond, and Java has a turn after five.
const CACHED_TIMES: usize = 20 * TIMES;

/// Uses a lock until its client has it cached: before, the client has to hear others.
fn cache(client: &Client, lock: &Lock) {
    wait_until("it is cached", LIMIT, || {
        lock.lock().unwrap().unlock().unwrap();
        client.stats().cache.cached > 0
    });
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_waiter_in_java_has_a_cached_lock_when_its_time_is_over() {
    let _alone = alone();
    let (client, java, name) = (connect(), JAVA.thread(), fresh(WORD));
    for call in ["lock", "unlock"] {
        java.call(WORD, &name, call);
    }
    cache(&client, &client.lock(&fresh(WORD)).with_cache(LONG));
    let lock = client.lock(&name).with_cache(LONG);
    let guard = lock.lock().unwrap();
    let begun = now();
    guard.unlock().unwrap();
    assert_eq!(java.call(WORD, &name, "tryLock"), "false");
    let tries = Tries::begin();
    let waiting = java.send(WORD, &name, "lock");
    tries.wait_until_asleep(TRIES);
    // A use within the time is no concern of the waiter, and prolongs nothing.
    let hits = client.stats().cache.hits;
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(client.stats().cache.hits, hits + 1);
    assert!(waiting.is_under_way());
    let owned = waiting.answer();
    assert!(owned.said.is_ok(), "{:?}", owned.said);
    let took = owned.at.saturating_duration_since(begun);
    // The lock is released in the tick before its time is over.
    assert!(took + TICK >= LONG && took < LATEST, "owned after {took:?}");
    assert!(lock.try_lock().unwrap().is_none(), "Java holds it");
    java.call(WORD, &name, "unlock");
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_lock_in_use_beyond_its_time_goes_to_java_at_its_release() {
    let _alone = alone();
    let (client, java, name) = (connect(), JAVA.thread(), fresh(WORD));
    for call in ["lock", "unlock"] {
        java.call(WORD, &name, call);
    }
    cache(&client, &client.lock(&fresh(WORD)).with_cache(LONG));
    let lock = client.lock(&name).with_cache(LONG);
    lock.lock().unwrap().unlock().unwrap();
    let begun = now();
    let guard = lock.lock().unwrap();
    let tries = Tries::begin();
    let waiting = java.send(WORD, &name, "lock");
    tries.wait_until_asleep(TRIES);
    wait_until("the time is over", LIMIT, || now() > begun + LONG);
    assert!(guard.is_held() && waiting.is_under_way());
    let released = now();
    guard.unlock().unwrap();
    let took = waiting.answer().at.saturating_duration_since(released);
    assert!(took < AT_ONCE, "owned after {took:?}");
    java.call(WORD, &name, "unlock");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_and_caching_rust_client_never_hold_lock_together() {
    let _alone = alone();
    let (client, name) = (connect(), fresh(WORD));
    let counter = format!("{name}:counter");
    let lock = client.lock(&name).with_cache(SHORT);
    let operation = format!("count counter={counter} times={TIMES}");
    let counting = [&*JAVA, &*SECOND_JAVA].map(|java| java.thread().send(WORD, &name, &operation));
    // One thread, which nobody hands the lock to: nearly each of its acquires finds a cached lock.
    count(SERVER.connection(), &counter, CACHED_TIMES, &|| lock.lock(), &LockGuard::unlock);
    for pending in counting {
        assert_eq!(pending.value(), TIMES.to_string());
    }
    let sum: usize = SERVER.command(&["GET", &counter]).text().parse().unwrap();
    assert_eq!(sum, CACHED_TIMES + 2 * TIMES);
    let stats = client.stats();
    assert!(stats.cache.hits > 0 && stats.lost == 0, "{stats:?}");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn increments_of_java_and_of_two_clients_that_cache_all_count() {
    let _alone = alone();
    let name = fresh(WORD);
    let counting = Counting {
        server: &SERVER,
        java: [&JAVA, &SECOND_JAVA],
        kind: WORD,
        name: &name,
        times: TIMES,
        role: "count cached",
        settings: &[("NAME", &name)],
    };
    counting.assert_all_count();
    assert_eq!(SERVER.command(&["EXISTS", &name]).integer(), 0, "the lock is left behind");
}

/// In a child process: what a client of ours does that caches.
pub(crate) fn count_cached() {
    let client = Client::connect(&setting("SERVER")).unwrap();
    let lock = client.lock(&setting("NAME")).with_cache(SHORT);
    count_in_threads(&setting("SERVER"), || lock.lock(), LockGuard::unlock);
}
