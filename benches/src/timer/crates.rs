//! Timers of crates.io that have a thread of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{
    ClosureTimer, OneShotClosureState, PeriodicClosureState, Timer as _,
};

use crate::harness::clock::sleep;
use crate::timer::bench_timer::{BenchTimer, PERIOD};
use crate::timer::record::fired;

type Reference = TimerRef<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>;

/// The thread timer of `hierarchical_hash_wheel_timer`.
#[derive(Clone)]
pub(crate) struct Hierarchical(Reference);

/// Its users name timeouts, and names are unique.
static NAMES: AtomicU64 = AtomicU64::new(0);

impl Hierarchical {
    fn once(&mut self, delay: Duration, task: impl FnOnce() + Send + 'static) -> u64 {
        let name = NAMES.fetch_add(1, Ordering::Relaxed);
        self.0.schedule_action_once(name, delay, move |_| task());
        name
    }
}

impl BenchTimer for Hierarchical {
    type Handle = u64;

    fn start(_buckets: usize) -> Self {
        let timer = TimerWithThread::new().expect("the system gives a thread");
        Self(Box::leak(Box::new(timer)).timer_ref())
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> u64 {
        self.once(delay, move || fired(number))
    }

    fn cancel(&mut self, handle: u64) {
        self.0.cancel(&handle);
    }

    fn absorb(&mut self, _timeouts: u64) {
        wait_for_marker(|mark| {
            self.once(Duration::ZERO, mark);
        });
    }

    fn free(&mut self) {
        self.absorb(0);
    }

    fn arm(&mut self, deadline: Instant) {
        let mut own = self.clone();
        let delay = deadline.saturating_duration_since(crate::harness::clock::now());
        self.once(delay, move || own.arm(deadline + PERIOD));
    }
}

/// The crate `timer`.
#[derive(Clone)]
pub(crate) struct TimerCrate(&'static timer::Timer);

impl TimerCrate {
    fn once(&self, delay: Duration, task: impl FnMut() + Send + 'static) -> timer::Guard {
        let delay = chrono::Duration::from_std(delay).expect("delays are short");
        self.0.schedule_with_delay(delay, task)
    }
}

impl BenchTimer for TimerCrate {
    type Handle = timer::Guard;

    fn start(_buckets: usize) -> Self {
        Self(Box::leak(Box::new(timer::Timer::new())))
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> timer::Guard {
        self.once(delay, move || fired(number))
    }

    fn cancel(&mut self, handle: timer::Guard) {
        drop(handle);
    }

    fn leave(handle: timer::Guard) {
        handle.ignore();
    }

    fn absorb(&mut self, _timeouts: u64) {
        wait_for_marker(|mark| self.once(Duration::ZERO, mark).ignore());
    }

    fn free(&mut self) {}

    fn arm(&mut self, deadline: Instant) {
        let own = self.clone();
        let delay = deadline.saturating_duration_since(crate::harness::clock::now());
        self.once(delay, move || own.clone().arm(deadline + PERIOD)).ignore();
    }
}

/// Waits until a timeout that is due at once has fired. It comes after all that was sent before.
fn wait_for_marker(schedule: impl FnOnce(Box<dyn FnMut() + Send>)) {
    let seen = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&seen);
    schedule(Box::new(move || mark.store(true, Ordering::Relaxed)));
    while !seen.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1));
    }
}
