//! A million pending over an hour: with few buckets each bucket holds timeouts of many rounds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::{now, pause};
use crate::timing::subject::Subject;
use crate::timing::workloads::hold::{SETTLED, pend};
use crate::timing::workloads::{Numbers, percent_during, percent_of};

/// The requests come in a hundred times a second, a thousand at a time, and are answered after a tenth of a second.
const STEP: Duration = Duration::from_millis(10);
const REQUESTS: usize = 1000;
const ANSWERED_AFTER: usize = 10;

/// Processor time while (a) nothing is due, (b) one timeout is due each tick, (c) 100,000 a second are scheduled for
/// five seconds and cancelled, on top of it all.
pub(super) fn rounds_in_play<S: Subject>(subject: &S, window: Duration) -> Numbers {
    let mut own = subject.clone();
    pend(&mut own, 60, 3600);
    pause(SETTLED);
    let nothing_due = percent_of(window);
    one_each_tick(&mut own, window + 2 * STEP);
    pause(STEP);
    let one_due = percent_of(window);
    pause(2 * STEP);
    let requests = percent_during(|| subject.within(|| requests(&mut own, window)));
    vec![("a", nothing_due), ("b", one_due), ("c", requests)]
}

fn one_each_tick<S: Subject>(own: &mut S, window: Duration) {
    let entered = own.clone();
    entered.within(|| {
        let start = now();
        let ticks = u64::try_from(window.as_millis()).unwrap_or(0);
        for tick in 1..=ticks {
            S::leave(own.schedule_at(start + Duration::from_millis(tick), 0));
        }
    });
}

fn requests<S: Subject>(own: &mut S, window: Duration) {
    let mut open: VecDeque<Vec<S::Handle>> = VecDeque::new();
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
        pause(next.saturating_duration_since(now()));
    }
}
