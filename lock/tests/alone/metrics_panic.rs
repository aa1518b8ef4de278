//! With the feature `metrics`, a recorder that panics loses no lock.

#![expect(clippy::panic, reason = "what this test is about")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::in_memory::InMemory;
use crate::common::{SLACK, SOON, built, timed};
use crate::ran_in_a_child;
use crossbeam_channel::Receiver;
use hashed_wheel::Parker;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use wheellock::{Client, Clock, LostReason, Memory, SystemClock};
use wheellock_fixture::wait_until;

/// What a panic may carry at worst: dropping it panics too.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload breaks, as this test wants it");
    }
}

/// Counts how often it has panicked.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicU64>);

impl Panics {
    fn panic(&self) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::panic::panic_any(Bomb);
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
fn a_recorder_that_panics_loses_no_hold_and_hides_no_loss() {
    if ran_in_a_child(a_recorder_that_panics_loses_no_hold_and_hides_no_loss) {
        return;
    }
    let panics = Panics::default();
    assert!(metrics::set_global_recorder(panics.clone()).is_ok());
    let setup = InMemory::new();
    let client = setup.client();
    let guards = ["a", "b", "c"].map(|name| client.lock(name).lock().unwrap());
    setup.clock.advance(Duration::from_secs(25));
    setup.memory.delete("a");
    setup.clock.advance(Duration::from_secs(10));
    assert_eq!(guards[0].lost().try_recv(), Ok(LostReason::Deleted));
    assert!(guards[1].is_held() && guards[2].is_held());
    setup.memory.set_unreachable(true);
    setup.clock.advance(Duration::from_secs(31));
    for guard in &guards[1..] {
        assert_eq!(guard.lost().try_recv(), Ok(LostReason::ServerUnreachable));
    }
    let stats = client.stats();
    assert_eq!((stats.lost, stats.panics), (3, 0));
    assert!(stats.renewed >= 7 && stats.unanswered_renewals > 0, "{stats:?}");
    assert!(panics.0.load(Ordering::SeqCst) > 10);
}

/// The system's clock, on which the thread that publishes cannot sleep more than once.
#[derive(Debug, Default)]
struct Sleepless(AtomicU64);

impl Clock for Sleepless {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        if thread::current().name() == Some("lock-metrics") {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::panic::panic_any(Bomb);
        }
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn panic_of_clock_on_metrics_thread_ends_only_metrics_thread() {
    if ran_in_a_child(panic_of_clock_on_metrics_thread_ends_only_metrics_thread) {
        return;
    }
    let clock = Arc::new(Sleepless::default());
    let memory = Memory::with_clock(clock.clone());
    let client = built(Client::builder().in_memory(&memory));
    wait_until("the clock has panicked", SOON, || clock.0.load(Ordering::SeqCst) == 1);
    wait_until("that is counted", SOON, || client.stats().panics == 1);
    let guard = client.lock("a").lock().unwrap();
    assert!(guard.is_held());
    drop(guard);
    let (report, took) = timed(|| client.shutdown(SOON));
    assert!(report.unreleased.is_empty() && took < SLACK, "{took:?}");
}
