//! Renewal, loss and lateness on a manual clock: hours pass in microseconds.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::in_memory::InMemory;
use wheellock::{Client, Clock, Error, LostReason};

const SECOND: Duration = Duration::from_secs(1);

/// Watches a held lock for ten leases and answers the least it had to live, looked at a thousand
/// times.
fn least_time_to_live(setup: &InMemory, lease: Duration) -> Duration {
    let step = lease / 100;
    (0..1000)
        .map(|_| {
            setup.clock.advance(step);
            setup.time_to_live("a")
        })
        .min()
        .unwrap()
}

#[test]
fn default_lease_of_30_s_is_renewed_every_10_s_and_keeps_20_s() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    let least = least_time_to_live(&setup, SECOND * 30);
    assert!(least >= SECOND * 20, "{least:?}");
    // Every ten seconds and up to a second early, for three hundred seconds.
    let renewed = client.stats().renewed;
    assert!((30..=34).contains(&renewed), "{renewed} renewals");
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn a_lease_of_60_s_is_renewed_every_20_s() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND * 60);
    let guard = client.lock("a").lock().unwrap();
    let least = least_time_to_live(&setup, SECOND * 60);
    assert!(least >= SECOND * 40, "{least:?}");
    let renewed = client.stats().renewed;
    assert!((30..=34).contains(&renewed), "{renewed} renewals");
    drop(guard);
}

#[test]
fn the_shortest_watched_lease_is_renewed() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(Duration::from_millis(100));
    let guard = client.lock("a").lock().unwrap();
    assert!(least_time_to_live(&setup, Duration::from_millis(100)) > Duration::ZERO);
    assert!(guard.is_held());
}

#[test]
fn a_lease_of_its_own_is_never_renewed_and_ends_by_itself() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").with_lease(SECOND * 10).lock().unwrap();
    // The margin is one hundredth and 2 ms.
    setup.clock.advance(Duration::from_millis(9897));
    assert!(guard.is_held());
    assert!(guard.lost().is_empty());
    setup.clock.advance(Duration::from_millis(1));
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // The holder stops believing before the server does.
    assert!(setup.time_to_live("a") > Duration::ZERO);
    setup.clock.advance(Duration::from_millis(102));
    assert_eq!(setup.time_to_live("a"), Duration::ZERO);
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Expired));
    assert_eq!(client.stats().renewed, 0);
}

#[test]
fn a_loss_is_reported_within_a_tick_of_expiry() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").with_lease(SECOND * 10).lock().unwrap();
    let lost = guard.lost().clone();
    setup.clock.advance(Duration::from_millis(9898));
    assert!(!guard.is_held());
    setup.clock.advance(Duration::from_millis(10));
    assert_eq!(lost.try_recv(), Ok(LostReason::Expired));
}

#[test]
fn a_process_that_paused_past_its_lease_sees_the_loss_at_once() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    setup.clock.jump(SECOND * 31);
    assert!(!guard.is_held());
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Paused));
    setup.memory.set_unreachable(false);
    let next = rival.lock("a").try_lock().unwrap().unwrap();
    assert!(matches!(guard.unlock(), Err(Error::Lost { reason: LostReason::Paused, .. })));
    assert!(next.is_held());
    assert_eq!(setup.memory.fields("a").len(), 1);
}

#[test]
fn a_deleted_or_flushed_key_is_reported_at_the_next_renewal() {
    let setup = InMemory::new();
    let client = setup.client();
    let guards = ["a", "b"].map(|name| client.lock(name).lock().unwrap());
    setup.memory.delete("a");
    assert!(guards[0].is_held());
    setup.clock.advance(SECOND * 10);
    assert!(!guards[0].is_held());
    assert_eq!(guards[0].lost().try_recv(), Ok(LostReason::Deleted));
    assert!(guards[1].is_held());
    setup.memory.flush_all();
    setup.clock.advance(SECOND * 10);
    assert_eq!(guards[1].lost().try_recv(), Ok(LostReason::Deleted));
    assert_eq!(client.stats().lost, 2);
}

#[test]
fn an_overwritten_key_is_reported_and_does_not_affect_others() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let guards = ["a", "b", "c"].map(|name| client.lock(name).lock().unwrap());
    setup.memory.delete("a");
    let taken = rival.lock("a").lock().unwrap();
    setup.memory.put_text("b");
    setup.clock.advance(SECOND * 10);
    assert_eq!(guards[0].lost().try_recv(), Ok(LostReason::TakenOver));
    assert_eq!(guards[1].lost().try_recv(), Ok(LostReason::TakenOver));
    assert!(guards[2].is_held());
    assert!(taken.is_held());
}

