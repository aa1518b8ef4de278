//! Several locks as one, on servers that hang or are slow: every call and every wait is bounded.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::{ProxiedServer, SLACK, SOON, Script, TIMEOUT, built, now, timed};
use crossbeam_channel::bounded;
use wheellock::{AnyLock, Backoff, Client, Error, Lock, MultiGuard, MultiLock, Wait};
use wheellock_fixture::{Fault, Request, Server, wait_until};

/// Much longer than a lock may be held while another is waited for.
const LONG: Duration = Duration::from_secs(4);

fn over(client: &Client, locks: &[Lock]) -> MultiLock {
    let locks: Vec<&dyn AnyLock> = locks.iter().map(|lock| lock as &dyn AnyLock).collect();
    client.multi_lock(&locks)
}

/// Two servers in the order in which their locks are taken.
fn in_order() -> [Server; 2] {
    let place = |server: &Server| format!("127.0.0.1:{}/0", server.address().port());
    let both = || [Server::start(), Server::start()];
    let ordered = |[one, other]: &[Server; 2]| place(one) < place(other);
    std::iter::repeat_with(both).find(ordered).unwrap()
}

fn client_of(server: &Server, timeout: Duration) -> Client {
    built(Client::builder().url(&server.url()).command_timeout(timeout))
}

fn is_there(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

fn listeners(server: &Server, name: &str) -> i64 {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    server.command(&["PUBSUB", "NUMSUB", &channel]).array()[1].integer()
}

/// A thread waits for `b` with nothing held; when it gets `b` the server of `a` hangs: then `then`.
fn when_he_has_b_and_the_server_of_a_hangs(
    take: impl FnOnce(&MultiLock) -> Result<(), Error> + Send,
    then: impl FnOnce(&Server),
) -> Result<(), Error> {
    let [first, second] = in_order();
    let [one, other] = [&first, &second].map(|server| client_of(server, LONG));
    let rival = client_of(&second, LONG);
    let both = over(&one, &[one.lock("a"), other.lock("b")]);
    let held = rival.lock("b").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&both));
        wait_until("it waits for b while it holds a", SOON, || is_there(&first, "a"));
        wait_until("it has released a", SOON, || !is_there(&first, "a"));
        wait_until("it waits for b", SOON, || other.stats().waiters > 0);
        first.pause();
        drop(held);
        wait_until("it holds b", SOON, || is_there(&second, "b"));
        then(&second);
        let result = waiter.join().unwrap();
        first.resume();
        result
    })
}

#[test]
fn multi_lock_releases_lock_soon_while_earlier_server_hangs() {
    let error = when_he_has_b_and_the_server_of_a_hangs(
        |both| both.lock().map(drop),
        |second| {
            let gone = || wait_until("it has released b", SOON, || !is_there(second, "b"));
            let ((), kept) = timed(gone);
            assert!(kept < LONG / 2, "{kept:?}");
        },
    );
    assert!(error.unwrap_err().is_retryable());
}

#[test]
fn a_cancelled_wait_says_so_although_a_server_hangs() {
    let (cancel, cancelled) = bounded(1);
    let mut cancelled_at = now();
    let result = when_he_has_b_and_the_server_of_a_hangs(
        |both| both.try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop),
        |_| {
            cancelled_at = now();
            cancel.send(()).unwrap();
        },
    );
    let took = now().saturating_duration_since(cancelled_at);
    assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
    assert!(took < LONG * 3, "{took:?}");
}

#[test]
fn timed_wait_does_not_wait_for_unanswered_releases() {
    let [first, second] = in_order();
    let (one, other) =
        (client_of(&first, Duration::from_secs(3)), client_of(&second, Duration::from_secs(3)));
    let rival = client_of(&second, LONG);
    let all = over(&one, &[one.lock("a1"), one.lock("a2"), one.lock("a3"), other.lock("b")]);
    let _held = rival.lock("b").lock().unwrap();
    let wait = Duration::from_millis(90);
    // A machine that stands still for most of the wait hears nothing of the other.
    wait_until("it hears of the other", SOON * 2, || {
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| timed(|| all.try_lock_for(wait).map(|guard| guard.is_some())));
            // When it subscribes all others have been answered, or the pause would leave it in
            // doubt.
            wait_until("it waits for b", SOON, || {
                listeners(&second, "b") > 0 || waiter.is_finished()
            });
            first.pause();
            let (result, took) = waiter.join().unwrap();
            first.resume();
            assert!(took < wait + SLACK, "{took:?}");
            wait_until("they are released in the background", SOON, || {
                !["a1", "a2", "a3"].iter().any(|name| is_there(&first, name))
            });
            match result {
                Ok(taken) => !taken,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    false
                }
            }
        })
    });
}

