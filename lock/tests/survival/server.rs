//! Ten thousand held locks while the server is stopped, killed, flushed, full or busy: what is
//! lost, and that every loss is reported.

#![expect(clippy::print_stdout, reason = "how many were lost is worth reading")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::common::fleet::{
    ALL_TOLD, FEW, Fleet, LIMIT, MANY, Strangers, UNHARMED, assert_no_orphan, other_names,
    some_names,
};
use crate::common::now;
use wheellock::{Client, ClientBuilder, Error, LostReason};
use wheellock_fixture::{Proxy, Server, wait_until};

/// Of clients on a manual clock, where it takes no time. The server's clock is the real one, and a
/// busy machine may take longer than half a minute from one renewal to the next.
const LEASE: Duration = Duration::from_secs(300);

/// Where the server's own time counts, and so the real one does. A tenth of it, for an attempt, is
/// long enough for a busy machine to renew ten thousand.
const SHORT_LEASE: Duration = Duration::from_secs(24);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(&server.url())
}

/// Takes the locks on the real clock, lets them come into step, and returns when the first are
/// about to be renewed once more: no other moment is worse for what comes next.
fn take_with_lease(server: &Server, lease: Duration) -> Fleet {
    let mut fleet = Fleet::take(builder(server).watchdog_lease(lease));
    let renewed = fleet.client.stats().renewed + MANY as u64;
    fleet.look_until("all were renewed", |fleet, _| fleet.client.stats().renewed >= renewed);
    fleet.look_until("the first have but two thirds of their lease left", |fleet, toll| {
        assert_eq!(toll, UNHARMED);
        let first = fleet.seen().iter().map(|seen| seen.ends).min();
        first.is_some_and(|first| first < now() + lease * 7 / 10)
    });
    fleet
}

// The server gives no answer for a while.

/// A time in which the server did not answer.
struct Outage {
    /// No request that was sent later was answered during it.
    began: Instant,
    /// It had not ended by then.
    lasted_until: Instant,
    /// It had ended by then.
    answered: Instant,
}

/// Looks on while the server does not answer, until `over`.
fn look_on(fleet: &mut Fleet, lease: Duration, began: Instant, over: impl Fn(usize) -> bool) {
    let mut at = now();
    fleet.look_until("the server goes on", |_, toll| {
        // Whatever was granted was asked for before the outage began. `at` is from before this
        // look.
        assert!(at < began + lease || toll.held == 0, "{} believe without an answer", toll.held);
        at = now();
        over(toll.told)
    });
}

/// What the outage may have cost, and what it cost.
fn count_the_lost(fleet: &mut Fleet, lease: Duration, outage: &Outage) -> usize {
    let before: Vec<_> = fleet.seen().iter().map(|seen| seen.ends).collect();
    let toll = fleet.look_until("each is renewed or lost", |fleet, _| {
        let mut holds = fleet.seen().iter().zip(&before);
        holds.all(|(seen, before)| seen.reason.is_some() || seen.ends > *before)
    });
    // An attempt takes a tenth of the lease at most.
    let attempt = lease / 10;
    let lost_in_time: Vec<_> = fleet
        .seen()
        .iter()
        .filter(|seen| seen.reason.is_some() && seen.ends > outage.answered + attempt)
        .map(|seen| seen.ends - outage.answered)
        .collect();
    assert!(
        lost_in_time.is_empty(),
        "{} were lost though the server answered in time, one {:?} before its end",
        lost_in_time.len(),
        lost_in_time.iter().max(),
    );
    let ended = before.iter().filter(|ends| **ends < outage.lasted_until).count();
    assert!(toll.told >= ended, "{ended} ended and {} are told", toll.told);
    assert_eq!(toll.held + toll.told, MANY);
    // On a busy machine it takes long to look at all of them. That a loss is reported in time is
    // shown on a manual clock (topic `watchdog`).
    assert!(fleet.told_late < lease, "a holder was told {:?} late", fleet.told_late);
    println!(
        "after {:?} without an answer: {} lost ({:?}), at most {} allowed, told within {:?}",
        outage.lasted_until - outage.began,
        toll.told,
        fleet.reasons(),
        before.iter().filter(|ends| **ends <= outage.answered + attempt).count(),
        fleet.told_late,
    );
    toll.told
}

