//! Server and network faults: bounded time, typed errors, nothing lost or doubled, and no restart
//! of the client.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

use std::error::Error as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::{
    ProxiedServer, SLACK, SOON, Script, TIMEOUT, built, ended, is_wrong_type, pause, settle, timed,
};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, LostReason, ManualClock, Wait};
use wheellock_fixture::{
    Aim, Fault, Proxy, RawConnection, ReservedPort, SeenCommand, Server, wait_until,
};

/// The command timeout of clients that lose one attempt and need the next, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(1);

/// What can happen to one command, so that its sender gets no answer within `timeout`.
fn faults(timeout: Duration) -> Vec<Fault> {
    let mut faults = vec![
        Fault::DropRequest,
        Fault::SwallowRequest,
        Fault::ResetBeforeRequest,
        Fault::SwallowReply,
        Fault::HoldReply,
        Fault::ResetBeforeReply,
        Fault::DelayRequest(timeout * 2),
        Fault::DelayReply(timeout * 2),
        Fault::AnswerInstead(b"nonsense\r\n".to_vec()),
    ];
    // The shortest reply has four bytes.
    faults.extend([0, 1, 2, 3].map(Fault::CutReplyAfter));
    faults
}

/// Runs a scene for every fault at once, each with a client, of that command timeout, and a lock of
/// its own.
fn for_each_fault(timeout: Duration, scene: impl Fn(&ProxiedServer, &str, &Fault) + Sync) {
    let setup = ProxiedServer::new();
    thread::scope(|scope| {
        for (number, fault) in faults(timeout).into_iter().enumerate() {
            let (setup, scene) = (&setup, &scene);
            scope.spawn(move || {
                let name = format!("lock-{number}-{fault:?}");
                scene(setup, &name, &fault);
                // Nothing is left, and every client can go on.
                setup.wait_until_gone(&name);
            });
        }
    });
}

/// A call tries for twice the command timeout, and a busy machine may add a second.
fn assert_bounded(took: Duration, timeout: Duration, what: &str) {
    assert!(took < timeout * 2 + Duration::from_secs(1), "{what} took {took:?}");
}

/// A wait ended long before the command timeout of [`ProxiedServer::patient`].
fn assert_ended_with(wait: Duration, took: Duration) {
    assert!(took <= wait + Duration::from_secs(2), "{took:?}");
}

