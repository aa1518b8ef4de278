//! The other kinds of locks: fenced, spin, simple and non-reentrant; and owners that are not
//! threads.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::expected::{Expected, lost};
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{Script, is_wrong_type, settle};
use wheellock::{Backoff, Client, Error, Guard, Lock, LostReason, Memory};
use wheellock_fixture::{Fault, Request, wait_until};

const LEASE: Duration = Duration::from_secs(30);

/// Whether another thread acquires a lock at once.
fn is_free(lock: &Lock) -> bool {
    std::thread::scope(|scope| scope.spawn(|| lock.try_lock().unwrap().is_some()).join().unwrap())
}

on_all_stores! {
    fn tokens_grow_from_hold_to_hold_and_from_client_to_client(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let mut last = 0;
        for client in [&one, &other, &one, &one, &other] {
            let lock = client.fenced_lock("a");
            let guard = lock.lock().unwrap();
            assert!(guard.token() > last);
            last = guard.token();
            assert_eq!(lock.last_token().unwrap(), last);
            guard.unlock().unwrap();
        }
    }

    fn a_nested_fenced_guard_has_the_token_of_its_hold(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fenced_lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        assert_eq!(inner.token(), outer.token());
        assert_eq!(lock.last_token().unwrap(), outer.token());
        inner.unlock().unwrap();
        let again = lock.try_lock().unwrap().unwrap();
        assert_eq!(again.token(), outer.token());
    }

    fn a_lock_that_is_taken_again_as_a_fenced_one_is_given_a_token(setup: &TestStore) {
        let client = setup.client();
        let last = client.fenced_lock("a").lock().unwrap().token();
        let plain = client.lock("a").lock().unwrap();
        let fenced = client.fenced_lock("a").lock().unwrap();
        assert!(fenced.token() > last);
        assert_eq!(fenced.owner(), plain.owner());
        drop(plain);
        assert!(fenced.is_held());
    }

    fn the_counter_of_tokens_outlives_every_lock_and_has_no_expiry(setup: &TestStore) {
        let client = setup.client();
        client.fenced_lock("a").with_lease(Duration::from_secs(1)).lock().unwrap().unlock().unwrap();
        let counter = "redisson_lock_token:{a}";
        assert!(setup.text(counter).is_some());
        assert_eq!(setup.time_to_live(counter), None);
    }

    fn no_token_was_drawn_for_a_name_that_was_never_fenced(setup: &TestStore) {
        let client = setup.client();
        drop(client.lock("a").lock().unwrap());
        assert_eq!(client.fenced_lock("a").last_token().unwrap(), 0);
    }

    fn fenced_spin_and_plain_locks_of_one_name_exclude_each_other(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let held = one.fenced_lock("a").lock().unwrap();
        assert!(other.lock("a").try_lock().unwrap().is_none());
        assert!(other.spin_lock("a").try_lock().unwrap().is_none());
        assert!(other.non_reentrant_lock("a").try_lock().unwrap().is_none());
        held.unlock().unwrap();
        let held = one.spin_lock("a").lock().unwrap();
        assert!(other.fenced_lock("a").try_lock().unwrap().is_none());
        drop(held);
        settle(&one);
        assert!(other.lock("a").try_lock().unwrap().is_some());
    }

    fn a_spin_lock_nests_and_its_waiter_needs_no_message(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let lock = one.spin_lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        drop(outer);
        assert!(inner.is_held());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| other.spin_lock("a").lock().map(drop));
            crate::common::wait_for_a_waiter(&other);
            drop(inner);
            waiter.join().unwrap().unwrap();
        });
    }

    fn held_non_reentrant_lock_fails_owner_and_is_busy_for_rivals(setup: &TestStore) {
        let client = setup.client();
        let lock = client.non_reentrant_lock("a");
        let guard = lock.lock().unwrap();
        for refused in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.try_lock_for(LEASE).map(drop),
        ] {
            assert_eq!(refused, Expected::AlreadyHeld("a".to_owned()));
        }
        assert!(!is_free(&lock));
        assert_eq!(lock.hold_count(), 1);
        // Reentrant ones do nest.
        drop(client.lock("a").lock().unwrap());
        assert!(guard.is_held());
        guard.unlock().unwrap();
        assert!(is_free(&lock));
    }

    fn a_simple_lock_is_a_text_with_its_owner_and_a_time_to_live(setup: &TestStore) {
        let client = setup.client();
        let guard = client.simple_lock("a").lock().unwrap();
        assert_eq!(setup.text("a").as_deref(), Some(guard.owner()));
        let left = setup.time_to_live("a").unwrap();
        assert!(left <= LEASE && left > LEASE * 5 / 6, "{left:?}");
        assert!(client.simple_lock("a").is_locked().unwrap());
        guard.unlock().unwrap();
        assert_eq!(setup.text("a"), None);
    }

    fn a_simple_lock_excludes_its_own_thread_too(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let lock = one.simple_lock("a");
        let guard = lock.lock().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(Duration::from_millis(700)).unwrap().is_none());
        assert!(other.simple_lock("a").try_lock().unwrap().is_none());
        assert!(!is_free(&lock));
        assert_eq!(lock.lock().map(drop), Expected::AlreadyHeld("a".to_owned()));
        guard.unlock().unwrap();
        assert!(is_free(&lock));
    }

    fn thread_waiting_for_its_own_simple_lock_acquires_after_lease(setup: &TestStore) {
        let client = setup.client();
        let lock = client.simple_lock("a").with_lease(Duration::from_secs(1));
        let first = lock.lock().unwrap();
        let second = lock.lock().unwrap();
        assert!(!first.is_held());
        assert!(second.is_held());
        assert_eq!(
            first.unlock(),
            lost("a", LostReason::Expired)
        );
        assert!(second.is_held());
        second.unlock().unwrap();
    }

    fn a_simple_lock_is_released_by_its_owner_only(setup: &TestStore) {
        let client = setup.client();
        let guard = client.simple_lock("a").lock().unwrap();
        setup.delete("a");
        setup.put_text("a");
        assert_eq!(
            guard.unlock(),
            lost("a", LostReason::TakenOver)
        );
        assert_eq!(setup.text("a").as_deref(), Some("data"));
    }

    fn a_simple_lock_can_be_forced_open(setup: &TestStore) {
        let client = setup.client();
        let lock = client.simple_lock("a");
        let guard = lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert!(!guard.is_held());
        assert!(!lock.force_unlock().unwrap());
    }

    fn a_key_of_another_kind_is_an_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        let hash = client.lock("a").lock().unwrap();
        assert!(is_wrong_type(&client.simple_lock("a").lock().map(drop).unwrap_err(), "a"));
        assert!(is_wrong_type(&client.simple_lock("a").force_unlock().map(drop).unwrap_err(), "a"));
        hash.unlock().unwrap();
        let text = client.simple_lock("a").lock().unwrap();
        assert!(is_wrong_type(&client.lock("a").lock().map(drop).unwrap_err(), "a"));
        assert!(is_wrong_type(&client.fenced_lock("a").lock().map(drop).unwrap_err(), "a"));
        assert!(text.is_held());
        text.unlock().unwrap();
    }

    fn a_named_owner_nests_on_any_thread_and_excludes_others(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a").with_owner("request 7");
        let outer = lock.lock().unwrap();
        let inner = std::thread::scope(|scope| scope.spawn(|| lock.lock().unwrap()).join().unwrap());
        assert_eq!(inner.owner(), outer.owner());
        assert_eq!(lock.hold_count(), 2);
        assert!(client.lock("a").try_lock().unwrap().is_none());
        assert!(client.lock("a").with_owner("request 8").try_lock().unwrap().is_none());
        assert!(setup.client().lock("a").with_owner("request 7").try_lock().unwrap().is_none());
        std::thread::scope(|scope| scope.spawn(|| outer.unlock()).join().unwrap()).unwrap();
        assert!(inner.is_held());
        drop(inner);
        assert!(is_free(&client.lock("a")));
    }

    fn threads_of_a_named_owner_that_wait_together_share_the_hold(setup: &TestStore) {
        for kind in ["lock", "fair", "fenced", "spin", "write", "read"] {
            let (client, rival) = (setup.client(), setup.client());
            let lock = |client: &Client| match kind {
                "fair" => client.fair_lock(kind).with_owner("request 7"),
                "fenced" => client.fenced_lock(kind).with_owner("request 7"),
                "spin" => client.spin_lock(kind).with_owner("request 7"),
                "write" => client.read_write_lock(kind).write_lock().with_owner("request 7"),
                "read" => client.read_write_lock(kind).read_lock().with_owner("request 7"),
                _ => client.lock(kind).with_owner("request 7"),
            };
            let rivals = match kind {
                "read" => rival.read_write_lock(kind).write_lock().with_owner("request 7"),
                _ => lock(&rival),
            };
            let busy = rivals.lock().unwrap();
            let had = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let guard = lock(&client).try_lock_for(crate::common::SOON).unwrap();
                        assert!(guard.is_some(), "{kind}: it waits for a hold of its own");
                        had.fetch_add(1, Ordering::SeqCst);
                        // No thread releases before all have acquired.
                        let all = || had.load(Ordering::SeqCst) == 3;
                        wait_until("all have it", crate::common::SOON, all);
                        drop(guard);
                    });
                }
                wait_until("they wait", crate::common::SOON, || client.stats().waiters == 3);
                busy.unlock().unwrap();
            });
            assert_eq!(client.stats().held, 0);
            // The server has run the release of the last guard.
            settle(&client);
            assert!(lock(&rival).try_lock().unwrap().is_some(), "{kind} is free");
        }
    }

    fn a_named_owner_of_a_fenced_lock_has_its_token(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fenced_lock("a").with_owner("request 7");
        let guard = lock.lock().unwrap();
        assert_eq!(guard.token(), Some(client.fenced_lock("a").last_token().unwrap()));
        assert_eq!(guard.token(), lock.last_token().unwrap());
        let plain = client.lock("b").with_owner("request 7");
        assert_eq!((plain.lock().unwrap().token(), plain.last_token()), (None, Ok(None)));
    }

    fn a_named_owner_is_notified_of_its_loss(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").with_owner("request 7").lock().unwrap();
        client.lock("a").force_unlock().unwrap();
        assert_eq!(guard.lost().recv_timeout(crate::common::SOON), Ok(LostReason::Deleted));
        assert!(guard.check().is_err());
    }
}