#[test]
fn unreachable_server_is_retried_until_validity_ends_in_loss() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    setup.clock.advance(Duration::from_millis(29_600));
    assert!(guard.is_held());
    assert!(client.stats().unanswered_renewals > 5);
    setup.clock.advance(Duration::from_millis(110));
    assert!(!guard.is_held());
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::ServerUnreachable));
}

#[test]
fn a_server_that_comes_back_in_time_loses_nothing() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    setup.clock.advance(SECOND * 25);
    setup.memory.set_unreachable(false);
    setup.clock.advance(SECOND * 60);
    assert!(guard.is_held());
    assert!(guard.lost().is_empty());
    guard.unlock().unwrap();
}

#[test]
fn unanswered_renewal_extends_no_validity_and_key_is_released() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.memory.lose_replies(true);
    setup.clock.advance(SECOND * 29);
    setup.memory.set_unreachable(true);
    setup.clock.advance(SECOND * 2);
    assert!(!guard.is_held());
    // The server did renew, and keeps the key. The release is queued, and done once the server
    // answers again.
    assert!(setup.time_to_live("a") > SECOND * 20);
    assert_eq!(client.stats().queued_releases, 1);
    setup.memory.set_unreachable(false);
    setup.memory.lose_replies(false);
    setup.clock.advance(SECOND * 5);
    assert_eq!(setup.time_to_live("a"), Duration::ZERO);
    assert_eq!(client.stats().queued_releases, 0);
    drop(guard);
}

#[test]
fn an_acquire_whose_reply_is_lost_leaves_nothing_behind() {
    let setup = InMemory::new();
    let client = setup.client();
    setup.memory.lose_replies(true);
    let clock = setup.clock.clone();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| client.lock("a").try_lock().map(drop));
        // Its pauses between attempts are on the clock.
        wheellock_fixture::wait_until("it gave up", SECOND * 20, || {
            clock.advance(Duration::from_millis(100));
            caller.is_finished()
        });
        let error = caller.join().unwrap().unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
    });
    assert_eq!(client.stats().held, 0);
    setup.memory.lose_replies(false);
    setup.clock.advance(SECOND * 10);
    assert_eq!(setup.time_to_live("a"), Duration::ZERO);
    assert_eq!(client.stats().queued_releases, 0);
}

#[test]
fn after_an_unlock_nothing_is_renewed() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    client.lock("a").lock().unwrap().unlock().unwrap();
    let taken = rival.lock("a").with_lease(SECOND * 30).lock().unwrap();
    setup.clock.advance(SECOND * 29);
    assert_eq!(client.stats().renewed, 0);
    assert!(setup.time_to_live("a") <= SECOND);
    drop(taken);
}

#[test]
fn a_hold_is_renewed_as_long_as_one_of_its_guards_is_watched() {
    let setup = InMemory::new();
    let client = setup.client();
    let leased = client.lock("a").with_lease(SECOND * 20).lock().unwrap();
    let watched = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 100);
    assert!(leased.is_held() && watched.is_held());
    let before = setup.time_to_live("a");
    watched.unlock().unwrap();
    assert_eq!(setup.time_to_live("a"), before);
    // From here on it is not renewed, and expires.
    setup.clock.advance(SECOND * 30);
    assert!(!leased.is_held());
    assert_eq!(leased.lost().try_recv(), Ok(LostReason::Expired));
}

#[test]
fn the_other_way_round_the_watched_guard_keeps_its_watchdog() {
    let setup = InMemory::new();
    let client = setup.client();
    let watched = client.lock("a").lock().unwrap();
    let leased = client.lock("a").with_lease(SECOND).lock().unwrap();
    assert!(setup.time_to_live("a") > SECOND * 20);
    leased.unlock().unwrap();
    setup.clock.advance(SECOND * 100);
    assert!(watched.is_held());
}

#[test]
fn repeated_short_nested_leases_do_not_delay_renewal() {
    let setup = InMemory::new();
    let client = setup.client();
    let watched = client.lock("a").lock().unwrap();
    for _ in 0..30 {
        setup.clock.advance(SECOND * 5);
        client.lock("a").with_lease(SECOND).lock().unwrap().unlock().unwrap();
        assert!(watched.is_held());
        assert!(setup.time_to_live("a") >= SECOND * 15);
    }
}