/// A call may take longer than it has on a busy machine.
fn assert_usable(client: &Client, name: &str) {
    wait_until("the client goes on", SOON, || {
        let released = client.lock(name).try_lock_for(SOON).and_then(|guard| {
            let guard = guard.unwrap();
            assert!(guard.is_held());
            guard.unlock()
        });
        assert!(released.as_ref().err().is_none_or(Error::is_retryable), "{released:?}");
        released.is_ok()
    });
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn an_acquire_that_meets_a_fault_once_succeeds_and_counts_once() {
    for_each_fault(PATIENCE, |setup, name, fault| {
        let client = built(setup.builder().command_timeout(PATIENCE));
        let aim = setup.on(Script::Acquire, name, fault.clone());
        let (guard, took) = timed(|| client.lock(name).lock().unwrap());
        assert_bounded(took, PATIENCE, name);
        assert_eq!(aim.hits(), 1);
        assert_eq!(setup.hash(name), [(guard.owner().to_owned(), "1".to_owned())], "{name}");
        assert!(setup.rival().lock(name).try_lock().unwrap().is_none(), "{name}");
        guard.unlock().unwrap();
        assert_usable(&client, name);
    });
}

#[test]
fn acquire_with_repeated_faults_fails_and_leaves_no_hold() {
    for_each_fault(TIMEOUT, |setup, name, fault| {
        let client = setup.client();
        let aim = setup.on(Script::Acquire, name, fault.clone()).always();
        let (result, took) = timed(|| client.lock(name).lock());
        assert_bounded(took, TIMEOUT, name);
        let error = result.unwrap_err();
        assert!(error.is_outcome_unknown() && error.is_retryable(), "{name}: {error}");
        assert_eq!(client.lock(name).hold_count(), 0);
        setup.wait_until_gone(name);
        aim.withdraw();
        assert_usable(&client, name);
    });
}

#[test]
fn nested_acquire_and_release_with_a_single_fault_count_once() {
    for_each_fault(PATIENCE, |setup, name, fault| {
        let client = built(setup.builder().command_timeout(PATIENCE));
        let lock = client.lock(name);
        let outer = lock.lock().unwrap();
        setup.on(Script::Recount, name, fault.clone());
        let (inner, took) = timed(|| lock.lock().unwrap());
        assert_bounded(took, PATIENCE, name);
        assert_eq!((lock.hold_count(), setup.count(name).as_str()), (2, "2"), "{name}");
        setup.on(Script::Recount, name, fault.clone());
        let (result, took) = timed(|| inner.unlock());
        assert_bounded(took, PATIENCE, name);
        result.unwrap();
        assert_eq!((lock.hold_count(), setup.count(name).as_str()), (1, "1"), "{name}");
        assert!(outer.is_held());
        assert!(setup.rival().lock(name).try_lock().unwrap().is_none(), "{name}");
        outer.unlock().unwrap();
        assert!(!setup.exists(name), "{name}");
        assert_usable(&client, name);
    });
}

#[test]
fn nested_calls_with_repeated_faults_keep_the_outer_hold() {
    for_each_fault(TIMEOUT, |setup, name, fault| {
        let client = setup.client();
        let lock = client.lock(name);
        let outer = lock.lock().unwrap();
        let aim = setup.on(Script::Recount, name, fault.clone()).always();
        let (result, took) = timed(|| lock.lock());
        assert_bounded(took, TIMEOUT, name);
        assert!(result.unwrap_err().is_outcome_unknown(), "{name}");
        assert_eq!(lock.hold_count(), 1, "{name}");
        aim.withdraw();

        let inner = lock.lock().unwrap();
        let aim = setup.on(Script::Recount, name, fault.clone()).always();
        let (result, took) = timed(|| inner.unlock());
        assert_bounded(took, TIMEOUT, name);
        assert!(result.unwrap_err().is_outcome_unknown(), "{name}");
        assert_eq!(lock.hold_count(), 1, "{name}");
        aim.withdraw();

        assert!(outer.is_held(), "{name}");
        assert!(setup.rival().lock(name).try_lock().unwrap().is_none(), "{name}");
        outer.unlock().unwrap();
        assert!(!setup.exists(name), "{name}");
        assert_usable(&client, name);
    });
}

#[test]
fn a_release_that_meets_a_fault_once_is_clean() {
    for_each_fault(PATIENCE, |setup, name, fault| {
        let client = built(setup.builder().command_timeout(PATIENCE));
        let guard = client.lock(name).lock().unwrap();
        let aim = setup.on(Script::Release, name, fault.clone());
        let (result, took) = timed(|| guard.unlock());
        assert_bounded(took, PATIENCE, name);
        result.unwrap();
        assert_eq!(aim.hits(), 1);
        assert!(!setup.exists(name), "{name}");
        assert_usable(&client, name);
    });
}

#[test]
fn release_with_repeated_faults_completes_in_the_background() {
    for_each_fault(TIMEOUT, |setup, name, fault| {
        let client = setup.client();
        let lock = client.lock(name);
        let guard = lock.lock().unwrap();
        let aim = setup.on(Script::Release, name, fault.clone()).always();
        let (result, took) = timed(|| guard.unlock());
        assert_bounded(took, TIMEOUT, name);
        let error = result.unwrap_err();
        assert!(error.is_outcome_unknown() && error.is_retryable(), "{name}: {error}");
        assert_eq!(lock.hold_count(), 0, "{name}");
        assert_eq!(client.stats().queued_releases, 1, "{name}");
        aim.withdraw();
        setup.wait_until_gone(name);
        assert_usable(&client, name);
    });
}

#[test]
fn a_renewal_that_meets_a_fault_once_loses_nothing() {
    for_each_fault(TIMEOUT, |setup, name, fault| {
        let client = built(setup.builder().watchdog_lease(Duration::from_secs(4)));
        let aim = setup.on(Script::Renew, name, fault.clone());
        let guard = client.lock(name).lock().unwrap();
        aim.wait_for_hit(SOON);
        wait_until("it is renewed", SOON, || client.stats().renewed > 0);
        assert!(guard.is_held(), "{name}");
        assert_eq!(setup.hash(name), [(guard.owner().to_owned(), "1".to_owned())], "{name}");
        assert!(setup.rival().lock(name).try_lock().unwrap().is_none(), "{name}");
        assert_eq!(client.stats().lost, 0, "{name}");
        guard.unlock().unwrap();
        assert_usable(&client, name);
    });
}

#[test]
fn hold_with_failing_renewals_is_lost_before_a_rival_acquires() {
    for_each_fault(TIMEOUT, |setup, name, fault| {
        let client = built(setup.builder().watchdog_lease(Duration::from_millis(1200)));
        let aim = setup.on(Script::Renew, name, fault.clone()).always();
        let guard = client.lock(name).lock().unwrap();
        thread::scope(|scope| {
            let (guard, setup) = (&guard, &setup);
            scope.spawn(move || {
                let theirs = setup.rival().lock(name).try_lock_for(SOON).unwrap().unwrap();
                assert!(!guard.is_held(), "{name}");
                theirs.unlock().unwrap();
            });
            assert_eq!(
                guard.lost().recv_timeout(SOON),
                Ok(LostReason::ServerUnreachable),
                "{name}"
            );
        });
        aim.withdraw();
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })), "{name}");
        setup.wait_until_gone(name);
        assert_usable(&client, name);
    });
}

