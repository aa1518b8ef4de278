//! Commands of a hold that threads hand to each other, and that arrive after a hand-over or after
//! the hold has ended: they extend, keep and release nothing that they should not.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::{Client, Error};
use wheellock_fixture::{Reply, wait_until};

use crate::common::{ProxiedServer, SOON, Script, built, is_late, settle};

const LEASE: Duration = Duration::from_secs(30);

/// A client whose attempts end with the connection, long before their not-after, and whose cohorts
/// last as long as a slow machine needs.
fn patient(setup: &ProxiedServer) -> Client {
    let timeout = Duration::from_secs(2);
    let budget = Duration::from_secs(1);
    built(setup.builder().command_timeout(timeout).hand_over_budget(budget))
}

/// A thread that waits for the lock `a`, and holds it until it is told to go on.
struct Next<'scope> {
    thread: thread::ScopedJoinHandle<'scope, Result<(), Error>>,
    owner: Receiver<String>,
    go_on: Sender<()>,
}

impl<'scope> Next<'scope> {
    /// Waits already.
    fn wait(scope: &'scope thread::Scope<'scope, '_>, client: &Client) -> Self {
        let ((tell, owner), (go_on, told)) = (bounded(1), bounded::<()>(0));
        let lock = client.lock("a");
        let waiters = client.stats().waiters;
        let thread = scope.spawn(move || {
            let guard = lock.lock().unwrap();
            tell.send(guard.owner().to_owned()).unwrap();
            told.recv().unwrap_err();
            guard.check()?;
            guard.unlock()
        });
        wait_until("the next thread waits", SOON, || client.stats().waiters > waiters);
        Self { thread, owner, go_on }
    }

    fn owner(&self) -> String {
        self.owner.recv_timeout(SOON).unwrap()
    }

    fn release(self) -> Result<(), Error> {
        drop(self.go_on);
        self.thread.join().unwrap()
    }
}

/// The lock is free and stays free: what was sent late has not come to anything.
fn assert_free(setup: &ProxiedServer, client: &Client) {
    settle(client);
    setup.wait_until_gone("a");
    let rival = setup.rival();
    rival.lock("a").try_lock().unwrap().unwrap().unlock().unwrap();
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn late_acquire_does_not_change_handed_over_hold() {
    // On a machine that stands still for a second, the lock is released on the server.
    wait_until("the hold was handed over in time", SOON * 4, || {
        let setup = ProxiedServer::new();
        let client = patient(&setup);
        let withheld = setup.withhold(Script::Acquire, "a");
        let was_handed = thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                setup.proxy.cut_all();
            });
            let guard = client.lock("a").lock().unwrap();
            let owner = guard.owner().to_owned();
            let next = Next::wait(scope, &client);
            guard.unlock().unwrap();
            let was_handed = next.owner() == owner;
            let reply = withheld.deliver();
            if was_handed {
                assert_eq!(reply, Reply::Nil, "it is the same owner's");
                assert_eq!(setup.hash("a"), [(owner, "1".to_owned())]);
                // Of the cohort's own lease: no renewal of it is due yet.
                assert!(setup.ttl("a") <= i64::try_from(LEASE.as_millis()).unwrap());
            }
            next.release().unwrap();
            was_handed
        });
        assert_free(&setup, &client);
        was_handed
    });
}

#[test]
fn late_acquire_is_rolled_back_after_last_release_of_cohort() {
    wait_until("the hold was handed over in time", SOON * 4, || {
        let setup = ProxiedServer::new();
        let client = patient(&setup);
        let withheld = setup.withhold(Script::Acquire, "a");
        let was_handed = thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                setup.proxy.cut_all();
            });
            let guard = client.lock("a").lock().unwrap();
            let owner = guard.owner().to_owned();
            let next = Next::wait(scope, &client);
            guard.unlock().unwrap();
            let was_handed = next.owner() == owner;
            next.release().unwrap();
            was_handed
        });
        setup.wait_until_gone("a");
        // In time it is granted, and the release that is sent past its not-after ends that.
        let reply = withheld.deliver();
        assert!(reply == Reply::Nil || is_late(&reply), "{reply:?}");
        assert_free(&setup, &client);
        was_handed
    });
}

