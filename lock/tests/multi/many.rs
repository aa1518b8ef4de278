//! Thousands of locks in one request.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::expected::lost;
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{ProxiedServer, SLACK, SOON, Script, built, pause, settle, timed};
use wheellock::{Backoff, Client, Error, LostReason, Memory, MultiGuard, OwnedGuard, Wait};
use wheellock_fixture::{Aim, Fault, Request, Server, wait_until};

const LEASE: Duration = Duration::from_secs(30);

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("many:{number}")).collect()
}

on_both_stores! {
    fn all_are_held_or_none(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let names = names(40);
        let many = client.lock_many(&names);
        let guard = many.try_lock().unwrap().unwrap();
        assert!(guard.is_held() && names.iter().all(|name| setup.is_there(name)));
        assert!(rival.lock_many(&names[39..]).try_lock().unwrap().is_none());
        guard.unlock().unwrap();
        assert!(!names.iter().any(|name| setup.is_there(name)));

        let busy = rival.lock(&names[17]).lock().unwrap();
        assert!(many.try_lock().unwrap().is_none());
        settle(&client);
        assert_eq!(names.iter().filter(|name| setup.is_there(name)).count(), 1);
        assert_eq!(client.stats().held, 0);

        let guard = many.available().unwrap().unwrap();
        assert_eq!(guard.names().len(), 39);
        assert!(!guard.names().contains(&names[17]));
        drop(guard);
        busy.unlock().unwrap();
        drop(many.try_lock().unwrap().unwrap());
        drop(many.try_lock().unwrap().unwrap());
        settle(&client);
        assert!(!names.iter().any(|name| setup.is_there(name)));
        assert_eq!(client.stats().lost, 0);
    }

    fn none_is_available(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let _guard = rival.lock_many(&["a", "b"]).lock().unwrap();
        assert!(client.lock_many(&["a", "b"]).available().unwrap().is_none());
    }

    fn a_waiter_gets_all_when_the_busy_lock_is_released(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let names = names(12);
        let busy = rival.lock(&names[5]).sendable().lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = client.lock_many(&names).try_lock_for(SOON).unwrap().unwrap();
                guard.names().len()
            });
            wait_until("it waits", SOON, || client.stats().waiters == 1);
            wait_until("it holds nothing", SOON, || {
                names.iter().filter(|name| setup.is_there(name)).count() == 1
            });
            busy.unlock().unwrap();
            assert_eq!(waiter.join().unwrap(), 12);
        });
    }

    fn a_nested_acquire_has_the_locks_once_more(setup: &TestStore) {
        let client = setup.client();
        let one = client.lock("b").lock().unwrap();
        let guard = client.lock_many(&["c", "a", "b", "a"]).lock().unwrap();
        assert_eq!(guard.names(), ["a", "b", "c"]);
        let inner = client.lock_many(&["a", "b"]).try_lock().unwrap().unwrap();
        inner.unlock().unwrap();
        guard.unlock().unwrap();
        assert!(setup.is_there("b") && !setup.is_there("a") && !setup.is_there("c"));
        one.unlock().unwrap();
        assert!(!setup.is_there("b"));
    }

    fn the_loss_of_one_is_the_loss_of_all(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock_many(&names(9)).with_lease(LEASE).lock().unwrap();
        setup.delete("many:4");
        assert_eq!(guard.unlock().unwrap_err(), lost("many:4", LostReason::Deleted));
        settle(&client);
        assert!(!names(9).iter().any(|name| setup.is_there(name)));
    }
}

#[test]
fn no_lock_is_left_behind_after_an_acquire_without_an_answer() {
    for fault in [Fault::SwallowReply, Fault::SwallowRequest, Fault::CutReplyAfter(1)] {
        let setup = ProxiedServer::new();
        let client = setup.client();
        let is_ours = |request: &Request| {
            request.name().starts_with("EVAL") && request.arguments.contains(&b"many:0".to_vec())
        };
        let aim = setup.proxy.on(is_ours, fault);
        // The next attempt may succeed.
        let _outcome = client.lock_many(&names(9)).with_lease(LEASE).try_lock().map(drop);
        assert_eq!(aim.hits(), 1);
        let is_there = |name: &String| setup.server.command(&["EXISTS", name]).integer() == 1;
        wait_until("nothing is left", SOON, || !names(9).iter().any(is_there));
    }
}

