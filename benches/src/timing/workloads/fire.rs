//! A million due within a second, and a million due at one instant: how late they fire, and how fast.
//!
//! The first are scheduled in random order, the others in the order of their numbers.

use std::time::{Duration, Instant};

use crate::clock::{now, pause};
use crate::timing::random::Random;
use crate::timing::record::Record;
use crate::timing::subject::Subject;
use crate::timing::workloads::{MILLION, Numbers};

/// Between the first is scheduled and the first is due. All are in by then.
const LEAD: Duration = Duration::from_millis(1200);
/// Whatever has not fired after this long is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many of those due within a second were early, and how late the others were.
pub(super) fn fire<S: Subject>(subject: &S) -> Numbers {
    let record = Record::begin(MILLION);
    let mut order: Vec<u32> = (0..MILLION).collect();
    Random::new(1).shuffle(&mut order);
    let first = now() + LEAD;
    let deadline = |number: u32| first + Duration::from_micros(u64::from(number));
    schedule_all(subject, order, deadline);
    wait_for_all(record);
    let (mut early, mut late) = (0, Vec::new());
    for (number, fired) in (0..MILLION).zip(record.times()) {
        let deadline = deadline(number);
        match fired {
            Some(fired) if fired < deadline => early += 1,
            Some(fired) => late.push(fired - deadline),
            None => late.push(PATIENCE),
        }
    }
    late.sort_unstable();
    let at = |percent: usize| {
        let place = (late.len() * percent / 100).min(late.len().saturating_sub(1));
        late.get(place).map_or(f64::NAN, |late| late.as_secs_f64() * 1e3)
    };
    vec![("early", f64::from(early)), ("p50", at(50)), ("p99", at(99)), ("max", at(100))]
}

/// Millions a second, from the first firing to the last.
pub(super) fn burst<S: Subject>(subject: &S) -> Numbers {
    let record = Record::begin(MILLION);
    let deadline = now() + LEAD;
    schedule_all(subject, 0..MILLION, |_| deadline);
    wait_for_all(record);
    let times = || record.times().flatten();
    let rate = match (times().min(), times().max()) {
        (Some(first), Some(last)) => f64::from(MILLION) / (last - first).as_secs_f64() / 1e6,
        _ => f64::NAN,
    };
    vec![("burst", rate)]
}

fn schedule_all<S: Subject>(
    subject: &S,
    order: impl IntoIterator<Item = u32>,
    deadline: impl Fn(u32) -> Instant,
) {
    let mut own = subject.clone();
    subject.within(|| {
        for number in order {
            S::leave(own.schedule_at(deadline(number), u64::from(number)));
        }
    });
}

fn wait_for_all(record: &Record) {
    let start = now();
    while record.fired() < u64::from(MILLION) && now() - start < PATIENCE {
        pause(Duration::from_millis(20));
    }
}
