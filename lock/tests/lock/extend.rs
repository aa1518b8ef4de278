//! A hold with a lease of its own that is extended, or watched from now on.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{ProxiedServer, Script, settle};
use wheellock::{Client, Error, Guard, Lock, LostReason, OwnedGuard};
use wheellock_fixture::Fault;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A lock of each kind.
fn kinds(client: &Client) -> [(&'static str, Lock); 7] {
    [
        ("lock", client.lock("plain")),
        ("non-reentrant", client.non_reentrant_lock("single")),
        ("fair", client.fair_lock("fair")),
        ("spin", client.spin_lock("spin")),
        ("simple", client.simple_lock("simple")),
        ("write", client.read_write_lock("rw").write_lock()),
        ("read", client.read_write_lock("rw2").read_lock()),
    ]
}

fn is_lost<T: std::fmt::Debug>(result: &Result<T, Error>, by: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason, .. }) if *reason == by)
}

on_all_stores! {
    fn an_extended_hold_has_the_new_lease_here_and_on_the_server(setup: &TestStore) {
        let client = setup.client();
        for (kind, lock) in kinds(&client) {
            let guard = lock.with_lease(MINUTE).lock().unwrap();
            guard.extend(MINUTE * 10).unwrap();
            let (here, there) = (guard.remaining(), setup.time_to_live(&guard.name()).unwrap());
            assert!(here > MINUTE * 9 && here < there, "{kind}: {here:?}, {there:?}");
            assert!(there <= MINUTE * 10, "{kind}: {there:?}");
            // It is not renewed.
            assert!(client.holds().iter().all(|hold| !hold.watched), "{kind}");
            let name = guard.name();
            guard.unlock().unwrap();
            assert!(!setup.is_there(&name), "{kind}");
        }
    }

    fn a_shorter_lease_takes_nothing_away(setup: &TestStore) {
        let client = setup.client();
        for (kind, lock) in kinds(&client) {
            let guard = lock.with_lease(MINUTE * 10).lock().unwrap();
            guard.extend(SECOND).unwrap();
            assert!(guard.remaining() > MINUTE * 9, "{kind}");
            assert!(setup.time_to_live(&guard.name()).unwrap() > MINUTE * 9, "{kind}");
        }
    }

    fn guards_of_all_types_extend_and_watch(setup: &TestStore) {
        fn both<G: Guard>(guard: &G) {
            guard.extend(MINUTE * 10).unwrap();
            guard.watch().unwrap();
            assert!(guard.remaining() > MINUTE * 9);
        }
        let client = setup.client();
        both(&client.fenced_lock("fenced").with_lease(MINUTE).lock().unwrap());
        let sent: OwnedGuard = client.lock("sent").sendable().with_lease(MINUTE).lock().unwrap();
        thread::scope(|scope| scope.spawn(|| both(&sent)).join().unwrap());
        assert_eq!(client.holds().iter().filter(|hold| hold.watched).count(), 1);
    }

    fn leased_hold_stays_watched_until_the_watching_guard_is_gone(setup: &TestStore) {
        let client = setup.client();
        for (kind, lock) in kinds(&client) {
            let guard = lock.with_lease(MINUTE * 10).lock().unwrap();
            for _ in 0..2 {
                guard.watch().unwrap();
                assert!(client.holds()[0].watched, "{kind}");
                // The lease has more left than that of the watchdog.
                assert!(guard.remaining() > MINUTE * 9, "{kind}");
            }
            guard.unlock().unwrap();
            assert!(client.holds().is_empty(), "{kind}");
        }
        let lock = client.lock("nested").with_lease(MINUTE);
        let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
        inner.watch().unwrap();
        inner.unlock().unwrap();
        assert!(!client.holds()[0].watched);
        assert!(outer.is_held());
    }

    fn a_hold_that_is_gone_is_lost_and_not_taken_again(setup: &TestStore) {
        let client = setup.client();
        for (kind, lock) in kinds(&client) {
            let guard = lock.with_lease(MINUTE).lock().unwrap();
            let name = guard.name();
            setup.delete(&name);
            let extended = guard.extend(MINUTE);
            assert!(is_lost(&extended, LostReason::Deleted), "{kind}: {extended:?}");
            assert!(is_lost(&guard.watch(), LostReason::Deleted), "{kind}");
            assert_eq!(guard.lost().try_recv(), Ok(LostReason::Deleted), "{kind}");
            assert!(!guard.is_held() && !setup.is_there(&name), "{kind}");
        }
        let guard = client.lock("taken").with_lease(MINUTE).lock().unwrap();
        setup.delete("taken");
        let rival = setup.client().lock("taken").lock().unwrap();
        assert!(is_lost(&guard.extend(MINUTE), LostReason::TakenOver));
        drop(guard);
        settle(&client);
        assert!(rival.is_held() && setup.is_there("taken"));
    }

    fn a_lease_out_of_bounds_is_refused_and_changes_nothing(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").with_lease(MINUTE).lock().unwrap();
        for wrong in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
            let refused = guard.extend(wrong);
            assert!(matches!(refused, Err(Error::InvalidLease { lease, .. }) if lease == wrong));
        }
        assert!(guard.is_held() && guard.remaining() <= MINUTE);
    }

    fn after_a_shutdown_a_hold_is_over(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").with_lease(MINUTE).lock().unwrap();
        client.shutdown(SECOND * 10);
        assert!(guard.extend(MINUTE).is_err() && guard.watch().is_err());
        assert!(!setup.is_there("a"));
    }
}

