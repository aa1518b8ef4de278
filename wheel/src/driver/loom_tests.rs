//! Every interleaving of the ticker with threads that schedule, cancel and stop.
//!
//! Loom runs each test once for every order in which the threads can meet at a lock or an atomic,
//! and for every value which a relaxed load may see. A run fails if all threads wait: a lost
//! wake-up shows as such a run. The shards, the wakeup and the ticker are real; only the clock is
//! made for the tests.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails its test")]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use loom::thread::{self, JoinHandle};

use super::context::Context;
use super::lifecycle::close;
use super::shard::{Capacity, DueValues, Shard};
use super::ticker::Ticker;
use super::wakeup::Wakeup;
use crate::error::ScheduleError;
use crate::stats::statistics::Statistics;
use crate::time::clock::{Clock, Parker, SystemClock};
use crate::time::sync::{AtomicUsize, Mutex, Ordering};
use crate::time::tick::{NEVER, TickScale};
use crate::wheel::{Key, Wheel};

const TICK: Duration = Duration::from_secs(1);

/// Beyond the range of the clock: the ticker sleeps until unparked.
const FAR: u64 = NEVER - 1;

type Shards = Arc<[Arc<Shard<u32>>]>;

/// A clock which stands still while the ticker is awake, and jumps to the deadline of each sleep.
/// Only the ticker reads the clock, so the clock has no interleavings and needs no model.
#[derive(Debug)]
struct JumpingClock {
    start: Instant,
    passed: parking_lot::Mutex<Duration>,
}

impl Clock for JumpingClock {
    fn now(&self) -> Instant {
        self.start + *self.passed.lock()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        match deadline {
            Some(deadline) => *self.passed.lock() = deadline - self.start,
            None => SystemClock.park(parker, None, interrupt),
        }
    }
}

/// The parts of a timer, in one run of a model.
struct TimerParts {
    shards: Shards,
    wakeup: Arc<Wakeup>,
    parker: Arc<Parker>,
    context: Arc<Context>,
}

impl TimerParts {
    fn new(shards: usize, limit: Option<usize>) -> Self {
        // The same instant in all runs of a model.
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(|| SystemClock.now());
        let scale = TickScale::new(start, TICK).unwrap();
        let parker = Arc::new(Parker::new());
        let wakeup = Arc::new(Wakeup::new(Arc::downgrade(&parker)));
        let capacity = limit.map(|limit| Capacity::new(AtomicUsize::new(limit)));
        let clock = JumpingClock { start, passed: parking_lot::Mutex::new(Duration::ZERO) };
        let context = Arc::new(Context::new(Arc::new(clock), scale, None));
        let shards = (0..shards)
            .map(|_| {
                let wheel = Wheel::new(2).unwrap();
                Arc::new(Shard::new(
                    wheel,
                    Arc::clone(&context),
                    Arc::clone(&wakeup),
                    capacity.clone(),
                ))
            })
            .collect();
        Self { shards, wakeup, parker, context }
    }

    /// Starts the ticker. The ticker stops after passing `last` values to the handler.
    fn start(self, last: usize) -> Running {
        let handed = Arc::new(Mutex::new(Vec::new()));
        let (seen, wakeup) = (Arc::clone(&handed), Arc::clone(&self.wakeup));
        let mut ticker = Ticker {
            shards: Arc::clone(&self.shards),
            wakeup: Arc::clone(&self.wakeup),
            parker: self.parker,
            context: self.context,
            handler: Box::new(move |due: &mut DueValues<u32>| {
                let mut seen = seen.lock();
                seen.append(&mut due.values);
                if seen.len() == last {
                    wakeup.stop();
                }
            }),
            retains_capacity: |_| false,
        };
        let thread = thread::spawn(move || ticker.run());
        Running { shards: self.shards, wakeup: self.wakeup, handed, thread }
    }
}

struct Running {
    shards: Shards,
    wakeup: Arc<Wakeup>,
    handed: Arc<Mutex<Vec<u32>>>,
    thread: JoinHandle<()>,
}

impl Running {
    fn schedule(&self, shard: usize, deadline: u64, value: u32) -> Key {
        self.shards[shard].schedule(deadline, value).unwrap()
    }

    /// Waits for the ticker to end, and returns the values passed to the handler.
    fn join(self) -> Vec<u32> {
        self.thread.join().unwrap();
        std::mem::take(&mut self.handed.lock())
    }

    /// As [`crate::BatchTimer::stop`] does. Returns the values passed to the handler, and the
    /// values still pending.
    fn stop(self) -> (Vec<u32>, Vec<u32>) {
        let unprocessed = close(&self.shards, &self.wakeup);
        (self.join(), unprocessed.into_iter().map(|(_, value)| value).collect())
    }
}

/// Runs every order of events with at most three preemptions. Every mistake tried out shows with
/// fewer. `LOOM_MAX_PREEMPTIONS` sets another number.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}