#[test]
fn where_nothing_listens_connecting_is_refused_at_once() {
    let port = ReservedPort::new().unwrap();
    let address = port.address();
    let (result, took) = timed(|| Client::connect(&format!("redis://{address}/")));
    let error = result.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { server, .. } if *server == address.to_string()),
        "{error}"
    );
    assert!(error.is_retryable() && !error.is_outcome_unknown());
    assert!(took < SLACK, "{took:?}");
}

#[test]
fn the_io_error_behind_an_error_is_its_source() {
    let kind = |error: &Error| {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        source.map(io::Error::kind)
    };
    let port = ReservedPort::new().unwrap();
    let refused = Client::connect(&format!("redis://{}/", port.address())).unwrap_err();
    assert_eq!(kind(&refused), Some(io::ErrorKind::ConnectionRefused), "{refused:?}");
    assert_eq!(kind(&refused.clone()), kind(&refused));
    assert_eq!(refused.clone(), refused);
    assert!(kind(&Client::in_memory().lock("").try_lock().unwrap_err()).is_none());
}

#[test]
fn unknown_outcome_source_is_the_io_error_of_the_last_attempt() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let _aim = setup.on(Script::Acquire, "a", Fault::SwallowReply).always();
    let error = client.lock("a").try_lock().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::TimedOut), "{error:?}");
}

#[test]
fn a_client_recovers_when_its_server_is_back() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let lock = client.lock("a");
    lock.lock().unwrap().unlock().unwrap();
    setup.server.kill();

    let (result, took) = timed(|| lock.try_lock());
    assert!(result.unwrap_err().is_retryable());
    assert_bounded(took, TIMEOUT, "try_lock");
    let (result, took) = timed(|| lock.try_lock());
    assert!(matches!(result, Err(Error::Unreachable { .. })), "{result:?}");
    assert_bounded(took, TIMEOUT, "try_lock");
    let (result, took) = timed(|| lock.try_lock_for(TIMEOUT / 2));
    assert!(result.unwrap_err().is_retryable());
    assert!(took < TIMEOUT / 2 + SLACK, "{took:?}");
    let (result, took) = timed(|| lock.is_locked());
    assert!(result.unwrap_err().is_retryable());
    assert_bounded(took, TIMEOUT, "is_locked");

    setup.server.start_again();
    assert_usable(&client, "a");
}

#[test]
fn a_handshake_that_hangs_ends_with_the_command_timeout() {
    let setup = ProxiedServer::new();
    setup.proxy.hang_new_connections(true);
    let (result, took) = timed(|| setup.builder().build());
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
}

#[test]
fn a_client_whose_new_connections_hang_is_bounded_and_recovers() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    setup.proxy.hang_new_connections(true);
    setup.proxy.cut_all();
    let (result, took) = timed(|| client.lock("a").try_lock());
    assert!(result.unwrap_err().is_retryable());
    assert_bounded(took, TIMEOUT, "try_lock");
    setup.proxy.hang_new_connections(false);
    assert_usable(&client, "a");
}

#[test]
fn a_wait_ends_on_time_while_the_server_hangs() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let lock = client.lock("a");
    let wait = Duration::from_millis(500);
    setup.server.pause();
    let (result, took) = timed(|| lock.try_lock_for(wait));
    setup.server.resume();
    assert!(result.unwrap_err().is_outcome_unknown());
    assert_ended_with(wait, took);
    setup.wait_until_gone("a");
    assert_usable(&client, "a");
}

