//! A million pending, and none due: what merely holding them costs.

use std::time::Duration;

use crate::clock::pause;
use crate::timing::random::Random;
use crate::timing::subject::Subject;
use crate::timing::workloads::{MILLION, Numbers, percent_of};

/// Until threads and allocators have come to rest.
pub(super) const SETTLED: Duration = Duration::from_secs(1);

pub(super) fn hold<S: Subject>(subject: &S, window: Duration) -> Numbers {
    let mut own = subject.clone();
    pend(&mut own, 40, 60);
    pause(SETTLED);
    vec![("percent", percent_of(window))]
}

/// Schedules a million that are due between `from` and `to` seconds from now.
pub(super) fn pend<S: Subject>(own: &mut S, from: u64, to: u64) {
    let entered = own.clone();
    entered.within(|| {
        let mut random = Random::new(1);
        for _ in 0..MILLION {
            S::leave(own.schedule(random.delay(from, to), 0));
        }
    });
    own.absorb(u64::from(MILLION));
}
