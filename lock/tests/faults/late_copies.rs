//! Commands that arrive long after their connection was closed have no effect on newer holds.
//!
//! The proxy holds the bytes of a command, the client times out, sends it again and goes on; then
//! the bytes arrive. A client that notices at once that its connection is closed sends again before
//! the not-after of the first copy, so that the copy that arrives is not refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{ProxiedServer, SOON, Script, TIMEOUT, built, is_late, pause, settle};
use wheellock::{Client, Error, LostReason};
use wheellock_fixture::{Fault, Reply, wait_until};

const LONG: Duration = Duration::from_secs(60);

/// A client whose attempts end with the connection, long before their not-after.
fn patient(setup: &ProxiedServer) -> Client {
    built(setup.builder().command_timeout(Duration::from_secs(2)))
}

#[test]
fn an_acquire_that_arrives_after_its_not_after_is_refused() {
    let setup = ProxiedServer::new();
    let withheld = setup.withhold(Script::Acquire, "a");
    let guard = setup.retrying().lock("a").lock().unwrap();
    assert_eq!(setup.count("a"), "1");
    guard.unlock().unwrap();
    assert!(!setup.exists("a"));

    let reply = withheld.deliver_late(&setup);
    assert!(is_late(&reply), "{reply:?}");
    assert!(!setup.exists("a"));
}

#[test]
fn acquire_copy_after_the_release_but_in_time_is_rolled_back() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let withheld = setup.withhold(Script::Acquire, "a");
    let guard = thread::scope(|scope| {
        // A hold belongs to its thread, so the other one breaks the connection.
        scope.spawn(|| {
            withheld.wait();
            setup.proxy.cut_all();
        });
        client.lock("a").lock().unwrap()
    });
    // The background releases it once more, at the copy's not-after.
    guard.unlock().unwrap();
    assert!(!setup.exists("a"));

    assert_eq!(withheld.deliver(), Reply::Nil, "the copy was to be granted");
    assert!(setup.exists("a"));
    setup.wait_until_gone("a");
    assert!(
        setup.now() <= withheld.not_after() + 2000,
        "the clean-up comes right after the not-after"
    );
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert!(setup.rival().lock("a").try_lock().unwrap().is_some());
}

#[test]
fn acquire_copy_in_time_beside_its_own_hold_changes_nothing() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let withheld = setup.withhold(Script::Acquire, "a");
    let guard = thread::scope(|scope| {
        scope.spawn(|| {
            withheld.wait();
            setup.proxy.cut_all();
        });
        client.lock("a").lock().unwrap()
    });
    assert_eq!(withheld.deliver(), Reply::Nil);
    assert_eq!(setup.hash("a"), [(guard.owner().to_owned(), "1".to_owned())]);
    guard.unlock().unwrap();
    assert!(!setup.exists("a"));
}

#[test]
fn a_late_acquire_touches_no_newer_hold_of_the_same_thread() {
    for in_time in [true, false] {
        let setup = ProxiedServer::new();
        let client = if in_time { patient(&setup) } else { setup.retrying() };
        let lock = client.lock("a");
        let withheld = setup.withhold(Script::Acquire, "a");
        let first = thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                if in_time {
                    setup.proxy.cut_all();
                }
            });
            lock.lock().unwrap()
        });
        let first_owner = first.owner().to_owned();
        first.unlock().unwrap();
        let second = lock.clone().with_lease(LONG).lock().unwrap();
        assert_ne!(second.owner(), first_owner);

        let before = setup.ttl("a");
        let reply = if in_time { withheld.deliver() } else { withheld.deliver_late(&setup) };
        assert!(is_late(&reply) != in_time, "{reply:?}");
        assert_eq!(setup.hash("a"), [(second.owner().to_owned(), "1".to_owned())]);
        assert!((1..=before).contains(&setup.ttl("a")));
        second.unlock().unwrap();
        // The clean-up of the first hold runs meanwhile, and touches nothing either.
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        assert!(!setup.exists("a"));
    }
}

