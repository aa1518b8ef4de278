//! What a semaphore does, on all stores; how its waiters wait; and its keys as Redisson sees them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_all_stores};
use crate::common::takings::taken;
use crate::common::{SLACK, SOON, ended, is_wrong_type, now, settle, timed};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, Semaphore, SemaphoreGuard, Wait};
use wheellock_fixture::{Proxy, Reply, Server, wait_until};

/// As the documentation has it: a waiter that was not told asks again after so long.
const POLL_BOUND: Duration = Duration::from_secs(1);
/// How long a wait lasts that comes to nothing.
const SHORT: Duration = Duration::from_millis(400);

fn with_permits(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("a");
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

fn wait_for_waiters(client: &Client, count: usize) {
    wait_until("all wait", SOON, || client.stats().waiters == count);
}

on_all_stores! {
    fn permits_are_counted_down_when_taken_and_up_when_given_back(setup: &TestStore) {
        let semaphore = with_permits(&setup.client(), 3);
        semaphore.acquire(2).unwrap().forget();
        assert_eq!(semaphore.available_permits().unwrap(), 1);
        assert!(!semaphore.try_acquire(2).map(taken).unwrap());
        assert!(semaphore.try_acquire(1).map(taken).unwrap());
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        semaphore.release(3).unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 3);
    }

    fn permits_can_be_acquired_repeatedly(setup: &TestStore) {
        // Each call is a request of its own: none is mistaken for a copy of another.
        let semaphore = with_permits(&setup.client(), 5);
        for left in (0..5).rev() {
            semaphore.acquire(1).unwrap().forget();
            assert_eq!(semaphore.available_permits().unwrap(), left);
        }
        for left in 1..=5 {
            semaphore.release(1).unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), left);
        }
    }

    fn missing_semaphore_has_no_permits_and_is_created_by_release(setup: &TestStore) {
        let semaphore = setup.client().semaphore("a");
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        assert_eq!(semaphore.drain_permits().unwrap(), 0);
        assert!(!semaphore.try_acquire(1).map(taken).unwrap());
        assert!(!semaphore.release_if_exists(1).unwrap());
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        semaphore.release(2).unwrap();
        assert!(semaphore.release_if_exists(1).unwrap());
        assert_eq!(semaphore.available_permits().unwrap(), 3);
    }

    fn a_semaphore_is_made_once(setup: &TestStore) {
        let semaphore = with_permits(&setup.client(), 3);
        assert!(!semaphore.try_set_permits(7).unwrap());
        assert!(!semaphore.try_set_permits_for(7, SOON).unwrap());
        assert_eq!(semaphore.available_permits().unwrap(), 3);
    }

    fn draining_takes_all_that_is_left_and_lifts_a_debt(setup: &TestStore) {
        let semaphore = with_permits(&setup.client(), 3);
        assert_eq!(semaphore.drain_permits().unwrap(), 3);
        assert_eq!(semaphore.drain_permits().unwrap(), 0);
        semaphore.add_permits(-2).unwrap();
        assert_eq!(semaphore.drain_permits().unwrap(), -2);
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }

    fn negative_permit_count_must_be_repaid_before_acquire(setup: &TestStore) {
        let semaphore = with_permits(&setup.client(), 1);
        semaphore.add_permits(-3).unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), -2);
        semaphore.release(2).unwrap();
        assert!(!semaphore.try_acquire(1).map(taken).unwrap());
        semaphore.add_permits(1).unwrap();
        assert!(semaphore.try_acquire(1).map(taken).unwrap());
    }

    fn a_time_to_live_is_kept_through_every_change(setup: &TestStore) {
        let client = setup.client();
        let semaphore = client.semaphore("a");
        assert!(semaphore.try_set_permits_for(3, Duration::from_secs(60)).unwrap());
        semaphore.acquire(1).unwrap().forget();
        semaphore.release(1).unwrap();
        semaphore.add_permits(2).unwrap();
        semaphore.drain_permits().unwrap();
        let left = setup.time_to_live("a").unwrap();
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(60), "{left:?}");
    }

    fn a_release_wakes_a_waiter_of_another_client(setup: &TestStore) {
        let (holder, waiter) = (setup.client(), setup.without_polls());
        let semaphore = with_permits(&holder, 1);
        semaphore.acquire(1).unwrap().forget();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.semaphore("a").acquire(1).map(SemaphoreGuard::forget));
            wait_for_waiters(&waiter, 1);
            semaphore.release(1).unwrap();
            assert_eq!(ended(&waiter, waiting), Ok(()));
        });
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }

    fn every_way_to_add_permits_wakes_a_waiter(setup: &TestStore) {
        let (giver, waiter) = (setup.client(), setup.without_polls());
        let ways: [fn(&Semaphore); 4] = [
            |semaphore| assert!(semaphore.try_set_permits(1).unwrap()),
            |semaphore| semaphore.release(1).unwrap(),
            |semaphore| assert!(semaphore.release_if_exists(1).unwrap()),
            |semaphore| semaphore.add_permits(1).unwrap(),
        ];
        for give in ways {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| waiter.semaphore("a").acquire(1).map(SemaphoreGuard::forget));
                wait_for_waiters(&waiter, 1);
                give(&giver.semaphore("a"));
                assert_eq!(ended(&waiter, waiting), Ok(()));
            });
        }
    }

    fn one_permit_wakes_one_of_many_waiters(setup: &TestStore) {
        let (holder, waiters) = (setup.client(), setup.client());
        let semaphore = with_permits(&holder, 0);
        let inside = AtomicI64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    assert!(waiters.semaphore("a").try_acquire_for(1, SOON).map(taken).unwrap());
                    inside.fetch_add(1, Ordering::SeqCst);
                });
            }
            wait_for_waiters(&waiters, 8);
            for released in 1..=8 {
                semaphore.release(1).unwrap();
                wait_until("one has it", SOON, || inside.load(Ordering::SeqCst) == released);
                assert_eq!(semaphore.available_permits().unwrap(), 0);
            }
        });
    }

    fn several_permits_wake_several_waiters_without_polling(setup: &TestStore) {
        let (holder, waiters) = (setup.client(), setup.without_polls());
        let semaphore = with_permits(&holder, 0);
        thread::scope(|scope| {
            let acquire = || waiters.semaphore("a").try_acquire_for(1, SOON).map(taken);
            let waiting: Vec<_> = (0..20).map(|_| scope.spawn(acquire)).collect();
            wait_for_waiters(&waiters, 20);
            semaphore.release(20).unwrap();
            for waiting in waiting {
                assert_eq!(ended(&waiters, waiting), Ok(true));
            }
        });
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }

    fn a_waiter_that_wants_five_does_not_block_one_that_wants_one(setup: &TestStore) {
        let (holder, waiters) = (setup.client(), setup.without_polls());
        let semaphore = with_permits(&holder, 0);
        thread::scope(|scope| {
            let greedy = scope.spawn(|| waiters.semaphore("a").try_acquire_for(5, SOON).map(taken));
            wait_for_waiters(&waiters, 1);
            let modest = || waiters.semaphore("a").try_acquire_for(1, SOON).map(taken);
            let one = scope.spawn(modest);
            wait_for_waiters(&waiters, 2);
            semaphore.release(1).unwrap();
            assert_eq!(ended(&waiters, one), Ok(true));
            assert!(!greedy.is_finished());
            // A later waiter does not queue behind the greedy one either.
            semaphore.release(1).unwrap();
            assert_eq!(ended(&waiters, scope.spawn(modest)), Ok(true));
            semaphore.release(5).unwrap();
            assert_eq!(ended(&waiters, greedy), Ok(true));
        });
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }

    fn a_wait_ends_on_time(setup: &TestStore) {
        let semaphore = with_permits(&setup.client(), 1);
        let wait = Duration::from_millis(700);
        let (has_it, took) = timed(|| semaphore.try_acquire_for(2, wait).map(taken).unwrap());
        assert!(!has_it && took >= wait && took < wait + SLACK, "{has_it} after {took:?}");
        let (has_it, took) = timed(|| semaphore.try_acquire_with(2, now() + wait).map(taken).unwrap());
        assert!(!has_it && took < wait + SLACK, "{has_it} after {took:?}");
        assert!(!semaphore.try_acquire_with(2, now()).map(taken).unwrap());
        assert!(semaphore.try_acquire_for(1, Duration::ZERO).map(taken).unwrap());
    }

    fn a_wait_can_be_cancelled_and_ends_with_the_client(setup: &TestStore) {
        let client = setup.client();
        let semaphore = with_permits(&client, 0);
        let (cancel, cancelled) = bounded(1);
        thread::scope(|scope| {
            let one = scope.spawn(|| semaphore.try_acquire_with(1, Wait::forever().or_cancelled(&cancelled)).unwrap_err());
            let timed = scope
                .spawn(|| semaphore.try_acquire_with(1, Wait::at_most(SOON * 6).or_cancelled(&cancelled)).unwrap_err());
            let other = scope.spawn(|| semaphore.acquire(1).unwrap_err());
            wait_for_waiters(&client, 3);
            assert!(!semaphore.try_acquire_with(1, Wait::at_most(SHORT).or_cancelled(&cancelled)).map(taken).unwrap());
            cancel.send(()).unwrap();
            assert!(matches!(one.join().unwrap(), Error::Cancelled { name, .. } if name == "a"));
            assert!(matches!(timed.join().unwrap(), Error::Cancelled { name, .. } if name == "a"));
            client.shutdown(SOON);
            assert_eq!(other.join().unwrap(), Error::Shutdown);
        });
        assert_eq!(semaphore.release(1).unwrap_err(), Error::Shutdown);
        assert_eq!(semaphore.acquire(0).unwrap_err(), Error::Shutdown);
        assert_eq!(setup.client().semaphore("a").available_permits().unwrap(), 0);
    }

    fn acquiring_and_releasing_zero_permits_succeeds(setup: &TestStore) {
        let semaphore = setup.client().semaphore("a");
        semaphore.acquire(0).unwrap().forget();
        assert!(semaphore.try_acquire(0).map(taken).unwrap());
        semaphore.release(0).unwrap();
        semaphore.add_permits(0).unwrap();
        assert!(!semaphore.release_if_exists(0).unwrap());
        assert!(!setup.is_there("a"));
    }

    fn a_number_that_java_cannot_count_with_is_refused(setup: &TestStore) {
        const MOST: u32 = 2_147_483_647;
        let client = setup.client();
        let semaphore = with_permits(&client, MOST);
        for error in [
            semaphore.release(1).unwrap_err(),
            semaphore.release_if_exists(1).unwrap_err(),
            semaphore.add_permits(i32::MAX).unwrap_err(),
            semaphore.acquire(MOST + 1).unwrap_err(),
            semaphore.try_acquire_for(u32::MAX, SOON).unwrap_err(),
            semaphore.try_set_permits(MOST + 1).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidCount { .. }), "{error}");
            assert!(!error.is_retryable());
        }
        assert_eq!(semaphore.drain_permits().unwrap(), i64::from(MOST));
        semaphore.add_permits(i32::MIN).unwrap();
        assert!(matches!(semaphore.add_permits(-1), Err(Error::InvalidCount { .. })));
        assert_eq!(semaphore.available_permits().unwrap(), i64::from(i32::MIN));
    }

    fn a_name_or_a_time_that_cannot_be_is_refused(setup: &TestStore) {
        let client = setup.client();
        let long = "x".repeat(64 * 1024 + 1);
        for name in ["", long.as_str()] {
            let semaphore = client.semaphore(name);
            for error in [
                semaphore.acquire(1).unwrap_err(),
                semaphore.acquire(0).unwrap_err(),
                semaphore.try_acquire_for(1, SOON).unwrap_err(),
                semaphore.release(1).unwrap_err(),
                semaphore.available_permits().unwrap_err(),
                semaphore.drain_permits().unwrap_err(),
                semaphore.try_set_permits(1).unwrap_err(),
            ] {
                assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            }
        }
        for wrong in [Duration::ZERO, Duration::MAX] {
            let error = client.semaphore("a").try_set_permits_for(1, wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
        }
        assert!(!setup.is_there("a"));
    }

    fn a_key_that_holds_something_else_is_an_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        setup.put_text("text");
        let _guard = client.lock("hash").lock().unwrap();
        for name in ["text", "hash"] {
            let semaphore = client.semaphore(name);
            for error in [
                semaphore.acquire(1).unwrap_err(),
                semaphore.try_acquire(1).unwrap_err(),
                semaphore.release(1).unwrap_err(),
                semaphore.release_if_exists(1).unwrap_err(),
                semaphore.add_permits(-1).unwrap_err(),
                semaphore.drain_permits().unwrap_err(),
                semaphore.available_permits().unwrap_err(),
                semaphore.try_set_permits(1).unwrap_err(),
            ] {
                assert!(is_wrong_type(&error, name), "{error}");
            }
        }
        assert!(client.lock("hash").is_held_by_current_thread());
    }

    fn no_more_than_there_are_permits_are_ever_inside(setup: &TestStore) {
        let clients = [setup.client(), setup.client()];
        with_permits(&clients[0], 3);
        let (inside, most) = (Arc::new(AtomicI64::new(0)), AtomicI64::new(0));
        thread::scope(|scope| {
            for number in 0..8_u32 {
                let (client, inside, most) = (&clients[number as usize % 2], &inside, &most);
                scope.spawn(move || {
                    let (semaphore, permits) = (client.semaphore("a"), number % 2 + 1);
                    for _ in 0..50 {
                        let guard = semaphore.acquire(permits).unwrap();
                        let now = inside.fetch_add(i64::from(permits), Ordering::SeqCst);
                        most.fetch_max(now + i64::from(permits), Ordering::SeqCst);
                        inside.fetch_sub(i64::from(permits), Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        clients.iter().for_each(settle);
        assert_eq!(clients[0].semaphore("a").available_permits().unwrap(), 3);
    }
}

#[test]
fn the_key_is_redissons_and_the_messages_are_how_many_there_are() {
    let server = Server::start();
    let mut listener = server.connection();
    drop(listener.command(&["PSUBSCRIBE", "*"]));
    let client = Client::connect(&server.url()).unwrap();
    let mut told = Vec::new();
    for (name, channel) in [("a", "redisson_sc:{a}"), ("a{b}", "redisson_sc:a{b}")] {
        let semaphore = client.semaphore(name);
        semaphore.try_set_permits(2).unwrap();
        assert_eq!(server.command(&["GET", name]).text(), "2");
        semaphore.acquire(2).unwrap().forget();
        assert_eq!(server.command(&["GET", name]).text(), "0");
        semaphore.release(1).unwrap();
        semaphore.add_permits(-5).unwrap();
        // Redisson's listener throws at a message that is less than zero.
        semaphore.release(1).unwrap();
        semaphore.add_permits(7).unwrap();
        told.extend(["2", "1", "4"].map(|payload| (channel.to_owned(), payload.to_owned())));
    }
    let heard: Vec<_> = told
        .iter()
        .map(|_| {
            let push = listener.receive().unwrap().texts();
            (push[2].clone(), push[3].clone())
        })
        .collect();
    assert_eq!(heard, told);
}

#[test]
fn waiters_do_not_ask_more_than_once_per_poll_bound() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = with_permits(&client, 0);
    semaphore.try_acquire(1).map(taken).unwrap();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| semaphore.try_acquire_for(1, POLL_BOUND * 5 / 2).map(taken).unwrap());
        }
        wait_for_waiters(&client, 20);
        let before = server.command_calls("evalsha");
        wait_until("all have given up", SOON, || client.stats().waiters == 0);
        // Those after the first had not tried yet; two polls of one of them follow.
        let tries = server.command_calls("evalsha") - before;
        assert!(tries <= 25, "{tries} tries of 20 waiters in two and a half poll bounds");
    });
}

#[test]
fn d16_a_timed_wait_leaves_no_subscription_behind() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&proxy.url()).unwrap();
    with_permits(&client, 0);
    let listening = || {
        let channels = ["PUBSUB", "NUMSUB", "redisson_sc:{a}"];
        server.command(&channels).array()[1] != Reply::Integer(0)
    };
    assert!(!client.semaphore("a").try_acquire_for(1, SHORT).map(taken).unwrap());
    wait_until("there is no subscriber", SOON, || !listening());
    // Also if the wait ends before the subscription is confirmed.
    let aim = proxy
        .on(|request| request.name() == "SUBSCRIBE", wheellock_fixture::Fault::HoldRequest)
        .always();
    assert!(!client.semaphore("a").try_acquire_for(1, SHORT).map(taken).unwrap());
    aim.wait_for_hit(SOON);
    aim.withdraw();
    drop(aim.deliver());
    wait_until("there is no subscriber", SOON, || !listening());
    assert_eq!(client.stats().waiters, 0);
}

#[test]
fn a_server_out_of_memory_only_releases_permits() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = with_permits(&client, 3);
    semaphore.acquire(2).unwrap().forget();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = semaphore.try_acquire(1).unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "OOM"), "{error}");
    assert!(error.is_retryable());
    semaphore.release(1).unwrap();
    assert!(semaphore.release_if_exists(1).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    semaphore.acquire(3).unwrap().forget();
}