#[test]
fn many_locks_of_hanging_server_release_in_time_of_single_lock() {
    let server = Server::start();
    let client = client_of(&server, TIMEOUT);
    let names: Vec<String> = (0..20).map(|number| format!("a{number}")).collect();
    let locks: Vec<Lock> = names.iter().map(|name| client.lock(name)).collect();
    for unlocks in [false, true] {
        let guard = over(&client, &locks).lock().unwrap();
        server.pause();
        let release = |guard: MultiGuard| {
            if unlocks {
                return guard.unlock();
            }
            drop(guard);
            Ok(())
        };
        let (result, took) = timed(|| release(guard));
        server.resume();
        assert_eq!(result.is_err(), unlocks, "{result:?}");
        // An unlock tries for twice the command timeout.
        assert!(took < TIMEOUT * 2 + SLACK, "{took:?}");
        assert!(locks.iter().all(|lock| lock.hold_count() == 0));
        wait_until("they are released in the background", SOON, || {
            !names.iter().any(|name| is_there(&server, name))
        });
    }
}

#[test]
fn conflicting_lock_kinds_on_same_key_fail_without_waiting() {
    let client = Client::in_memory();
    let (lock, both) = (client.lock("a"), client.read_write_lock("a"));
    let (read, write, simple) = (both.read_lock(), both.write_lock(), client.simple_lock("a"));
    let pairs: [[&dyn AnyLock; 2]; 5] =
        [[&lock, &read], [&write, &lock], [&lock, &simple], [&simple, &read], [&simple, &write]];
    for pair in pairs {
        let result = client.multi_lock(&pair).try_lock_for(Duration::from_millis(1)).map(drop);
        assert!(matches!(result, Err(Error::InvalidSetting { .. })), "{result:?}");
    }
    let (fenced, fair) = (client.fenced_lock("a"), client.fair_lock("a"));
    for pair in [[&lock as &dyn AnyLock, &fenced], [&fair, &lock], [&read, &write]] {
        drop(client.multi_lock(&pair).lock().unwrap());
    }
}

#[test]
fn to_write_and_read_one_key_of_a_slow_server_is_no_upgrade() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let both = client.read_write_lock("a");
    let all = client.multi_lock(&[&both.read_lock(), &both.write_lock()]);
    drop(all.lock().unwrap());
    let script = include_str!("../../src/ops/scripts/read_acquire.lua");
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(script)]).text();
    let reads = move |request: &Request| request.name() == "EVALSHA" && request.argument(1) == hash;
    let slow = setup.proxy.on(reads, Fault::DelayReply(Duration::from_millis(400)));
    let guard = all.lock().unwrap();
    slow.wait_for_hit(SOON);
    assert!(guard.is_held());
}

#[test]
fn many_locks_of_a_slow_server_are_acquired() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let all = over(&client, &["a", "b", "c", "d", "e"].map(|name| client.lock(name)));
    for _ in 0..1000 {
        let acquires = setup.is_any(Script::Acquire);
        setup.proxy.on(acquires, Fault::DelayReply(Duration::from_millis(45)));
    }
    assert!(all.try_lock_for(SOON).unwrap().is_some());
}

#[test]
fn a_timed_wait_can_be_cancelled_too() {
    let server = Server::start();
    let [client, rival] = [(); 2].map(|()| client_of(&server, LONG));
    let both = over(&client, &[client.lock("a"), client.lock("b")])
        .with_backoff(Backoff::new(Duration::from_millis(5), Duration::from_millis(10)));
    let (cancel, cancelled) = bounded(1);
    let held = rival.lock("b").lock().unwrap();
    let short = Duration::from_millis(400);
    assert!(both.try_lock_with(Wait::at_most(short).or_cancelled(&cancelled)).unwrap().is_none());
    thread::scope(|scope| {
        let waiter = scope
            .spawn(|| both.try_lock_with(Wait::at_most(SOON).or_cancelled(&cancelled)).map(drop));
        wait_until("it waits", SOON, || client.stats().waiters > 0);
        cancel.send(()).unwrap();
        let result = waiter.join().unwrap();
        assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
    });
    drop((held, cancelled.recv()));
    assert!(both.try_lock_with(Wait::at_most(SOON).or_cancelled(&cancelled)).unwrap().is_some());
}

#[test]
fn a_drop_of_many_fair_locks_at_a_slow_server_takes_two_timeouts() {
    const SECOND: Duration = Duration::from_secs(1);
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(SECOND).wait_on_drop(true));
    let locks: Vec<Lock> =
        (0..10).map(|number| client.fair_lock(&number.to_string()).clone()).collect();
    let guard = over(&client, &locks).lock().unwrap();
    // Each release is answered in time.
    setup.proxy.delay_replies(SECOND * 7 / 10);
    let ((), took) = timed(|| drop(guard));
    assert!(took < SECOND * 2 + SLACK, "{took:?}");
    setup.proxy.delay_replies(Duration::ZERO);
    wait_until("all are released", SOON, || setup.server.size() == 0);
}
