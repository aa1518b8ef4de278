//! Letting go of a red lock's parts: what each server said, and when that is enough.

use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Parker};
use parking_lot::Mutex;

use crate::asked::Asked;
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
    asked: Asked,
    results: Vec<Result<(), Error>>,
}

impl State {
    /// Whether enough have answered, and the others cannot change what that means. One who refuses at once must not
    /// stand for another who is about to release it.
    fn is_settled(&self, enough: usize) -> bool {
        let released = self.results.iter().filter(|result| result.is_ok()).count();
        let most = released + self.asked.len();
        self.results.len() >= enough && (released >= enough || most < enough)
    }
}

/// Longer than those that have answered took, twice over, and this.
const GRACE: Duration = Duration::from_millis(1);

impl Farewell {
    pub(crate) fn new(places: impl IntoIterator<Item = usize>, enough: usize) -> Self {
        let asked = Asked::new(places);
        let parts = asked.len();
        let state = State { asked, results: Vec::with_capacity(parts) };
        Self { enough: enough.min(parts), parker: Parker::new(), state: Mutex::new(state) }
    }

    /// A server is told now; until then the release stood in line.
    pub(crate) fn begun(&self, place: usize, now: Instant) {
        self.state.lock().asked.begun(place, now);
    }

    pub(crate) fn answered(&self, place: usize, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.asked.answered(place);
        state.results.push(result);
        let wakes = state.asked.len() == 0 || state.is_settled(self.enough);
        drop(state);
        if wakes {
            self.parker.unpark();
        }
    }

    /// Waits for the answers: for all, if they come; for enough of them, and a moment more; for each server for `limit`
    /// from when it was told, and not for those that are `stuck`; until `last` at most. What has not come by then is
    /// finished by those who were to bring it. Answers with the results how many are missing.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        limit: Duration,
        last: Option<Instant>,
        stuck: impl Fn() -> Vec<bool>,
    ) -> (Vec<Result<(), Error>>, usize) {
        let start = clock.now();
        let mut look_at = start + limit;
        let mut last = last;
        let mut enough = false;
        loop {
            let now = clock.now();
            let stuck = if now >= look_at { stuck() } else { Vec::new() };
            let mut state = self.state.lock();
            if !enough && state.is_settled(self.enough) {
                enough = true;
                let soon = soon_after(start, now);
                last = Some(last.map_or(soon, |last| last.min(soon)));
            }
            let look_again_at = if now >= look_at {
                state.asked.look_again_at(now, limit, 1, &stuck)
            } else {
                Some(look_at)
            };
            let is_last = last.is_some_and(|last| last <= now);
            let Some(later) = look_again_at.filter(|_| state.asked.len() > 0 && !is_last) else {
                return (std::mem::take(&mut state.results), state.asked.len());
            };
            drop(state);
            look_at = later;
            let end = last.map_or(look_at, |last| last.min(look_at));
            park(clock, &self.parker, Some(end), None);
        }
    }
}

fn soon_after(start: Instant, now: Instant) -> Instant {
    now + now.saturating_duration_since(start) * 2 + GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known when these have answered, of three.
    fn is_settled(answers: &[bool]) -> bool {
        let mut state = State { asked: Asked::new(0..3), results: Vec::new() };
        for (place, released) in answers.iter().enumerate() {
            state.asked.answered(place);
            let refusal = Error::Refused {
                operation: "release",
                code: "BUSY".to_owned(),
                message: String::new(),
            };
            state.results.push(if *released { Ok(()) } else { Err(refusal) });
        }
        state.is_settled(2)
    }

    #[test]
    fn one_who_refuses_does_not_stand_for_another_who_may_release() {
        assert!(!is_settled(&[true]));
        assert!(is_settled(&[true, true]));
        assert!(!is_settled(&[false, true]));
        assert!(is_settled(&[false, false]));
        assert!(is_settled(&[true, false, false]));
    }
}