#[test]
fn a_nested_wait_ends_on_time_while_the_server_hangs() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let lock = client.lock("a");
    let outer = lock.lock().unwrap();
    let wait = Duration::from_millis(400);
    setup.server.pause();
    let (result, took) = timed(|| lock.try_lock_for(wait));
    setup.server.resume();
    assert!(result.unwrap_err().is_outcome_unknown());
    assert_ended_with(wait, took);
    assert!(outer.is_held());
    outer.unlock().unwrap();
    setup.wait_until_gone("a");
}

#[test]
fn flushed_scripts_lose_no_lock() {
    let setup = ProxiedServer::new();
    let clients = [setup.patient(), setup.patient()];
    let done = AtomicBool::new(false);
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            let mut connection = setup.server.connection();
            while !done.load(Ordering::Acquire) {
                connection.command(&["SCRIPT", "FLUSH"]);
                // Without it the server does nothing else on a machine that is busy.
                pause(Duration::from_micros(200));
            }
        });
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let lock = clients[worker % 2].lock("a");
                let counter = &counter;
                scope.spawn(move || {
                    for _ in 0..40 {
                        let guard = lock.lock().unwrap();
                        increment(counter);
                        guard.unlock().unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Release);
        flusher.join().unwrap();
    });
    assert_eq!(counter.into_inner(), 160);
    assert!(!setup.exists("a"));
}

/// Not atomic: two threads at once would lose a count.
fn increment(counter: &AtomicU64) {
    let seen = counter.load(Ordering::Relaxed);
    thread::yield_now();
    counter.store(seen + 1, Ordering::Relaxed);
}

#[test]
fn killed_connections_lose_no_lock() {
    let setup = ProxiedServer::new();
    let clients = [setup.patient(), setup.patient(), setup.patient()];
    let done = AtomicBool::new(false);
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut connection = setup.server.connection();
            while !done.load(Ordering::Acquire) {
                for kind in ["pubsub", "normal"] {
                    connection.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
                    pause(Duration::from_millis(15));
                }
            }
        });
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                let lock = clients[worker % 3].lock("a");
                let counter = &counter;
                scope.spawn(move || {
                    for _ in 0..8 {
                        let guard = lock.lock().unwrap();
                        increment(counter);
                        guard.unlock().unwrap();
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Ordering::Release);
        killer.join().unwrap();
    });
    assert_eq!(counter.into_inner(), 48);
    for client in &clients {
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    }
    assert!(!setup.exists("a"));
}

#[test]
fn empty_restart_notifies_the_holder_and_lets_a_waiter_acquire() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().watchdog_lease(Duration::from_secs(2)));
    let guard = client.lock("a").lock().unwrap();
    let waiting = setup.client();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // The server may be away for longer than one call has patience.
            loop {
                match waiting.lock("a").lock() {
                    Ok(theirs) => break theirs.unlock().unwrap(),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        });
        wait_until("it waits", SOON, || waiting.stats().waiters == 1);
        setup.server.restart();
        waiter.join().unwrap();
        let reason = guard.lost().recv_timeout(SOON).unwrap();
        assert!(matches!(reason, LostReason::Deleted | LostReason::TakenOver), "{reason}");
    });
    assert!(!guard.is_held());
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert_usable(&client, "a");
}

#[test]
fn empty_restart_notifies_all_holders_before_the_next_renewal() {
    let server = Server::start();
    // A renewal comes after three minutes.
    let lease = Duration::from_secs(600);
    let client = built(Client::builder().url(&server.url()).watchdog_lease(lease));
    let guards: Vec<_> = (0..300)
        .map(|number| client.lock(&format!("lock-{number}")))
        .map(|lock| lock.lock().unwrap())
        .collect();
    let leased = client.lock("leased").with_lease(lease).lock().unwrap();
    server.restart();
    for guard in guards.iter().chain([&leased]) {
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    }
    // Again, and of what was taken at this one.
    let guard = client.lock("a").lock().unwrap();
    server.restart();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn empty_restart_is_noticed_despite_a_late_run_id_query() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().watchdog_lease(Duration::from_secs(600)));
    let late = setup.proxy.on(|request| request.name() == "INFO", Fault::SwallowReply);
    let guard = client.lock("a").lock().unwrap();
    late.wait_for_hit(SOON);
    // That of callers, that of renewals, and the one after it.
    wait_until("another is made", SOON, || client.stats().connections_made >= 3);
    setup.server.restart();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn broken_connections_without_a_restart_verify_no_holds() {
    let server = Server::start();
    let lease = Duration::from_secs(600);
    let clock = ManualClock::new();
    let builder = Client::builder().url(&server.url()).watchdog_lease(lease);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guards: Vec<_> =
        (0..300).map(|number| client.lock(&format!("lock-{number}")).lock().unwrap()).collect();
    clock.advance(Duration::from_secs(3));
    // Nor is anything released once more.
    let released = client.lock("released").lock().unwrap();
    let owner = released.owner().to_owned();
    released.unlock().unwrap();
    server.command(&["HSET", "released", &owner, "1"]);
    for _ in 0..2 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let mut monitor = server.monitor();
        clock.advance(Duration::from_secs(3));
        let seen = monitor.seen();
        let asks: Vec<_> = seen.iter().filter(|command| command.name() == "INFO").collect();
        assert_eq!(asks.len(), 1, "it is asked who it is: {seen:?}");
    }
    assert_eq!(server.command(&["EXISTS", "released"]).integer(), 1);
    assert_eq!(client.stats().renewal_scripts, 0);
    assert!(guards.iter().all(wheellock::LockGuard::is_held));
}

