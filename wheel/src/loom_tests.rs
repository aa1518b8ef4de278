//! Every interleaving of the ticker with those who schedule, cancel and stop.
//!
//! Loom runs each test once for every order in which its threads can meet at a lock or an atomic, and for every value
//! that a relaxed load may see. It says so when all threads of a run wait: that is what a lost wake-up looks like here.
//! What runs are the shards, the alarm and the ticker of every timer; only the clock is made for this.

#![expect(clippy::unwrap_used, reason = "what fails fails its test")]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use loom::thread::{self, JoinHandle};

use crate::alarm::Alarm;
use crate::bound::Bound;
use crate::clock::{Clock, Parker, SystemClock};
use crate::error::ScheduleError;
use crate::firing::Firing;
use crate::panics::Panics;
use crate::shard::{Counts, Due, Shard};
use crate::statistics::Record;
use crate::sync::{AtomicUsize, Mutex, Ordering};
use crate::tick::{NEVER, TickDuration, TickScale};
use crate::ticker::Ticker;
use crate::wheel::{Key, Wheel};

const TICK: Duration = Duration::from_secs(1);

/// So late that the clock cannot say when; the ticker sleeps until somebody wakes it.
const FAR: u64 = NEVER - 1;

type Shards = Arc<[Arc<Shard<u32>>]>;

/// Stands still while the ticker is awake, and at once shows the instant to which it sleeps. Only the ticker sees it,
/// so there are no interleavings about it, and it needs no model.
#[derive(Debug)]
struct DreamClock {
    start: Instant,
    passed: parking_lot::Mutex<Duration>,
}

impl Clock for DreamClock {
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

/// A timer without its outermost layer, in one run of a model.
struct World {
    shards: Shards,
    alarm: Arc<Alarm>,
    parker: Arc<Parker>,
    clock: DreamClock,
    scale: TickScale,
}

impl World {
    fn new(shards: usize, bound: Option<Bound>) -> Self {
        // The same in all runs.
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(|| SystemClock.now());
        let scale = TickScale::new(start, TickDuration::try_from(TICK).unwrap());
        let parker = Arc::new(Parker::new());
        let alarm = Arc::new(Alarm::new(Arc::downgrade(&parker)));
        let bound = bound.map(Arc::new);
        let shards = (0..shards)
            .map(|_| {
                let wheel = Wheel::new(2).unwrap();
                Arc::new(Shard::new(wheel, scale, Arc::clone(&alarm), bound.clone()))
            })
            .collect();
        let clock = DreamClock { start, passed: parking_lot::Mutex::new(Duration::ZERO) };
        Self { shards, alarm, parker, clock, scale }
    }

    /// Starts the ticker. It ends by itself when it has handed `last` values over.
    fn start(self, last: usize) -> Running {
        let handed = Arc::new(Mutex::new(Vec::new()));
        let (seen, alarm) = (Arc::clone(&handed), Arc::clone(&self.alarm));
        let mut ticker = Ticker {
            shards: Arc::clone(&self.shards),
            alarm: Arc::clone(&self.alarm),
            parker: self.parker,
            firing: Arc::new(Firing {
                clock: Arc::new(self.clock),
                scale: self.scale,
                panics: Panics::new(None),
                record: Record::new(),
            }),
            handler: Box::new(move |due: &mut Due<u32>| {
                let mut seen = seen.lock();
                seen.append(&mut due.values);
                if seen.len() == last {
                    alarm.stop();
                }
            }),
            keeps_place: |_| false,
        };
        let thread = thread::spawn(move || ticker.run());
        Running { shards: self.shards, alarm: self.alarm, handed, thread }
    }
}

struct Running {
    shards: Shards,
    alarm: Arc<Alarm>,
    handed: Arc<Mutex<Vec<u32>>>,
    thread: JoinHandle<()>,
}

impl Running {
    fn schedule(&self, shard: usize, deadline: u64, value: u32) -> Key {
        self.shards[shard].schedule(deadline, value, &self.shards).unwrap()
    }

    /// Waits for the ticker to end, and returns what it has handed over.
    fn join(self) -> Vec<u32> {
        self.thread.join().unwrap();
        std::mem::take(&mut self.handed.lock())
    }

    /// As [`crate::BatchTimer::drain`] does. Returns what was handed over, and what is given back.
    fn drain(self) -> (Vec<u32>, Vec<u32>) {
        for shard in &*self.shards {
            shard.refuse();
        }
        self.alarm.drain();
        let shards = Arc::clone(&self.shards);
        let handed = self.join();
        let mut unprocessed = Vec::new();
        for shard in &*shards {
            shard.close(&mut unprocessed);
        }
        (handed, unprocessed.into_iter().map(|(_, value)| value).collect())
    }