#[test]
fn a_nested_lease_that_is_longer_prolongs_the_hold() {
    let setup = InMemory::new();
    let client = setup.client();
    let short = client.lock("a").with_lease(SECOND * 10).lock().unwrap();
    let long = client.lock("a").with_lease(SECOND * 50).lock().unwrap();
    setup.clock.advance(SECOND * 40);
    assert!(short.is_held() && long.is_held());
    assert!(short.lost().is_empty());
    drop(long);
    setup.clock.advance(SECOND * 10);
    assert!(!short.is_held());
}

/// The most renewals in one tick, while the clock moves on by `duration`.
fn most_in_a_tick(setup: &InMemory, client: &Client, duration: Duration) -> u64 {
    const TICK: Duration = Duration::from_millis(10);
    let mut before = client.stats().renewed;
    let mut most = 0;
    for _ in 0..duration.as_millis() / TICK.as_millis() {
        setup.clock.advance(TICK);
        let renewed = client.stats().renewed;
        most = most.max(renewed - before);
        before = renewed;
    }
    most
}

fn many(client: &Client, count: usize) -> Vec<wheellock::LockGuard> {
    (0..count).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect()
}

#[test]
fn renewals_share_scripts_and_send_at_most_two_at_a_time() {
    for (count, most) in [(20, 20), (1000, 50)] {
        let setup = InMemory::new();
        let client = setup.client();
        let guards = many(&client, count);
        setup.clock.advance(SECOND * 20);
        let before = client.stats();
        let at_once = most_in_a_tick(&setup, &client, SECOND * 20);
        assert!(at_once <= most, "{at_once} of {count} in one tick");
        let scripts = client.stats().renewal_scripts - before.renewal_scripts;
        let renewed = client.stats().renewed - before.renewed;
        assert!(scripts <= renewed / 15, "{renewed} renewals in {scripts} scripts");
        assert!(guards.iter().all(wheellock::LockGuard::is_held));
    }
}

#[test]
fn burst_of_ten_thousand_renewals_is_spread_after_two_periods() {
    let setup = InMemory::new();
    let client = setup.client();
    let guards = many(&client, 10_000);
    setup.clock.advance(SECOND * 20);
    // A turn of 50 ms carries 50 on average, in one tick.
    let at_once = most_in_a_tick(&setup, &client, SECOND * 12);
    assert!(at_once <= 100, "{at_once} in one tick");

    // A process that stood still has them all due at once.
    let before = client.stats().renewed;
    setup.clock.jump(SECOND * 15);
    let together = client.stats().renewed - before;
    assert!(together > 9000, "{together} together");
    setup.clock.advance(SECOND * 20);
    let at_once = most_in_a_tick(&setup, &client, SECOND * 12);
    assert!(at_once <= 100, "{at_once} in one tick");
    assert!(guards.iter().all(wheellock::LockGuard::is_held));
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn waiter_with_lost_message_retries_after_poll_bound() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let guard = client.lock("a").lock().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = rival.lock("a").lock().unwrap();
            (setup.clock.now(), guard.unlock())
        });
        wheellock_fixture::wait_until("it waits", SECOND * 20, || rival.stats().waiters == 1);
        setup.clock.wait_until_idle();
        setup.memory.lose_messages(true);
        let released = setup.clock.now();
        guard.unlock().unwrap();
        setup.clock.advance(Duration::from_millis(1001));
        let (owned, unlocked) = waiter.join().unwrap();
        unlocked.unwrap();
        assert!(owned - released <= Duration::from_millis(1001), "{:?}", owned - released);
    });
}

#[test]
fn a_timed_wait_ends_at_its_deadline_and_not_before() {
    let setup = InMemory::new();
    let (client, rival) = (setup.client(), setup.client());
    let _guard = client.lock("a").lock().unwrap();
    let start = setup.clock.now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let refused = rival.lock("a").try_lock_for(SECOND * 3600).unwrap().is_none();
            (setup.clock.now() - start, refused)
        });
        wheellock_fixture::wait_until("it waits", SECOND * 20, || rival.stats().waiters == 1);
        setup.clock.wait_until_idle();
        setup.clock.advance(SECOND * 3600);
        assert_eq!(waiter.join().unwrap(), (SECOND * 3600, true));
    });
}
