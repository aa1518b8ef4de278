//! Commands of semaphores, permits and latches that are sent again or arrive late: each call counts
//! once.
//!
//! The proxy swallows a reply, or holds a request until its connection was closed and delivers it
//! then.

use std::time::Duration;

use crate::common::takings::taken;
use crate::common::{ProxiedServer, SOON, built, is_late, pause};
use wheellock::{Client, Error, LostReason, Memory, SemaphoreGuard, Wait};
use wheellock_fixture::{Aim, Fault, Reply, Request, wait_until};

const TAKE: &str = include_str!("../../src/ops/scripts/semaphore_acquire.lua");
const UNDO: &str = include_str!("../../src/ops/scripts/semaphore_undo.lua");
const ADD: &str = include_str!("../../src/ops/scripts/semaphore_add.lua");
const MAKE: &str = include_str!("../../src/ops/scripts/semaphore_set.lua");
const DRAIN: &str = include_str!("../../src/ops/scripts/semaphore_drain.lua");
const ACQUIRE: &str = include_str!("../../src/ops/scripts/permits_acquire.lua");
const RELEASE: &str = include_str!("../../src/ops/scripts/permits_release.lua");
const SET: &str = include_str!("../../src/ops/scripts/permits_set.lua");
const LEASE: &str = include_str!("../../src/ops/scripts/permits_lease.lua");
const SET_COUNT: &str = include_str!("../../src/ops/scripts/latch_set.lua");
const COUNT_DOWN: &str = include_str!("../../src/ops/scripts/latch_count_down.lua");
const DELETE: &str = include_str!("../../src/ops/scripts/latch_delete.lua");

/// Aims a fault at the next run of a script.
fn on(setup: &ProxiedServer, script: &'static str, fault: Fault) -> Aim {
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(script)]).text();
    let is = move |request: &Request| request.name() == "EVALSHA" && request.argument(1) == hash;
    setup.proxy.on(is, fault)
}

/// Loses the reply of the next run of a script, and waits until that was needed.
fn with_a_lost_reply<T>(
    setup: &ProxiedServer,
    script: &'static str,
    call: impl FnOnce() -> T,
) -> T {
    let aim = on(setup, script, Fault::ResetBeforeReply);
    let result = call();
    assert_eq!(aim.hits(), 1);
    result
}

fn number(setup: &ProxiedServer, key: &str) -> String {
    setup.server.command(&["GET", key]).text()
}

/// The keys of the request sequences.
fn requests(setup: &ProxiedServer) -> Vec<String> {
    setup.server.command(&["KEYS", "wheellock_request:*"]).texts()
}

/// A client whose attempts end with the connection, long before their not-after.
fn patient(setup: &ProxiedServer) -> Client {
    built(setup.builder().command_timeout(Duration::from_secs(2)))
}

#[test]
fn semaphore_call_counts_once_despite_lost_reply() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let semaphore = client.semaphore("a");
    assert!(with_a_lost_reply(&setup, MAKE, || semaphore.try_set_permits(5).unwrap()));
    assert_eq!(number(&setup, "a"), "5");
    with_a_lost_reply(&setup, TAKE, || semaphore.acquire(2).map(SemaphoreGuard::forget).unwrap());
    assert_eq!(number(&setup, "a"), "3");
    assert!(with_a_lost_reply(&setup, TAKE, || semaphore.try_acquire(2).map(taken).unwrap()));
    assert_eq!(number(&setup, "a"), "1");
    with_a_lost_reply(&setup, ADD, || semaphore.release(1).unwrap());
    assert_eq!(number(&setup, "a"), "2");
    assert!(with_a_lost_reply(&setup, ADD, || semaphore.release_if_exists(3).unwrap()));
    assert_eq!(number(&setup, "a"), "5");
    with_a_lost_reply(&setup, ADD, || semaphore.add_permits(-1).unwrap());
    assert_eq!(number(&setup, "a"), "4");
    assert_eq!(with_a_lost_reply(&setup, DRAIN, || semaphore.drain_permits().unwrap()), 4);
    assert_eq!(number(&setup, "a"), "0");
    assert_eq!(client.stats().queued_releases, 0);
}