#[test]
fn a_client_that_holds_nothing_sends_nothing() {
    let server = Server::start();
    let clock = ManualClock::new();
    let client = built(Client::builder().url(&server.url()).clock(Arc::new(clock.clone())));
    let mut monitor = server.monitor();
    let asks = |seen: Vec<SeenCommand>| seen.iter().any(|command| command.name() == "INFO");
    clock.advance(Duration::from_secs(3));
    assert!(!asks(monitor.seen()));
    let guard = client.lock("a").lock().unwrap();
    clock.advance(Duration::from_secs(3));
    assert!(asks(monitor.seen()), "while it holds something it looks for the server");
    guard.unlock().unwrap();
    clock.advance(Duration::from_secs(3));
    let made = client.stats().connections_made;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let mut monitor = server.monitor();
    clock.advance(Duration::from_secs(60));
    assert_eq!(client.stats().connections_made, made);
    assert!(!asks(monitor.seen()));
}

/// The codes of states that a server leaves by itself.
const PASSING: [&str; 5] = ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN"];

fn answer(setup: &ProxiedServer, script: Script, name: &str, code: &str) -> Aim {
    let line = format!("-{code} it is so\r\n");
    setup.on(script, name, Fault::AnswerInstead(line.into_bytes()))
}

#[test]
fn transient_errors_are_retried() {
    let setup = ProxiedServer::new();
    for code in PASSING {
        let client = setup.patient();
        let lock = client.lock(code);
        let acquire = answer(&setup, Script::Acquire, code, code).times(2);
        let nested = answer(&setup, Script::Recount, code, code).times(2);
        let release = answer(&setup, Script::Release, code, code).times(2);
        let outer = lock.lock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        outer.unlock().unwrap();
        assert_eq!([acquire.hits(), nested.hits(), release.hits()], [2, 2, 2], "{code}");
        assert!(!setup.exists(code));
    }
}

#[test]
fn transient_errors_that_last_are_returned_with_their_code() {
    let setup = ProxiedServer::new();
    thread::scope(|scope| {
        for code in PASSING {
            let setup = &setup;
            scope.spawn(move || {
                let client = setup.retrying();
                let is_told = |error: &Error| {
                    assert!(error.is_retryable(), "{error}");
                    matches!(error, Error::Refused { code: told, .. } if told == code)
                };
                let mut names = (0..).map(|number| format!("{code}:{number}"));
                // A machine that stands still at the end of the call misses its last answer.
                wait_until("an acquire is answered to its end", SOON * 2, || {
                    let name = names.next().unwrap();
                    let aim = answer(setup, Script::Acquire, &name, code).always();
                    let (result, took) = timed(|| client.lock(&name).lock());
                    assert_bounded(took, PATIENCE, &name);
                    aim.withdraw();
                    let error = result.unwrap_err();
                    let is_told = is_told(&error);
                    assert!(!is_told || !error.is_outcome_unknown(), "{error}");
                    is_told
                });
                wait_until("a release is answered to its end", SOON * 2, || {
                    let name = names.next().unwrap();
                    let guard = client.lock(&name).lock().unwrap();
                    let aim = answer(setup, Script::Release, &name, code).always();
                    let (result, took) = timed(|| guard.unlock());
                    assert_bounded(took, PATIENCE, &name);
                    assert!(setup.exists(&name));
                    aim.withdraw();
                    setup.wait_until_gone(&name);
                    assert_usable(&client, &name);
                    is_told(&result.unwrap_err())
                });
            });
        }
    });
}