#[test]
fn a_release_without_an_answer_is_sent_again() {
    for drops in [false, true] {
        let setup = ProxiedServer::new();
        let client = setup.retrying();
        let guard = client.lock_many(&names(9)).lock().unwrap();
        let is_ours = |request: &Request| {
            request.name().starts_with("EVAL") && request.arguments.contains(&b"many:0".to_vec())
        };
        setup.proxy.on(is_ours, Fault::DropRequest);
        if drops {
            drop(guard);
        } else {
            guard.unlock().unwrap();
        }
        let is_there = |name: &String| setup.server.command(&["EXISTS", name]).integer() == 1;
        wait_until("nothing is left", SOON, || !names(9).iter().any(is_there));
        assert_eq!(client.stats().lost, 0);
    }
}

#[test]
fn ten_requests_acquire_ten_thousand_locks_and_ten_release_them() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    // Loads the scripts.
    client.lock_many(&["x", "y"]).lock().unwrap().unlock().unwrap();
    let is_ours = |request: &Request| {
        let names_one = |argument: &Vec<u8>| argument.starts_with(b"many:");
        request.name().starts_with("EVAL") && request.arguments.iter().any(names_one)
    };
    let sent = setup.proxy.on(is_ours, Fault::PassOn).always();
    let keys = || setup.server.command(&["KEYS", "many:*"]).array().len();
    // A lease that nobody renews.
    let guard = client.lock_many(&names(10_000)).with_lease(LEASE).lock().unwrap();
    assert_eq!((sent.hits(), keys()), (10, 10_000));
    guard.unlock().unwrap();
    assert_eq!((sent.hits(), keys()), (20, 0));
}

#[test]
fn a_key_that_is_no_lock_is_named_and_nothing_is_taken() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    server.command(&["SET", "many:3", "text"]);
    for outcome in [
        client.lock_many(&names(5)).try_lock().map(drop),
        client.lock_many(&names(5)).available().map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key, .. } if key == "many:3"), "{error:?}");
    }
    assert!(
        !names(5).iter().any(|name| name != "many:3" && client.lock(name).is_locked().unwrap())
    );
}

#[test]
fn too_many_names_and_none_are_errors() {
    let client = Client::in_memory();
    let none: [&str; 0] = [];
    assert!(matches!(client.lock_many(&none).try_lock(), Err(Error::InvalidSetting { .. })));
    let error = client.lock_many(&vec!["a"; 1_000_001]).try_lock().unwrap_err();
    assert!(error.to_string().contains("1000000"), "{error}");
    assert!(client.lock_many(&["a", ""]).lock().is_err());
    assert!(!client.lock("a").is_locked().unwrap());
    let guard = client.lock_many(&names(3)).lock().unwrap();
    assert!(guard.remaining() > Duration::ZERO);
}

/// A rival in another client never has one of the names at the same time.
#[test]
fn overlapping_lock_many_of_two_clients_is_exclusive_and_ends() {
    const NAMES: usize = 40;
    const ROUNDS: usize = 60;
    let server = Server::start();
    let clients = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let inside: Vec<AtomicBool> = (0..NAMES).map(|_| AtomicBool::new(false)).collect();
    let enter = |number: usize| {
        assert!(!inside[number].swap(true, Ordering::SeqCst), "two have many:{number}");
    };
    let leave = |number: usize| assert!(inside[number].swap(false, Ordering::SeqCst));
    thread::scope(|scope| {
        for thread in 0..6 {
            let (client, enter, leave) = (&clients[thread % 2], &enter, &leave);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                for _ in 0..ROUNDS {
                    let chosen: Vec<usize> =
                        (0..random.usize(1..8)).map(|_| random.usize(..NAMES)).collect();
                    let chosen: BTreeSet<usize> = chosen.into_iter().collect();
                    let names: Vec<String> =
                        chosen.iter().map(|number| format!("many:{number}")).collect();
                    // Some lock all, some what is free, and some one lock.
                    let (many, one) = (client.lock_many(&names), client.lock(&names[0]));
                    match random.u8(..3) {
                        0 => {
                            let _guard = many.lock().unwrap();
                            chosen.iter().copied().for_each(enter);
                            chosen.iter().copied().for_each(leave);
                        }
                        1 => {
                            let guard = many.available().unwrap();
                            let held = guard.as_ref().map(MultiGuard::names).unwrap_or_default();
                            let held: Vec<usize> = held
                                .iter()
                                .map(|name| name.trim_start_matches("many:").parse().unwrap())
                                .collect();
                            held.iter().copied().for_each(enter);
                            held.iter().copied().for_each(leave);
                        }
                        _ => {
                            let _guard = one.lock().unwrap();
                            chosen.iter().copied().take(1).for_each(enter);
                            chosen.iter().copied().take(1).for_each(leave);
                        }
                    }
                }
            });
        }
    });
    clients.iter().for_each(settle);
    let left = server.command(&["KEYS", "many:*"]);
    assert!(left.array().is_empty(), "{left:?}");
}

