//! 100,000 timeouts, each of which schedules itself for a second later whenever it fires.

use std::time::Duration;

use crate::clock::{now, pause};
use crate::timing::subject::Subject;
use crate::timing::workloads::{Numbers, percent_of};

const TIMEOUTS: u64 = 100_000;
/// The first deadlines are spread over a second, a while from now.
const LEAD: Duration = Duration::from_millis(500);
/// Until each has fired once.
const WARM_UP: Duration = Duration::from_secs(2);

pub(super) fn rearm<S: Subject>(subject: &S, window: Duration) -> Numbers {
    let mut own = subject.clone();
    let first = now() + LEAD;
    subject.within(|| {
        for number in 0..TIMEOUTS {
            own.arm(first + Duration::from_micros(10 * number));
        }
    });
    pause(WARM_UP);
    vec![("percent", percent_of(window))]
}
