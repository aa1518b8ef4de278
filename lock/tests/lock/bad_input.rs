//! Names, leases and waits that are invalid, and a few that only look invalid.

#![expect(clippy::panic, reason = "the helpers of a test fail it with a message")]
#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::{ProxiedServer, SLACK, SOON, TIMEOUT, built, now, timed};
use wheellock::{Client, Clock, Error, Lock, ManualClock, Memory, SystemClock};
use wheellock_fixture::wait_until;

/// Every way to acquire a lock.
fn attempts(lock: &Lock) -> Vec<Error> {
    vec![
        lock.lock().unwrap_err(),
        lock.try_lock().unwrap_err(),
        lock.try_lock_for(TIMEOUT).unwrap_err(),
        lock.try_lock_until(now() + TIMEOUT).unwrap_err(),
    ]
}

fn assert_nothing_happened(setup: &ProxiedServer, client: &Client) {
    assert_eq!(setup.server.size(), 0);
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.queued_releases), (0, 0, 0));
}

#[test]
fn an_error_can_be_passed_on_as_any_other() {
    fn refused() -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        drop(Client::in_memory().lock("").lock()?);
        Ok(())
    }
    assert!(matches!(*refused().unwrap_err().downcast().unwrap(), Error::InvalidName { .. }));
}

#[test]
fn empty_or_too_long_name_is_refused_without_a_request() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let mut monitor = setup.server.monitor();
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
    assert_nothing_happened(&setup, &client);
}

#[test]
fn any_other_name_is_the_key_byte_for_byte_and_tags_its_channel() {
    let setup = ProxiedServer::new();
    let (client, waiting) = (setup.client(), setup.client());
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
        assert_eq!(setup.server.size(), 1);
        assert_eq!(setup.hash(name), [(guard.owner().to_owned(), "1".to_owned())]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let (guard, took) = timed(|| waiting.lock(name).lock().unwrap());
                guard.unlock().unwrap();
                took
            });
            let subscribers = || setup.server.command(&["PUBSUB", "NUMSUB", &channel]);
            wait_until("the waiter listens on the channel", SOON, || {
                subscribers().array()[1].integer() == 1
            });
            guard.unlock().unwrap();
            waiter.join().unwrap();
        });
        assert_nothing_happened(&setup, &client);
    }
}

#[test]
fn names_that_look_alike_are_different_locks() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let names = ["a", "A", "a ", " a", "a\0", "{a}", "á", "a\u{301}"];
    let guards: Vec<_> =
        names.iter().map(|name| client.lock(name).try_lock().unwrap().unwrap()).collect();
    assert_eq!(setup.server.size(), 8);
    for guard in guards {
        guard.unlock().unwrap();
    }
    assert_nothing_happened(&setup, &client);
}

#[test]
fn a_lease_out_of_its_bounds_is_refused_and_nothing_is_sent() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let mut monitor = setup.server.monitor();
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
        let error = setup.builder().watchdog_lease(lease).build().unwrap_err();
        assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
    }
    // Only the clients that were not built would have connected.
    assert!(monitor.seen().is_empty());
    assert_nothing_happened(&setup, &client);

    // The lock is as good as before.
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_lease_at_its_bounds_works() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    let guard = client.lock("long").with_lease(century).lock().unwrap();
    assert!(guard.is_held() && guard.remaining() > century / 2);
    let ttl = u64::try_from(setup.ttl("long")).unwrap();
    assert!(Duration::from_millis(ttl) <= century && Duration::from_millis(ttl) > century / 2);
    // Nested below a longer lease, nothing is shortened.
    let inner = client.lock("long").with_lease(SOON).lock().unwrap();
    assert!(Duration::from_millis(u64::try_from(setup.ttl("long")).unwrap()) > century / 2);
    inner.unlock().unwrap();
    guard.unlock().unwrap();
    assert!(!setup.exists("long"));

    // Ten milliseconds may be over before the answer is here. Then that is what it says.
    match client.lock("short").with_lease(Duration::from_millis(10)).lock() {
        Ok(guard) => assert!(guard.remaining() < Duration::from_millis(10)),
        Err(error) => assert!(matches!(error, Error::Lost { .. }), "{error}"),
    }
    setup.wait_until_gone("short");
}

