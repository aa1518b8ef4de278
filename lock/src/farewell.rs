//! Letting go of a red lock's parts: what each server said, and when that is enough.

use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Parker};
use parking_lot::Mutex;

use crate::call::park;
use crate::error::Error;

/// Shared by the thread that lets go and those that tell the servers.
#[derive(Debug)]
pub(crate) struct Farewell {
    /// How many answers are enough, if the others do not come soon.
    enough: usize,
    parker: Parker,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pending: usize,
    results: Vec<Result<(), Error>>,
}

/// Longer than those that have answered took, twice over, and this.
const GRACE: Duration = Duration::from_millis(1);

impl Farewell {
    pub(crate) fn new(parts: usize, enough: usize) -> Self {
        let state = State { pending: parts, results: Vec::with_capacity(parts) };
        Self { enough: enough.min(parts), parker: Parker::new(), state: Mutex::new(state) }
    }

    pub(crate) fn answered(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.pending = state.pending.saturating_sub(1);
        state.results.push(result);
        let wakes = state.pending == 0 || state.results.len() == self.enough;
        drop(state);
        if wakes {
            self.parker.unpark();
        }
    }

    /// Waits for the answers: for all, if they come; for enough of them, and a moment more; for `limit` at most. What
    /// has not come by then is finished by those who were to bring it. Answers with the results how many are missing.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        limit: Duration,
    ) -> (Vec<Result<(), Error>>, usize) {
        let start = clock.now();
        let mut end = start + limit;
        let mut enough = false;
        loop {
            let now = clock.now();
            let mut state = self.state.lock();
            if !enough && state.results.len() >= self.enough {
                enough = true;
                end = end.min(soon_after(start, now));
            }
            if state.pending == 0 || now >= end {
                return (std::mem::take(&mut state.results), state.pending);
            }
            drop(state);
            park(clock, &self.parker, Some(end), None);
        }
    }
}

fn soon_after(start: Instant, now: Instant) -> Instant {
    now + now.saturating_duration_since(start) * 2 + GRACE
}
