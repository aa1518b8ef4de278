//! Names, leases and waits that nobody should use, and a few that only look that way.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{SLACK, SOON, TIMEOUT, World, built, now, timed};
use wheellock::{Client, Clock, Error, Lock, SystemClock};
use wheellock_fixture::wait_until;

/// Every way to take a lock.
fn attempts(lock: &Lock) -> Vec<Error> {
    vec![
        lock.lock().unwrap_err(),
        lock.try_lock().unwrap_err(),
        lock.try_lock_for(TIMEOUT).unwrap_err(),
        lock.try_lock_until(now() + TIMEOUT).unwrap_err(),
    ]
}

fn assert_nothing_happened(world: &World, client: &Client) {
    assert_eq!(world.server.command(&["DBSIZE"]).integer(), 0);
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.owed_releases), (0, 0, 0));
}

#[test]
fn a_name_that_is_empty_or_too_long_is_refused_and_nothing_is_sent() {
    let world = World::new();
    let client = world.client();
    let mut monitor = world.server.monitor();
    for name in [String::new(), "x".repeat(64 * 1024 + 1), "é".repeat(40_000)] {
        let lock = client.lock(&name);
        let mut errors = attempts(&lock);
        errors.push(lock.is_locked().unwrap_err());
        errors.push(lock.remaining_lease().unwrap_err());
        errors.push(lock.force_unlock().unwrap_err());
        for error in errors {
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            assert!(!error.is_retryable());
            assert!(error.to_string().len() < 500, "{error}");
        }
        assert_eq!(lock.hold_count(), 0);
    }
    assert!(monitor.seen().is_empty());
    assert_nothing_happened(&world, &client);
}

#[test]
fn any_other_name_is_the_key_byte_for_byte_and_tags_its_channel() {
    let world = World::new();
    let (client, waiting) = (world.client(), world.client());
    let long = "n".repeat(10 * 1024);
    let longest = "l".repeat(64 * 1024);
    for (name, channel) in [
        ("{tagged}", "redisson_lock__channel:{tagged}".to_owned()),
        ("a{b}c{d}", "redisson_lock__channel:a{b}c{d}".to_owned()),
        ("}{", "redisson_lock__channel:}{".to_owned()),
        ("{}", "redisson_lock__channel:{}".to_owned()),
        ("}", "redisson_lock__channel:{}}".to_owned()),
        ("a name\twith\r\nspaces ", "redisson_lock__channel:{a name\twith\r\nspaces }".to_owned()),
        ("nul\0in\0it", "redisson_lock__channel:{nul\0in\0it}".to_owned()),
        ("\0", "redisson_lock__channel:{\0}".to_owned()),
        ("Grüße, 世界 🔒", "redisson_lock__channel:{Grüße, 世界 🔒}".to_owned()),
        ("*?[a]\\", "redisson_lock__channel:{*?[a]\\}".to_owned()),
        ("$6\r\nfoobar", "redisson_lock__channel:{$6\r\nfoobar}".to_owned()),
        (long.as_str(), format!("redisson_lock__channel:{{{long}}}")),
        (longest.as_str(), format!("redisson_lock__channel:{{{longest}}}")),
    ] {
        let guard = client.lock(name).lock().unwrap();
        assert_eq!(world.server.command(&["DBSIZE"]).integer(), 1);
        assert_eq!(world.hash(name), [(guard.owner().to_owned(), "1".to_owned())]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let (guard, took) = timed(|| waiting.lock(name).lock().unwrap());
                guard.unlock().unwrap();
                took
            });
            let subscribers = || world.server.command(&["PUBSUB", "NUMSUB", &channel]);
            wait_until("the waiter listens on the channel", SOON, || {
                subscribers().array()[1].integer() == 1
            });
            guard.unlock().unwrap();
            waiter.join().unwrap();
        });
        assert_nothing_happened(&world, &client);
    }
}

#[test]
fn names_that_look_alike_are_different_locks() {
    let world = World::new();
    let client = world.client();
    let names = ["a", "A", "a ", " a", "a\0", "{a}", "á", "a\u{301}"];
    let guards: Vec<_> =
        names.iter().map(|name| client.lock(name).try_lock().unwrap().unwrap()).collect();
    assert_eq!(world.server.command(&["DBSIZE"]).integer(), 8);
    for guard in guards {
        guard.unlock().unwrap();
    }
    assert_nothing_happened(&world, &client);
}

