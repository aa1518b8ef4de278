//! The connection that the calls of all threads share: what delays or breaks it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{ProxiedServer, SOON, Script, built, timed};
use wheellock::{Client, Error};
use wheellock_fixture::{Fault, Server, wait_until};

/// Far longer than what a test waits for.
const LONG: Duration = Duration::from_secs(60);

/// Only the connection hangs. It costs a call that was written to it one attempt, and later calls
/// nothing.
#[test]
fn an_unanswered_call_does_not_keep_others_from_the_server() {
    let setup = ProxiedServer::new();
    let timeout = Duration::from_secs(2);
    let client = built(Client::builder().url(&setup.proxy.url()).command_timeout(timeout));
    let held = setup.on(Script::Acquire, "a", Fault::HoldReply);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        held.wait_for_hit(SOON);
        for name in ["b", "c", "d"] {
            client.lock(name).lock().unwrap().unlock().unwrap();
        }
        // It tries again too.
        stuck.join().unwrap();
    });
    assert_eq!(held.hits(), 1);
    assert!(setup.proxy.accepted() <= 4, "{} connections", setup.proxy.accepted());
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

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each thread has a latch whose count is no other's, so a reply that reached another thread would
/// be noticed.
#[test]
fn many_callers_get_their_own_replies_while_connections_break() {
    const THREADS: u64 = 24;
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(Duration::from_secs(5)));
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let callers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (client, is_over, rounds) = (&client, &is_over, &rounds);
                scope.spawn(move || {
                    let latch = client.count_down_latch(&format!("latch {number}"));
                    let lock = client.lock(&format!("lock {number}"));
                    assert!(latch.try_set_count(1000 + number).unwrap());
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(latch.count().unwrap(), 1000 + number);
                        drop(lock.lock().unwrap());
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // The callers end even if a wait below fails.
        let ends = Ends(&is_over);
        for bytes in 0..40 {
            let fault = match bytes % 4 {
                0 => Fault::CutReplyAfter(bytes),
                1 => Fault::CutRequestAfter(bytes * 10),
                2 => Fault::ResetBeforeReply,
                _ => Fault::DelayReply(Duration::from_millis(20)),
            };
            // It may aim at a request behind which the connection is about to end, so its hits say
            // nothing.
            let aim = setup.proxy.on(|request| request.name() == "EVALSHA", fault);
            let before = rounds.load(Ordering::Relaxed);
            wait_until("the callers go on", SOON, || {
                rounds.load(Ordering::Relaxed) >= before + THREADS * 2
            });
            aim.withdraw();
            if bytes % 10 == 9 {
                setup.proxy.cut_all();
            }
        }
        drop(ends);
        for caller in callers {
            caller.join().unwrap();
        }
    });
}