#[test]
fn a_late_acquire_does_not_enter_beside_a_rival() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let withheld = setup.withhold(Script::Acquire, "a");
    client.lock("a").lock().unwrap().unlock().unwrap();
    let rival = setup.rival();
    let theirs = rival.lock("a").lock().unwrap();
    assert!(is_late(&withheld.deliver_late(&setup)));
    assert!(theirs.is_held());
    assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
    assert!(client.lock("a").try_lock().unwrap().is_none());
    theirs.unlock().unwrap();
}

#[test]
fn abandoned_acquire_with_lost_replies_is_released() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let aim = setup.on(Script::Acquire, "a", Fault::SwallowReply).always();
    let error = client.lock("a").try_lock_for(TIMEOUT).unwrap_err();
    assert!(error.is_outcome_unknown() && error.is_retryable(), "{error}");
    aim.wait_for_hit(SOON);
    setup.wait_until_gone("a");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);

    aim.withdraw();
    client.lock("a").try_lock().unwrap().unwrap().unlock().unwrap();
}

#[test]
fn abandoned_acquire_delivered_late_creates_no_lock() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let withheld = setup.withhold(Script::Acquire, "a");
    let error = client.lock("a").try_lock_for(TIMEOUT / 2).unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    withheld.wait();
    assert!(is_late(&withheld.deliver_late(&setup)));
    assert!(!setup.exists("a"));
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn abandoned_acquire_delivered_in_time_is_released() {
    // The wait ends shortly before the not-after, which a machine that stands still may miss.
    wait_until("it arrives in time", SOON * 4, || {
        let setup = ProxiedServer::new();
        let client = patient(&setup);
        let withheld = setup.withhold(Script::Acquire, "a");
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                setup.proxy.refuse(true);
                setup.proxy.cut_all();
            });
            // The last attempt was refused. The first may have run.
            client.lock("a").try_lock_for(TIMEOUT).unwrap_err()
        });
        assert!(error.is_outcome_unknown(), "{error}");
        let reply = withheld.deliver();
        let is_in_time = reply == Reply::Nil;
        assert!(is_in_time || is_late(&reply), "{reply:?}");
        assert_eq!(setup.exists("a"), is_in_time);
        setup.proxy.refuse(false);
        setup.wait_until_gone("a");
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        is_in_time
    });
}

#[test]
fn a_late_release_touches_no_newer_hold_of_the_same_thread() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let lock = client.lock("a");
    let first = lock.lock().unwrap();
    let withheld = setup.withhold(Script::Release, "a");
    first.unlock().unwrap();
    let second = lock.lock().unwrap();
    assert_eq!(withheld.deliver().array()[0], Reply::Integer(-1));
    assert_eq!(setup.hash("a"), [(second.owner().to_owned(), "1".to_owned())]);
    assert!(setup.rival().lock("a").try_lock().unwrap().is_none());
    second.unlock().unwrap();
}

#[test]
fn a_late_release_touches_no_rival() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let first = client.lock("a").lock().unwrap();
    let withheld = setup.withhold(Script::Release, "a");
    first.unlock().unwrap();
    let rival = setup.rival();
    let theirs = rival.lock("a").lock().unwrap();
    assert_eq!(withheld.deliver().array()[0], Reply::Integer(-1));
    assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
    assert!(client.lock("a").try_lock().unwrap().is_none());
    theirs.unlock().unwrap();
}

/// Whether a renewal of one hold was answered so. The server's time comes first.
fn is_not_yours(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts) if parts.get(1..) == Some(&[Reply::Integer(-1)][..]))
}

