//! The floors: what every timer does.

use std::hint::black_box;

use parking_lot::Mutex;

use crate::harness::clock::now;
use crate::harness::figures::median;
use crate::timer::random::Random;
use crate::timer::workloads::{Numbers, nanos_each};

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 5;

/// Words in 32 MB, the least memory of a million timeouts.
const WORDS: usize = 1 << 22;

/// In nanoseconds: reading the clock; taking a free lock; boxing and dropping a closure of 8 bytes;
/// and changing a word at random in 32 MB, behind a lock as a timer's slots are.
pub(crate) fn floors() -> Numbers {
    let mut random = Random::new(1);
    let words_at_random: Vec<usize> = (0..TIMES).map(|_| random.below(WORDS)).collect();
    let words = Mutex::new(vec![1_u64; WORDS]);
    let lock = Mutex::new(0_u64);
    vec![
        (
            "clock",
            each(|_| {
                black_box(now());
            }),
        ),
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
    ]
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
