//! Ways to keep a timeout and to take it back: the floor, both timers of hashed-wheel, and what else one might take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{BatchTimer, HashedWheelTimer, Timeout, TimerKey};
use parking_lot::{Condvar, Mutex};

use crate::clock::now;

/// Something that keeps timeouts.
pub trait Timer: Send + Sync + 'static {
    /// What names one timeout.
    type Handle: Send;

    /// What it is called in tables.
    const NAME: &'static str;

    /// Starts it, with nothing pending.
    fn start() -> Self;

    /// Keeps a timeout.
    fn schedule(&self, delay: Duration) -> Self::Handle;

    /// Takes it back.
    fn cancel(&self, handle: Self::Handle);
}

/// The floor: what no timer can do without is to read the clock, and to lock what it shares with its thread.
#[derive(Debug)]
pub struct Floor(Mutex<Option<Instant>>);

impl Timer for Floor {
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
pub struct Batch(BatchTimer<u64>);

impl Timer for Batch {
    type Handle = TimerKey;
    const NAME: &'static str = "BatchTimer<u64>";

    fn start() -> Self {
        let timer = HashedWheelTimer::builder().build_batch(|_: &mut Vec<u64>| {});
        Self(timer.expect("the system gives a thread"))
    }

    fn schedule(&self, delay: Duration) -> TimerKey {
        self.0.schedule(delay, 7).expect("it has no bound and runs")
    }

    fn cancel(&self, handle: TimerKey) {
        self.0.cancel(handle).expect("it is pending");
    }
}

/// The timer of hashed-wheel that runs closures, with a closure that holds as much as most do.
#[derive(Debug)]
pub struct Boxed(HashedWheelTimer);

impl Timer for Boxed {
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
            .expect("it has no bound and runs")
    }

    fn cancel(&self, handle: Timeout) {
        assert!(handle.cancel(), "it is pending");
    }
}

/// What one writes by hand: an ordered map behind a lock, and a thread that sleeps to the first entry.
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

impl Timer for OrderedMap {
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

/// The channels of crossbeam that get a message after a while. They have no thread: whoever waits on one keeps the time.
#[derive(Debug)]
pub struct After;

impl Timer for After {
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
