//! One renewal attempt: how long it may take, and how many scripts are in flight.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{ProxiedServer, SLACK, SOON, Script, built, pause, timed};
use crossbeam_channel::Receiver;
use hashed_wheel::Parker;
use wheellock::{Clock, LockGuard, ManualClock};
use wheellock_fixture::{Aim, Fault};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// A manual clock on which the renewal thread sees time pass between any two readings, as if all
/// that it did took so long.
#[derive(Debug)]
struct Slow {
    clock: ManualClock,
    by: Duration,
    readings: AtomicU32,
}

impl Slow {
    fn new(clock: &ManualClock, by: Duration) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), by, readings: AtomicU32::new(0) })
    }
}

impl Clock for Slow {
    fn now(&self) -> Instant {
        let here = thread::current();
        let read = u32::from(here.name() == Some("lock-renewal"));
        let before = self.readings.fetch_add(read, Ordering::SeqCst);
        self.clock.now() + self.by * before * read
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        self.clock.park(parker, deadline, interrupt);
    }
}

/// How long an attempt takes that is never answered, after some that were and seemed to take
/// `round_trip`.
fn attempt(lease: Duration, round_trip: Duration) -> Duration {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    let slow = Slow::new(&clock, round_trip);
    let builder = setup.builder().command_timeout(SECOND * 10).watchdog_lease(lease).clock(slow);
    let client = built(builder);
    let guard = client.lock("a").lock().unwrap();
    clock.jump(lease / 3);
    assert_eq!(client.stats().renewed, 1);
    let unanswered = setup.proxy.on(setup.is_any(Script::Renew), Fault::SwallowReply).always();
    // The renewal thread's time is ahead by some readings.
    let ((), took) = timed(|| clock.jump(lease / 3 + round_trip * 4));
    assert_eq!((client.stats().unanswered_renewals, unanswered.hits()), (1, 1));
    assert!(guard.is_held());
    took
}

#[track_caller]
fn assert_about(took: Duration, expected: Duration) {
    assert!(took >= expected && took < expected + SLACK, "{took:?} and not {expected:?}");
}

#[test]
fn an_attempt_has_a_tenth_of_the_lease() {
    assert_about(attempt(SECOND * 12, Duration::ZERO), SECOND * 12 / 10);
}

#[test]
fn an_attempt_has_a_quarter_of_a_second_however_short_the_lease() {
    assert_about(attempt(SECOND, Duration::ZERO), SECOND / 4);
}

#[test]
fn an_attempt_has_four_recent_round_trips() {
    assert_about(attempt(SECOND * 2, SECOND / 5), SECOND * 4 / 5);
}

#[test]
fn an_attempt_has_three_seconds_at_most_however_long_the_lease() {
    assert_about(attempt(SECOND * 60, Duration::ZERO), SECOND * 3);
}

#[test]
fn a_flushed_script_is_sent_again_within_its_attempt() {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    // Long, as an answer that a busy machine reads too late may count.
    let timeout = SECOND;
    let lease = timeout * 10;
    let builder = setup.builder().command_timeout(timeout).watchdog_lease(lease);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guard = client.lock("a").lock().unwrap();
    setup.server.command(&["SCRIPT", "FLUSH"]);
    // Each answer comes in time, the two together do not.
    setup.proxy.delay_replies(timeout * 3 / 4);
    clock.jump(lease / 3);
    let stats = client.stats();
    assert_eq!((stats.unanswered_renewals, stats.renewed), (1, 0));
    // The server has learnt the script meanwhile.
    setup.proxy.delay_replies(Duration::ZERO);
    clock.jump(lease / 8);
    assert_eq!(client.stats().renewed, 1);
    assert!(guard.is_held());
}

/// What two hundred and fifty holds, ten scripts' worth, have on their way when the second script
/// is held up.
struct Scene {
    setup: ProxiedServer,
    clock: ManualClock,
    guards: Vec<LockGuard>,
}

impl Scene {
    fn new(round_trip: Duration) -> Self {
        let setup = ProxiedServer::new();
        let clock = ManualClock::new();
        let slow = Slow::new(&clock, round_trip);
        let client = built(setup.builder().command_timeout(SECOND * 3).clock(slow));
        let guards =
            (0..250).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
        Self { setup, clock, guards }
    }

    /// Looks at what is held up while all are renewed.
    fn renew(&self, look: impl FnOnce(&Aim)) {
        let is_renewal = self.setup.is_any(Script::Renew);
        let mut renewals = 0;
        let matcher = move |request: &_| {
            renewals += u32::from(is_renewal(request));
            is_renewal(request) && renewals > 1
        };
        let held_up = self.setup.proxy.on(matcher, Fault::HoldRequest).always();
        thread::scope(|scope| {
            let renewing = scope.spawn(|| self.clock.jump(LEASE / 3));
            held_up.wait_for_hit(SOON);
            look(&held_up);
            held_up.withdraw();
            held_up.deliver();
            renewing.join().unwrap();
        });
        let behind = self.guards.iter().filter(|guard| guard.remaining() < LEASE * 4 / 5).count();
        assert_eq!(behind, 0);
    }
}

#[test]
fn up_to_ten_scripts_go_together_once_answers_are_slow() {
    Scene::new(SECOND / 50).renew(|held_up| held_up.wait_for_hits(9, SOON));
}

#[test]
fn only_one_script_is_in_flight_while_answers_are_quick() {
    Scene::new(Duration::ZERO).renew(|held_up| {
        held_up.wait_for_hits(1, SOON);
        pause(SECOND / 10);
        // The first one of all went on.
        assert_eq!(held_up.hits(), 1);
    });
}