#[test]
fn permanent_errors_are_returned_at_once() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    for (code, retryable) in [("OOM", true), ("NOPERM", false), ("ERR", false)] {
        let aim = answer(&setup, Script::Acquire, code, code);
        let error = client.lock(code).lock().unwrap_err();
        assert!(matches!(&error, Error::Refused { code: told, .. } if told == code), "{error}");
        assert_eq!(error.is_retryable(), retryable, "{error}");
        assert_eq!(aim.hits(), 1);
        assert_usable(&client, code);
    }
}

#[test]
fn an_unknown_reply_is_never_a_grant() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    for reply in ["+OK\r\n", "*0\r\n", "$5\r\nhello\r\n", "*1\r\n:1\r\n"] {
        let fault = Fault::AnswerInstead(reply.as_bytes().to_vec());
        setup.on(Script::Acquire, "a", fault);
        let result = client.lock("a").lock();
        assert!(result.is_err(), "{reply:?} gave {result:?}");
        assert_usable(&client, "a");
    }
}

#[test]
fn calls_to_a_replica_are_retried_until_it_is_a_master() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let held = client.lock("held").lock().unwrap();
    setup.server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let aim = setup.on(Script::Acquire, "a", Fault::PassOn).always();
    thread::scope(|scope| {
        scope.spawn(|| {
            aim.wait_for_hits(3, SOON);
            setup.server.command(&["REPLICAOF", "NO", "ONE"]);
        });
        client.lock("a").lock().unwrap().unlock().unwrap();
    });
    assert!(held.is_held());
    held.unlock().unwrap();
    assert!(!setup.exists("a") && !setup.exists("held"));
}

#[test]
fn calls_to_a_busy_server_are_retried() {
    let setup = ProxiedServer::of(Server::builder().argument("--lua-time-limit", "20"));
    let client = setup.patient();
    let held = client.lock("held").lock().unwrap();
    let mut busy = setup.server.connection();
    busy.send(&["EVAL", "while true do end", "0"]).unwrap();
    wait_until("it is busy", SOON, || setup.server.command(&["PING"]).is_error());
    let aim = setup.on(Script::Acquire, "a", Fault::PassOn).always();
    thread::scope(|scope| {
        scope.spawn(|| {
            aim.wait_for_hits(3, SOON);
            setup.server.command(&["SCRIPT", "KILL"]);
        });
        client.lock("a").lock().unwrap().unlock().unwrap();
    });
    held.unlock().unwrap();
}

#[test]
fn a_server_out_of_memory_grants_no_new_lock() {
    type Take = fn(&Client) -> Result<bool, Error>;

    let setup = ProxiedServer::new();
    let client = setup.client();
    let kinds: [(&str, Take); 5] = [
        ("fair", |client| client.fair_lock("a").try_lock().map(|guard| guard.is_some())),
        ("fenced", |client| client.fenced_lock("a").try_lock().map(|guard| guard.is_some())),
        ("simple", |client| client.simple_lock("a").try_lock().map(|guard| guard.is_some())),
        ("read", |client| {
            client.read_write_lock("a").read_lock().try_lock().map(|guard| guard.is_some())
        }),
        ("write", |client| {
            client.read_write_lock("a").write_lock().try_lock().map(|guard| guard.is_some())
        }),
    ];
    // A dead waiter that is in the deadline set and not in the queue.
    let stray = ["ZADD", "redisson_lock_timeout:{a}", "1000", "somebody"];
    setup.server.command(&stray);
    for (kind, take) in kinds {
        setup.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = take(&client).unwrap_err();
        assert!(matches!(&error, Error::Refused { code, .. } if code == "OOM"), "{kind}: {error}");
        assert!(!setup.exists("a"), "{kind}");
        setup.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(take(&client), Ok(true), "{kind}");
        settle(&client);
    }
    assert!(!setup.exists(stray[1]), "it has no turn to wait for");
}

#[test]
fn a_server_with_too_many_clients_is_unreachable_and_recovers() {
    let setup = ProxiedServer::of(Server::builder().argument("--maxclients", "8"));
    let client = setup.client();
    let others: Vec<_> =
        (0..8).map_while(|_| RawConnection::open(setup.server.address()).ok()).collect();
    wait_until("it is full", SOON, || {
        setup.server.try_command(&["PING"]).map_or(true, |reply| reply.is_error())
    });
    let error = setup.builder().build().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.is_retryable());
    drop(others);
    wait_until("there is room", SOON, || {
        setup.server.try_command(&["PING"]).is_ok_and(|reply| !reply.is_error())
    });
    assert_usable(&client, "a");
    built(setup.builder());
}