    /// As [`crate::BatchTimer::stop`] does. Returns what was handed over, and what is given back.
    fn stop(self) -> (Vec<u32>, Vec<u32>) {
        let mut unprocessed = Vec::new();
        self.alarm.stop();
        for shard in &*self.shards {
            shard.close(&mut unprocessed);
        }
        (self.join(), unprocessed.into_iter().map(|(_, value)| value).collect())
    }
}

/// Runs every order of events in which threads are interrupted at most three times, other than by waiting. Each mistake
/// that was tried out shows with fewer. `LOOM_MAX_PREEMPTIONS` sets another number.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}

#[test]
fn of_a_cancel_and_the_ticker_exactly_one_gets_the_value() {
    model(|| {
        let world = World::new(1, None);
        let key = world.shards[0].schedule(1, 7, &world.shards).unwrap();
        let running = world.start(1);
        let cancelled = running.shards[0].cancel(key);
        let (handed, unprocessed) = running.stop();
        let all: Vec<u32> = handed.into_iter().chain(cancelled).chain(unprocessed).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn what_is_scheduled_while_the_ticker_falls_asleep_is_handed_over() {
    model(|| {
        let running = World::new(1, None).start(1);
        running.schedule(0, 1, 7);
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn what_is_due_sooner_than_the_ticker_sleeps_is_handed_over() {
    model(|| {
        let world = World::new(1, None);
        world.shards[0].schedule(FAR, 9, &world.shards).unwrap();
        let running = world.start(1);
        running.schedule(0, 1, 7);
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn what_is_rescheduled_to_sooner_is_handed_over() {
    model(|| {
        let world = World::new(1, None);
        let key = world.shards[0].schedule(FAR, 7, &world.shards).unwrap();
        let sooner = world.clock.now() + TICK;
        let running = world.start(1);
        assert!(running.shards[0].reschedule(key, sooner));
        assert_eq!(running.join(), [7]);
    });
}

#[test]
fn two_who_schedule_both_reach_a_ticker_that_falls_asleep() {
    for (shards, second) in [(1, 0), (2, 1)] {
        model(move || {
            let running = World::new(shards, None).start(2);
            let all = Arc::clone(&running.shards);
            let other = thread::spawn(move || {
                all[second].schedule(1, 8, &all).unwrap();
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
fn what_is_scheduled_while_the_timer_stops_is_refused_handed_over_or_given_back() {
    model(|| {
        let running = World::new(1, None).start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || match all[0].schedule(1, 7, &all) {
            Ok(_) => None,
            Err(ScheduleError::Stopped(value)) => Some(value),
            Err(_) => unreachable!("there is no bound, and the ticker runs"),
        });
        let (handed, unprocessed) = running.stop();
        let refused = other.join().unwrap();
        let all: Vec<u32> = handed.into_iter().chain(unprocessed).chain(refused).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn what_is_due_when_a_drain_begins_is_handed_over_and_the_ticker_ends() {
    model(|| {
        let world = World::new(1, None);
        world.shards[0].schedule(FAR, 9, &world.shards).unwrap();
        let running = world.start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || all[0].schedule(FAR, 7, &all).is_ok());
        let (handed, mut unprocessed) = running.drain();
        let taken_in = other.join().unwrap();
        assert!(handed.is_empty());
        unprocessed.sort_unstable();
        assert_eq!(unprocessed, if taken_in { vec![7, 9] } else { vec![9] });
    });
}

#[test]
fn of_a_cancel_a_stop_and_the_ticker_exactly_one_gets_the_value() {
    model(|| {
        let world = World::new(1, None);
        let key = world.shards[0].schedule(1, 7, &world.shards).unwrap();
        let running = world.start(usize::MAX);
        let all = Arc::clone(&running.shards);
        let other = thread::spawn(move || all[0].cancel(key));
        let (handed, unprocessed) = running.stop();
        let cancelled = other.join().unwrap();
        let all: Vec<u32> = handed.into_iter().chain(unprocessed).chain(cancelled).collect();
        assert_eq!(all, [7]);
    });
}

#[test]
fn the_bound_is_never_exceeded_and_no_place_is_lost() {
    for (places, held_max) in [(1, 0), (2, 0), (1, 2), (2, 2)] {
        model(move || {
            let world = World::new(2, Some(Bound::lending(places, held_max)));
            let shards = world.shards;
            let pending = Arc::new(AtomicUsize::new(0));
            let turn = move |number: usize, shards: &Shards, pending: &AtomicUsize| {
                for _ in 0..2 {
                    if let Ok(key) = shards[number].schedule(FAR, 7, shards) {
                        assert!(pending.fetch_add(1, Ordering::Relaxed) < places);
                        pending.fetch_sub(1, Ordering::Relaxed);
                        assert_eq!(shards[number].cancel(key), Some(7));
                    }
                }
            };
            let (others, count) = (Arc::clone(&shards), Arc::clone(&pending));
            let other = thread::spawn(move || turn(1, &others, &count));
            turn(0, &shards, &pending);
            other.join().unwrap();
            // By one shard alone, which has to collect what the other holds.
            for _ in 0..places {
                assert!(shards[0].schedule(FAR, 7, &shards).is_ok());
            }
            assert!(matches!(shards[0].schedule(FAR, 7, &shards), Err(ScheduleError::Full(7))));
        });
    }
}

#[test]
fn a_value_that_keeps_its_place_comes_back_or_leaves_it() {
    model(|| {
        let shards = World::new(1, Some(Bound::new(1))).shards;
        shards[0].schedule(1, 7, &shards).unwrap();
        let all = Arc::clone(&shards);
        let other = thread::spawn(move || all[0].schedule(FAR, 8, &all).is_ok());
        let mut due = Due::new();
        shards[0].take_due(1, 1, &mut due, |_| true);
        let key = shards[0].rearm(2, due.values.pop().unwrap()).unwrap();
        assert!(!other.join().unwrap());
        assert_eq!(
            shards[0].counts(),
            Counts { scheduled: 1, cancelled: 0, rejected: 1, pending: 1 }
        );
        assert_eq!(shards[0].cancel(key), Some(7));
        assert!(shards[0].schedule(FAR, 9, &shards).is_ok());
        shards[0].take_due(FAR, 1, &mut due, |_| true);
        shards[0].give_back_place();
        assert!(shards[0].schedule(NEVER, 9, &shards).is_ok());
    });
}