#[test]
fn a_late_renewal_extends_no_lease() {
    for in_time in [true, false] {
        let setup = ProxiedServer::new();
        let lease = Duration::from_secs(6);
        let client = built(setup.builder().watchdog_lease(lease).command_timeout(SOON / 4));
        let withheld = setup.withhold(Script::Renew, "a");
        let guard = client.lock("a").lock().unwrap();
        withheld.wait();
        guard.unlock().unwrap();
        let rival = setup.rival();
        let theirs = rival.lock("a").with_lease(lease / 2).lock().unwrap();

        let before = setup.ttl("a");
        let reply = if in_time { withheld.deliver() } else { withheld.deliver_late(&setup) };
        if in_time {
            assert!(is_not_yours(&reply), "{reply:?}");
        } else {
            assert!(is_late(&reply), "{reply:?}");
        }
        assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
        assert!((1..=before).contains(&setup.ttl("a")));
        theirs.unlock().unwrap();
        assert_eq!(client.stats().lost, 0, "what was released cannot be lost");
    }
}

#[test]
fn late_renewal_does_not_extend_next_hold_of_same_thread() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().watchdog_lease(Duration::from_secs(9)));
    let withheld = setup.withhold(Script::Renew, "a");
    let first = client.lock("a").lock().unwrap();
    withheld.wait();
    first.unlock().unwrap();
    let second = client.lock("a").with_lease(Duration::from_secs(5)).lock().unwrap();
    let before = setup.ttl("a");
    withheld.deliver();
    assert!((1..=before).contains(&setup.ttl("a")));
    assert!(second.is_held());
    second.unlock().unwrap();
}

#[test]
fn hold_stays_lost_when_delayed_renewals_arrive() {
    let setup = ProxiedServer::new();
    let lease = Duration::from_millis(600);
    let client = built(setup.builder().watchdog_lease(lease));
    let aim = setup.on(Script::Renew, "a", Fault::HoldRequest).always();
    let guard = client.lock("a").lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::ServerUnreachable));
    assert!(!guard.is_held());
    setup.wait_until_gone("a");
    let rival = setup.rival();
    let theirs = rival.lock("a").lock().unwrap();
    let before = setup.ttl("a");
    for reply in aim.deliver() {
        assert!(is_late(&reply) || is_not_yours(&reply), "{reply:?}");
    }
    assert!(setup.ttl("a") <= before);
    assert!(!guard.is_held());
    let error = guard.unlock().unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::ServerUnreachable, .. }), "{error}");
    assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
    theirs.unlock().unwrap();
}

#[test]
fn a_late_partial_release_undercuts_nothing() {
    for in_time in [true, false] {
        let setup = ProxiedServer::new();
        let client = if in_time { patient(&setup) } else { setup.retrying() };
        let lock = client.lock("a");
        let outer = lock.lock().unwrap();
        let inner = lock.lock().unwrap();
        assert_eq!(setup.count("a"), "2");
        let withheld = setup.withhold(Script::Recount, "a");
        thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                if in_time {
                    setup.proxy.cut_all();
                }
            });
            inner.unlock().unwrap();
        });
        assert_eq!(setup.count("a"), "1");
        let inner = lock.clone().with_lease(LONG).lock().unwrap();
        assert_eq!(setup.count("a"), "2");
        let before = setup.ttl("a");
        let reply = if in_time { withheld.deliver() } else { withheld.deliver_late(&setup) };
        assert!(is_late(&reply) != in_time, "{reply:?}");
        // The count on the server may be wrong now. Nothing hangs on it.
        let after = setup.ttl("a");
        assert!(after > before - 2000 && after <= before, "{before} became {after}");
        inner.unlock().unwrap();
        assert!(outer.is_held());
        assert!(setup.rival().lock("a").try_lock().unwrap().is_none());
        outer.unlock().unwrap();
        assert!(!setup.exists("a"));
    }
}

