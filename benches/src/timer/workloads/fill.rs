//! A million timeouts are scheduled, and cancelled in random order: processor time of the process.

use std::mem;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::harness::clock::now;
use crate::harness::process::{processor_time, processor_time_since};
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::workloads::{MILLION, Numbers, nanos_each};

/// The first is fresh: it touches memory for the first time. In the others, free memory lies in
/// random order.
const ROUNDS: u64 = 3;

/// The processor time of an operation, with what it causes on other threads, fresh and aged; and
/// the time of the call itself, aged.
pub(super) fn fill<T: BenchTimer>(timer: &T, threads: usize) -> Numbers {
    let mut own = timer.clone();
    let workers = Workers::new(timer, threads);
    let million = usize::try_from(MILLION).unwrap_or(0);
    // Touched, and divided among the threads, before the clock runs.
    let mut slots: Slots<T> = Vec::new();
    slots.resize_with(million, || None);
    let mut parts = workers.divide(slots);
    let (mut fresh, mut aged) = ([0.0; 2], [0.0; 4]);
    for round in 0..ROUNDS {
        let before = processor_time();
        let schedule_call = workers.run(&mut parts, |part| Work::Schedule(round * 10 + part + 1));
        own.absorb((round + 1) * u64::from(MILLION));
        let schedule = nanos_each(processor_time_since(before), MILLION);

        let mut slots: Slots<T> = parts.into_iter().flatten().collect();
        Random::new(round + 100).shuffle(&mut slots);
        parts = workers.divide(slots);
        let before = processor_time();
        let cancel_call = workers.run(&mut parts, |_| Work::Cancel);
        own.free();
        let cancel = nanos_each(processor_time_since(before), MILLION);

        if round == 0 {
            fresh = [schedule, cancel];
        } else {
            let part = MILLION / u32::try_from(threads).unwrap_or(1);
            let new =
                [schedule, cancel, nanos_each(schedule_call, part), nanos_each(cancel_call, part)];
            for (sum, new) in aged.iter_mut().zip(new) {
                *sum += new / 2.0;
            }
        }
    }
    let [schedule, cancel, schedule_call, cancel_call] = aged;
    vec![
        ("schedule", schedule),
        ("schedule-fresh", fresh[0]),
        ("schedule-call", schedule_call),
        ("cancel", cancel),
        // Only Netty frees a timeout later than it removes it.
        ("cancel-let-go", cancel),
        ("cancel-fresh", fresh[1]),
        ("cancel-call", cancel_call),
    ]
}

/// What a thread does with its part of the slots.
#[derive(Clone, Copy)]
enum Work {
    /// Fills them, with random numbers from this seed.
    Schedule(u64),
    Cancel,
}

type Slots<T> = Vec<Option<<T as BenchTimer>::Handle>>;

/// The threads that schedule and cancel. They are the same in all rounds: with new threads, a timer
/// that has a part for each thread would begin with fresh memory.
struct Workers<T: BenchTimer>(Vec<Worker<T>>);

/// The channels by which a thread receives its part of the slots, and returns it.
struct Worker<T: BenchTimer> {
    tasks: Sender<(Work, Slots<T>)>,
    results: Receiver<Slots<T>>,
}

impl<T: BenchTimer> Workers<T> {
    fn new(timer: &T, threads: usize) -> Self {
        let worker = |_| {
            let ((tasks, received), (done, results)) = (unbounded(), unbounded());
            let timer = timer.clone();
            let worker = move || {
                for (work, mut slots) in received {
                    timer.within(|| do_work(&mut timer.clone(), work, &mut slots));
                    done.send(slots).expect("the receiver is there");
                }
            };
            thread::Builder::new().spawn(worker).expect("the system gives a thread");
            Worker { tasks, results }
        };
        Self((0..threads).map(worker).collect())
    }

    /// The slots in as many parts as there are threads.
    fn divide(&self, mut slots: Slots<T>) -> Vec<Slots<T>> {
        let Self(workers) = self;
        let part = slots.len().div_ceil(workers.len());
        workers.iter().map(|_| slots.drain(..part.min(slots.len())).collect()).collect()
    }

    /// Each thread works on its part. Returns how long that took. No slot is copied here, as the
    /// time would be added to the timer's.
    fn run(&self, parts: &mut [Slots<T>], work: impl Fn(u64) -> Work) -> Duration {
        let Self(workers) = self;
        let start = now();
        for (number, (worker, part)) in (0..).zip(workers.iter().zip(&mut *parts)) {
            let task = (work(number), mem::take(part));
            worker.tasks.send(task).expect("the thread is there");
        }
        for (worker, part) in workers.iter().zip(parts) {
            *part = worker.results.recv().expect("the thread is there");
        }
        now() - start
    }
}

fn do_work<T: BenchTimer>(own: &mut T, work: Work, slots: &mut Slots<T>) {
    match work {
        Work::Schedule(seed) => {
            let mut random = Random::new(seed);
            own.schedule_all(slots, || random.delay(1, 60));
        }
        Work::Cancel => own.cancel_all(slots),
    }
}
