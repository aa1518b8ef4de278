//! What a latch does, on all stores; how its waiters wait; and its keys as Redisson sees them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SLACK, SOON, ended, is_wrong_type, now, timed, without_polls};
use crossbeam_channel::bounded;
use wheellock::{Client, CountDownLatch, Error, Wait};
use wheellock_fixture::{Server, wait_until};

/// As the documentation has it: a waiter that was not told asks again after so long.
const POLL_BOUND: Duration = Duration::from_secs(1);

fn wait_for_waiters(client: &Client, count: usize) {
    wait_until("all wait", SOON, || client.stats().waiters == count);
}

/// How long ten waiters take to go on once something was done to the latch that they wait for.
fn go_on(waiter: &Client, name: &str, act: impl FnOnce()) -> Duration {
    thread::scope(|scope| {
        let wait = || waiter.count_down_latch(name).wait();
        let waiting: Vec<_> = (0..10).map(|_| scope.spawn(wait)).collect();
        wait_for_waiters(waiter, 10);
        act();
        let all = || waiting.into_iter().for_each(|one| assert_eq!(ended(waiter, one), Ok(())));
        timed(all).1
    })
}

on_all_stores! {
    fn latch_is_open_without_count_and_when_count_reaches_zero(setup: &TestStore) {
        let latch = setup.client().count_down_latch("a");
        latch.wait().unwrap();
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), 0);
        assert!(latch.try_set_count(2).unwrap());
        assert!(!latch.try_set_count(9).unwrap());
        assert_eq!(latch.count().unwrap(), 2);
        latch.count_down().unwrap();
        assert!(!latch.wait_for(Duration::ZERO).unwrap());
        latch.count_down().unwrap();
        assert!(latch.wait_for(Duration::ZERO).unwrap());
        assert!(latch.wait_with(now()).unwrap());
        assert_eq!(latch.count().unwrap(), 0);
        assert!(!setup.is_there("a"));
        // And again.
        assert!(latch.try_set_count(1).unwrap());
        assert!(!latch.wait_for(Duration::from_millis(400)).unwrap());
    }

    fn the_last_count_wakes_all_waiters(setup: &TestStore) {
        let (counter, waiter) = (setup.client(), setup.without_polls());
        let latch = counter.count_down_latch("a");
        latch.try_set_count(2).unwrap();
        latch.count_down().unwrap();
        go_on(&waiter, "a", || latch.count_down().unwrap());
    }

    fn d15_deleting_a_latch_wakes_all_waiters(setup: &TestStore) {
        let (counter, waiter) = (setup.client(), setup.without_polls());
        let latch = counter.count_down_latch("a");
        latch.try_set_count(2).unwrap();
        go_on(&waiter, "a", || assert!(latch.delete().unwrap()));
        assert!(!latch.delete().unwrap());
    }

    fn a_latch_whose_key_vanishes_opens_after_a_poll_bound(setup: &TestStore) {
        let client = setup.client();
        client.count_down_latch("a").try_set_count(1).unwrap();
        let took = go_on(&client, "a", || setup.delete("a"));
        assert!(took < POLL_BOUND + SLACK, "{took:?}");
    }

    fn every_count_down_of_many_threads_counts(setup: &TestStore) {
        let clients = [setup.client(), setup.client()];
        let latch = clients[0].count_down_latch("a");
        latch.try_set_count(200).unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let latch = clients[number % 2].count_down_latch("a");
                scope.spawn(move || (0..24).for_each(|_| latch.count_down().unwrap()));
            }
        });
        assert_eq!(latch.count().unwrap(), 200 - 8 * 24);
    }

    fn a_wait_ends_on_time_or_when_cancelled_or_with_the_client(setup: &TestStore) {
        let client = setup.client();
        let latch = client.count_down_latch("a");
        latch.try_set_count(1).unwrap();
        let wait = Duration::from_millis(700);
        let (open, took) = timed(|| latch.wait_for(wait).unwrap());
        assert!(!open && took >= wait && took < wait + SLACK, "{took:?}");
        let (open, took) = timed(|| latch.wait_with(now() + wait).unwrap());
        assert!(!open && took < wait + SLACK, "{took:?}");
        assert!(!latch.wait_with(now()).unwrap());
        let (cancel, cancelled) = bounded(1);
        assert!(!latch.wait_with(Wait::at_most(wait).or_cancelled(&cancelled)).unwrap());
        thread::scope(|scope| {
            let one = scope.spawn(|| latch.wait_with(Wait::forever().or_cancelled(&cancelled)).unwrap_err());
            let timed = scope.spawn(|| latch.wait_with(Wait::at_most(SOON * 6).or_cancelled(&cancelled)).unwrap_err());
            let other = scope.spawn(|| latch.wait().unwrap_err());
            wait_for_waiters(&client, 3);
            cancel.send(()).unwrap();
            assert_eq!(timed.join().unwrap(), expected::cancelled("a"));
            assert_eq!(one.join().unwrap(), expected::cancelled("a"));
            client.shutdown(SOON);
            assert_eq!(other.join().unwrap(), Error::Shutdown);
        });
        assert_eq!(latch.count_down().unwrap_err(), Error::Shutdown);
    }

    fn invalid_arguments_are_refused(setup: &TestStore) {
        let client = setup.client();
        let latch = client.count_down_latch("a");
        for count in [0, 1 << 63, u64::MAX] {
            let error = latch.try_set_count(count).unwrap_err();
            assert!(matches!(error, Error::InvalidCount { .. }), "{error}");
        }
        assert!(!setup.is_there("a"));
        assert!(latch.try_set_count((1 << 63) - 1).unwrap());
        assert_eq!(latch.count().unwrap(), (1 << 63) - 1);
        latch.count_down().unwrap();
        assert_eq!(latch.count().unwrap(), (1 << 63) - 2);
        let all = |latch: &CountDownLatch| {
            [
                latch.try_set_count(1).unwrap_err(),
                latch.count_down().unwrap_err(),
                latch.count().unwrap_err(),
                latch.delete().unwrap_err(),
                latch.wait().unwrap_err(),
                latch.wait_for(SOON).unwrap_err(),
            ]
        };
        for error in all(&client.count_down_latch("")) {
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
        }
        setup.put_text("text");
        let _guard = client.lock("hash").lock().unwrap();
        for name in ["text", "hash"] {
            for error in all(&client.count_down_latch(name)) {
                assert!(is_wrong_type(&error, name), "{error}");
            }
        }
        assert!(client.lock("hash").is_held_by_current_thread());
    }
}