fn lost(reasons: &HashMap<LostReason, usize>) -> usize {
    reasons.values().sum()
}

/// Stops the server until `over`, and answers how many holds that cost, and why.
fn stop_the_server(
    lease: Duration,
    over: impl Fn(Duration, usize) -> bool,
) -> HashMap<LostReason, usize> {
    let server = Server::start();
    let mut strangers = Strangers::take(&server, &other_names());
    let mut fleet = take_with_lease(&server, lease);
    server.pause();
    let began = now();
    look_on(&mut fleet, lease, began, |told| over(now() - began, told));
    let lasted_until = now();
    server.resume();
    server.command(&["PING"]);
    let outage = Outage { began, lasted_until, answered: now() };
    fleet.assert_no_hold_is_valid_without_a_key(&mut server.connection());
    count_the_lost(&mut fleet, lease, &outage);
    let reasons = fleet.reasons();
    fleet.assert_no_hold_is_valid_without_a_key(&mut server.connection());
    strangers.assert_intact();
    let ended = fleet.release_all();
    assert_no_orphan(&server, &ended, &[&strangers]);
    strangers.assert_intact();
    reasons
}

#[test]
fn a_server_stopped_for_a_third_of_the_lease_loses_nothing() {
    let reasons = stop_the_server(SHORT_LEASE, |stopped, _| stopped >= SHORT_LEASE / 3);
    assert_eq!(lost(&reasons), 0);
}

#[test]
fn server_stop_of_two_thirds_of_lease_loses_only_expired_holds() {
    // What was due when it stopped has just that long, less the margins: a few may be lost, and more
    // on a busy machine. `count_the_lost` asserts that none is lost that has more time left.
    stop_the_server(SHORT_LEASE, |stopped, _| stopped >= SHORT_LEASE * 2 / 3);
}

#[test]
fn reconnect_after_a_quarter_expired_keeps_remaining_holds() {
    // On a manual clock: on the real one, a busy machine may not look between the end of the first
    // half and the end of the second.
    const STEPS: u32 = 60;
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let mut strangers = Strangers::take(&server, &other_names());
    let client = Client::builder().url(&proxy.url()).watchdog_lease(LEASE);
    let (mut fleet, clock) = Fleet::take_in_halves_on_manual_clock(client, LEASE / 6);
    proxy.close_port(true);
    proxy.cut_all();
    (0..STEPS * 2)
        .take_while(|_| fleet.look().told < MANY / 4)
        .for_each(|_| clock.advance(LEASE / STEPS));
    proxy.close_port(false);
    // The pause between two attempts is a tenth of the lease at most.
    clock.advance(LEASE / 10);
    let toll = fleet.look();
    println!("{toll:?}: {:?}", fleet.reasons());
    // Only the first half had less left than an attempt takes.
    assert!((MANY / 4..=MANY / 2).contains(&toll.told), "{toll:?}");
    assert_eq!(toll.held + toll.told, MANY);
    fleet.assert_all_held_have(LEASE * 4 / 5);
    fleet.assert_no_hold_is_valid_without_a_key(&mut server.connection());
    strangers.assert_intact();
    let ended = fleet.release_all();
    assert_no_orphan(&server, &ended, &[&strangers]);
    strangers.assert_intact();
}

#[test]
fn server_stop_of_full_lease_reports_all_losses_before_resume() {
    let reasons =
        stop_the_server(SHORT_LEASE, |stopped, told| stopped >= SHORT_LEASE && told == MANY);
    assert_eq!(lost(&reasons), MANY);
}

#[test]
fn no_hold_ends_untried_while_the_server_hangs() {
    let reasons = stop_the_server(SHORT_LEASE, |_, told| told == MANY);
    // "Expired" would mean that two thirds of the lease were not enough to send one renewal.
    assert_eq!(reasons, HashMap::from([(LostReason::ServerUnreachable, MANY)]));
}