#[test]
fn named_owner_try_waits_for_reply_to_its_concurrent_acquire() {
    let setup = crate::common::ProxiedServer::new();
    let client = setup.patient();
    let lock = client.lock("a").with_owner("request 7");
    let answer = setup.on(Script::Acquire, "a", Fault::HoldReply);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| lock.lock().unwrap());
        answer.wait_for_hit(crate::common::SOON);
        wait_until("the server has granted it", crate::common::SOON, || setup.exists("a"));
        let acquires = setup.on(Script::Acquire, "a", Fault::PassOn);
        let second = scope.spawn(|| lock.try_lock().unwrap());
        acquires.wait_for_hit(crate::common::SOON);
        // The server has refused the second, or will.
        crate::common::pause(Duration::from_millis(100));
        answer.deliver();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert!(second.is_some(), "the lock is held by its owner");
        assert_eq!(lock.hold_count(), 2);
        drop((first, second));
    });
    setup.wait_until_gone("a");
}

#[test]
fn a_fenced_acquire_that_is_sent_twice_has_one_token() {
    let memory = Memory::new();
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let lock = client.fenced_lock("a");
    memory.lose_replies(true);
    lock.try_lock().unwrap_err();
    memory.lose_replies(false);
    let before = lock.last_token().unwrap();
    assert!(before > 0, "it was drawn, though the reply was lost");
    drop(client);
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guard = client.fenced_lock("a").lock().unwrap();
    assert!(guard.token() > before);
}