#[test]
fn a_fraction_of_a_millisecond_is_truncated() {
    let setup = ProxiedServer::new();
    let lease = Duration::from_micros(5_000_999);
    let guard = setup.client().lock("a").with_lease(lease).lock().unwrap();
    assert!(setup.ttl("a") <= 5000);
    assert!(guard.remaining() < Duration::from_secs(5));
    guard.unlock().unwrap();
}

#[test]
fn a_wait_of_zero_or_in_the_past_is_one_try() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let rival = setup.rival();
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
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_nothing_happened(&setup, &client);
}

#[test]
fn an_enormous_wait_waits_and_does_not_overflow() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let system = built(setup.builder().clock(Arc::new(SystemClock)));
    let rival = setup.rival();
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
    assert_nothing_happened(&setup, &client);
}

#[test]
fn the_last_instant_there_is_can_be_waited_for() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let rival = setup.rival();
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
    let setup = ProxiedServer::new();
    for timeout in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        let error = setup.builder().command_timeout(timeout).build().unwrap_err();
        assert!(
            matches!(error, Error::InvalidSetting { setting: "command_timeout", .. }),
            "{error}"
        );
    }
    for connections in [0, 65, usize::MAX] {
        let error = setup.builder().max_connections(connections).build().unwrap_err();
        assert!(
            matches!(error, Error::InvalidSetting { setting: "max_connections", .. }),
            "{error}"
        );
    }
    let error = Client::builder().build().unwrap_err();
    assert!(matches!(error, Error::InvalidSetting { setting: "url", .. }), "{error}");
}

#[test]
fn a_shutdown_without_a_limit_ends() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let _guard = client.lock("a").lock().unwrap();
    let report = client.shutdown(Duration::MAX);
    assert_eq!(report.released, 1);
    assert!(!setup.exists("a"));
    let error = client.lock("a").lock().unwrap_err();
    assert!(matches!(error, Error::Shutdown), "{error}");
    assert_eq!(client.shutdown(Duration::ZERO).released, 0);
}

/// Why a URL is refused.
fn refusal(url: &str) -> String {
    match Client::builder().url(url).command_timeout(TIMEOUT).build() {
        Err(Error::InvalidUrl { reason, .. }) => reason,
        other => panic!("{url}: {other:?}"),
    }
}

/// Every scheme that a URL may have.
fn assert_names_all_schemes(reason: &str) {
    for form in ["redis://", "redis-sentinel://", "redis-cluster://", "unix://", "redis+unix"] {
        assert!(reason.contains(form), "{form} in {reason}");
    }
    for word in ["valkey", "rediss", "valkeys"] {
        assert!(reason.contains(word), "{word} in {reason}");
    }
}

#[test]
fn unknown_url_parameter_error_lists_the_known_parameters() {
    for (parameter, name) in [
        ("timeout=5s", "timeout"),
        ("protocol=3", "protocol"),
        ("db=1", "db"),
        ("password=s3cret", "password"),
        ("client-name=x&timeout=1", "client-name"),
    ] {
        for url in [
            "redis://host",
            "redis://:s3cret@host:6379/0",
            "valkey://host/",
            "redis-sentinel://:s3cret@a,b:1/mymaster",
            "redis-sentinel://a/mymaster/0",
            "redis-cluster://a:7000,b:7000",
            "valkey-cluster://:s3cret@a:7000/",
        ] {
            let reason = refusal(&format!("{url}?{parameter}"));
            assert!(reason.contains(&format!("`{name}`")), "{url}?{parameter}: {reason}");
            assert!(reason.contains("no parameters") && !reason.contains("s3cret"), "{reason}");
        }
    }
    let reason = refusal("unix:///path?db=1&timeout=5s&pass=s3cret");
    assert!(reason.contains("`timeout`") && reason.contains("`db`, `user` and `pass`"), "{reason}");
    // What may be a piece of a password is not repeated.
    for url in [
        "redis://:s3cret?word=x@host",
        "redis://:word?s3cret@host/",
        "redis://host/?s3cret",
        "redis://host/?s3cret=1",
        "unix:///path?s3cret=1",
        "redis-sentinel://:word?s3cret@a/mymaster",
        "redis-cluster://:word?s3cret=1@a:1",
    ] {
        let reason = refusal(url);
        assert!(!reason.contains("s3cret") && !reason.contains("word="), "{url}: {reason}");
    }
    assert!(refusal("redis://:s3cret?word=x@host").contains("%3F"));
    // A question mark with nothing behind it asks for nothing.
    assert!(matches!(
        Client::builder().url("redis://127.0.0.1:1/?").command_timeout(TIMEOUT).build(),
        Err(Error::Unreachable { .. })
    ));
}