#[test]
fn a_break_in_the_middle_leaves_nothing_behind() {
    for fault in [Fault::ResetBeforeReply, Fault::DropRequest, Fault::SwallowReply] {
        let setup = ProxiedServer::new();
        let client = setup.client();
        let is_in_the_middle = |request: &Request| {
            request.name().starts_with("EVAL") && request.arguments.contains(&b"many:2500".to_vec())
        };
        let aim = setup.proxy.on(is_in_the_middle, fault);
        // The next attempt may succeed.
        let _outcome = client.lock_many(&names(5_000)).with_lease(LEASE).try_lock().map(drop);
        assert_eq!(aim.hits(), 1);
        let size = || setup.server.command(&["KEYS", "many:*"]).array().len();
        wait_until("nothing is left", SOON, || size() == 0);
        settle(&client);
        assert_eq!(client.stats().held, 0);
    }
}

#[test]
fn an_acquire_of_many_batches_ends_with_its_deadline() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(SOON));
    let is_in_the_middle = |request: &Request| {
        request.name().starts_with("EVAL") && request.arguments.contains(&b"many:2500".to_vec())
    };
    let held = setup.proxy.on(is_in_the_middle, Fault::HoldReply);
    let limit = Duration::from_millis(200);
    let (outcome, took) = timed(|| client.lock_many(&names(5_000)).try_lock_for(limit).map(drop));
    assert!(outcome.is_err());
    assert!(took < limit + SLACK, "{took:?}");
    held.deliver();
    let size = || setup.server.command(&["KEYS", "many:*"]).array().len();
    wait_until("nothing is left", SOON, || size() == 0);
}

#[test]
fn a_release_of_this_client_that_is_on_its_way_is_no_refusal() {
    for all in [true, false] {
        let setup = ProxiedServer::new();
        let client = setup.patient();
        client.lock_many(&names(2)).lock().unwrap().unlock().unwrap();
        let guard = client.lock("many:0").sendable().lock().unwrap();
        let release = setup.on(Script::Release, "many:0", Fault::HoldRequest);
        thread::scope(|scope| {
            let released = scope.spawn(|| guard.unlock());
            release.wait_for_hit(SOON);
            let is_ours = |request: &Request| {
                let has = |name: &str| request.arguments.contains(&name.as_bytes().to_vec());
                request.name().starts_with("EVAL") && has("many:0") && has("many:1")
            };
            let asked = setup.proxy.on(is_ours, Fault::PassOn);
            let many = scope.spawn(|| {
                let many = client.lock_many(&names(3));
                let guard = if all { many.try_lock() } else { many.available() };
                guard.unwrap().map(|guard| guard.names().len())
            });
            asked.wait_for_hit(SOON);
            release.deliver();
            released.join().unwrap().unwrap();
            assert_eq!(many.join().unwrap(), Some(3));
        });
    }
}

