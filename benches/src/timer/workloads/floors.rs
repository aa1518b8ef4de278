//! The floors: what every timer does.

use std::hint::black_box;
use std::num::NonZeroU128;
use std::time::Duration;

use hashed_wheel::{Clock, TscClock};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::harness::clock::now;
use crate::harness::figures::median;
use crate::timer::random::Random;
use crate::timer::workloads::{Numbers, nanos_each};

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 5;

/// Words in 32 MB, the least memory of a million timeouts.
const WORDS: usize = 1 << 22;

/// In nanoseconds: reading the clock, in full, by the processor's counter, or coarsely; taking a free lock;
/// boxing and dropping a closure of 8 bytes; changing a word at random in 32 MB, behind a lock as a
/// timer's slots are; and unlinking a slot from a list.
pub(crate) fn floors() -> Numbers {
    let mut random = Random::new(1);
    let words_at_random: Vec<usize> = (0..TIMES).map(|_| random.below(WORDS)).collect();
    let words = Mutex::new(vec![1_u64; WORDS]);
    let lock = Mutex::new(0_u64);
    let counter = TscClock::new();
    vec![
        (
            "clock",
            each(|_| {
                black_box(now());
            }),
        ),
        (
            "counter",
            each(|_| {
                black_box(counter.late_nanos());
            }),
        ),
        (
            "coarse-clock",
            each(|_| {
                black_box(read(ClockId::MonotonicCoarse));
            }),
        ),
        ("coarse-behind", coarse_behind()),
        ("lock", each(|number| *black_box(&lock).lock() += number)),
        (
            "closure",
            each(|number| {
                let boxed: Box<dyn FnOnce() + Send> = Box::new(move || {
                    black_box(number);
                });
                drop(black_box(boxed));
            }),
        ),
        (
            "memory",
            each(|number| {
                let word = usize::try_from(number).map_or(0, |number| words_at_random[number]);
                black_box(&words).lock()[word] += 1;
            }),
        ),
        ("unlink", unlinked()),
    ]
}

/// What is left of a timer if it can only cancel: slots of 12 bytes, and their values of 16.
#[derive(Default)]
struct Slots {
    links: Vec<Links>,
    values: Vec<Option<NonZeroU128>>,
}

#[derive(Clone, Copy, Default)]
struct Links {
    generation: u32,
    previous: u32,
    next: u32,
}

impl Slots {
    /// A million slots in one list, in random order.
    fn in_random_order(random: &mut Random) -> Self {
        let mut order: Vec<u32> = (0..TIMES).collect();
        random.shuffle(&mut order);
        let mut links = vec![Links::default(); order.len()];
        for (previous, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            links[place(*previous)].next = *next;
            links[place(*next)].previous = *previous;
        }
        let values = vec![NonZeroU128::new(1); order.len()];
        Self { links, values }
    }

    /// Takes the value of a slot, and unlinks it.
    fn cancel(&mut self, index: u32) -> Option<NonZeroU128> {
        let slot = &mut self.links[place(index)];
        slot.generation += 1;
        let Links { previous, next, .. } = *slot;
        let value = self.values[place(index)].take();
        self.links[place(previous)].next = next;
        self.links[place(next)].previous = previous;
        value
    }
}

fn place(index: u32) -> usize {
    usize::try_from(index).unwrap_or(0)
}

/// The slots of a list of a million are unlinked in another random order, each behind a lock.
fn unlinked() -> f64 {
    let mut random = Random::new(2);
    let mut order: Vec<u32> = (0..TIMES).collect();
    let rounds = (0..ROUNDS).map(|_| {
        random.shuffle(&mut order);
        let slots = Mutex::new(Slots::in_random_order(&mut random));
        let start = now();
        for index in &order {
            black_box(black_box(&slots).lock().cancel(*index));
        }
        nanos_each(now() - start, TIMES)
    });
    median(rounds.collect())
}

/// The most nanoseconds by which the coarse clock was behind the exact clock.
fn coarse_behind() -> f64 {
    let behind = (0..TIMES).map(|_| {
        let coarse = read(ClockId::MonotonicCoarse);
        read(ClockId::Monotonic).saturating_sub(coarse)
    });
    nanos_each(behind.max().unwrap_or_default(), 1)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn each(mut work: impl FnMut(u64)) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let start = now();
        for number in 0..TIMES {
            work(u64::from(number));
        }
        nanos_each(now() - start, TIMES)
    });
    median(rounds.collect())
}