#[test]
fn a_url_error_is_exact_and_lists_every_valid_form() {
    for (url, what) in [
        ("redis://host:99999", "port"),
        ("redis://host:0", "port"),
        ("redis://host:x/0", "port"),
        ("redis://:pass/word@host", "port"),
        ("redis://:s3cret@[::1]:99999/", "port"),
        ("rediss-sentinel://a:x/mymaster", "port"),
        ("redis-sentinel://a,b:70000/mymaster", "port"),
        ("redis-cluster://a:1,b:x", "port"),
        ("redis://host/abc", "database"),
        ("redis://host/-1", "database"),
        ("redis://host/99999999999999999999", "database"),
        ("redis-sentinel://a/mymaster/abc", "database"),
        ("redis-cluster://a:1/abc", "database"),
        ("unix:///path?db=abc", "database"),
        ("http://host", "scheme"),
        ("redis-somewhere://host", "scheme"),
        ("rediss+unix:///path", "scheme"),
        ("s3cret", "scheme"),
        ("", "scheme"),
        ("redis://", "host"),
        ("redis://:s3cret@", "host"),
        ("redis-cluster://a:1,,b:2", "host"),
        ("redis://[::1", "host is not a name"),
        ("redis://[::g]", "host is not a name"),
        ("redis://:s3cret@a%20b", "host is not a name"),
        ("redis://größe", "host is not a name"),
        ("unix:///", "names no path"),
        ("unix://path", "names no path"),
    ] {
        // Where TLS is not built in, that is what is said.
        if cfg!(not(feature = "tls")) && url.starts_with("rediss-") {
            continue;
        }
        let reason = refusal(url);
        let said = reason.split(':').next().unwrap();
        assert!(said.contains(what), "{url}: {what} in {said}");
        assert!(!reason.contains("s3cret") && !reason.contains("pass/"), "{url}: {reason}");
        assert_names_all_schemes(&reason);
    }
}

#[test]
fn an_error_names_the_number_and_the_thing_that_were_given() {
    let client = Client::in_memory();
    let short = Duration::from_millis(1);
    let job = client.job("a").with_retention(short);
    let latch = client.count_down_latch("a");
    let (semaphore, seats) = (client.semaphore("b"), client.expirable_semaphore("c"));
    let expected = [
        (client.lock("a").with_lease(short).lock().err(), "1ms cannot be used: the shortest lease"),
        (client.lock("a").with_min_hold(short).lock().err(), "the shortest minimum hold is 10ms"),
        (job.run_once("noon", |_| Ok::<_, ()>(())).err(), "the shortest retention is 10ms"),
        (semaphore.try_set_permits_for(1, short).err(), "the shortest time to live is 10ms"),
        (latch.try_set_count(u64::MAX).err(), "18446744073709551615 cannot be used"),
        (latch.try_set_count(u64::MAX).err(), "the most is 9,223,372,036,854,775,807"),
        (semaphore.try_set_permits(u32::MAX).err(), "4294967295 cannot be used: the most is 2,147"),
        (seats.try_acquire_many(1001).err(), "1001 cannot be used: one call is for 1 to 1000"),
        (client.semaphore("").try_acquire(1).err(), "the name \"\" cannot be used"),
    ];
    for (number, (error, part)) in expected.into_iter().enumerate() {
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(part), "{number}: {text}");
    }
}

#[test]
fn a_lost_permit_is_not_called_a_lock() {
    let clock = ManualClock::new();
    let builder = Client::builder().in_memory(&Memory::with_clock(Arc::new(clock.clone())));
    let client = built(builder.clock(Arc::new(clock.clone())));
    let seats = client.expirable_semaphore("a").with_lease(Duration::from_secs(1));
    assert!(seats.try_set_permits(1).unwrap());
    let permit = seats.acquire().unwrap();
    clock.advance(Duration::from_secs(2));
    let text = permit.release().unwrap_err().to_string();
    assert!(text.contains("\"a\" was lost") && !text.contains("lock"), "{text}");
}