#[test]
fn a_late_partial_release_of_an_old_hold_touches_no_newer_hold() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let lock = client.lock("a");
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let withheld = setup.withhold(Script::Recount, "a");
    thread::scope(|scope| {
        scope.spawn(|| {
            withheld.wait();
            setup.proxy.cut_all();
        });
        inner.unlock().unwrap();
    });
    outer.unlock().unwrap();
    let rival = setup.rival();
    let theirs = rival.lock("a").lock().unwrap();
    assert_eq!(withheld.deliver(), Reply::Integer(0));
    assert_eq!(setup.hash("a"), [(theirs.owner().to_owned(), "1".to_owned())]);
    theirs.unlock().unwrap();
    assert!(!setup.exists("a"));
}

#[test]
fn a_late_nested_acquire_never_creates() {
    for in_time in [true, false] {
        let setup = ProxiedServer::new();
        let client = if in_time { patient(&setup) } else { setup.retrying() };
        let lock = client.lock("a");
        let outer = lock.lock().unwrap();
        let withheld = setup.withhold(Script::Recount, "a");
        let inner = thread::scope(|scope| {
            scope.spawn(|| {
                withheld.wait();
                if in_time {
                    setup.proxy.cut_all();
                }
            });
            lock.lock().unwrap()
        });
        assert_eq!(setup.count("a"), "2");
        inner.unlock().unwrap();
        outer.unlock().unwrap();
        assert!(!setup.exists("a"));
        let reply = if in_time { withheld.deliver() } else { withheld.deliver_late(&setup) };
        assert!(is_late(&reply) || reply == Reply::Integer(0), "{reply:?}");
        assert!(!setup.exists("a"));
    }
}

#[test]
fn a_nested_acquire_that_was_given_up_leaves_no_lease_behind() {
    // The nested acquire asked for a minute and got no answer. The server may have granted it, so
    // the end of the outer lease is not the end of the key.
    let setup = ProxiedServer::new();
    // Both attempts end before the outer lease does.
    let client = setup.client();
    let outer = client.lock("a").with_lease(Duration::from_millis(1500)).lock().unwrap();
    let aim = setup.on(Script::Recount, "a", Fault::SwallowReply).always();
    let error = client.lock("a").with_lease(LONG).try_lock().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    assert!(setup.ttl("a") > 30_000, "the nested acquire was to run");
    aim.withdraw();
    assert_eq!(outer.lost().recv_timeout(SOON), Ok(LostReason::Expired));
    setup.wait_until_gone("a");
    assert!(outer.unlock().is_err());
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn two_locks_of_one_name_on_one_thread_are_one_hold() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let (one, other) = (client.lock("a"), client.lock("a").with_lease(LONG));
    let outer = one.lock().unwrap();
    let inner = other.try_lock().unwrap().unwrap();
    assert_eq!(outer.owner(), inner.owner());
    assert_eq!((one.hold_count(), other.hold_count()), (2, 2));
    assert_eq!(setup.count("a"), "2");
    // In any order.
    outer.unlock().unwrap();
    assert!(inner.is_held() && one.is_held_by_current_thread());
    assert_eq!(setup.count("a"), "1");
    thread::scope(|scope| {
        let other_thread = scope.spawn(|| one.try_lock().unwrap().is_none());
        assert!(other_thread.join().unwrap(), "another thread is a rival");
    });
    inner.unlock().unwrap();
    assert!(!setup.exists("a"));
}

#[test]
fn a_late_force_release_ends_no_newer_hold() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let rival = setup.rival();
    let first = rival.lock("a").lock().unwrap();
    let withheld = setup.withhold(Script::ForceRelease, "a");
    assert!(client.lock("a").force_unlock().unwrap());
    assert!(first.unlock().is_err());
    let second = rival.lock("a").lock().unwrap();
    assert!(is_late(&withheld.deliver_late(&setup)));
    assert_eq!(setup.hash("a"), [(second.owner().to_owned(), "1".to_owned())]);
    second.unlock().unwrap();
}

