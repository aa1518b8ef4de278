//! The floors: what no timer can do without.

use std::hint::black_box;

use parking_lot::Mutex;

use crate::clock::now;
use crate::timing::workloads::{Numbers, median, nanos_each};

const TIMES: u32 = 1_000_000;
const ROUNDS: usize = 5;

/// Reading the clock, taking a free lock, and boxing a closure of 8 bytes and dropping it, in nanoseconds.
pub(crate) fn floors() -> Numbers {
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
