//! The pause between two rounds of a multi-lock or a red lock.

use std::time::Duration;

use hashed_wheel::Clock;

use crate::model::sync::{Parker, is_cancelled, park};
use crate::model::wait::WaitSpec;

/// Waits for `pause`, but not beyond the end of the wait. False if the wait was cancelled.
pub(crate) fn pause(clock: &dyn Clock, pause: Duration, wait: WaitSpec<'_>) -> bool {
    let end = clock.now() + pause;
    let end = wait.deadline.map_or(end, |deadline| deadline.min(end));
    let parker = Parker::new();
    while clock.now() < end {
        if is_cancelled(wait.cancel) {
            return false;
        }
        park(clock, &parker, Some(end), wait.cancel);
    }
    true
}
