//! 100,000 timeouts, each of which re-arms itself for a second later whenever it fires.

use std::time::Duration;

use crate::harness::clock::{now, sleep};
use crate::harness::process::percent_of;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::workloads::Numbers;

const TIMEOUTS: u64 = 100_000;
/// Until the first deadline. The first deadlines are spread over a second.
const LEAD: Duration = Duration::from_millis(500);
/// Until each has fired once.
const WARM_UP: Duration = Duration::from_secs(2);

pub(super) fn rearm<T: BenchTimer>(timer: &T, window: Duration) -> Numbers {
    let mut own = timer.clone();
    let first = now() + LEAD;
    timer.within(|| {
        for number in 0..TIMEOUTS {
            own.arm(first + Duration::from_micros(10 * number));
        }
    });
    sleep(WARM_UP);
    vec![("percent", percent_of(window))]
}