#[test]
fn a_foreign_script_that_blocks_for_two_seconds_loses_nothing() {
    const BLOCKED: Duration = Duration::from_secs(2);
    // From then on the server says that it is busy, so that the script can be ended.
    let limit = BLOCKED.as_millis().to_string();
    let server = Server::builder().argument("--lua-time-limit", limit).start();
    let lease = SHORT_LEASE;
    let mut strangers = Strangers::take(&server, &other_names());
    let mut fleet = take_with_lease(&server, lease);
    let mut operator = server.connection();
    let mut busy = server.connection();
    busy.send(&["EVAL", "while true do end", "0"]).unwrap_or_default();
    let began = now();
    look_on(&mut fleet, lease, began, |_| now() - began >= BLOCKED);
    let lasted_until = now();
    wait_until("the script ends", LIMIT, || {
        let killed = !operator.command(&["SCRIPT", "KILL"]).is_error();
        killed || !operator.command(&["PING"]).is_error()
    });
    let outage = Outage { began, lasted_until, answered: now() };
    assert!(busy.receive().is_ok_and(|reply| reply.is_error()), "the script went on");
    assert_eq!(count_the_lost(&mut fleet, lease, &outage), 0);
    fleet.assert_no_hold_is_valid_without_a_key(&mut server.connection());
    strangers.assert_intact();
    let ended = fleet.release_all();
    assert_no_orphan(&server, &ended, &[&strangers]);
    strangers.assert_intact();
}

// The server loses its keys.

/// All are lost, each with its reason, and newer holders of the same locks keep them.
fn assert_all_lost_to(heirs: &mut Strangers, server: &Server, mut fleet: Fleet) {
    assert_eq!(fleet.look(), ALL_TOLD);
    let reasons = fleet.reasons();
    println!("all keys gone: {reasons:?}");
    assert_eq!(reasons.get(&LostReason::TakenOver), Some(&FEW), "{reasons:?}");
    assert_eq!(reasons.get(&LostReason::Deleted), Some(&(MANY - FEW)), "{reasons:?}");
    heirs.assert_intact();
    let ended = fleet.release_all();
    heirs.assert_intact();
    assert_no_orphan(server, &ended, &[heirs]);
    heirs.assert_intact();
}

#[test]
fn flushall_reports_all_losses_and_keeps_newer_locks() {
    let server = Server::start();
    let (mut fleet, clock) = Fleet::take_on_manual_clock(builder(&server).watchdog_lease(LEASE));
    server.command(&["FLUSHALL"]);
    let mut heirs = Strangers::take(&server, &some_names());
    assert_eq!(fleet.look(), UNHARMED);
    clock.advance(LEASE / 3);
    assert_all_lost_to(&mut heirs, &server, fleet);
}

#[test]
fn empty_restart_reports_all_losses_and_keeps_newer_locks() {
    let server = Server::start();
    let (mut fleet, clock) = Fleet::take_on_manual_clock(builder(&server).watchdog_lease(LEASE));
    server.kill();
    clock.advance(LEASE / 3);
    assert!(fleet.client.stats().unanswered_renewals > 0);
    // There are two thirds of the lease in which the server may come back.
    assert_eq!(fleet.look(), UNHARMED);
    server.start_again();
    let mut heirs = Strangers::take(&server, &some_names());
    // The pause between two attempts is a tenth of the lease at most.
    clock.advance(LEASE / 10);
    assert_all_lost_to(&mut heirs, &server, fleet);
}

// The server has no memory left.

#[test]
fn a_server_without_memory_renews_and_releases_all() {
    let server = Server::start();
    let mut strangers = Strangers::take(&server, &other_names());
    let (mut fleet, clock) = Fleet::take_on_manual_clock(builder(&server).watchdog_lease(LEASE));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..3 {
        clock.advance(LEASE / 3);
        fleet.assert_all_held_have(LEASE * 3 / 5);
    }
    assert_eq!(fleet.look(), UNHARMED);
    let stats = fleet.client.stats();
    assert!(stats.renewed >= 3 * MANY as u64, "{stats:?}");
    assert_eq!(stats.unanswered_renewals, 0);
    fleet.assert_no_hold_is_valid_without_a_key(&mut server.connection());
    let refused = fleet.client.lock("one more").try_lock().map(drop);
    assert!(matches!(&refused, Err(Error::Refused { code, .. }) if code == "OOM"), "{refused:?}");
    strangers.assert_intact();
    let ended = fleet.release_all();
    println!("without memory: {} renewals, {} lost", stats.renewed, stats.lost);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_no_orphan(&server, &ended, &[&strangers]);
    strangers.assert_intact();
}
