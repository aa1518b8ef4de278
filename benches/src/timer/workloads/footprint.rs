//! The memory of a timer that holds nothing: before it held anything, after a load that moved from
//! thread to thread, and after it was stopped.

use std::thread;
use std::time::Duration;

use hashed_wheel::{BatchTimer, HashedWheelTimer, TICKS_PER_WHEEL_MAX, TimerKey};

use crate::harness::clock::{now, sleep};
use crate::harness::process::{resident_bytes, wait_until_quiet};
use crate::timer::random::Random;
use crate::timer::workloads::{MILLION, Numbers};

/// The memory of one timer alone is too small to be measured.
const TIMERS: u32 = 32;
/// As many as a timer has shards.
const THREADS: u64 = 8;
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn footprint() -> Numbers {
    let idle = idle();
    let (stop, kept) = stopped();
    let (moved, peak) = moved();
    vec![("idle", idle), ("peak", peak), ("moved", moved), ("stop", stop), ("kept", kept)]
}

/// A timer with the default settings, in kilobytes, its thread included.
fn idle() -> f64 {
    let build = || HashedWheelTimer::builder().build().expect("the system gives a thread");
    let first = build();
    sleep(Duration::from_millis(50));
    let before = resident_bytes();
    let timers: Vec<HashedWheelTimer> = (0..TIMERS).map(|_| build()).collect();
    sleep(Duration::from_millis(50));
    let bytes = (resident_bytes() - before) / f64::from(TIMERS);
    drop((first, timers));
    bytes / 1e3
}

/// Threads that schedule a million in turn, and cancel them before the next begins: the memory
/// four seconds later, and the most of it, in megabytes, beside the caller's keys.
fn moved() -> (f64, f64) {
    let timer = HashedWheelTimer::builder().build_batch(|batch: &mut Vec<u64>| batch.clear());
    let timer: BatchTimer<u64> = timer.expect("the system gives a thread");
    let mut keys: Vec<TimerKey> = Vec::with_capacity(usize::try_from(MILLION).unwrap_or(0));
    let before = resident_bytes() + f64::from(MILLION) * 16.0;
    let mut peak: f64 = 0.0;
    for seed in 0..THREADS {
        let million = || {
            let mut random = Random::new(seed);
            keys.extend(
                (0..MILLION)
                    .map(|_| timer.schedule(random.delay(5, 60), 0).expect("the timer runs")),
            );
            let height = resident_bytes() - before;
            random.shuffle(&mut keys);
            for key in keys.drain(..) {
                timer.cancel(key);
            }
            height
        };
        let height = thread::scope(|scope| scope.spawn(million).join());
        peak = peak.max(height.expect("it does not panic"));
    }
    // Longer than the timer keeps what is empty.
    sleep(Duration::from_secs(4));
    wait_until_quiet();
    ((resident_bytes() - before) / 1e6, peak / 1e6)
}

/// A timer with the most buckets possible: how long its stop takes, in milliseconds, and the memory
/// that a handle keeps after it, in megabytes.
fn stopped() -> (f64, f64) {
    let before = resident_bytes();
    let timer = HashedWheelTimer::builder().ticks_per_wheel(TICKS_PER_WHEEL_MAX).build();
    let timer = timer.expect("the system gives a thread");
    let handle = timer.schedule(HOUR, || {}).expect("the timer runs");
    let start = now();
    let unprocessed = timer.stop().expect("this is not the timer's thread");
    let took = now() - start;
    drop((timer, unprocessed));
    let kept = (resident_bytes() - before) / 1e6;
    drop(handle);
    (took.as_secs_f64() * 1e3, kept)
}
