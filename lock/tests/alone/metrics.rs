//! With the feature `metrics`, a client's counters reach the program's recorder.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ran_in_a_child;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use wheellock::{Client, ManualClock, Memory, SystemClock};
use wheellock_fixture::wait_until;

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
fn renewals_and_losses_reach_the_recorder_under_their_documented_names() {
    if ran_in_a_child(renewals_and_losses_reach_the_recorder_under_their_documented_names) {
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

    let waiter = Client::builder().in_memory(&memory).clock(Arc::new(SystemClock)).build();
    let waiter = waiter.unwrap_or_else(|error| panic!("{error}"));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("b").lock().map(drop));
        wait_until("a waiter", Duration::from_secs(10), || waiter.stats().waiters == 1);
        wait_until("that is published", Duration::from_secs(10), || {
            level("wheellock_waiters") == 1.0_f64.to_bits()
        });
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
