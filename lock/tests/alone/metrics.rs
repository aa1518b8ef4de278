//! With the feature `metrics`, a client's counters reach the program's recorder.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::takings::taken;
use crate::ran_in_a_child;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use wheellock::{Client, Error, Fault, ManualClock, Memory, SemaphoreGuard, Wait};
use wheellock_fixture::{Server, wait_until};

/// Adds everything up by name and labels.
#[derive(Clone, Default)]
struct Sums(Arc<Mutex<BTreeMap<String, f64>>>);

/// One of the sums.
struct Sum(Sums, String);

impl Sums {
    fn add(&self, name: &str, value: f64) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sums.entry(name.to_owned()).or_default() += value;
    }

    fn of(&self, name: &str) -> f64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied().unwrap_or_default()
    }

    fn sum(&self, key: &Key) -> Arc<Sum> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Sum(
            self.clone(),
            [&[key.name().to_owned()], labels.as_slice()].concat().join(" "),
        ))
    }
}

impl CounterFn for Sum {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn increment(&self, value: u64) {
        self.0.add(&self.1, value as f64);
    }

    fn absolute(&self, _value: u64) {}
}

impl GaugeFn for Sum {
    fn increment(&self, value: f64) {
        self.0.add(&self.1, value);
    }

    fn decrement(&self, value: f64) {
        self.0.add(&self.1, -value);
    }

    fn set(&self, _value: f64) {}
}

impl HistogramFn for Sum {
    fn record(&self, value: f64) {
        self.0.add(&self.1, value);
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.sum(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.sum(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.sum(key))
    }
}

/// Lets the time pass after which everything is published.
fn publish(clock: &ManualClock) {
    clock.advance(Duration::from_secs(1));
}

#[test]
fn renewals_and_losses_are_recorded_under_documented_names() {
    if ran_in_a_child(renewals_and_losses_are_recorded_under_documented_names) {
        return;
    }
    let sums = Sums::default();
    assert!(metrics::set_global_recorder(sums.clone()).is_ok());
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let built = Client::builder().in_memory(&memory).build();
    let client = built.unwrap_or_else(|error| panic!("{error}"));
    let guards: Vec<_> = ["a", "b"].map(|name| client.lock(name).lock()).into_iter().collect();
    assert!(guards.iter().all(Result::is_ok));
    clock.jump(Duration::from_secs(15));
    publish(&clock);
    assert_eq!(sums.of("wheellock_renewals_total").to_bits(), 2.0_f64.to_bits());
    assert_eq!(sums.of("wheellock_renewal_scripts_total").to_bits(), 1.0_f64.to_bits());
    let acquired = sums.of("wheellock_acquires_total kind=lock end=acquired");
    assert_eq!(acquired.to_bits(), 2.0_f64.to_bits());
    assert!(sums.of("wheellock_renewal_lateness_seconds") > 10.0, "five seconds each");
    memory.delete("a");
    memory.set_unreachable(true);
    clock.advance(Duration::from_secs(15));
    publish(&clock);
    assert!(sums.of("wheellock_renewal_scripts_unanswered_total") > 1.0);
    assert!(sums.of("wheellock_renewal_retries_total") > 2.0);
    memory.set_unreachable(false);
    clock.advance(Duration::from_secs(10));
    publish(&clock);
    assert_eq!(sums.of("wheellock_lost_total reason=deleted").to_bits(), 1.0_f64.to_bits());
    let level = |name: &str| sums.of(name).to_bits();
    assert_eq!(level("wheellock_held"), 1.0_f64.to_bits());

    // On a clock of its own: it does not poll while the store is unreachable.
    let own = ManualClock::new();
    let waiter = Client::builder().in_memory(&memory).clock(Arc::new(own.clone())).build();
    let waiter = waiter.unwrap_or_else(|error| panic!("{error}"));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("b").lock().map(drop));
        wait_until("a waiter", Duration::from_secs(10), || waiter.stats().waiters == 1);
        publish(&own);
        assert_eq!(level("wheellock_waiters"), 1.0_f64.to_bits());
        memory.set_unreachable(true);
        drop(guards);
        publish(&clock);
        assert_eq!(level("wheellock_queued_releases"), 1.0_f64.to_bits());
        memory.set_unreachable(false);
        clock.advance(Duration::from_secs(1));
        publish(&clock);
        assert_eq!(level("wheellock_queued_releases"), 0.0_f64.to_bits());
        assert!(waits.join().is_ok_and(|got| got.is_ok()));
    });
    assert_eq!(level("wheellock_held"), 0.0_f64.to_bits());
    // The other had to wait for the release, by its own clock; and the first was held for long by
    // the manual one.
    publish(&own);
    assert!(sums.of("wheellock_wait_seconds kind=lock") > 0.0);
    assert!(sums.of("wheellock_held_seconds kind=lock") > 30.0);
    assert!(waiter.stats().acquires.of("lock").contended == 1);
    // The end of a client publishes what is not published yet, and takes its levels back.
    let renewals = sums.of("wheellock_renewals_total");
    let guard = client.lock("c").lock();
    clock.jump(Duration::from_secs(15));
    client.shutdown(Duration::from_secs(10));
    assert_eq!(sums.of("wheellock_renewals_total").to_bits(), (renewals + 1.0).to_bits());
    drop((guard, client, waiter));
    assert_eq!(level("wheellock_waiters"), 0.0_f64.to_bits());
    assert_eq!(level("wheellock_held"), 0.0_f64.to_bits());
}

