//! A million due within a second, and a million due at one instant: how late they fire, and how
//! fast.
//!
//! The first are scheduled in random order, the others in the order of their numbers.

use std::time::{Duration, Instant};

use crate::harness::clock::{now, sleep};
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::record::Record;
use crate::timer::workloads::{MILLION, Numbers, millis_at};

/// From the first call until the first is due. All are scheduled by then.
const LEAD: Duration = Duration::from_millis(1200);
/// What has not fired by then is lost.
const LIMIT: Duration = Duration::from_secs(30);

/// How many of those due within a second were early, and how late the others were.
pub(super) fn fire<T: BenchTimer>(timer: &T) -> Numbers {
    let record = Record::begin(MILLION);
    let mut order: Vec<u32> = (0..MILLION).collect();
    Random::new(1).shuffle(&mut order);
    let first = now() + LEAD;
    let deadline = |number: u32| first + Duration::from_micros(u64::from(number));
    schedule_all(timer, order, deadline);
    wait_for_all(record);
    let (mut early, mut late) = (0, Vec::new());
    for (number, fired) in (0..MILLION).zip(record.times()) {
        let deadline = deadline(number);
        match fired {
            Some(fired) if fired < deadline => early += 1,
            Some(fired) => late.push(fired - deadline),
            None => late.push(LIMIT),
        }
    }
    late.sort_unstable();
    let at = |permille| millis_at(&late, permille);
    vec![("early", f64::from(early)), ("p50", at(500)), ("p99", at(990)), ("max", at(1000))]
}

/// Millions a second, from the first firing to the last.
pub(super) fn burst<T: BenchTimer>(timer: &T) -> Numbers {
    let record = Record::begin(MILLION);
    let deadline = now() + LEAD;
    schedule_all(timer, 0..MILLION, |_| deadline);
    wait_for_all(record);
    let firings = || record.times().flatten();
    let rate = match (firings().min(), firings().max()) {
        (Some(first), Some(last)) => f64::from(MILLION) / (last - first).as_secs_f64() / 1e6,
        _ => f64::NAN,
    };
    vec![("burst", rate)]
}

fn schedule_all<T: BenchTimer>(
    timer: &T,
    order: impl IntoIterator<Item = u32>,
    deadline: impl Fn(u32) -> Instant,
) {
    let mut own = timer.clone();
    timer.within(|| {
        for number in order {
            T::leave(own.schedule_at(deadline(number), u64::from(number)));
        }
    });
}

fn wait_for_all(record: &Record) {
    let start = now();
    while record.fired() < u64::from(MILLION) && now() - start < LIMIT {
        sleep(Duration::from_millis(20));
    }
}
