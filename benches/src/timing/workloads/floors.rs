//! The floors: what no timer can do without.

use std::hint::black_box;

use parking_lot::Mutex;

use crate::clock::now;
use crate::timing::random::Random;
use crate::timing::workloads::{Numbers, median, nanos_each};

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 5;

/// Words in 32 MB, what a million timeouts take at least.
const WORDS: usize = 1 << 22;

/// Reading the clock, taking a free lock, boxing a closure of 8 bytes and dropping it, and changing a word at random in
/// 32 MB, each behind a lock as a timer's slots are; in nanoseconds.
pub(crate) fn floors() -> Numbers {
    let mut random = Random::new(1);
    let places: Vec<usize> = (0..TIMES).map(|_| random.below(WORDS)).collect();
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
                let place = usize::try_from(number).map_or(0, |number| places[number]);
                black_box(&words).lock()[place] += 1;
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