#[test]
fn a_panic_releases_the_lock_and_does_not_abort() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    for hangs in [false, true] {
        let (result, took) = timed(|| {
            catch_unwind(AssertUnwindSafe(|| {
                let _outer = client.lock("a").lock().unwrap();
                let _inner = client.lock("a").lock().unwrap();
                if hangs {
                    setup.server.pause();
                }
                // Unwinds as a panic does, without the message: a trace of it takes seconds on a
                // busy machine.
                resume_unwind(Box::new("on purpose"));
            }))
        });
        if hangs {
            setup.server.resume();
        }
        assert!(result.is_err());
        // Two guards, each within one command timeout.
        assert!(took < TIMEOUT * 2 + SLACK, "{took:?}");
        assert_eq!(client.lock("a").hold_count(), 0);
        setup.wait_until_gone("a");
        assert_usable(&client, "a");
    }
}

#[test]
fn refused_credentials_are_an_error_without_the_password() {
    let server = Server::builder().argument("--requirepass", "right").start();
    let address = server.address();
    let open = Server::start();
    let wrong = [
        format!("redis://:s3cret@{address}/"),
        format!("redis://ann:s3cret@{address}/"),
        format!("redis://{address}/"),
        format!("redis://:s3cret@{}/", open.address()),
    ];
    for url in wrong {
        let error = Client::connect(&url).unwrap_err();
        assert!(matches!(error, Error::Authentication { .. }), "{url}: {error}");
        assert!(!error.is_retryable());
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    let client = Client::connect(&server.url()).unwrap();
    assert!(!format!("{client:?}").contains("right"));
    assert_usable(&client, "a");
}

#[test]
fn changed_password_under_a_client_is_an_error_and_no_hang() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    assert_usable(&client, "a");
    let mut operator = setup.server.connection();
    operator.command(&["ACL", "SETUSER", "family", "<password", ">new"]);
    operator.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let error = client.lock("a").lock().unwrap_err();
    // The first attempt met the end of its connection, and may have run for all that is known.
    assert!(matches!(error, Error::Authentication { .. }), "{error}");
    operator.command(&["ACL", "SETUSER", "family", ">password"]);
    assert_usable(&client, "a");
}

#[test]
fn an_invalid_url_is_an_error_that_sends_nothing() {
    for url in [
        "",
        "redis",
        "http://127.0.0.1/",
        "redis://",
        "rediss://",
        "redis://127.0.0.1:99999/",
        "redis://127.0.0.1/database",
        "unix://host/redis.sock",
    ] {
        let (result, took) = timed(|| Client::connect(url));
        assert!(took < SLACK, "{url:?} took {took:?}");
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidUrl { .. }), "{url:?}: {error}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn a_key_of_another_type_is_an_error_and_not_changed() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let lock = client.lock("data");
    setup.server.command(&["SET", "data", "precious"]);
    for error in [
        lock.lock().unwrap_err(),
        lock.try_lock().unwrap_err(),
        lock.try_lock_for(SOON).unwrap_err(),
        lock.force_unlock().unwrap_err(),
    ] {
        assert!(is_wrong_type(&error, "data") && !error.is_retryable(), "{error}");
    }
    assert_eq!(setup.server.command(&["GET", "data"]).text(), "precious");
    assert_eq!(setup.ttl("data"), -1);
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.queued_releases), (0, 0, 0));
}

#[test]
fn a_key_that_was_overwritten_is_not_changed_by_the_release() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().watchdog_lease(Duration::from_secs(4)));
    let overwritten = |name: &str| {
        setup.server.command(&["SET", name, "precious"]);
    };
    let is_intact = |name: &str| {
        assert_eq!(setup.server.command(&["GET", name]).text(), "precious");
        assert_eq!(setup.ttl(name), -1);
    };
    let guard = client.lock("a").lock().unwrap();
    overwritten("a");
    let error = guard.unlock().unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::TakenOver, .. }), "{error}");
    is_intact("a");

    let guard = client.lock("b").lock().unwrap();
    let beside = client.lock("c").lock().unwrap();
    overwritten("b");
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::TakenOver));
    drop(guard);
    is_intact("b");
    // Renewed in the same script.
    assert!(beside.is_held());
    beside.unlock().unwrap();
}

