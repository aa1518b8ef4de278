//! A million pending, and none due.

use std::time::Duration;

use crate::harness::clock::sleep;
use crate::harness::process::percent_of;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::workloads::{MILLION, Numbers};

/// Until threads and allocators are quiet.
pub(super) const SETTLED: Duration = Duration::from_secs(1);

pub(super) fn hold<T: BenchTimer>(timer: &T, window: Duration) -> Numbers {
    let mut own = timer.clone();
    pend(&mut own, 40, 60);
    sleep(SETTLED);
    vec![("percent", percent_of(window))]
}

/// Schedules a million that are due between `from` and `to` seconds from now.
pub(super) fn pend<T: BenchTimer>(own: &mut T, from: u64, to: u64) {
    let entered = own.clone();
    entered.within(|| {
        let mut random = Random::new(1);
        for _ in 0..MILLION {
            T::leave(own.schedule(random.delay(from, to), 0));
        }
    });
    own.absorb(u64::from(MILLION));
}
