//! Schedule and cancel at once: a request that is answered before anything else happens.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::clock::now;
use crate::process::{processor_time, processor_time_since};
use crate::timing::random::Random;
use crate::timing::subject::Subject;
use crate::timing::workloads::{Numbers, median, nanos_each};

/// Few enough that peers which keep what is cancelled do not run out of memory.
const PAIRS: u32 = 500_000;
/// The first is a warm-up.
const ROUNDS: usize = 8;

/// The time of a pair on each of the threads, and the processor time of the whole process.
pub(super) fn pairs<S: Subject>(subject: &S, threads: u32) -> Numbers {
    let (mut wall, mut processor) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(usize::try_from(threads).unwrap_or(1)));
        let before = processor_time();
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (subject, barrier) = (subject.clone(), Arc::clone(&barrier));
                let worker = move || worker(&subject, u64::from(thread), &barrier);
                thread::Builder::new().spawn(worker).expect("the system gives a thread")
            })
            .collect();
        let took: Duration =
            workers.into_iter().map(|worker| worker.join().expect("it does not panic")).sum();
        subject.clone().free();
        if round > 0 {
            wall.push(nanos_each(took, PAIRS * threads));
            processor.push(nanos_each(processor_time_since(before), PAIRS * threads));
        }
    }
    vec![("wall", median(wall)), ("processor", median(processor))]
}

fn worker<S: Subject>(subject: &S, seed: u64, barrier: &Barrier) -> Duration {
    let mut own = subject.clone();
    let mut random = Random::new(seed + 1);
    subject.within(|| {
        barrier.wait();
        let start = now();
        for number in 0..u64::from(PAIRS) {
            let handle = own.schedule(random.delay(1, 60), number);
            own.cancel(handle);
        }
        now() - start
    })
}