/// What generic code can do with a guard.
fn asked_and_unlocked<G: Guard>(lock: &Lock<G>) {
    assert_eq!(lock.name(), "a");
    let guard = lock.lock().unwrap();
    assert!(Guard::is_held(&guard) && Guard::remaining(&guard) > Duration::from_secs(20));
    assert_eq!((Guard::check(&guard), Guard::name(&guard)), (Ok(()), "a".to_owned()));
    assert!(!Guard::owner(&guard).is_empty());
    assert_eq!(Guard::lost(&guard).try_recv(), Err(crossbeam_channel::TryRecvError::Empty));
    Guard::unlock(guard).unwrap();
    assert!(!lock.is_locked().unwrap());
    let guard = lock.lock().unwrap();
    lock.force_unlock().unwrap();
    assert_eq!(Guard::lost(&guard).try_recv(), Ok(LostReason::Deleted));
    assert!(Guard::check(&guard).is_err() && Guard::remaining(&guard).is_zero());
    let lost = lost("a", LostReason::Deleted);
    assert_eq!(Guard::unlock(guard), lost);
}

#[test]
fn generic_code_can_query_and_unlock_every_lock_guard() {
    let client = Client::in_memory();
    asked_and_unlocked(&client.lock("a"));
    asked_and_unlocked(&client.fenced_lock("a"));
    asked_and_unlocked(&client.lock("a").with_owner("request 7"));
}

