//! The timer under load, on the real clock: ten million calls of eight threads while it runs. Every task is run exactly
//! once, cancelled exactly once, or given back at the end; none is early and none is lost.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a helper that fails fails its test; the numbers are small"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{BatchTimer, Clock, HashedWheelTimer, SystemClock, Timeout, TimerKey};

const THREADS: u64 = 8;
const CALLS_PER_THREAD: u64 = 1_250_000;
/// Handles that a thread holds; the oldest is let go, and its task runs.
const HELD: usize = 1024;

/// What became of each task.
struct Ledger {
    ran: Vec<AtomicU8>,
    cancelled: Vec<AtomicU8>,
    early: AtomicUsize,
}

impl Ledger {
    fn new() -> Arc<Self> {
        let cells = || (0..THREADS * CALLS_PER_THREAD).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Self { ran: cells(), cancelled: cells(), early: AtomicUsize::new(0) })
    }

    fn run(&self, id: usize, deadline: Instant) {
        if SystemClock.now() < deadline {
            self.early.fetch_add(1, Ordering::Relaxed);
        }
        self.ran[id].fetch_add(1, Ordering::Relaxed);
    }

    /// Each task that was scheduled has one fate, and whatever has none was given back.
    fn check(&self, scheduled: &[usize], given_back: usize) {
        assert_eq!(self.early.load(Ordering::Relaxed), 0, "fired early");
        let mut without_fate = 0;
        for id in scheduled {
            let fates =
                self.ran[*id].load(Ordering::Relaxed) + self.cancelled[*id].load(Ordering::Relaxed);
            assert!(fates <= 1, "task {id} has {fates} fates");
            without_fate += usize::from(fates == 0);
        }
        assert_eq!(without_fate, given_back);
    }
}

/// Xorshift: the same calls in each run, as far as the threads allow.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly due while the test runs, sometimes long after; never long before what a reschedule may make of it.
    fn delay(&mut self) -> Duration {
        match self.next() % 16 {
            0 => Duration::from_secs(3600 + self.next() % 100),
            1 => Duration::ZERO,
            _ => Duration::from_micros(self.next() % 30_000),
        }
    }
}

/// A timer as this test drives it.
trait Driven: Send + Sync + 'static {
    type Handle: Send;
    fn schedule(&self, deadline: Instant, id: usize) -> Self::Handle;
    fn cancel(&self, handle: &Self::Handle) -> bool;
    fn reschedule(&self, handle: &Self::Handle, deadline: Instant) -> bool;
    fn stop(&self) -> usize;
}

struct Typed(BatchTimer<(usize, Instant)>);

impl Driven for Typed {
    type Handle = TimerKey;

    fn schedule(&self, deadline: Instant, id: usize) -> TimerKey {
        self.0.schedule_at(deadline, (id, deadline)).unwrap()
    }

    fn cancel(&self, handle: &TimerKey) -> bool {
        self.0.cancel(*handle).is_some()
    }

    fn reschedule(&self, handle: &TimerKey, deadline: Instant) -> bool {
        self.0.reschedule(*handle, deadline)
    }

    fn stop(&self) -> usize {
        self.0.stop().unwrap().len()
    }
}

struct Closures(HashedWheelTimer, Arc<Ledger>);

impl Driven for Closures {
    type Handle = Timeout;

    fn schedule(&self, deadline: Instant, id: usize) -> Timeout {
        let ledger = Arc::clone(&self.1);
        self.0.schedule_at(deadline, move || ledger.run(id, deadline)).unwrap()
    }

    fn cancel(&self, handle: &Timeout) -> bool {
        handle.cancel()
    }

    fn reschedule(&self, handle: &Timeout, deadline: Instant) -> bool {
        handle.reschedule(deadline)
    }

    fn stop(&self) -> usize {
        self.0.stop().unwrap().len()
    }
}

fn drive<D: Driven>(timer: D, ledger: &Arc<Ledger>) {
    let timer = Arc::new(timer);
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (timer, ledger) = (Arc::clone(&timer), Arc::clone(ledger));
            let work = move || worker(thread, &*timer, &ledger);
            thread::Builder::new().spawn(work).unwrap()
        })
        .collect();
    let scheduled: Vec<usize> =
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    let given_back = timer.stop();
    ledger.check(&scheduled, given_back);
    assert!(given_back > 0, "the far timeouts are still pending");
}

/// Half of the calls schedule, a quarter cancels, a quarter reschedules. Returns what was scheduled.
fn worker<D: Driven>(thread: u64, timer: &D, ledger: &Ledger) -> Vec<usize> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ (thread + 1));
    let mut held: Vec<(usize, Instant, D::Handle)> = Vec::with_capacity(HELD);
    let mut scheduled = Vec::new();
    for call in 0..CALLS_PER_THREAD {
        let place = numbers.next() as usize % HELD;
        match numbers.next() % 4 {
            0 if place < held.len() => {
                let (id, _, handle) = held.swap_remove(place);
                if timer.cancel(&handle) {
                    ledger.cancelled[id].fetch_add(1, Ordering::Relaxed);
                }
            }
            1 if place < held.len() => {
                // Later than before: what the task itself checks stays true.
                let (_, deadline, handle) = &held[place];
                timer.reschedule(handle, *deadline + numbers.delay());
            }
            _ => {
                let id = (thread * CALLS_PER_THREAD + call) as usize;
                let deadline = SystemClock.now() + numbers.delay();
                let entry = (id, deadline, timer.schedule(deadline, id));
                scheduled.push(id);
                if held.len() < HELD {
                    held.push(entry);
                } else {
                    held[place] = entry;
                }
            }
        }
    }
    scheduled
}

#[test]
fn ten_million_calls_on_the_typed_timer_lose_and_double_nothing() {
    let ledger = Ledger::new();
    let fired = Arc::clone(&ledger);
    let timer = HashedWheelTimer::builder()
        .tick_duration(Duration::from_millis(1))
        .ticks_per_wheel(512)
        .build_batch(move |batch: &mut Vec<(usize, Instant)>| {
            for (id, deadline) in batch.drain(..) {
                fired.run(id, deadline);
            }
        })
        .unwrap();
    drive(Typed(timer), &ledger);
}

#[test]
fn ten_million_calls_on_the_closure_timer_lose_and_double_nothing() {
    let ledger = Ledger::new();
    let timer = HashedWheelTimer::builder()
        .tick_duration(Duration::from_millis(1))
        .ticks_per_wheel(512)
        .max_pending_timeouts(10_000_000)
        .build()
        .unwrap();
    drive(Closures(timer, Arc::clone(&ledger)), &ledger);
}
