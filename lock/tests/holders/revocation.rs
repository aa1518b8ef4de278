//! Asking holders to let a lock go.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, settle, wait_for_a_waiter};
use crossbeam_channel::TryRecvError;
use wheellock::{Client, Error, Guard, Lock, ManualClock, Memory, OwnedGuard};
use wheellock_fixture::{Server, wait_until};

/// Asks until the holder has heard: the server confirms a subscription after a moment. Behind one
/// address of a cluster the server does not say who has heard.
fn ask_until<G: Guard>(lock: &Lock<G>, reason: &str, has_heard: impl Fn() -> bool) {
    wait_until("the holder has heard", SOON, || {
        assert!(lock.ask(reason).unwrap().heard <= 1);
        has_heard()
    });
}

on_all_stores! {
    fn a_request_reaches_the_holder_and_ends_nothing(setup: &TestStore) {
        let (holder, other) = (setup.client(), setup.client());
        let lock = holder.lock("a");
        let guard = lock.lock().unwrap();
        let asked = guard.revocation().clone();
        assert_eq!(asked.try_recv(), Err(TryRecvError::Empty));
        assert!(!guard.is_asked());
        ask_until(&other.lock("a"), "deploy, at 3:00", || guard.is_asked());
        assert_eq!(asked.recv_timeout(SOON).unwrap().reason, "deploy, at 3:00");
        assert!(guard.is_asked() && guard.is_held());
        // A nested guard is one more guard of the hold that was asked for.
        let nested = lock.lock().unwrap();
        assert_eq!(nested.revocation().try_recv().unwrap().reason, "deploy, at 3:00");
        nested.unlock().unwrap();
        guard.unlock().unwrap();
        assert_eq!(asked.try_recv(), Err(TryRecvError::Disconnected));
        assert!(!lock.lock().unwrap().is_asked(), "the next hold was not asked for");
    }

    fn each_client_of_a_shared_lock_is_asked_once(setup: &TestStore) {
        let clients = [(); 3].map(|()| setup.client());
        let guards = clients.each_ref().map(|client| {
            let lock = client.read_write_lock("prices").read_lock().sendable();
            [lock.lock().unwrap(), lock.lock().unwrap()]
        });
        for guard in guards[..2].iter().flatten() {
            assert!(!guard.is_asked());
        }
        let lock = clients[2].read_write_lock("prices").write_lock();
        wait_until("two hear", SOON, || {
            assert_eq!(lock.ask("").unwrap().holders, 3);
            guards[..2].iter().flatten().all(OwnedGuard::is_asked)
        });
        for guard in guards[..2].iter().flatten() {
            assert_eq!(guard.revocation().recv_timeout(SOON).unwrap().reason, "");
        }
    }

    fn the_guards_of_other_kinds_hear_too(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let fenced = client.fenced_lock("fenced").lock().unwrap();
        let fair = client.fair_lock("fair").lock().unwrap();
        let simple = client.simple_lock("simple").lock().unwrap();
        let many = client.lock_many(&["b", "c"]).lock().unwrap();
        let channels = [fenced.revocation(), fair.revocation(), simple.revocation(), many.revocation()];
        for (name, channel) in ["fenced", "fair", "simple", "c"].into_iter().zip(channels) {
            ask_until(&other.lock(name), name, || !channel.is_empty());
            assert_eq!(channel.recv_timeout(SOON).unwrap().reason, name);
        }
        assert!(many.is_asked() && fenced.is_asked());
    }

    fn revocation_future_is_ready_on_a_request_or_a_released_guard(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let mut context = Context::from_waker(Waker::noop());
        let guard = client.lock("a").lock().unwrap();
        let mut asked = pin!(guard.revocation_future().unwrap());
        let mut again = pin!(guard.revocation_future().unwrap());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        ask_until(&other.lock("a"), "now", || guard.is_asked());
        assert!(guard.revocation().recv_timeout(SOON).is_ok());
        for future in [&mut asked, &mut again] {
            let ready = future.as_mut().poll(&mut context);
            assert!(matches!(ready, Poll::Ready(Some(revocation)) if revocation.reason == "now"));
        }
        guard.unlock().unwrap();
        // Of another name: another request for the first lock may be on its way.
        let guard = client.lock("d").lock().unwrap();
        let mut asked = pin!(guard.revocation_future().unwrap());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        drop(guard);
        assert_eq!(asked.as_mut().poll(&mut context), Poll::Ready(None));
        let guard = client.lock_many(&["b", "c"]).lock().unwrap();
        let mut asked = pin!(guard.revocation_future().unwrap());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        ask_until(&other.lock("b"), "b", || guard.is_asked());
        assert!(guard.revocation().recv_timeout(SOON).is_ok());
        assert!(asked.as_mut().poll(&mut context).is_ready());
    }

    fn future_made_after_a_request_is_ready_at_once(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let mut context = Context::from_waker(Waker::noop());
        let guard = client.lock("a").lock().unwrap();
        let nested = client.lock("a").lock().unwrap();
        ask_until(&other.lock("a"), "now", || guard.is_asked());
        // The nested guard has not looked for a request before.
        for guard in [guard, nested] {
            let mut asked = pin!(guard.revocation_future().unwrap());
            let ready = asked.as_mut().poll(&mut context);
            assert!(matches!(ready, Poll::Ready(Some(revocation)) if revocation.reason == "now"));
        }
    }

    fn a_cached_lock_is_released_at_once(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let lock = client.lock("a").with_cache(Duration::from_secs(10));
        wait_until("it is cached", SOON, || {
            lock.lock().unwrap().unlock().unwrap();
            client.stats().cache.cached > 0
        });
        let asked = other.lock("a").ask("deploy").unwrap();
        assert_eq!(asked.holders, 1);
        assert!(other.lock("a").try_lock_for(SOON).unwrap().is_some());
    }

    fn requested_lock_is_not_handed_to_another_local_thread(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let (lock, theirs) = (client.lock("a").sendable(), other.lock("a").sendable());
        let guard = lock.lock().unwrap();
        assert!(!guard.is_asked());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.lock().unwrap().unlock().unwrap());
            wait_for_a_waiter(&client);
            ask_until(&theirs, "a", || guard.is_asked());
            let hand_overs = client.stats().hand_overs;
            guard.unlock().unwrap();
            waiter.join().unwrap();
            assert_eq!(client.stats().hand_overs, hand_overs);
        });
    }

    fn nobody_is_asked_for_a_free_lock_and_a_reason_has_a_length(setup: &TestStore) {
        let client = setup.client();
        let asked = client.lock("a").ask("deploy").unwrap();
        assert_eq!((asked.holders, asked.heard), (0, 0));
        assert!(client.lock("a").ask(&"x".repeat(1000)).is_ok());
        let error = client.lock("a").ask(&"x".repeat(1001)).unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { setting: "reason", .. }), "{error}");
    }
}

