//! A million pending over an hour: with few buckets, each holds timeouts of many rounds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::harness::clock::{now, sleep};
use crate::harness::process::{percent_during, percent_of};
use crate::timer::bench_timer::BenchTimer;
use crate::timer::workloads::Numbers;
use crate::timer::workloads::hold::{SETTLED, pend};

/// Requests come a hundred times a second, a thousand at a time, and are answered after 100 ms.
const STEP: Duration = Duration::from_millis(10);
const REQUESTS: usize = 1000;
const ANSWERED_AFTER: usize = 10;

/// Processor time while (a) nothing is due, (b) one timeout is due each tick, (c) 100,000 a second
/// are scheduled for five seconds and cancelled as well.
pub(super) fn rounds<T: BenchTimer>(timer: &T, window: Duration) -> Numbers {
    let mut own = timer.clone();
    pend(&mut own, 60, 3600);
    sleep(SETTLED);
    let nothing_due = percent_of(window);
    one_each_tick(&mut own, window + 2 * STEP);
    sleep(STEP);
    let one_due = percent_of(window);
    sleep(2 * STEP);
    let requests = percent_during(|| timer.within(|| requests(&mut own, window)));
    vec![("a", nothing_due), ("b", one_due), ("c", requests)]
}

fn one_each_tick<T: BenchTimer>(own: &mut T, window: Duration) {
    let entered = own.clone();
    entered.within(|| {
        let start = now();
        let ticks = u64::try_from(window.as_millis()).unwrap_or(0);
        for tick in 1..=ticks {
            T::leave(own.schedule_at(start + Duration::from_millis(tick), 0));
        }
    });
}

fn requests<T: BenchTimer>(own: &mut T, window: Duration) {
    let mut open: VecDeque<Vec<T::Handle>> = VecDeque::new();
    let start = now();
    let mut next = start;
    while next < start + window {
        let timeouts = (0..REQUESTS).map(|_| own.schedule(Duration::from_secs(5), 0));
        open.push_back(timeouts.collect());
        if open.len() > ANSWERED_AFTER {
            for timeout in open.pop_front().into_iter().flatten() {
                own.cancel(timeout);
            }
        }
        next += STEP;
        sleep(next.saturating_duration_since(now()));
    }
}
