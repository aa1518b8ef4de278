//! The workload of holding: what a process uses that holds locks and does nothing else.

use std::time::Duration;

use crate::harness::clock::sleep;
use crate::harness::measured::{Numbers, ready_and_wait};
use crate::harness::process::{percent_of, resident_bytes, threads};
use crate::watchdog::holders::{Holder, HolderConfig};

/// Until threads and allocators are quiet.
const SETTLED: Duration = Duration::from_millis(500);
/// How long the process is measured while it holds nothing.
const IDLE: Duration = Duration::from_secs(2);

/// Acquires locks, and measures for `window` when the report says so.
pub(crate) fn held<H: Holder>(config: &HolderConfig, held: usize, window: Duration) -> Numbers {
    let mut holder = H::start(config);
    sleep(SETTLED);
    let idle = percent_of(IDLE);
    let before = resident_bytes();
    holder.acquire(held);
    ready_and_wait();
    let busy = percent_of(window);
    let memory = resident_bytes() - before;
    let as_f64 = |number: usize| u32::try_from(number).map_or(f64::NAN, f64::from);
    let mut numbers = vec![
        ("percent", busy),
        ("idle", idle),
        ("memory", memory / as_f64(held)),
        ("threads", as_f64(threads() - 1)),
        ("lost", as_f64(holder.lost())),
    ];
    numbers.extend(holder.more());
    // The process ends now, and the server after it. To release each lock would take too long.
    std::mem::forget(holder);
    numbers
}
