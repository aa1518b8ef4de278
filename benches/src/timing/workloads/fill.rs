//! A million scheduled, then all of them cancelled in random order: the processor time of the whole process.

use std::thread;
use std::time::Duration;

use crate::clock::now;
use crate::timing::process::{processor_time, processor_time_since};
use crate::timing::random::Random;
use crate::timing::subject::Subject;
use crate::timing::workloads::{MILLION, Numbers, nanos_each};

/// The first is fresh: it touches memory for the first time. The others are aged: what is free lies in random order.
const ROUNDS: u64 = 3;

/// The processor time of an operation, all that it causes on other threads included, fresh and aged; and the time
/// of the call itself, aged.
pub(super) fn fill<S: Subject>(subject: &S, threads: usize) -> Numbers {
    let mut own = subject.clone();
    let million = usize::try_from(MILLION).unwrap_or(0);
    // Touched before the clock runs.
    let mut slots: Vec<Option<S::Handle>> = Vec::new();
    slots.resize_with(million, || None);
    let (mut fresh, mut aged) = ([0.0; 2], [0.0; 4]);
    for round in 0..ROUNDS {
        let before = processor_time();
        let schedule_call = in_parts(subject, &mut slots, threads, |own, part, slots| {
            let mut random = Random::new(round * 10 + part + 1);
            for slot in slots {
                *slot = Some(own.schedule(random.delay(1, 60), 0));
            }
        });
        own.absorb((round + 1) * u64::from(MILLION));
        let schedule = nanos_each(processor_time_since(before), MILLION);

        Random::new(round + 100).shuffle(&mut slots);
        let before = processor_time();
        let cancel_call = in_parts(subject, &mut slots, threads, |own, _, slots| {
            for slot in slots {
                if let Some(handle) = slot.take() {
                    own.cancel(handle);
                }
            }
        });
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
        ("cancel-fresh", fresh[1]),
        ("cancel-call", cancel_call),
    ]
}

/// Gives each thread its part of the slots, and says how long that took.
fn in_parts<S: Subject>(
    subject: &S,
    slots: &mut [Option<S::Handle>],
    threads: usize,
    work: impl Fn(&mut S, u64, &mut [Option<S::Handle>]) + Sync,
) -> Duration {
    let part = slots.len().div_ceil(threads);
    let start = now();
    thread::scope(|scope| {
        for (number, slots) in (0..).zip(slots.chunks_mut(part)) {
            let (mut own, entered, work) = (subject.clone(), subject.clone(), &work);
            let worker = move || entered.within(|| work(&mut own, number, slots));
            thread::Builder::new().spawn_scoped(scope, worker).expect("the system gives a thread");
        }
    });
    now() - start
}
