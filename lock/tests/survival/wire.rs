//! Ten thousand held locks whose renewals fail on the wire: connections that end in the middle of a
//! batch, half a reply, half a request, flushed scripts. Nothing is lost.

#![expect(clippy::print_stdout, reason = "what it cost is worth reading")]

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::common::fleet::{
    Fleet, LIMIT, MANY, Strangers, UNHARMED, assert_no_orphan, other_names,
};
use crate::common::{ProxiedServer, Script};
use wheellock::ManualClock;
use wheellock_fixture::{Aim, Fault, Server, wait_until};

/// Of clients on a manual clock, where it takes no time. The server's clock is the real one, and a
/// busy machine may take longer than half a minute from one renewal to the next.
const LEASE: Duration = Duration::from_secs(300);

/// Ten thousand locks behind a proxy, and another client's locks past it.
struct Scene {
    setup: ProxiedServer,
    strangers: Strangers,
    clock: ManualClock,
}

impl Scene {
    fn new() -> (Self, Fleet) {
        let setup = ProxiedServer::new();
        let strangers = Strangers::take(&setup.server, &other_names());
        let patient = setup.builder().command_timeout(Duration::from_secs(3));
        let (fleet, clock) = Fleet::take_on_manual_clock(patient.watchdog_lease(LEASE));
        (Self { setup, strangers, clock }, fleet)
    }

    /// Aims at the renewal script that runs after `after` others.
    fn on_renewal(&self, after: usize, fault: Fault) -> Aim {
        let is_renewal = self.setup.is_any(Script::Renew);
        let mut left = after;
        let matcher = move |request: &_| {
            let is_meant = is_renewal(request) && left == 0;
            if is_renewal(request) {
                left = left.saturating_sub(1);
            }
            is_meant
        };
        self.setup.proxy.on(matcher, fault)
    }

    /// All are due at once, and a failed attempt has time for a second one. Then all are renewed.
    fn renew_all(&self, fleet: &mut Fleet) {
        self.clock.jump(LEASE / 3);
        // The pause between two attempts is a tenth of the lease at most.
        self.clock.advance(LEASE / 10 + Duration::from_millis(20));
        fleet.assert_all_held_have(LEASE * 4 / 5);
        assert_eq!(fleet.look(), UNHARMED);
    }

    /// Each of these faults meets one script in the midst of a hundred.
    fn meet(mut self, mut fleet: Fleet, faults: &[Fault]) {
        for (round, fault) in faults.iter().enumerate() {
            let unanswered = fleet.client.stats().unanswered_renewals;
            // At another place in its batch each time.
            let aim = self.on_renewal(40 + round, fault.clone());
            self.renew_all(&mut fleet);
            assert_eq!(aim.hits(), 1, "{fault:?}");
            let failed = fleet.client.stats().unanswered_renewals - unanswered;
            assert!(failed > 0, "{fault:?}");
            println!("{fault:?}: {failed} scripts failed, nothing lost");
            self.strangers.assert_intact();
        }
        self.end(fleet);
    }

    fn end(mut self, fleet: Fleet) {
        fleet.assert_no_hold_is_valid_without_a_key(&mut self.setup.server.connection());
        let ended = fleet.release_all();
        self.strangers.assert_intact();
        assert_no_orphan(&self.setup.server, &ended, &[&self.strangers]);
        self.strangers.assert_intact();
    }
}

#[test]
fn truncated_replies_lose_nothing() {
    let (scene, fleet) = Scene::new();
    // A reply to a hundred keys has about four hundred bytes.
    let faults = [0, 1, 5, 6, 8, 50, 203].map(Fault::CutReplyAfter);
    scene.meet(fleet, &faults);
}

#[test]
fn truncated_requests_lose_nothing() {
    let (scene, fleet) = Scene::new();
    let faults = [0, 1, 4, 100, 1500].map(Fault::CutRequestAfter);
    scene.meet(fleet, &faults);
}

#[test]
fn connections_reset_in_the_middle_of_a_batch_lose_nothing() {
    let (scene, fleet) = Scene::new();
    scene.meet(fleet, &[Fault::ResetBeforeRequest, Fault::ResetBeforeReply]);
}