#[test]
fn force_release_with_lost_reply_reports_loss_to_local_holder() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let guard = client.lock("a").with_lease(LONG).lock().unwrap();
    setup.on(Script::ForceRelease, "a", Fault::SwallowReply);
    client.lock("a").force_unlock().unwrap();
    assert!(!setup.exists("a"));
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn waiting_rival_acquires_once_while_late_grant_is_rolled_back() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let rival = setup.rival();
    let withheld = setup.withhold(Script::Acquire, "a");
    let guard = thread::scope(|scope| {
        scope.spawn(|| {
            withheld.wait();
            setup.proxy.cut_all();
        });
        client.lock("a").lock().unwrap()
    });
    // The background releases it once more, at the copy's not-after.
    guard.unlock().unwrap();
    assert_eq!(withheld.deliver(), Reply::Nil);
    assert!(setup.exists("a"));
    let entered = AtomicBool::new(false);
    thread::scope(|scope| {
        for locks in [&rival, &client] {
            let entered = &entered;
            scope.spawn(move || {
                let guard = locks.lock("a").try_lock_for(SOON).unwrap().unwrap();
                assert!(!entered.swap(true, Ordering::SeqCst));
                pause(Duration::from_millis(20));
                entered.store(false, Ordering::SeqCst);
                guard.unlock().unwrap();
            });
        }
    });
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert!(!setup.exists("a"));
}

/// A client whose idea of the server's time is 5 s ahead, as after days in which two clocks drifted
/// apart.
fn ahead(setup: &ProxiedServer, builder: wheellock::ClientBuilder) -> Client {
    let now = setup.now() + 5_000;
    let (seconds, micros) = ((now / 1000).to_string(), (now % 1000 * 1000).to_string());
    let reply = crate::common::fake::array(&[&seconds, &micros]);
    let is_time = |request: &wheellock_fixture::Request| request.name() == "TIME";
    setup.proxy.on(is_time, Fault::AnswerInstead(reply)).always();
    built(builder)
}

/// The next acquire of this client is refused once its attempt's time is over.
fn assert_not_ahead(setup: &ProxiedServer, client: &Client) {
    let withheld = setup.withhold(Script::Acquire, "late");
    let wait = TIMEOUT / 2;
    thread::scope(|scope| {
        scope.spawn(|| drop(client.lock("late").try_lock_for(wait)));
        withheld.wait();
        let left = u64::try_from(withheld.not_after() - setup.now()).unwrap_or_default();
        let left = Duration::from_millis(left);
        assert!(left <= wait, "it may still arrive after {left:?}");
    });
    let reply = withheld.deliver_late(setup);
    assert!(is_late(&reply), "{reply:?}");
    setup.wait_until_gone("late");
}

#[test]
fn a_release_corrects_a_server_clock_estimate_that_is_ahead() {
    for release in [
        (|client| drop(client.lock("a").lock().unwrap())) as fn(&Client),
        |client| drop(client.fair_lock("a").lock().unwrap()),
        |client| drop(client.simple_lock("b").lock().unwrap()),
        |client| drop(client.read_write_lock("c").read_lock().lock().unwrap()),
        |client| drop(client.read_write_lock("c").write_lock().lock().unwrap()),
        |client| {
            let permits = client.expirable_semaphore("d").with_lease(LONG);
            permits.try_set_permits(1).unwrap();
            drop(permits.acquire().unwrap());
        },
    ] {
        let setup = ProxiedServer::new();
        let client = ahead(&setup, setup.builder().command_timeout(Duration::from_secs(1)));
        release(&client);
        // The reply to a dropped guard's release corrects it when it is read.
        settle(&client);
        assert_not_ahead(&setup, &client);
    }
}

#[test]
fn a_renewal_corrects_a_server_clock_estimate_that_is_ahead() {
    let setup = ProxiedServer::new();
    let builder = setup.builder().command_timeout(Duration::from_secs(1));
    let client = ahead(&setup, builder.watchdog_lease(Duration::from_secs(4)));
    let guard = client.lock("a").lock().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed > 0);
    assert_not_ahead(&setup, &client);
    drop(guard);
}
