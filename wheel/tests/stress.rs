//! The timer under load, on the real clock: ten million calls of eight threads while it runs. Every
//! task is run exactly once, cancelled exactly once, or returned at the end; none is early and none
//! is lost.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a failed unwrap fails its test; the numbers are small"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{BatchTimer, Clock, HashedWheelTimer, SystemClock, Timeout, TimerKey};

const THREADS: u64 = 8;
const CALLS_PER_THREAD: u64 = 1_250_000;
/// How many handles a thread holds. A handle that is replaced is dropped, and its task runs.
const HELD: usize = 1024;

/// What happened to each task.
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

    /// Each task that was scheduled ran or was cancelled once, and every other was returned.
    fn check(&self, scheduled: &[usize], returned: usize) {
        assert_eq!(self.early.load(Ordering::Relaxed), 0, "fired early");
        let mut without_outcome = 0;
        for id in scheduled {
            let outcomes =
                self.ran[*id].load(Ordering::Relaxed) + self.cancelled[*id].load(Ordering::Relaxed);
            assert!(outcomes <= 1, "task {id} has {outcomes} outcomes");
            without_outcome += usize::from(outcomes == 0);
        }
        assert_eq!(without_outcome, returned);
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

    /// Mostly due while the test runs, sometimes long after.
    fn delay(&mut self) -> Duration {
        match self.next() % 16 {
            0 => Duration::from_secs(3600 + self.next() % 100),
            1 => Duration::ZERO,
            _ => Duration::from_micros(self.next() % 30_000),
        }
    }
}

/// A timer that this test drives.
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
    let returned = timer.stop();
    ledger.check(&scheduled, returned);
    assert!(returned > 0, "the far timeouts are still pending");
}

/// Half of the calls schedule, a quarter cancel, a quarter reschedule. Returns the tasks that were
/// scheduled.
fn worker<D: Driven>(thread: u64, timer: &D, ledger: &Ledger) -> Vec<usize> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ (thread + 1));
    let mut held: Vec<(usize, Instant, D::Handle)> = Vec::with_capacity(HELD);
    let mut scheduled = Vec::new();
    for call in 0..CALLS_PER_THREAD {
        let position = numbers.next() as usize % HELD;
        match numbers.next() % 4 {
            0 if position < held.len() => {
                let (id, _, handle) = held.swap_remove(position);
                if timer.cancel(&handle) {
                    ledger.cancelled[id].fetch_add(1, Ordering::Relaxed);
                }
            }
            1 if position < held.len() => {
                // Later than before, so the task, which checks its first deadline, is not early.
                let (_, deadline, handle) = &held[position];
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
                    held[position] = entry;
                }
            }
        }
    }
    scheduled
}

#[test]
fn ten_million_calls_on_the_batch_timer_lose_and_repeat_nothing() {
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
fn closure_timer_loses_and_repeats_nothing_in_ten_million_calls() {
    let ledger = Ledger::new();
    let timer = HashedWheelTimer::builder()
        .tick_duration(Duration::from_millis(1))
        .ticks_per_wheel(512)
        .max_pending_timeouts(10_000_000)
        .build()
        .unwrap();
    drive(Closures(timer, Arc::clone(&ledger)), &ledger);
}