#[test]
fn hold_with_late_recount_is_released_and_recount_has_no_effect() {
    for after_the_end in [false, true] {
        let setup = ProxiedServer::new();
        let client = patient(&setup);
        thread::scope(|scope| {
            let lock = client.lock("a");
            let outer = lock.lock().unwrap();
            let inner = lock.lock().unwrap();
            let next = Next::wait(scope, &client);
            let withheld = setup.withhold(Script::Recount, "a");
            thread::scope(|scope| {
                scope.spawn(|| {
                    withheld.wait();
                    setup.proxy.cut_all();
                });
                inner.unlock().unwrap();
            });
            let owner = outer.owner().to_owned();
            outer.unlock().unwrap();
            // Another owner: a copy of the count may still arrive, for the one before.
            let second = next.owner();
            assert_ne!(second, owner);
            assert_eq!(client.stats().hand_overs, 0);
            let mut next = Some(next);
            if after_the_end {
                next.take().unwrap().release().unwrap();
                assert_eq!(withheld.deliver(), Reply::Integer(0));
                assert!(!setup.exists("a"));
            } else {
                let before = setup.ttl("a");
                assert_eq!(withheld.deliver(), Reply::Integer(0));
                assert_eq!(setup.hash("a"), [(second, "1".to_owned())]);
                assert!((1..=before).contains(&setup.ttl("a")));
                next.take().unwrap().release().unwrap();
            }
        });
        assert_free(&setup, &client);
    }
}

#[test]
fn a_late_renewal_extends_its_own_owner_only() {
    // So short that a renewal is due, and sent again, before the cohort is over.
    let lease = Duration::from_millis(1500);
    wait_until("the hold was handed over after a renewal", SOON * 4, || {
        let setup = ProxiedServer::new();
        let budget = Duration::from_secs(1);
        let client = built(setup.builder().watchdog_lease(lease).hand_over_budget(budget));
        let withheld = setup.withhold(Script::Renew, "a");
        let (owner, second, reply, ttl, hash) = thread::scope(|scope| {
            let guard = client.lock("a").lock().unwrap();
            let owner = guard.owner().to_owned();
            let next = Next::wait(scope, &client);
            withheld.wait();
            wait_until("it is renewed or lost", SOON, || {
                client.stats().renewed > 0 || !guard.is_held()
            });
            // It may be lost on a machine that is as slow as that.
            let _released = guard.unlock();
            let second = next.owner();
            let reply = withheld.deliver();
            let (ttl, hash) = (setup.ttl("a"), setup.hash("a"));
            let _released = next.release();
            (owner, second, reply, ttl, hash)
        });
        // The present owner's key, or none if it was lost.
        assert!(hash.is_empty() || hash == [(second.clone(), "1".to_owned())], "{hash:?}");
        assert!(ttl <= i64::try_from(lease.as_millis()).unwrap(), "{ttl}");
        assert!(second == owner || is_late(&reply) || is_not_yours(&reply), "{reply:?}");
        settle(&client);
        setup.wait_until_gone("a");
        second == owner && client.stats().lost == 0
    });
}

#[test]
fn a_late_renewal_extends_nothing_after_the_cohort() {
    for in_time in [true, false] {
        let setup = ProxiedServer::new();
        let lease = Duration::from_secs(6);
        let client = built(setup.builder().watchdog_lease(lease).command_timeout(SOON / 4));
        let withheld = setup.withhold(Script::Renew, "a");
        thread::scope(|scope| {
            let guard = client.lock("a").lock().unwrap();
            let next = Next::wait(scope, &client);
            let _released = guard.unlock();
            next.owner();
            withheld.wait();
            let _released = next.release();
        });
        settle(&client);
        let rival = setup.rival();
        let theirs = rival.lock("a").with_lease(lease / 2).lock().unwrap();
        let before = setup.ttl("a");
        let reply = if in_time { withheld.deliver() } else { withheld.deliver_late(&setup) };
        assert!(is_late(&reply) || is_not_yours(&reply), "{reply:?}");
        assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
        assert!((1..=before).contains(&setup.ttl("a")));
        theirs.unlock().unwrap();
        assert!(!setup.exists("a"));
    }
}

/// Whether a renewal of one hold was answered so. The server's time comes first.
fn is_not_yours(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts) if parts.get(1..) == Some(&[Reply::Integer(-1)][..]))
}