#[test]
fn request_key_has_limited_lifetime_and_slot_of_semaphore_name() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    client.semaphore("a").release(1).unwrap();
    client.semaphore("{t}b").release(1).unwrap();
    for (name, pattern) in
        [("a", "wheellock_request:{a}:*"), ("{t}b", "wheellock_request:4:{t}b:*")]
    {
        let keys = setup.server.command(&["KEYS", pattern]).texts();
        assert_eq!(keys.len(), 1, "of {name}: {keys:?}");
        let left = setup.ttl(&keys[0]);
        // Longer than all copies of a call may take, which is four command timeouts at most.
        assert!((60_000..=72_000).contains(&left), "{left} ms");
    }
}

#[test]
fn a_late_copy_of_an_acquire_that_was_granted_takes_nothing() {
    let setup = ProxiedServer::new();
    let semaphore = patient(&setup).semaphore("a");
    semaphore.try_set_permits(2).unwrap();
    let kept = on(&setup, TAKE, Fault::HoldRequest);
    let given_up = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| semaphore.acquire(1).map(SemaphoreGuard::forget));
        kept.wait_for_hit(SOON);
        setup.proxy.cut_all();
        acquire.join().unwrap()
    });
    given_up.unwrap();
    assert_eq!(number(&setup, "a"), "1");
    assert_eq!(kept.deliver().remove(0), Reply::Array(vec![Reply::Integer(1), Reply::Integer(1)]));
    assert_eq!(number(&setup, "a"), "1");
}

#[test]
fn late_copy_has_no_effect_after_next_call_of_sequence() {
    let setup = ProxiedServer::new();
    let semaphore = patient(&setup).semaphore("a");
    semaphore.try_set_permits(5).unwrap();
    let copy_of = |script, call: &(dyn Fn() + Sync)| {
        let kept = on(&setup, script, Fault::HoldRequest);
        std::thread::scope(|scope| {
            let call = scope.spawn(call);
            kept.wait_for_hit(SOON);
            setup.proxy.cut_all();
            call.join().unwrap();
        });
        kept
    };
    let release = copy_of(ADD, &|| semaphore.release(1).unwrap());
    // The same sequence, as one thread has one call at a time.
    let acquire = copy_of(TAKE, &|| semaphore.acquire(3).map(SemaphoreGuard::forget).unwrap());
    assert_eq!(requests(&setup).len(), 1);
    assert_eq!(number(&setup, "a"), "3");
    assert!(is_late(&release.deliver().remove(0)));
    assert_eq!(number(&setup, "a"), "3");
    assert_eq!(semaphore.drain_permits(), Ok(3));
    semaphore.release(4).unwrap();
    assert!(is_late(&acquire.deliver().remove(0)));
    assert_eq!(number(&setup, "a"), "4");
}

#[test]
fn a_busy_semaphore_has_as_many_request_keys_as_calls_at_once() {
    const THREADS: usize = 8;
    let setup = ProxiedServer::new();
    let (client, latch) = (setup.patient(), setup.patient().count_down_latch("l"));
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(u32::try_from(THREADS).unwrap()).unwrap();
    assert!(latch.try_set_count(1_000).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..100 {
                    semaphore.acquire(2).unwrap().forget();
                    semaphore.release(2).unwrap();
                    latch.count_down().unwrap();
                }
            });
        }
    });
    assert_eq!(number(&setup, "a"), THREADS.to_string());
    assert_eq!(number(&setup, "l"), "200");
    // Of the semaphore, the latch, and the call that made the latch, which is another client's.
    let keys = requests(&setup);
    assert!(keys.len() <= 2 * THREADS + 1, "{keys:?}");
}

