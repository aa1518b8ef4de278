//! With the feature `metrics`, a recorder of the program that panics costs no lock.

#![cfg(feature = "metrics")]
#![expect(clippy::panic, reason = "what this test is about")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::in_memory::InMemory;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use wheellock::LostReason;

/// Counts how often it has panicked.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicU64>);

impl Panics {
    fn panic(&self) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("the recorder breaks, as this test wants it");
    }
}

impl CounterFn for Panics {
    fn increment(&self, _: u64) {
        self.panic();
    }

    fn absolute(&self, _: u64) {
        self.panic();
    }
}

impl HistogramFn for Panics {
    fn record(&self, _: f64) {
        self.panic();
    }
}

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == "wheellock_renewals_total" {
            self.panic();
        }
        Counter::from_arc(Arc::new(self.clone()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(self.clone()))
    }
}

#[test]
fn a_recorder_that_panics_costs_no_hold_and_hides_no_loss() {
    let panics = Panics::default();
    assert!(metrics::set_global_recorder(panics.clone()).is_ok());
    let world = InMemory::new();
    let client = world.client();
    let guards = ["a", "b", "c"].map(|name| client.lock(name).lock().unwrap());
    world.clock.advance(Duration::from_secs(25));
    world.memory.delete("a");
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(guards[0].lost().try_recv(), Ok(LostReason::Deleted));
    assert!(guards[1].is_held() && guards[2].is_held());
    world.memory.set_unreachable(true);
    world.clock.advance(Duration::from_secs(31));
    for guard in &guards[1..] {
        assert_eq!(guard.lost().try_recv(), Ok(LostReason::ServerUnreachable));
    }
    let stats = client.stats();
    assert_eq!((stats.lost, stats.panics), (3, 0));
    assert!(stats.renewed >= 7 && stats.unanswered_renewals > 0, "{stats:?}");
    assert!(panics.0.load(Ordering::SeqCst) > 10);
}
