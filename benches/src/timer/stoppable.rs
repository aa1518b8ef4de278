//! The timers of the criterion benchmarks. They can be started and stopped any number of times in
//! one process, which a [`BenchTimer`](crate::timer::bench_timer::BenchTimer) cannot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{BatchTimer, HashedWheelTimer, Timeout, TimerKey};
use parking_lot::{Condvar, Mutex};

use crate::harness::clock::now;

/// Schedules and cancels timeouts. It stops when it is dropped.
pub trait StoppableTimer: Send + Sync + 'static {
    /// Identifies one timeout.
    type Handle: Send;

    /// Its name in tables.
    const NAME: &'static str;

    /// Starts it, with nothing pending.
    fn start() -> Self;

    /// Schedules a timeout.
    fn schedule(&self, delay: Duration) -> Self::Handle;

    /// Cancels it.
    fn cancel(&self, handle: Self::Handle);
}

/// The floor: every timer reads the clock, and locks what it shares with its thread.
#[derive(Debug)]
pub struct ClockAndLock(Mutex<Option<Instant>>);

impl StoppableTimer for ClockAndLock {
    type Handle = ();
    const NAME: &'static str = "floor: clock and lock";

    fn start() -> Self {
        Self(Mutex::new(None))
    }

    fn schedule(&self, delay: Duration) {
        *self.0.lock() = Some(now() + delay);
    }

    fn cancel(&self, (): ()) {
        *self.0.lock() = None;
    }
}

/// The typed timer of hashed-wheel.
#[derive(Debug)]
pub struct StoppableBatch(BatchTimer<u64>);

impl StoppableTimer for StoppableBatch {
    type Handle = TimerKey;
    const NAME: &'static str = "BatchTimer<u64>";

    fn start() -> Self {
        let timer = HashedWheelTimer::builder().build_batch(|_: &mut Vec<u64>| {});
        Self(timer.expect("the system gives a thread"))
    }

    fn schedule(&self, delay: Duration) -> TimerKey {
        self.0.schedule(delay, 7).expect("the timer runs")
    }

    fn cancel(&self, handle: TimerKey) {
        self.0.cancel(handle).expect("it is pending");
    }
}

/// The timer of hashed-wheel that runs closures, with a closure of 32 bytes.
#[derive(Debug)]
pub struct StoppableBoxed(HashedWheelTimer);

impl StoppableTimer for StoppableBoxed {
    type Handle = Timeout;
    const NAME: &'static str = "HashedWheelTimer";

    fn start() -> Self {
        Self(HashedWheelTimer::builder().build().expect("the system gives a thread"))
    }

    fn schedule(&self, delay: Duration) -> Timeout {
        let held = [delay; 2];
        self.0
            .schedule(delay, move || {
                std::hint::black_box(held);
            })
            .expect("the timer runs")
    }

    fn cancel(&self, handle: Timeout) {
        assert!(handle.cancel(), "it is pending");
    }
}

/// A timer as one writes it by hand: an ordered map behind a lock, and a thread that sleeps until
/// the first deadline.
#[derive(Debug)]
pub struct OrderedMap {
    shared: Arc<Shared>,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeMap<(Instant, u64), u64>,
    stopping: bool,
}

impl StoppableTimer for OrderedMap {
    type Handle = (Instant, u64);
    const NAME: &'static str = "ordered map and condvar";

    fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let ticker = Arc::clone(&shared);
        let thread = thread::Builder::new().spawn(move || ticker.run());
        let thread = Some(thread.expect("the system gives a thread"));
        Self { shared, next: AtomicU64::new(0), thread }
    }

    fn schedule(&self, delay: Duration) -> (Instant, u64) {
        let key = (now() + delay, self.next.fetch_add(1, Ordering::Relaxed));
        let mut state = self.shared.state.lock();
        let first = state.pending.first_key_value().is_none_or(|(first, _)| key < *first);
        state.pending.insert(key, 7);
        drop(state);
        if first {
            self.shared.changed.notify_one();
        }
        key
    }

    fn cancel(&self, handle: (Instant, u64)) {
        self.shared.state.lock().pending.remove(&handle).expect("it is pending");
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            match state.pending.first_key_value().map(|(key, _)| key.0) {
                None => self.changed.wait(&mut state),
                Some(first) if first <= now() => {
                    state.pending.pop_first();
                }
                Some(first) => {
                    self.changed.wait_until(&mut state, first);
                }
            }
        }
    }
}

impl Drop for OrderedMap {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("its thread does not panic");
        }
    }
}

/// The channels of crossbeam that receive a message after a delay. They have no thread: the
/// receiver keeps the time.
#[derive(Debug)]
pub struct CrossbeamAfter;

impl StoppableTimer for CrossbeamAfter {
    type Handle = Receiver<Instant>;
    const NAME: &'static str = "crossbeam after";

    fn start() -> Self {
        Self
    }

    fn schedule(&self, delay: Duration) -> Receiver<Instant> {
        crossbeam_channel::after(delay)
    }

    fn cancel(&self, handle: Receiver<Instant>) {
        drop(handle);
    }
}
