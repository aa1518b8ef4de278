//! What a timeout costs: scheduled and cancelled on one thread and on two, and scheduled until a
//! million are pending.

#![expect(clippy::expect_used, reason = "a benchmark that cannot measure ends")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use wheellock_benches::{
    ClockAndLock, CrossbeamAfter, OrderedMap, StoppableBatch, StoppableBoxed, StoppableTimer, now,
};

/// The timeout of a request, which is nearly always cancelled.
const TIMEOUT: Duration = Duration::from_secs(30);

fn schedule_and_cancel(criterion: &mut Criterion) {
    for threads in [1, 2] {
        let mut group = criterion.benchmark_group(format!("schedule_cancel/{threads}_threads"));
        // With two threads it would be one contended lock, and no floor.
        if threads == 1 {
            pairs::<ClockAndLock>(&mut group, threads);
        }
        pairs::<StoppableBatch>(&mut group, threads);
        pairs::<StoppableBoxed>(&mut group, threads);
        pairs::<OrderedMap>(&mut group, threads);
        pairs::<CrossbeamAfter>(&mut group, threads);
        group.finish();
    }
}

fn schedule(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule_pending");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for pending in [100_000, 1_000_000] {
        group.throughput(Throughput::Elements(pending));
        fill::<StoppableBatch>(&mut group, pending);
        fill::<StoppableBoxed>(&mut group, pending);
        fill::<OrderedMap>(&mut group, pending);
    }
    group.finish();
}

/// Every thread schedules and cancels as often as criterion says. The time is that of all threads
/// together, so it shows contention between them.
fn pairs<T: StoppableTimer>(group: &mut BenchmarkGroup<'_, WallTime>, threads: usize) {
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

/// Schedules `pending` timeouts, spread over an hour. The start and the end of the timer are not
/// measured.
fn fill<T: StoppableTimer>(group: &mut BenchmarkGroup<'_, WallTime>, pending: u64) {
    group.bench_function(BenchmarkId::new(T::NAME, pending), |bencher| {
        bencher.iter_custom(|times| {
            let one = || {
                let timer = T::start();
                let start = now();
                for number in 0..pending {
                    // The timeout of a handle that is dropped stays pending.
                    drop(timer.schedule(spread(number)));
                }
                now() - start
            };
            (0..times).map(|_| one()).sum()
        });
    });
}

/// A minute to an hour, in no order: multiplied by the golden ratio, neighbours end up far apart.
fn spread(number: u64) -> Duration {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Duration::from_secs(60) + Duration::from_millis(hash % 3_540_000)
}

criterion_group!(benches, schedule_and_cancel, schedule);
criterion_main!(benches);