#[test]
fn latch_uses_redisson_key_and_messages_but_delete_opens_latch() {
    let server = Server::start();
    let mut listener = server.connection();
    drop(listener.command(&["PSUBSCRIBE", "*"]));
    let latch = Client::connect(&server.url()).unwrap().count_down_latch("a");
    latch.try_set_count(2).unwrap();
    assert_eq!(server.command(&["GET", "a"]).text(), "2");
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    latch.try_set_count(1).unwrap();
    latch.delete().unwrap();
    for payload in ["1", "0", "1", "0"] {
        let push = listener.receive().unwrap().texts();
        assert_eq!(push[2..], ["redisson_countdownlatch__channel__{a}", payload]);
    }
}

#[test]
fn d15_a_hash_tagged_name_works_on_a_server_of_a_cluster() {
    let server = Server::builder().argument("--cluster-enabled", "yes").start();
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let add = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    server.command(&add.collect::<Vec<_>>());
    wait_until("the cluster is up", SOON, || {
        server.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
    });
    let url = format!("redis-cluster://{}", server.address());
    let (client, waiter) = (Client::connect(&url).unwrap(), without_polls(&url));
    for name in ["a{b}", "{user}:42", "a"] {
        let latch = client.count_down_latch(name);
        latch.try_set_count(2).unwrap();
        latch.count_down().unwrap();
        go_on(&waiter, name, || latch.count_down().unwrap());
        latch.try_set_count(1).unwrap();
        assert!(latch.delete().unwrap());
        // Their keys and channels share a slot by themselves.
        let semaphore = client.semaphore(&format!("{name}:semaphore"));
        semaphore.try_set_permits(2).unwrap();
        semaphore.acquire(2).unwrap().forget();
        semaphore.release(2).unwrap();
        let seats = client.expirable_semaphore(&format!("{name}:seats"));
        seats.set_permits(2).unwrap();
        seats.acquire().unwrap().release().unwrap();
        assert_eq!(seats.available_permits().unwrap(), 2);
    }
}

#[test]
fn a_server_out_of_memory_only_counts_down() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let (latch, other) = (client.count_down_latch("a"), client.count_down_latch("b"));
    latch.try_set_count(2).unwrap();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = other.try_set_count(1).unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "OOM"), "{error}");
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    assert_eq!(latch.count().unwrap(), 0);
    assert!(other.count_down().is_ok() && !other.delete().unwrap());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(other.try_set_count(1).unwrap());
}
