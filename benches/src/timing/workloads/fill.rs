//! A million scheduled, then all of them cancelled in random order: the processor time of the whole process.

use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::now;
use crate::process::{processor_time, processor_time_since};
use crate::timing::random::Random;
use crate::timing::subject::Subject;
use crate::timing::workloads::{MILLION, Numbers, nanos_each};

/// The first is fresh: it touches memory for the first time. The others are aged: what is free lies in random order.
const ROUNDS: u64 = 3;

/// The processor time of an operation, all that it causes on other threads included, fresh and aged; and the time
/// of the call itself, aged.
pub(super) fn fill<S: Subject>(subject: &S, threads: usize) -> Numbers {
    let mut own = subject.clone();
    let crew = Crew::new(subject, threads);
    let million = usize::try_from(MILLION).unwrap_or(0);
    // Touched before the clock runs.
    let mut slots: Vec<Option<S::Handle>> = Vec::new();
    slots.resize_with(million, || None);
    let (mut fresh, mut aged) = ([0.0; 2], [0.0; 4]);
    for round in 0..ROUNDS {
        let before = processor_time();
        let schedule_call = crew.work(&mut slots, |part| Work::Schedule(round * 10 + part + 1));
        own.absorb((round + 1) * u64::from(MILLION));
        let schedule = nanos_each(processor_time_since(before), MILLION);

        Random::new(round + 100).shuffle(&mut slots);
        let before = processor_time();
        let cancel_call = crew.work(&mut slots, |_| Work::Cancel);
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
        // Freed as soon as it is let go of, with everyone but Netty.
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

type Slots<S> = Vec<Option<<S as Subject>::Handle>>;

/// The threads that schedule and cancel. They stay the same in all rounds: a timer that gives each thread a corner of
/// its own would begin in a fresh one otherwise.
struct Crew<S: Subject> {
    workers: Vec<Worker<S>>,
}

/// Where it gets its part of the slots, and where it gives them back.
struct Worker<S: Subject> {
    give: Sender<(Work, Slots<S>)>,
    brought: Receiver<Slots<S>>,
}

impl<S: Subject> Crew<S> {
    fn new(subject: &S, threads: usize) -> Self {
        let worker = |_| {
            let ((give, given), (bring, brought)) = (unbounded(), unbounded());
            let subject = subject.clone();
            let worker = move || {
                for (work, mut slots) in given {
                    subject.within(|| do_work(&mut subject.clone(), work, &mut slots));
                    bring.send(slots).expect("the crew waits for it");
                }
            };
            thread::Builder::new().spawn(worker).expect("the system gives a thread");
            Worker { give, brought }
        };
        Self { workers: (0..threads).map(worker).collect() }
    }

    /// Gives each thread its part of the slots, and says how long the work took.
    fn work(&self, slots: &mut Slots<S>, work: impl Fn(u64) -> Work) -> Duration {
        let part = slots.len().div_ceil(self.workers.len());
        let parts: Vec<Slots<S>> =
            self.workers.iter().map(|_| slots.drain(..part.min(slots.len())).collect()).collect();
        let start = now();
        for (number, (worker, part)) in (0..).zip(self.workers.iter().zip(parts)) {
            worker.give.send((work(number), part)).expect("the worker waits for it");
        }
        let parts: Vec<Slots<S>> = self
            .workers
            .iter()
            .map(|worker| worker.brought.recv().expect("the worker does not panic"))
            .collect();
        let took = now() - start;
        slots.extend(parts.into_iter().flatten());
        took
    }
}

fn do_work<S: Subject>(own: &mut S, work: Work, slots: &mut Slots<S>) {
    match work {
        Work::Schedule(seed) => {
            let mut random = Random::new(seed);
            for slot in slots {
                *slot = Some(own.schedule(random.delay(1, 60), 0));
            }
        }
        Work::Cancel => {
            for slot in slots {
                if let Some(handle) = slot.take() {
                    own.cancel(handle);
                }
            }
        }
    }
}