#[test]
fn a_release_after_the_lease_reports_expiry() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(SOON));
    let lease = Duration::from_secs(1);
    let guard = client.lock("a").with_lease(lease).lock().unwrap();
    setup.on(Script::Release, "a", Fault::DelayRequest(lease * 2));
    let error = guard.unlock().unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
}

#[test]
fn a_lock_granted_after_the_shutdown_is_released() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let aim = setup.on(Script::Acquire, "a", Fault::HoldReply);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("a").lock().map(|guard| guard.is_held()));
        aim.wait_for_hit(SOON);
        client.shutdown(TIMEOUT);
        aim.deliver();
        assert_eq!(waiter.join().unwrap(), Err(Error::Shutdown));
    });
    setup.wait_until_gone("a");
}

#[test]
fn a_shutdown_waits_for_the_releases_that_are_under_way() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let _guard = client.lock("a").lock().unwrap();
    setup.on(Script::Release, "a", Fault::DelayRequest(TIMEOUT));
    let report = client.shutdown(SOON);
    assert!(!setup.exists("a"));
    assert_eq!((report.released, report.unreleased), (1, vec![]));
}

#[test]
fn a_shutdown_is_bounded_and_names_what_no_server_acknowledged() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.server.pause();
    let (report, took) = timed(|| client.shutdown(TIMEOUT));
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    assert_eq!((report.released, report.unreleased), (0, vec!["a".to_owned()]));
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Shutdown));
    setup.server.resume();
    setup.wait_until_gone("a");
}

#[test]
fn only_the_last_pending_confirmation_makes_a_channel_live() {
    let setup = ProxiedServer::new();
    // Nobody polls.
    let clock = Arc::new(ManualClock::new());
    let client = built(setup.builder().command_timeout(SOON).clock(clock));
    let rival = setup.rival();
    let (a, b) = (rival.lock("a").lock().unwrap(), rival.lock("b").lock().unwrap());
    let subscribe = |name: &str, fault| {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        setup
            .proxy
            .on(move |request| request.name() == "SUBSCRIBE" && request.contains(&channel), fault)
    };
    let first = subscribe("a", Fault::HoldRequest);
    let second = subscribe("a", Fault::HoldRequest);
    let other = subscribe("b", Fault::PassOn);
    let tries = setup.on(Script::Acquire, "b", Fault::PassOn).always();
    thread::scope(|scope| {
        // It is subscribed to, left, and, as the server is told of another channel, really given
        // up.
        let (cancel, cancelled) = bounded::<()>(0);
        let wait = Wait::forever().or_cancelled(&cancelled);
        thread::scope(|scope| {
            let leaves = scope.spawn(|| client.lock("a").try_lock_with(wait).map(drop));
            first.wait_for_hit(SOON);
            drop(cancel);
            assert!(matches!(ended(&client, leaves), Err(Error::Cancelled { .. })));
        });
        let other_waiter = scope.spawn(|| client.lock("b").lock().unwrap().unlock().unwrap());
        other.wait_for_hit(SOON);
        // It is wished for again before anything was confirmed.
        let waiter = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        second.wait_for_hit(SOON);
        first.deliver();
        // After the old confirmation comes that of the other channel, and a try.
        tries.wait_for_hits(2, SOON);
        // No client receives this. Only the last confirmation means that a try may succeed.
        a.unlock().unwrap();
        second.deliver();
        ended(&client, waiter);
        b.unlock().unwrap();
        ended(&client, other_waiter);
    });
}

#[test]
fn connections_that_broke_cost_one_attempt() {
    const CALLERS: usize = 24;
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = built(Client::builder().url(&proxy.url()).command_timeout(PATIENCE));
    // All at once, while the others wait for their replies.
    proxy.delay_replies(Duration::from_millis(5));
    let together = Barrier::new(CALLERS);
    thread::scope(|scope| {
        for number in 0..CALLERS {
            let (client, together) = (&client, &together);
            scope.spawn(move || {
                together.wait();
                client.lock(&number.to_string()).lock().unwrap().unlock().unwrap();
            });
        }
    });
    proxy.delay_replies(Duration::ZERO);
    assert!(proxy.accepted() > 3, "{} connections", proxy.accepted());
    proxy.cut_all();
    // One attempt for each of them would take longer than a call has patience.
    client.lock("a").lock().unwrap().unlock().unwrap();
}