#[test]
fn waiters_have_no_request_keys() {
    const WAITERS: usize = 20;
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(1).unwrap();
    semaphore.acquire(1).unwrap().forget();
    std::thread::scope(|scope| {
        for _ in 0..WAITERS {
            scope.spawn(|| {
                semaphore.acquire(1).unwrap().forget();
                semaphore.release(1).unwrap();
            });
        }
        wait_until("all wait", SOON, || client.stats().waiters == WAITERS);
        assert_eq!(requests(&setup).len(), 1, "of the two calls before");
        semaphore.release(1).unwrap();
    });
    assert_eq!(number(&setup, "a"), "1");
}

#[test]
fn undo_restores_permits_of_failed_acquire_after_later_calls() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(3).unwrap();
    let undo = on(&setup, UNDO, Fault::SwallowRequest).always();
    let take = on(&setup, TAKE, Fault::SwallowReply).always();
    assert!(semaphore.acquire(2).unwrap_err().is_outcome_unknown());
    take.withdraw();
    undo.wait_for_hit(SOON);
    for _ in 0..5 {
        semaphore.acquire(1).unwrap().forget();
        semaphore.release(1).unwrap();
    }
    assert_eq!(number(&setup, "a"), "1");
    undo.withdraw();
    wait_until("they are back", SOON, || number(&setup, "a") == "3");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn abandoned_semaphore_acquire_is_undone_in_background() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(3).unwrap();
    let aim = on(&setup, TAKE, Fault::SwallowReply).always();
    let error = semaphore.acquire(2).unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    aim.withdraw();
    wait_until("they are back", SOON, || number(&setup, "a") == "3");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(number(&setup, "a"), "3");
}

#[test]
fn a_guard_of_a_deleted_semaphore_is_lost_although_a_reply_was_lost() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(3).unwrap();
    let guard = semaphore.acquire(2).unwrap();
    setup.server.command(&["DEL", "a"]);
    let aim = on(&setup, ADD, Fault::SwallowReply);
    let error = guard.release().unwrap_err();
    aim.wait_for_hit(SOON);
    assert!(matches!(error, Error::Lost { reason: LostReason::Deleted, .. }), "{error}");
    assert_eq!(setup.server.size(), 1, "only the record of the call");
}

#[test]
fn a_drain_that_is_given_up_is_undone() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let semaphore = client.semaphore("a");
    for (free, late) in [("3", false), ("-2", true)] {
        setup.server.command(&["SET", "a", free]);
        let fault = if late { Fault::HoldRequest } else { Fault::SwallowReply };
        let aim = on(&setup, DRAIN, fault).always();
        let error = semaphore.drain_permits().unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        aim.withdraw();
        wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
        if late {
            aim.deliver();
        }
        assert_eq!(number(&setup, "a"), free);
    }
}

#[test]
fn an_undo_whose_reply_was_lost_gives_back_once() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(3).unwrap();
    let aim = on(&setup, TAKE, Fault::SwallowReply).always();
    let undo = on(&setup, UNDO, Fault::SwallowReply);
    assert!(semaphore.acquire(2).unwrap_err().is_outcome_unknown());
    aim.withdraw();
    undo.wait_for_hit(SOON);
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(number(&setup, "a"), "3");
}

#[test]
fn an_acquire_that_arrives_after_it_was_undone_takes_nothing() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let semaphore = client.semaphore("a");
    semaphore.try_set_permits(3).unwrap();
    let kept = on(&setup, TAKE, Fault::HoldRequest).always();
    let (cancel, cancelled) = crossbeam_channel::bounded(1);
    let error = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| {
            semaphore.try_acquire_with(2, Wait::forever().or_cancelled(&cancelled)).map(taken)
        });
        kept.wait_for_hit(SOON);
        cancel.send(()).unwrap();
        setup.proxy.cut_all();
        acquire.join().unwrap().unwrap_err()
    });
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    kept.withdraw();
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    for reply in kept.deliver() {
        assert_eq!(reply, Reply::Array(vec![Reply::Integer(0), Reply::Integer(3)]));
    }
    assert_eq!(number(&setup, "a"), "3");
}

