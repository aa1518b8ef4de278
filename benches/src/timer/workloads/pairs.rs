//! Schedule and cancel at once, as for a request that is answered soon.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::harness::clock::now;
use crate::harness::figures::median;
use crate::harness::process::{processor_time, processor_time_since};
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::workloads::{Numbers, nanos_each};

/// Few enough for peers that keep what is cancelled.
const PAIRS: u32 = 500_000;
/// The first is a warm-up.
const ROUNDS: usize = 8;

/// The time of a pair on each of the threads, and the processor time of the whole process.
pub(super) fn pairs<T: BenchTimer>(timer: &T, threads: u32) -> Numbers {
    let (mut wall, mut processor) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(usize::try_from(threads).unwrap_or(1)));
        let before = processor_time();
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (timer, barrier) = (timer.clone(), Arc::clone(&barrier));
                let worker = move || worker(&timer, u64::from(thread), &barrier);
                thread::Builder::new().spawn(worker).expect("the system gives a thread")
            })
            .collect();
        let took: Duration =
            workers.into_iter().map(|worker| worker.join().expect("it does not panic")).sum();
        timer.clone().free();
        if round > 0 {
            wall.push(nanos_each(took, PAIRS * threads));
            processor.push(nanos_each(processor_time_since(before), PAIRS * threads));
        }
    }
    vec![("wall", median(wall)), ("processor", median(processor))]
}

fn worker<T: BenchTimer>(timer: &T, seed: u64, barrier: &Barrier) -> Duration {
    let mut own = timer.clone();
    let mut random = Random::new(seed + 1);
    timer.within(|| {
        barrier.wait();
        let start = now();
        for number in 0..u64::from(PAIRS) {
            let handle = own.schedule(random.delay(1, 60), number);
            own.cancel(handle);
        }
        now() - start
    })
}
