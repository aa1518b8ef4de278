//! The workload of holding: what a process takes that keeps locks and does nothing else.

use std::time::Duration;

use crate::clock::{now, pause};
use crate::process::{processor_time, processor_time_since, resident_bytes, threads};
use crate::renewing::keepers::{Keeper, Numbers, Target};
use crate::renewing::signals::ready_and_wait;

/// Until threads and allocators have come to rest.
const SETTLED: Duration = Duration::from_millis(500);
/// How long the process is looked at while it holds nothing.
const IDLE: Duration = Duration::from_secs(2);

/// Takes locks, and measures for `window` after the report has said so.
pub(crate) fn held<K: Keeper>(target: &Target, held: usize, window: Duration) -> Numbers {
    let mut keeper = K::start(target);
    pause(SETTLED);
    let idle = share_of(IDLE);
    let before = resident_bytes();
    keeper.take(held);
    ready_and_wait();
    let busy = share_of(window);
    let memory = resident_bytes() - before;
    let each = u32::try_from(held).map_or(f64::NAN, |held| memory / f64::from(held));
    let mut numbers = vec![
        ("percent", busy),
        ("idle", idle),
        ("memory", each),
        ("threads", u32::try_from(threads() - 1).map_or(f64::NAN, f64::from)),
        ("lost", u32::try_from(keeper.lost()).map_or(f64::NAN, f64::from)),
    ];
    numbers.extend(keeper.more());
    // The process ends now, and the server after it. Releasing one by one would take longer than the measuring.
    std::mem::forget(keeper);
    numbers
}

/// How much of a core this process takes by itself, in percent.
fn share_of(window: Duration) -> f64 {
    let (start, before) = (now(), processor_time());
    pause(window);
    let taken = processor_time_since(before);
    100.0 * taken.as_secs_f64() / (now() - start).as_secs_f64()
}