#[test]
fn either_a_cancel_or_the_ticker_gets_the_value() {
    model(|| {
        let setup = TimerParts::new(1, None);
        let key = setup.shards[0].schedule(1, 7).unwrap();
        let running = setup.start(1);
        let cancelled = running.shards[0].cancel(key);
        let (handed, unprocessed) = running.stop();
        let all: Vec<u32> = handed.into_iter().chain(cancelled).chain(unprocessed).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn value_scheduled_as_ticker_falls_asleep_is_handed_over() {
    model(|| {
        let running = TimerParts::new(1, None).start(1);
        running.schedule(0, 1, 7);
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn a_value_due_before_the_end_of_the_sleep_is_handed_over() {
    model(|| {
        let setup = TimerParts::new(1, None);
        setup.shards[0].schedule(FAR, 9).unwrap();
        let running = setup.start(1);
        running.schedule(0, 1, 7);
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn a_value_rescheduled_to_an_earlier_tick_is_handed_over() {
    model(|| {
        let setup = TimerParts::new(1, None);
        let key = setup.shards[0].schedule(FAR, 7).unwrap();
        let running = setup.start(1);
        assert!(running.shards[0].reschedule(key, 1, |_| {}));
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn two_scheduling_threads_both_wake_ticker_falling_asleep() {
    for (shards, second) in [(1, 0), (2, 1)] {
        model(move || {
            let running = TimerParts::new(shards, None).start(2);
            let all = Arc::clone(&running.shards);
            let other = thread::spawn(move || {
                all[second].schedule(1, 8).unwrap();
            });
            running.schedule(0, 2, 7);
            other.join().unwrap();
            let mut handed = running.join();
            handed.sort_unstable();
            assert_eq!(handed, [7, 8]);
        });
    }
}

#[test]
fn value_scheduled_during_stop_is_refused_handled_or_returned() {
    model(|| {
        let running = TimerParts::new(1, None).start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || match all[0].schedule(1, 7) {
            Ok(_) => None,
            Err(ScheduleError::Stopped(value)) => Some(value),
            Err(_) => unreachable!("the capacity is not limited, and the ticker runs"),
        });
        let (handed, unprocessed) = running.stop();
        let refused = other.join().unwrap();
        let all: Vec<u32> = handed.into_iter().chain(unprocessed).chain(refused).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn a_stop_returns_no_more_values_than_the_capacity() {
    model(move || {
        let setup = TimerParts::new(2, Some(1));
        setup.shards[0].schedule(FAR, 7).unwrap();
        let running = setup.start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || all[1].schedule(FAR, 8).is_ok());
        let (handed, unprocessed) = running.stop();
        assert!(!other.join().unwrap());
        assert_eq!((handed, unprocessed), (vec![], vec![7]));
    });
}

#[test]
fn either_a_cancel_a_stop_or_the_ticker_gets_the_value() {
    model(|| {
        let setup = TimerParts::new(1, None);
        let key = setup.shards[0].schedule(1, 7).unwrap();
        let running = setup.start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || all[0].cancel(key));
        let (handed, unprocessed) = running.stop();
        let cancelled = other.join().unwrap();
        let all: Vec<u32> = handed.into_iter().chain(unprocessed).chain(cancelled).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn the_capacity_is_never_exceeded_and_no_unit_is_lost() {
    for units in [1, 2] {
        model(move || {
            let setup = TimerParts::new(2, Some(units));
            let shards = setup.shards;
            let pending = Arc::new(AtomicUsize::new(0));
            let turn = move |number: usize, shards: &Shards, pending: &AtomicUsize| {
                for _ in 0..2 {
                    if let Ok(key) = shards[number].schedule(FAR, 7) {
                        assert!(pending.fetch_add(1, Ordering::Relaxed) < units);
                        pending.fetch_sub(1, Ordering::Relaxed);
                        assert_eq!(shards[number].cancel(key), Some(7));
                    }
                }
            };
            let (others, count) = (Arc::clone(&shards), Arc::clone(&pending));
            let other = thread::spawn(move || turn(1, &others, &count));
            turn(0, &shards, &pending);
            other.join().unwrap();
            for _ in 0..units {
                assert!(shards[0].schedule(FAR, 7).is_ok());
            }
            assert!(matches!(shards[0].schedule(FAR, 7), Err(ScheduleError::Full(7))));
        });
    }
}

#[test]
fn a_value_that_keeps_its_capacity_is_rearmed_or_gives_it_back() {
    model(|| {
        let shards = TimerParts::new(1, Some(1)).shards;
        shards[0].schedule(1, 7).unwrap();
        let all = Arc::clone(&shards);
        let other = thread::spawn(move || all[0].schedule(FAR, 8).is_ok());
        let mut due = DueValues::new();
        shards[0].take_due(1, 1, &mut due, |_| true);
        let key = shards[0].rearm(2, due.values.pop().unwrap()).unwrap();
        assert!(!other.join().unwrap());
        let mut sum = Statistics::default();
        shards[0].add_counts(&mut sum);
        assert_eq!((sum.scheduled, sum.rejected, sum.pending), (1, 1, 1));
        assert_eq!(shards[0].cancel(key), Some(7));
        assert!(shards[0].schedule(FAR, 9).is_ok());
        shards[0].take_due(FAR, 1, &mut due, |_| true);
        shards[0].give_back_capacity(1);
        assert!(shards[0].schedule(NEVER, 9).is_ok());
    });
}
