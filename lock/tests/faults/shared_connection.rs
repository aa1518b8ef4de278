//! The connection that the calls of all threads share: what delays or breaks it.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{SOON, Script, World, built, timed};
use wheellock::{Client, Error};
use wheellock_fixture::{Fault, Proxy, Server};

/// Far longer than what a test waits for.
const LONG: Duration = Duration::from_secs(60);

fn patient(proxy: &Proxy) -> Client {
    built(Client::builder().url(&proxy.url()).command_timeout(LONG))
}

#[test]
fn an_unanswered_call_does_not_keep_others_from_the_server() {
    let world = World::new();
    let client = patient(&world.proxy);
    let held = world.on(Script::Acquire, "a", Fault::HoldReply);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        held.wait_for_hit(SOON);
        for name in ["b", "c", "d"] {
            let (guard, took) = timed(|| client.lock(name).lock().unwrap());
            guard.unlock().unwrap();
            assert!(took < SOON, "{took:?}");
        }
        // The one that waits still gets its reply, on its own connection.
        assert!(!stuck.is_finished());
        held.deliver();
        stuck.join().unwrap();
    });
    assert!(world.proxy.accepted() <= 3, "{} connections", world.proxy.accepted());
}

#[test]
fn a_server_that_hangs_costs_each_caller_its_own_time() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(LONG));
    client.lock("a").lock().unwrap().unlock().unwrap();
    server.pause();
    thread::scope(|scope| {
        for number in 1..=16_u32 {
            let client = &client;
            scope.spawn(move || {
                let wait = Duration::from_millis(100) * number;
                let name = number.to_string();
                let (result, took) = timed(|| client.lock(&name).try_lock_for(wait));
                assert!(result.is_err(), "{result:?}");
                assert!(took >= wait && took < wait + SOON, "{wait:?}: {took:?}");
            });
        }
    });
    server.resume();
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_shutdown_ends_all_calls_that_are_in_flight() {
    const CALLS: usize = 32;
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(LONG));
    client.lock("a").lock().unwrap().unlock().unwrap();
    server.pause();
    thread::scope(|scope| {
        let calls: Vec<_> = (0..CALLS)
            .map(|number| {
                let client = &client;
                scope.spawn(move || client.lock(&number.to_string()).lock().map(drop))
            })
            .collect();
        let (_, took) = timed(|| client.shutdown(Duration::from_millis(300)));
        assert!(took < SOON, "{took:?}");
        for call in calls {
            let error = call.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Shutdown | Error::OutcomeUnknown { .. }), "{error}");
        }
    });
    server.resume();
}

/// Each thread has a fenced lock of its own, whose tokens grow by one with each acquire that the
/// server runs. A reply that reached another thread would be another token.
#[test]
fn many_callers_get_their_own_replies_while_connections_break() {
    const THREADS: u64 = 24;
    let world = World::new();
    let client = built(world.builder().command_timeout(Duration::from_secs(5)));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (client, is_over) = (&client, &is_over);
                scope.spawn(move || {
                    let lock = client.fenced_lock(&format!("fenced {number}"));
                    let mut last: Option<u64> = None;
                    while !is_over.load(Ordering::Relaxed) {
                        let guard = lock.lock().unwrap();
                        let token = guard.token();
                        if let Some(last) = last {
                            assert!((last + 1..last + 8).contains(&token), "{last}, {token}");
                        }
                        last = Some(token);
                        drop(guard);
                    }
                })
            })
            .collect();
        for bytes in 0..40 {
            let fault = match bytes % 4 {
                0 => Fault::CutReplyAfter(bytes),
                1 => Fault::CutRequestAfter(bytes * 10),
                2 => Fault::ResetBeforeReply,
                _ => Fault::DelayReply(Duration::from_millis(20)),
            };
            world.proxy.on(|request| request.name() == "EVALSHA", fault).wait_for_hit(SOON);
            if bytes % 10 == 9 {
                world.proxy.cut_all();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}