#[test]
fn who_does_not_listen_is_a_holder_and_hears_nothing() {
    let server = Server::start();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let guard = client.lock("ours").lock().unwrap();
    let asked = other.lock("ours").ask("deploy").unwrap();
    assert_eq!((asked.holders, asked.heard), (1, 0));
    assert!(guard.is_held());
    let java = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";
    server.command(&["HSET", "java", java, "1"]);
    let asked = other.lock("java").ask("deploy").unwrap();
    assert_eq!((asked.holders, asked.heard), (1, 0));
}

#[test]
fn a_majority_hears_of_a_request_on_one_server() {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| built(Client::builder().url(&server.url())));
    let other = Client::connect(&servers[1].url()).unwrap();
    let guard = Client::red_lock(&clients, "a").lock().unwrap();
    // A server that answered late is locked with the next renewals.
    wait_until("it is held on the server", SOON * 6, || other.lock("a").is_locked().unwrap());
    assert!(!guard.is_asked());
    ask_until(&other.lock("a"), "deploy", || guard.is_asked());
    assert_eq!(guard.revocation().recv_timeout(SOON).unwrap().reason, "deploy");
    assert!(guard.is_asked() && guard.is_held());
    guard.unlock().unwrap();
    clients.iter().for_each(settle);
}

#[test]
fn a_server_that_joins_a_red_lock_later_hears_too() {
    let clock = ManualClock::new();
    let memories = [(); 3].map(|()| Memory::with_clock(Arc::new(clock.clone())));
    let clients = memories.each_ref().map(|memory| built(Client::builder().in_memory(memory)));
    let others = memories.each_ref().map(|memory| built(Client::builder().in_memory(memory)));
    let rival = others[2].lock("a").lock().unwrap();
    let guard = Client::red_lock(&clients, "a").lock().unwrap();
    assert!(!guard.is_asked());
    rival.unlock().unwrap();
    wait_until("the third has joined", SOON, || {
        clock.advance(Duration::from_secs(10));
        guard.held_on() == 3
    });
    ask_until(&others[2].lock("a"), "deploy", || guard.is_asked());
}

#[test]
fn who_listens_late_to_many_locks_hears_the_first_request() {
    let memory = Memory::new();
    let [holder, other] = [(); 2].map(|()| built(Client::builder().in_memory(&memory)));
    let last = holder.lock("last").lock().unwrap();
    let many = holder.lock_many(&["a", "b"]).lock().unwrap();
    // The client hears requests for all its locks as soon as one guard listens.
    ask_until(&other.lock("last"), "", || last.is_asked());
    last.unlock().unwrap();
    let last = holder.lock("last").lock().unwrap();
    assert!(!last.is_asked());
    for name in ["b", "a", "last"] {
        assert_eq!(other.lock(name).ask(name).unwrap().heard, 1);
    }
    wait_until("the requests have arrived", SOON, || last.is_asked());
    assert_eq!(many.revocation().recv_timeout(SOON).unwrap().reason, "b");
}

#[test]
fn a_message_of_a_stranger_is_nobodys_request() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("a").lock().unwrap();
    assert!(!guard.is_asked());
    let channel = format!("wheellock_client:{}", client.id());
    let receivers = |message: &[u8]| {
        let publish = [b"PUBLISH", channel.as_bytes(), message];
        server.command(&publish).integer()
    };
    wait_until("the client hears", SOON, || receivers(b"a") == 1);
    for message in
        [b"" as &[u8], b"1:a", b"9:a", b"1:a;x", b"99999999999999999999:a,x", b"\xff\xfe"]
    {
        receivers(message);
    }
    let flood = "x".repeat(100_000);
    receivers(flood.as_bytes());
    let (other, sent) = (client.lock("other").lock().unwrap(), b"5:other,last");
    assert_eq!(receivers(sent), 1);
    assert_eq!(other.revocation().recv_timeout(SOON).unwrap().reason, "last");
    assert!(!guard.is_asked() && guard.is_held());
}