#[test]
fn a_lock_has_its_name_and_a_wrong_one_cut_short() {
    let client = Client::in_memory();
    assert_eq!(client.simple_lock("orders:42").name(), "orders:42");
    assert_eq!(client.lock("").name(), "");
    let long = client.lock(&"x".repeat(70_000));
    assert!(matches!(long.try_lock(), Err(Error::InvalidName { name, .. }) if name == long.name()));
    assert!(long.name().starts_with("xxx") && long.name().len() < 300);
}

#[test]
fn guards_of_named_owners_may_be_sent_and_shared() {
    fn sent_and_shared<T: Send + Sync>() {}
    sent_and_shared::<wheellock::OwnedGuard>();
    sent_and_shared::<wheellock::MultiGuard<wheellock::AnyThread>>();
    sent_and_shared::<wheellock::RedGuard<wheellock::AnyThread>>();
    sent_and_shared::<wheellock::MultiLock>();
    sent_and_shared::<wheellock::RedLock>();
    sent_and_shared::<Lock>();
}

#[test]
fn waiters_of_one_client_poll_a_spin_lock_as_one() {
    let server = wheellock_fixture::Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let other = Client::connect(&server.url()).unwrap();
    let pause = Duration::from_millis(100);
    let held = other.spin_lock("a").lock().unwrap();
    let before = server.command_calls("evalsha");
    std::thread::scope(|scope| {
        let lock = client.spin_lock("a").with_backoff(Backoff::new(pause, pause));
        for _ in 0..50 {
            let lock = lock.clone();
            // The last try may be cut off at the very end, before or after it is sent, which adds a
            // release.
            scope.spawn(move || match lock.try_lock_for(Duration::from_secs(1)) {
                Ok(got) => assert!(got.is_none()),
                Err(error) => assert!(
                    error.is_outcome_unknown() || matches!(error, Error::Unreachable { .. }),
                    "{error}"
                ),
            });
        }
    });
    // A pause is between 50 and 100 ms, so that is 20 tries at most in a second; and each that
    // gives up at the end makes its first, and perhaps a release.
    let tries = server.command_calls("evalsha") - before;
    assert!(tries <= 20 + 50 * 2, "{tries} tries");
    assert!(tries >= 9, "{tries} tries");
    drop(held);
}

#[test]
fn guard_granted_during_release_of_the_last_guard_is_held() {
    let setup = crate::common::ProxiedServer::new();
    let client = setup.patient();
    let draw = include_str!("../../src/ops/scripts/draw_token.lua");
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(draw)]).text();
    let plain = client.lock("a").with_owner("request 7").lock().unwrap();
    let is_draw =
        move |request: &Request| request.name() == "EVALSHA" && request.argument(1) == hash;
    let kept = setup.proxy.on(is_draw, Fault::HoldReply);
    std::thread::scope(|scope| {
        let fenced = scope.spawn(|| client.fenced_lock("a").with_owner("request 7").lock());
        kept.wait_for_hit(crate::common::SOON);
        plain.unlock().unwrap();
        kept.deliver();
        let guard = fenced.join().unwrap().unwrap();
        assert!(guard.is_held() && guard.token().is_some());
        assert!(setup.exists("a"));
    });
}

#[test]
fn a_second_guard_that_no_answer_came_for_keeps_nothing_held() {
    let memory = Memory::new();
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let lock = client.lock("a");
    let guard = lock.lock().unwrap();
    memory.lose_replies(true);
    lock.try_lock().unwrap_err();
    memory.lose_replies(false);
    assert_eq!(lock.hold_count(), 1);
    guard.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn an_expiry_on_the_token_counter_is_removed() {
    const COUNTER: &str = "redisson_lock_token:{a}";
    let server = wheellock_fixture::Server::start();
    let lock = Client::connect(&server.url()).unwrap().fenced_lock("a");
    // Redisson's multi lock sets one with a lease. Beyond the clock the counter is incremented, not
    // set.
    server.command(&["SET", COUNTER, "8000000000000000", "PX", "30000"]);
    drop(lock.lock().unwrap());
    assert_eq!(server.command(&["PTTL", COUNTER]).integer(), -1);
}
