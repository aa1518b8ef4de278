//! Nothing pending, after there was something: how often the timer's thread wakes.

use std::time::Duration;

use crate::clock::pause;
use crate::process::sleeps;
use crate::timing::subject::Subject;
use crate::timing::workloads::Numbers;

const TIMEOUTS: u64 = 1000;
const DELAY: Duration = Duration::from_millis(100);
const SETTLED: Duration = Duration::from_secs(4);

pub(super) fn idle<S: Subject>(subject: &S, window: Duration) -> Numbers {
    let mut own = subject.clone();
    subject.within(|| {
        for number in 0..TIMEOUTS {
            S::leave(own.schedule(DELAY, number));
        }
    });
    pause(SETTLED);
    let before = sleeps(S::THREAD);
    pause(window);
    vec![("wakes", sleeps(S::THREAD) - before)]
}