#[test]
fn a_lease_out_of_its_bounds_is_refused_and_nothing_is_sent() {
    let world = World::new();
    let client = world.client();
    let mut monitor = world.server.monitor();
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(9_999),
        century + Duration::from_millis(1),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        for error in attempts(&client.lock("a").with_lease(lease)) {
            assert!(
                matches!(&error, Error::InvalidLease { lease: told, .. } if *told == lease),
                "{error}"
            );
            assert!(!error.is_retryable());
        }
        let error = world.builder().watchdog_lease(lease).build().unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
    // Only the clients that were not built would have connected.
    assert!(monitor.seen().is_empty());
    assert_nothing_happened(&world, &client);

    // The lock is as good as before.
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_lease_at_its_bounds_works() {
    let world = World::new();
    let client = world.client();
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    let guard = client.lock("long").with_lease(century).lock().unwrap();
    assert!(guard.is_held() && guard.remaining() > century / 2);
    let ttl = u64::try_from(world.ttl("long")).unwrap();
    assert!(Duration::from_millis(ttl) <= century && Duration::from_millis(ttl) > century / 2);
    // Nested below a longer lease, nothing is shortened.
    let inner = client.lock("long").with_lease(SOON).lock().unwrap();
    assert!(Duration::from_millis(u64::try_from(world.ttl("long")).unwrap()) > century / 2);
    inner.unlock().unwrap();
    guard.unlock().unwrap();
    assert!(!world.exists("long"));

    // Ten milliseconds may be over before the answer is here. Then that is what it says.
    match client.lock("short").with_lease(Duration::from_millis(10)).lock() {
        Ok(guard) => assert!(guard.remaining() < Duration::from_millis(10)),
        Err(error) => assert!(matches!(error, Error::Lost { .. }), "{error}"),
    }
    world.wait_until_gone("short");
}

#[test]
fn a_part_of_a_millisecond_is_cut_off_and_not_believed_in() {
    let world = World::new();
    let lease = Duration::from_micros(5_000_999);
    let guard = world.client().lock("a").with_lease(lease).lock().unwrap();
    assert!(world.ttl("a") <= 5000);
    assert!(guard.remaining() < Duration::from_secs(5));
    guard.unlock().unwrap();
}

#[test]
fn a_wait_of_zero_or_in_the_past_is_one_try() {
    let world = World::new();
    let client = world.client();
    let rival = world.rival();
    let lock = client.lock("a");
    let past = now().checked_sub(Duration::from_secs(1)).unwrap_or_else(now);
    let theirs = rival.lock("a").lock().unwrap();
    for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1)] {
        let (result, took) = timed(|| lock.try_lock_for(wait));
        // A wait that is shorter than a round trip may end without an answer.
        assert!(!matches!(result, Ok(Some(_))), "{wait:?} gave {result:?}");
        assert!(took < SLACK, "{wait:?} took {took:?}");
    }
    assert!(lock.try_lock_until(past).unwrap().is_none());
    theirs.unlock().unwrap();
    lock.try_lock_for(Duration::ZERO).unwrap().unwrap().unlock().unwrap();
    lock.try_lock_until(past).unwrap().unwrap().unlock().unwrap();
    wait_until("nothing is owed", SOON, || client.stats().owed_releases == 0);
    assert_nothing_happened(&world, &client);
}

#[test]
fn an_enormous_wait_waits_and_does_not_overflow() {
    let world = World::new();
    let client = world.client();
    let system = built(world.builder().clock(Arc::new(SystemClock)));
    let rival = world.rival();
    // The largest that an instant can carry, give or take the moments that pass.
    let most = u64::try_from(i64::MAX).unwrap_or(u64::MAX);
    for (number, wait) in [
        Duration::MAX,
        Duration::from_secs(u64::MAX),
        Duration::from_secs(most),
        Duration::from_secs(most - 10_000_000),
        Duration::from_secs(most / 2),
        Duration::from_secs(1 << 40),
    ]
    .into_iter()
    .enumerate()
    {
        for client in [&client, &system] {
            let name = format!("lock-{number}");
            let theirs = rival.lock(&name).lock().unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let guard = client.lock(&name).try_lock_for(wait).unwrap().unwrap();
                    guard.unlock().unwrap();
                });
                wait_until("it waits", SOON, || client.stats().waiters == 1);
                theirs.unlock().unwrap();
                waiter.join().unwrap();
            });
        }
    }
    assert_nothing_happened(&world, &client);
}

#[test]
fn the_last_instant_there_is_can_be_waited_for() {
    let world = World::new();
    let client = world.client();
    let rival = world.rival();
    let mut last = SystemClock.now();
    let mut step = Duration::from_secs(1 << 62);
    while step > Duration::from_nanos(1) {
        last = last.checked_add(step).unwrap_or(last);
        step /= 2;
    }
    let theirs = rival.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            client.lock("a").try_lock_until(last).unwrap().unwrap().unlock().unwrap();
        });
        wait_until("it waits", SOON, || client.stats().waiters == 1);
        theirs.unlock().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn a_setting_out_of_its_bounds_is_named() {
    let world = World::new();
    for timeout in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        let error = world.builder().command_timeout(timeout).build().unwrap_err();
        assert!(
            matches!(error, Error::InvalidSetting { setting: "command_timeout", .. }),
            "{error}"
        );
    }
    for connections in [0, 2, usize::MAX] {
        let error = world.builder().max_connections(connections).build().unwrap_err();
        assert!(
            matches!(error, Error::InvalidSetting { setting: "max_connections", .. }),
            "{error}"
        );
    }
    let error = Client::builder().build().unwrap_err();
    assert!(matches!(error, Error::InvalidSetting { setting: "url", .. }), "{error}");
}

#[test]
fn a_shutdown_that_may_last_for_ever_does_not() {
    let world = World::new();
    let client = world.client();
    let _guard = client.lock("a").lock().unwrap();
    let report = client.shutdown(Duration::MAX);
    assert_eq!(report.released, 1);
    assert!(!world.exists("a"));
    let error = client.lock("a").lock().unwrap_err();
    assert!(matches!(error, Error::Shutdown), "{error}");
    assert_eq!(client.shutdown(Duration::ZERO).released, 0);
}