#[test]
fn an_extended_hold_ends_by_the_new_lease_on_a_manual_clock() {
    let setup = InMemory::new();
    let guard = setup.client().lock("a").with_lease(SECOND * 10).lock().unwrap();
    setup.clock.advance(SECOND * 8);
    guard.extend(SECOND * 10).unwrap();
    setup.clock.advance(SECOND * 8);
    assert!(guard.is_held());
    setup.clock.advance(SECOND * 3);
    assert!(!guard.is_held());
    assert!(is_lost(&guard.extend(SECOND * 10), LostReason::Expired));
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Expired));
}

#[test]
fn watched_hold_lasts_until_guard_release_on_a_manual_clock() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND * 30);
    let guard = client.lock("a").with_lease(SECOND * 25).lock().unwrap();
    guard.watch().unwrap();
    // After a third of the watchdog's lease, and not at the end of the one before.
    setup.clock.advance(SECOND * 11);
    assert_eq!(client.stats().renewed, 1);
    for _ in 0..100 {
        setup.clock.advance(SECOND * 5);
        assert!(guard.remaining() >= SECOND * 19, "{:?}", guard.remaining());
    }
    assert!(client.stats().renewed >= 40);
    guard.unlock().unwrap();
    assert!(client.lock("a").try_lock().unwrap().is_some());
}

/// Whatever the server has of a request without a reply ends with the release.
#[test]
fn an_extension_without_a_reply_leaves_the_hold_as_it_was() {
    for fault in [Fault::SwallowReply, Fault::ResetBeforeReply, Fault::SwallowRequest] {
        let setup = ProxiedServer::new();
        let client = setup.retrying();
        let guard = client.lock("a").with_lease(MINUTE).lock().unwrap();
        setup.on(Script::Renew, "a", fault.clone()).always();
        let extended = guard.extend(MINUTE * 10);
        assert!(extended.as_ref().is_err_and(Error::is_retryable), "{fault:?}: {extended:?}");
        let watched = guard.watch();
        assert!(watched.as_ref().is_err_and(Error::is_retryable), "{fault:?}: {watched:?}");
        assert!(guard.is_held() && guard.remaining() <= MINUTE, "{fault:?}");
        assert!(!client.holds()[0].watched, "{fault:?}");
        drop(guard);
        setup.wait_until_gone("a");
    }
}

/// The server has the new lease, and the client has heard nothing of it: when the old lease is over,
/// the lock is released.
#[test]
fn hold_ending_after_an_unanswered_extension_leaves_no_key() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let guard = client.lock("a").with_lease(SECOND).lock().unwrap();
    setup.on(Script::Renew, "a", Fault::SwallowReply).always();
    assert!(guard.extend(MINUTE * 10).is_err());
    setup.wait_until_gone("a");
    assert!(!guard.is_held());
}