#[test]
fn a_copy_that_arrives_after_its_not_after_does_nothing() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let semaphore = client.semaphore("a");
    let kept = on(&setup, ADD, Fault::HoldRequest);
    semaphore.release(1).unwrap();
    assert_eq!(number(&setup, "a"), "1");
    let keys = requests(&setup);
    // Even if it were not remembered any more.
    drop(setup.server.command(&["DEL", &keys[0]]));
    pause(crate::common::TIMEOUT);
    let reply = kept.deliver().remove(0);
    assert!(is_late(&reply), "{reply:?}");
    assert_eq!(number(&setup, "a"), "1");
}

#[test]
fn each_call_on_permits_counts_once_although_its_reply_was_lost() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let seats = client.expirable_semaphore("a").with_lease(Duration::from_secs(60));
    assert!(with_a_lost_reply(&setup, MAKE, || seats.try_set_permits(5).unwrap()));
    let permits = with_a_lost_reply(&setup, ACQUIRE, || seats.acquire_many(3).unwrap());
    assert_eq!(number(&setup, "a"), "2");
    assert!(permits.is_valid());
    let mut ids = permits.into_ids();
    with_a_lost_reply(&setup, RELEASE, || seats.release(&ids.remove(0)).unwrap());
    assert_eq!(number(&setup, "a"), "3");
    assert!(with_a_lost_reply(&setup, RELEASE, || seats.release_all(&ids).unwrap()));
    assert_eq!(number(&setup, "a"), "5");
    // The same call again is another call.
    assert!(!seats.release_all(&ids).unwrap());
    with_a_lost_reply(&setup, SET, || seats.set_permits(7).unwrap());
    assert_eq!(number(&setup, "a"), "7");
    with_a_lost_reply(&setup, ADD, || seats.add_permits(1).unwrap());
    assert_eq!(number(&setup, "a"), "8");
    let permit = seats.acquire().unwrap();
    let id = permit.id();
    assert!(with_a_lost_reply(&setup, LEASE, || seats.remove_lease(&id).unwrap()));
    with_a_lost_reply(&setup, RELEASE, || permit.release().unwrap());
    assert_eq!(number(&setup, "a"), "8");
}

#[test]
fn a_late_copy_of_an_acquire_takes_no_permit_after_the_release() {
    let setup = ProxiedServer::new();
    let client = patient(&setup);
    let seats = client.expirable_semaphore("a");
    seats.try_set_permits(2).unwrap();
    for by_id in [false, true] {
        let kept = on(&setup, ACQUIRE, Fault::HoldRequest);
        let permit = std::thread::scope(|scope| {
            let acquire = scope.spawn(|| seats.acquire().unwrap());
            kept.wait_for_hit(SOON);
            setup.proxy.cut_all();
            acquire.join().unwrap()
        });
        assert_eq!(number(&setup, "a"), "1");
        if by_id {
            seats.release(&permit.into_id()).unwrap();
        } else {
            permit.release().unwrap();
        }
        let none = Reply::Array(vec![Reply::Integer(0), Reply::Integer(2), Reply::Integer(-1)]);
        assert_eq!(kept.deliver().remove(0), none);
        assert_eq!(number(&setup, "a"), "2");
        assert_eq!(seats.acquired_permits().unwrap(), 0);
    }
}

#[test]
fn abandoned_permit_acquire_is_released_in_background() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let seats = client.expirable_semaphore("a");
    seats.try_set_permits(3).unwrap();
    let aim = on(&setup, ACQUIRE, Fault::SwallowReply).always();
    let error = seats.acquire_many(2).unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    aim.withdraw();
    wait_until("they are back", SOON, || number(&setup, "a") == "3");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(number(&setup, "a"), "3");
    assert!(!setup.exists("{a}:timeout"));
}