#[test]
fn a_connection_killed_in_the_middle_of_a_batch_loses_nothing() {
    let (scene, mut fleet) = Scene::new();
    let server = &scene.setup.server;
    let others = connections(server);
    let aim = scene.on_renewal(45, Fault::HoldRequest);
    let ran = server.command_calls("evalsha");
    thread::scope(|scope| {
        let renewing = scope.spawn(|| scene.clock.jump(LEASE / 3));
        aim.wait_for_hit(LIMIT);
        wait_until("the server has run what came before", LIMIT, || {
            server.command_calls("evalsha") - ran >= 45
        });
        let of_renewals: Vec<_> = connections(server).difference(&others).cloned().collect();
        assert!(!of_renewals.is_empty(), "the renewals have a connection of their own");
        for id in &of_renewals {
            assert_eq!(server.command(&["CLIENT", "KILL", "ID", id]).integer(), 1);
        }
        renewing.join().unwrap_or_else(|_| panic!("time stood still"));
    });
    scene.clock.advance(LEASE / 10 + Duration::from_millis(20));
    fleet.assert_all_held_have(LEASE * 4 / 5);
    assert_eq!(fleet.look(), UNHARMED);
    let failed = fleet.client.stats().unanswered_renewals;
    assert!(failed > 0);
    println!("killed connection: {failed} scripts failed, nothing lost");
    scene.renew_all(&mut fleet);
    scene.end(fleet);
}

#[test]
fn ten_milliseconds_more_per_round_trip_lose_nothing() {
    let setup = ProxiedServer::new();
    let mut strangers = Strangers::take(&setup.server, &other_names());
    let patient = setup.builder().command_timeout(Duration::from_secs(3));
    // On the real clock, as it is the real time of a round trip that counts.
    let mut fleet = Fleet::take(patient.watchdog_lease(Duration::from_secs(6)));
    setup.proxy.delay_replies(Duration::from_millis(10));
    let renewed = fleet.client.stats().renewed + 3 * MANY as u64;
    fleet.look_until("all were renewed three times", |fleet, toll| {
        assert_eq!(toll, UNHARMED);
        fleet.client.stats().renewed >= renewed
    });
    let stats = fleet.client.stats();
    assert_eq!(stats.lost, 0, "{stats:?}");
    println!(
        "10 ms more: {} renewals in {} scripts, late {:?}, nothing lost",
        stats.renewed, stats.renewal_scripts, stats.renewal_lateness,
    );
    setup.proxy.delay_replies(Duration::ZERO);
    fleet.assert_no_hold_is_valid_without_a_key(&mut setup.server.connection());
    let ended = fleet.release_all();
    assert_no_orphan(&setup.server, &ended, &[&strangers]);
    strangers.assert_intact();
}

/// The ids of the connections that the server has, but for that which asks.
fn connections(server: &Server) -> BTreeSet<String> {
    let mut connection = server.connection();
    let own = connection.command(&["CLIENT", "ID"]).integer().to_string();
    let list = connection.command(&["CLIENT", "LIST"]).text();
    let ids = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
    ids.filter(|id| *id != own).map(str::to_owned).collect()
}

#[test]
fn scripts_flushed_between_batches_lose_nothing() {
    let (scene, mut fleet) = Scene::new();
    let is_renewal = scene.setup.is_any(Script::Renew);
    let mut operator = scene.setup.server.connection();
    let mut seen = 0;
    let forgotten = scene.setup.proxy.on(
        move |request| {
            seen += usize::from(is_renewal(request));
            let is_meant = is_renewal(request) && seen % 7 == 0;
            if is_meant {
                // Before the server gets it, and after it got some others.
                operator.command(&["SCRIPT", "FLUSH"]);
            }
            is_meant
        },
        Fault::PassOn,
    );
    let forgotten = forgotten.always();
    for _ in 0..3 {
        scene.renew_all(&mut fleet);
    }
    // In the steady state too: small batches, spread over a second.
    scene.clock.advance(LEASE / 3);
    fleet.assert_all_held_have(LEASE * 3 / 5);
    assert_eq!(fleet.look(), UNHARMED);
    let stats = fleet.client.stats();
    assert!(stats.renewed >= 4 * MANY as u64, "{stats:?}");
    println!("forgotten {} times: {} renewals, nothing lost", forgotten.hits(), stats.renewed);
    assert!(forgotten.hits() >= 40, "{} flushes", forgotten.hits());
    scene.end(fleet);
}