#[test]
fn warnings_and_connections_reach_the_recorder() {
    if ran_in_a_child(warnings_and_connections_reach_the_recorder) {
        return;
    }
    let sums = Sums::default();
    assert!(metrics::set_global_recorder(sums.clone()).is_ok());
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let client = Client::connect(&server.url()).unwrap();
    client.lock("a").lock().unwrap().unlock().unwrap();
    let made = client.stats().connections_made;
    client.shutdown(Duration::from_secs(10));
    assert!(made > 0);
    let made = u32::try_from(made).unwrap().into();
    assert_sums(
        &sums,
        &[
            ("wheellock_warnings_total warning=eviction", 1.0),
            ("wheellock_connections_total", made),
        ],
    );
}

/// A client in memory with a clock that only the test moves, and the sums of all metrics.
fn counted() -> (Client, ManualClock, Sums) {
    let clock = ManualClock::new();
    let (client, sums) = counted_in(&Memory::with_clock(Arc::new(clock.clone())));
    (client, clock, sums)
}

fn counted_in(memory: &Memory) -> (Client, Sums) {
    let sums = Sums::default();
    assert!(metrics::set_global_recorder(sums.clone()).is_ok());
    (Client::builder().in_memory(memory).build().unwrap(), sums)
}

fn assert_sums(sums: &Sums, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        assert_eq!(sums.of(name).to_bits(), value.to_bits(), "{name}: {}", sums.of(name));
    }
}