#[test]
fn permit_dropped_while_server_hangs_is_released_in_background() {
    let setup = ProxiedServer::new();
    let client = setup.client();
    let seats = client.expirable_semaphore("a");
    seats.try_set_permits(1).unwrap();
    let permit = seats.acquire().unwrap();
    setup.server.pause();
    let ((), took) = crate::common::timed(|| drop(permit));
    setup.server.resume();
    assert!(took < crate::common::TIMEOUT + crate::common::SLACK, "{took:?}");
    wait_until("it is back", SOON, || number(&setup, "a") == "1");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
}

#[test]
fn each_call_of_a_latch_counts_once_although_its_reply_was_lost() {
    let setup = ProxiedServer::new();
    let latch = patient(&setup).count_down_latch("a");
    assert!(with_a_lost_reply(&setup, SET_COUNT, || latch.try_set_count(3).unwrap()));
    with_a_lost_reply(&setup, COUNT_DOWN, || latch.count_down().unwrap());
    assert_eq!(latch.count().unwrap(), 2);
    assert!(with_a_lost_reply(&setup, DELETE, || latch.delete().unwrap()));
    assert_eq!(latch.count().unwrap(), 0);
}

#[test]
fn a_late_copy_of_a_delete_does_not_delete_the_next_latch() {
    let setup = ProxiedServer::new();
    let latch = patient(&setup).count_down_latch("a");
    latch.try_set_count(3).unwrap();
    let kept = on(&setup, DELETE, Fault::HoldRequest);
    let deleted = std::thread::scope(|scope| {
        let delete = scope.spawn(|| latch.delete().unwrap());
        kept.wait_for_hit(SOON);
        setup.proxy.cut_all();
        delete.join().unwrap()
    });
    assert!(deleted);
    latch.try_set_count(5).unwrap();
    assert!(is_late(&kept.deliver().remove(0)));
    assert_eq!(latch.count().unwrap(), 5);
}

#[test]
fn in_memory_lost_reply_is_unknown_outcome_and_permits_return() {
    let memory = Memory::new();
    let client = built(Client::builder().in_memory(&memory));
    let (semaphore, seats) = (client.semaphore("a"), client.expirable_semaphore("b"));
    semaphore.try_set_permits(3).unwrap();
    seats.try_set_permits(3).unwrap();
    memory.lose_replies(true);
    assert!(semaphore.acquire(2).unwrap_err().is_outcome_unknown());
    assert!(seats.acquire().unwrap_err().is_outcome_unknown());
    memory.lose_replies(false);
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    assert_eq!((seats.available_permits(), seats.acquired_permits()), (Ok(3), Ok(0)));
}

#[test]
fn a_copy_of_a_refused_acquire_takes_nothing_for_the_waiter() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(Duration::from_secs(2)));
    let rival = setup.rival();
    rival.semaphore("s").try_set_permits(1).unwrap();
    rival.semaphore("s").acquire(1).unwrap().forget();
    let script = include_str!("../../src/ops/scripts/semaphore_acquire.lua");
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(script)]).text();
    std::thread::scope(|scope| {
        // Before it in the line, and wanting more than there will be.
        let first = scope.spawn(|| client.semaphore("s").try_acquire_for(2, SOON / 2).map(taken));
        wait_until("the first waits", SOON, || client.stats().waiters == 1);
        let is_seconds = move |request: &Request| {
            request.name() == "EVALSHA" && request.argument(1) == hash && request.argument(6) == "1"
        };
        let kept = setup.proxy.on(is_seconds, Fault::HoldRequest);
        let second = scope.spawn(|| client.semaphore("s").try_acquire_for(1, SOON / 4).map(taken));
        kept.wait_for_hit(SOON);
        setup.proxy.cut_all();
        wait_until("the second was refused", SOON, || client.stats().waiters == 2);
        // A permit becomes free without a message, and the copy arrives before any other try.
        setup.server.command(&["INCRBY", "s", "1"]);
        kept.deliver();
        setup.server.command(&["PUBLISH", "redisson_sc:{s}", "1"]);
        assert_eq!(second.join().unwrap(), Ok(true));
        assert_eq!(first.join().unwrap(), Ok(false));
    });
}
