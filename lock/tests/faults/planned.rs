//! Faults of single commands in memory: the client reacts as it does on a network.

use std::time::{Duration, Instant};

use crate::common::built;
use crate::common::in_memory::InMemory;
use wheellock::{Client, Clock, Error, Fault, Faults, LostReason};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Of one attempt. A call takes at most two.
const TIMEOUT: Duration = SECOND;

fn client(setup: &InMemory) -> Client {
    built(setup.builder().command_timeout(TIMEOUT))
}

/// A fault for each of the program's commands.
fn always(fault: Fault) -> Faults {
    (0..100).fold(Faults::new(), |faults, number| faults.on_command(number, fault))
}

#[test]
fn call_is_retried_after_fault_and_clock_shows_fault_duration() {
    let refusal = "LOADING Redis is loading the dataset in memory";
    for (fault, takes, commands) in [
        (Fault::LoseRequest, MILLISECOND * 10, 2),
        (Fault::LoseReply, MILLISECOND * 10, 2),
        (Fault::Unreachable, MILLISECOND * 10, 2),
        (Fault::Refuse(refusal), MILLISECOND * 10, 2),
        (Fault::Delay(MILLISECOND * 300), MILLISECOND * 300, 1),
        (Fault::Delay(SECOND * 60), TIMEOUT + MILLISECOND * 10, 2),
        (Fault::Pause(SECOND * 5), SECOND * 5, 1),
    ] {
        let setup = InMemory::new();
        let client = client(&setup);
        for end in ["unlock", "drop"] {
            setup.memory.set_faults(Faults::new().on_command(0, fault));
            let start = setup.clock.now();
            let guard = client.lock("a").lock().unwrap();
            assert_eq!(setup.clock.now() - start, takes, "{fault:?}");
            assert_eq!(setup.memory.commands(), commands, "{fault:?}");
            assert!(guard.is_held(), "{fault:?}");
            assert_eq!(setup.memory.fields("a").len(), 1, "{fault:?}");
            // And a release.
            setup.memory.fail_next(fault);
            if end == "unlock" {
                guard.unlock().unwrap();
            } else {
                drop(guard);
                setup.clock.advance(TIMEOUT * 2);
            }
            assert_eq!(setup.memory.fields("a"), [], "{fault:?}, {end}");
        }
    }
}

#[test]
fn lost_reply_means_unknown_outcome_and_grant_is_released() {
    for (fault, is_unknown) in [
        (Fault::LoseRequest, true),
        (Fault::LoseReply, true),
        (Fault::Delay(SECOND * 60), true),
        (Fault::Unreachable, false),
        (Fault::Refuse("READONLY You can't write against a read only replica."), false),
    ] {
        let setup = InMemory::new();
        let (client, rival) = (client(&setup), client(&setup));
        setup.memory.set_faults(always(fault));
        let start = setup.clock.now();
        let error = client.lock("a").lock().unwrap_err();
        assert!(setup.clock.now() - start <= TIMEOUT * 2, "{fault:?}");
        assert!(error.is_retryable(), "{fault:?}: {error}");
        assert_eq!(error.is_outcome_unknown(), is_unknown, "{fault:?}: {error}");
        setup.memory.set_faults(Faults::new());
        setup.clock.advance(TIMEOUT * 4);
        assert!(rival.lock("a").try_lock().unwrap().is_some(), "{fault:?}");
    }
}

#[test]
fn a_permanent_refusal_is_reported_at_once() {
    let setup = InMemory::new();
    let client = client(&setup);
    setup.memory.fail_next(Fault::Refuse("NOPERM no permission"));
    let error = client.lock("a").try_lock().unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "NOPERM"), "{error}");
    assert!(!error.is_retryable());
    assert_eq!(setup.memory.commands(), 1);
}

#[test]
fn a_grant_that_a_pause_outlasted_is_not_a_hold() {
    let setup = InMemory::new();
    let client = client(&setup);
    setup.memory.fail_next(Fault::Pause(SECOND * 40));
    let error = client.lock("a").lock().unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
    assert_eq!(setup.memory.fields("a"), []);
}

#[test]
fn a_pause_in_the_middle_of_the_work_loses_the_lock() {
    let setup = InMemory::new();
    let (client, rival) = (client(&setup), client(&setup));
    let outer = client.lock("a").lock().unwrap();
    setup.memory.fail_next(Fault::Pause(SECOND * 40));
    let inner = client.lock("b").lock();
    assert!(!outer.is_held());
    assert_eq!(outer.lost().try_recv(), Ok(LostReason::Paused));
    assert!(rival.lock("a").try_lock().unwrap().is_some());
    drop(inner);
}