#[test]
fn acquires_and_times_carry_the_label_of_labelled_locks_only() {
    if ran_in_a_child(acquires_and_times_carry_the_label_of_labelled_locks_only) {
        return;
    }
    let (client, clock, sums) = counted();
    let labelled = client.lock("a").with_metrics_label("checkout");
    let guard = labelled.lock().unwrap();
    let nested = client.lock("a").with_metrics_label("nested").lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(labelled.try_lock().unwrap().is_none());
            assert!(client.lock("a").try_lock().unwrap().is_none());
        });
    });
    clock.jump(Duration::from_secs(5));
    drop((nested, guard));
    drop(client.fair_lock("b").with_metrics_label("checkout").lock().unwrap());
    drop(client.lock("c").lock().unwrap());
    publish(&clock);
    assert_sums(
        &sums,
        &[
            ("wheellock_acquires_total kind=lock end=acquired label=checkout", 1.0),
            ("wheellock_acquires_total kind=lock end=timed_out label=checkout", 1.0),
            ("wheellock_acquires_total kind=fair end=acquired label=checkout", 1.0),
            ("wheellock_acquires_total kind=lock end=acquired label=nested", 0.0),
            ("wheellock_acquires_total kind=lock end=acquired", 1.0),
            ("wheellock_acquires_total kind=lock end=timed_out", 1.0),
            ("wheellock_held_seconds kind=lock", 0.0),
        ],
    );
    assert!(sums.of("wheellock_held_seconds kind=lock label=checkout") >= 5.0);
    // Those of all labels together.
    let acquires = client.stats().acquires;
    assert_eq!((acquires.of("lock").acquired, acquires.of("lock").timed_out), (2, 2));
    assert_eq!((acquires.of("fair").acquired, acquires.total().acquired), (1, 3));
}

#[test]
fn handed_over_lock_is_counted_under_label_of_each_holder() {
    if ran_in_a_child(handed_over_lock_is_counted_under_label_of_each_holder) {
        return;
    }
    let (client, clock, sums) = counted();
    let guard = client.lock("a").with_metrics_label("first").lock().unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let guard = client.lock("a").with_metrics_label("second").lock().unwrap();
            clock.jump(Duration::from_secs(3));
            drop(guard);
        });
        wait_until("a waiter", Duration::from_secs(60), || client.stats().waiters == 1);
        clock.jump(Duration::from_secs(5));
        drop(guard);
        second.join().unwrap();
    });
    publish(&clock);
    assert_eq!(client.stats().hand_overs, 1);
    let of = |label: &str| {
        let labelled = |name: &str| sums.of(&format!("{name} label={label}"));
        let waited = labelled("wheellock_wait_seconds kind=lock");
        let held = labelled("wheellock_held_seconds kind=lock");
        // Histograms round up by at most an eighth.
        (labelled("wheellock_acquires_total kind=lock end=acquired"), waited, held)
    };
    let (acquired, waited, held) = of("first");
    assert!(acquired > 0.0 && waited < 1.0 && (5.0..6.0).contains(&held), "{:?}", of("first"));
    let (acquired, waited, held) = of("second");
    assert!(acquired > 0.0 && (5.0..6.0).contains(&waited), "{:?}", of("second"));
    assert!((3.0..4.0).contains(&held), "{held}");
}

#[test]
fn a_grant_that_comes_too_late_has_no_time_held() {
    if ran_in_a_child(a_grant_that_comes_too_late_has_no_time_held) {
        return;
    }
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let (client, sums) = counted_in(&memory);
    let seats = client.expirable_semaphore("seats").watched();
    assert!(seats.try_set_permits(1).unwrap());
    let longer_than_a_lease = Fault::Pause(Duration::from_secs(60));
    memory.fail_next(longer_than_a_lease);
    assert!(matches!(client.lock("a").try_lock(), Err(Error::Lost { .. })));
    memory.fail_next(longer_than_a_lease);
    assert!(matches!(seats.try_acquire(), Err(Error::Lost { .. })));
    publish(&clock);
    for kind in ["lock", "permit"] {
        assert_sums(
            &sums,
            &[
                (&format!("wheellock_acquires_total kind={kind} end=failed"), 1.0),
                (&format!("wheellock_acquires_total kind={kind} end=acquired"), 0.0),
                (&format!("wheellock_held_seconds kind={kind}"), 0.0),
            ],
        );
    }
}

