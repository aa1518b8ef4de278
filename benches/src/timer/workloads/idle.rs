//! Nothing pending, after something was: how often the timer's thread wakes.

use std::time::Duration;

use crate::harness::clock::sleep;
use crate::harness::process::sleeps;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::workloads::Numbers;

const TIMEOUTS: u64 = 1000;
const DELAY: Duration = Duration::from_millis(100);
const SETTLED: Duration = Duration::from_secs(4);

pub(super) fn idle<T: BenchTimer>(timer: &T, window: Duration) -> Numbers {
    let mut own = timer.clone();
    timer.within(|| {
        for number in 0..TIMEOUTS {
            T::leave(own.schedule(DELAY, number));
        }
    });
    sleep(SETTLED);
    let before = sleeps(T::THREAD);
    sleep(window);
    vec![("wakes", sleeps(T::THREAD) - before)]
}