#[test]
fn batched_hold_belongs_to_calling_thread_not_to_sender() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    client.lock_many(&names(2)).lock().unwrap().unlock().unwrap();
    let mut sorted = names(5_000);
    sorted.sort();
    // One lock of each batch is being released.
    let released: Vec<&String> = sorted.iter().step_by(1_000).collect();
    let guards: Vec<OwnedGuard> =
        released.iter().map(|name| client.lock(name).sendable().lock().unwrap()).collect();
    let held: Vec<Aim> =
        released.iter().map(|name| setup.on(Script::Release, name, Fault::HoldRequest)).collect();
    let is_ours =
        |request: &Request| request.name().starts_with("EVAL") && request.argument(2) == "1000";
    let asked = setup.proxy.on(is_ours, Fault::PassOn).always();
    thread::scope(|scope| {
        for guard in guards {
            scope.spawn(|| guard.unlock().unwrap());
        }
        for aim in &held {
            aim.wait_for_hit(SOON);
        }
        let many = scope.spawn(|| {
            let many = client.lock_many(&sorted);
            let guard = many.try_lock().unwrap().unwrap();
            assert!(guard.is_held() && many.is_held_by_current_thread());
            for name in &released {
                client.lock(name).try_lock().unwrap().unwrap().unlock().unwrap();
            }
        });
        wait_until("a batch was asked for", SOON, || asked.hits() >= 1);
        for aim in &held {
            aim.deliver();
        }
        many.join().unwrap();
    });
}

#[test]
fn guard_of_single_lock_from_lock_many_drops_without_waiting() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let rival = setup.rival();
    let _busy = rival.lock("b").lock().unwrap();
    let guard = client.lock_many(&["a", "b"]).available().unwrap().unwrap();
    let held = setup.on(Script::Release, "a", Fault::HoldReply);
    let ((), took) = timed(|| drop(guard));
    assert!(took < SLACK, "{took:?}");
    held.wait_for_hit(SOON);
    held.deliver();
    settle(&client);
}

#[test]
fn a_wait_that_ends_in_a_pause_is_refused_and_no_error() {
    let memory = Memory::new();
    let [client, rival] = [(); 2].map(|()| Client::builder().in_memory(&memory).build().unwrap());
    // More than are waited for one by one.
    let mut names = names(100);
    names.sort();
    let last = rival.lock(&names[99]).sendable().lock().unwrap();
    let long = Duration::from_secs(60);
    let many = client.lock_many(&names).with_backoff(Backoff::new(long, long));
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| many.try_lock_for(Duration::from_secs(1)).map(|it| it.is_some()));
        wait_until("it waits", SOON, || client.stats().waiters == 1);
        let first = rival.lock(&names[0]).sendable().lock().unwrap();
        last.unlock().unwrap();
        wait_until("it pauses", SOON, || client.stats().waiters == 0);
        first.unlock().unwrap();
        let taken = waiter.join().unwrap();
        assert!(taken.is_ok(), "{taken:?}");
    });
}

#[test]
fn nested_locks_are_acquired_within_the_time() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let many = client.lock_many(&names(20_000));
    let _outer = many.lock().unwrap();
    let limit = Duration::from_millis(100);
    let (inner, took) = timed(|| many.try_lock_for(limit).map(drop));
    assert!(inner.is_ok() || took < limit * 2 + SLACK, "{inner:?} {took:?}");
    let (cancel, cancelled) = crossbeam_channel::bounded::<()>(1);
    drop(cancel);
    let inner = many.try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop);
    assert!(matches!(inner, Err(Error::Cancelled { .. })), "{inner:?}");
}

#[test]
fn lock_many_acquires_locks_rarely_free_together() {
    let memory = Memory::new();
    let is_over = AtomicBool::new(false);
    let names = ["a", "b", "c", "d"];
    thread::scope(|scope| {
        for (name, seed) in names.into_iter().zip(0..) {
            let (memory, is_over) = (&memory, &is_over);
            scope.spawn(move || {
                let rival = Client::builder().in_memory(memory).build().unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let guard = rival.lock(name).lock().unwrap();
                    pause(Duration::from_millis(random.u64(10..30)));
                    drop(guard);
                    pause(Duration::from_millis(1));
                }
            });
        }
        let client = Client::builder().in_memory(&memory).build().unwrap();
        let taken: Vec<bool> = (0..5)
            .map(|_| client.lock_many(&names).try_lock_for(SOON).unwrap().is_some())
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(taken, [true; 5]);
    });
}
