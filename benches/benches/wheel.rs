//! What a timeout costs: scheduled and cancelled on one thread and on two, and scheduled while a million are pending.

#![expect(clippy::expect_used, reason = "a benchmark that cannot measure ends")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use wheellock_benches::{After, Batch, Boxed, Floor, OrderedMap, Timer, now};

/// A lease, a request's timeout: it is nearly always cancelled.
const TIMEOUT: Duration = Duration::from_secs(30);

fn schedule_and_cancel(criterion: &mut Criterion) {
    for threads in [1, 2] {
        let mut group = criterion.benchmark_group(format!("schedule_cancel/{threads}_threads"));
        // With a thread more it would be one lock that two fight for, and no floor.
        if threads == 1 {
            pairs::<Floor>(&mut group, threads);
        }
        pairs::<Batch>(&mut group, threads);
        pairs::<Boxed>(&mut group, threads);
        pairs::<OrderedMap>(&mut group, threads);
        pairs::<After>(&mut group, threads);
        group.finish();
    }
}

fn schedule(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule_pending");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for pending in [100_000, 1_000_000] {
        group.throughput(Throughput::Elements(pending));
        fill::<Batch>(&mut group, pending);
        fill::<Boxed>(&mut group, pending);
        fill::<OrderedMap>(&mut group, pending);
    }
    group.finish();
}

/// Every thread schedules and cancels as often as criterion says. The time is that of all together, so a timer whose
/// threads are in each other's way shows it.
fn pairs<T: Timer>(group: &mut BenchmarkGroup<'_, WallTime>, threads: usize) {
    let timer = Arc::new(T::start());
    group.bench_function(T::NAME, |bencher| {
        bencher.iter_custom(|times| {
            let barrier = Arc::new(Barrier::new(threads + 1));
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    let (timer, barrier) = (Arc::clone(&timer), Arc::clone(&barrier));
                    let worker = move || {
                        barrier.wait();
                        for _ in 0..times {
                            timer.cancel(timer.schedule(TIMEOUT));
                        }
                        barrier.wait();
                    };
                    thread::Builder::new().spawn(worker).expect("the system gives a thread")
                })
                .collect();
            barrier.wait();
            let start = now();
            barrier.wait();
            let took = now() - start;
            for worker in workers {
                worker.join().expect("it does not panic");
            }
            took
        });
    });
}

/// Schedules so many that are pending at the end, spread over an hour. Starting and dropping the timer is not measured.
fn fill<T: Timer>(group: &mut BenchmarkGroup<'_, WallTime>, pending: u64) {
    group.bench_function(BenchmarkId::new(T::NAME, pending), |bencher| {
        bencher.iter_custom(|times| {
            let one = || {
                let timer = T::start();
                let start = now();
                for number in 0..pending {
                    // None is kept: a handle that is dropped leaves its timeout pending.
                    drop(timer.schedule(spread(number)));
                }
                now() - start
            };
            (0..times).map(|_| one()).sum()
        });
    });
}

/// A minute to an hour, without an order: multiplied by the golden ratio, neighbours come to lie far apart.
fn spread(number: u64) -> Duration {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Duration::from_secs(60) + Duration::from_millis(hash % 3_540_000)
}

criterion_group!(benches, schedule_and_cancel, schedule);
criterion_main!(benches);