#[test]
fn faults_of_renewals_change_no_number_of_the_programs_commands() {
    let setup = InMemory::new();
    let client = client(&setup);
    setup
        .memory
        .set_faults(Faults::new().on_renewal(0, Fault::LoseReply).on_renewal(2, Fault::LoseKey));
    let guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 10);
    assert!(guard.is_held() && client.stats().unanswered_renewals == 1);
    setup.clock.advance(SECOND * 20);
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Deleted));
    assert_eq!(setup.memory.commands(), 1);
}

#[test]
fn failover_with_lost_grant_is_reported_before_next_renewal() {
    let setup = InMemory::new();
    let (client, rival) = (client(&setup), client(&setup));
    let other = client.lock("b").lock().unwrap();
    // The renewal thread sleeps, and the takeover has to wake it.
    setup.clock.wait_until_idle();
    setup.memory.set_faults(Faults::new().on_command(1, Fault::FailOver { lost_writes: 1 }));
    let guard = client.lock("a").lock().unwrap();
    let taken = rival.lock("a").try_lock().unwrap();
    assert!(taken.is_some_and(|taken| taken.is_held()), "its key did not reach the replica");
    setup.clock.advance(SECOND);
    assert!(matches!(guard.lost().try_recv(), Ok(LostReason::Deleted | LostReason::TakenOver)));
    assert!(other.is_held());
}

#[test]
fn a_release_that_a_failover_loses_is_sent_again() {
    let setup = InMemory::new();
    let (client, rival) = (client(&setup), client(&setup));
    let _other = client.lock("b").lock().unwrap();
    setup.clock.wait_until_idle();
    setup.memory.set_faults(Faults::new().on_command(2, Fault::FailOver { lost_writes: 1 }));
    client.lock("a").lock().unwrap().unlock().unwrap();
    let refused = rival.lock("a").try_lock().unwrap();
    assert!(refused.is_none(), "its release did not reach the replica");
    setup.clock.advance(SECOND);
    assert!(rival.lock("a").try_lock().unwrap().is_some());
}

#[test]
fn failover_loses_only_writes_since_faults_were_set() {
    let setup = InMemory::new();
    let client = client(&setup);
    let _before = client.lock("a").lock().unwrap();
    setup.memory.set_faults(Faults::new().on_command(1, Fault::FailOver { lost_writes: 99 }));
    let _since = client.lock("b").lock().unwrap();
    assert!(!client.lock("c").is_locked().unwrap());
    assert_eq!(setup.memory.fields("a").len(), 1);
    assert_eq!(setup.memory.fields("b"), []);
}

#[test]
fn a_clock_that_is_set_ends_leases_earlier_or_later() {
    let setup = InMemory::new();
    let (client, rival) = (client(&setup), client(&setup));
    let guard = client.lock("a").with_lease(SECOND * 30).lock().unwrap();
    setup.memory.fail_next(Fault::ClockBack(SECOND * 5));
    assert!(rival.lock("a").try_lock().unwrap().is_none());
    assert_eq!(setup.time_to_live("a"), SECOND * 35);
    setup.memory.fail_next(Fault::ClockForward(SECOND * 36));
    let taken = rival.lock("a").try_lock().unwrap().unwrap();
    assert!(guard.is_held() && taken.is_held(), "only a fencing token helps");
}

#[test]
fn a_waiter_whose_message_is_lost_polls() {
    let setup = InMemory::new();
    let (client, rival) = (client(&setup), client(&setup));
    let guard = client.lock("a").lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            drop(rival.lock("a").lock().unwrap());
            setup.clock.now()
        });
        wheellock_fixture::wait_until("it waits", SECOND * 20, || rival.stats().waiters == 1);
        setup.clock.wait_until_idle();
        setup.memory.fail_next(Fault::LoseMessages);
        let released: Instant = setup.clock.now();
        guard.unlock().unwrap();
        setup.clock.wait_until_idle();
        assert_eq!(rival.stats().waiters, 1, "it has heard nothing");
        setup.clock.advance(SECOND);
        assert!(waiter.join().unwrap() - released <= SECOND);
    });
}