#[test]
fn labels_beyond_the_first_64_are_counted_as_other() {
    if ran_in_a_child(labels_beyond_the_first_64_are_counted_as_other) {
        return;
    }
    let (client, clock, sums) = counted();
    let labels: Vec<&'static str> =
        (0..70).map(|number| &*format!("label {number}").leak()).collect();
    // In several threads at once, and each twice.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for label in &labels {
                    let lock = client.lock(label).with_metrics_label(label).sendable();
                    drop(lock.lock().unwrap());
                }
            });
        }
    });
    publish(&clock);
    let acquired = |label: &str| {
        sums.of(&format!("wheellock_acquires_total kind=lock end=acquired label={label}"))
    };
    assert!(acquired("other") > 11.0, "{}", acquired("other"));
    let told_apart = labels.iter().filter(|label| acquired(label) > 0.0).count();
    assert_eq!(told_apart, 64);
    assert_eq!(client.stats().acquires.of("lock").acquired, 140);
}

#[test]
fn permit_acquires_and_latch_waits_are_counted_by_kind() {
    if ran_in_a_child(permit_acquires_and_latch_waits_are_counted_by_kind) {
        return;
    }
    let (client, clock, sums) = counted();
    let semaphore = client.semaphore("semaphore");
    assert!(semaphore.try_set_permits(2).unwrap());
    semaphore.acquire(2).unwrap().forget();
    assert!(!semaphore.try_acquire(1).map(taken).unwrap());
    let cancel = crossbeam_channel::bounded(1);
    cancel.0.send(()).unwrap();
    let cancelled =
        semaphore.try_acquire_with(1, Wait::forever().or_cancelled(&cancel.1)).map(taken);
    assert!(matches!(cancelled, Err(Error::Cancelled { .. })), "{cancelled:?}");
    let seats = client.expirable_semaphore("seats").watched();
    assert!(seats.try_set_permits(2).unwrap());
    let permits = seats.acquire_many(2).unwrap();
    assert!(seats.try_acquire().unwrap().is_none());
    let latch = client.count_down_latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    assert!(!latch.wait_with(Wait::none()).unwrap());
    // Each waits for five seconds.
    std::thread::scope(|scope| {
        scope.spawn(|| semaphore.acquire(1).map(SemaphoreGuard::forget).unwrap());
        scope.spawn(|| drop(seats.acquire().unwrap()));
        scope.spawn(|| latch.wait().unwrap());
        wait_until("all wait", Duration::from_secs(60), || client.stats().waiters == 3);
        clock.jump(Duration::from_secs(5));
        semaphore.release(1).unwrap();
        drop(permits);
        latch.count_down().unwrap();
    });
    // That is no latch.
    let _guard = client.lock("lock").lock().unwrap();
    assert!(client.count_down_latch("lock").wait().is_err());
    publish(&clock);
    assert!(sums.of("wheellock_held_seconds kind=permit") >= 10.0, "two, for five seconds each");
    let acquires = client.stats().acquires;
    for kind in ["semaphore", "permit", "latch"] {
        let of_kind = acquires.of(kind);
        let metric =
            |end: &str| sums.of(&format!("wheellock_acquires_total kind={kind} end={end}"));
        for (end, count) in [
            ("acquired", of_kind.acquired),
            ("contended", of_kind.contended),
            ("timed_out", of_kind.timed_out),
            ("cancelled", of_kind.cancelled),
            ("failed", of_kind.failed),
        ] {
            let expected: u32 = match (kind, end) {
                ("semaphore" | "permit", "acquired") => 2,
                ("latch", "acquired" | "failed")
                | ("semaphore", "cancelled")
                | (_, "contended" | "timed_out") => 1,
                _ => 0,
            };
            assert_eq!(count, u64::from(expected), "{kind} {end}");
            assert_eq!(metric(end).to_bits(), f64::from(expected).to_bits(), "{kind} {end}");
        }
        let waited = sums.of(&format!("wheellock_wait_seconds kind={kind}"));
        assert!((5.0..7.0).contains(&waited), "{kind} {waited}");
    }
    assert_eq!(acquires.total().acquired, 5 + 1);
}
