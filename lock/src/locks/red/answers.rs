//! The answers of the servers to a guard that asks all of them, and the wait for enough answers.

use std::mem;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::Error;
use crate::model::sync::{Mutex, Parker, park};

/// Shared by the thread that asks and the threads that send.
#[derive(Debug)]
pub(crate) struct QuorumAnswers {
    /// How many answers are enough, if the others do not come soon.
    enough: usize,
    parker: Parker,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many servers have not answered.
    unanswered: usize,
    results: Vec<Result<(), Error>>,
}

impl State {
    /// Whether enough have answered, and the others cannot change the outcome. A server that
    /// refuses at once does not decide it while others may still do it.
    fn is_settled(&self, enough: usize) -> bool {
        let done = self.results.iter().filter(|result| result.is_ok()).count();
        let most = done + self.unanswered;
        self.results.len() >= enough && (done >= enough || most < enough)
    }
}

/// Once enough have answered, the others are waited for twice as long as that took, and this.
const GRACE: Duration = Duration::from_millis(1);

impl QuorumAnswers {
    /// Of that many servers, of which `enough` are enough.
    pub(crate) fn new(servers: usize, enough: usize) -> Self {
        let state = State { unanswered: servers, results: Vec::with_capacity(servers) };
        Self { enough: enough.min(servers), parker: Parker::new(), state: Mutex::new(state) }
    }

    /// One server has answered, or gets no request.
    pub(crate) fn answered(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.unanswered = state.unanswered.saturating_sub(1);
        state.results.push(result);
        let wakes = state.unanswered == 0 || state.is_settled(self.enough);
        drop(state);
        if wakes {
            self.parker.unpark();
        }
    }

    /// Waits for the answers until `end`: for all, if they come; once enough have come, a moment
    /// more. Returns the results, and how many servers have not answered. Their requests go on
    /// without the caller.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        start: Instant,
        mut end: Instant,
    ) -> (Vec<Result<(), Error>>, usize) {
        let mut settled = false;
        loop {
            let now = clock.now();
            let mut state = self.state.lock();
            if !settled && state.is_settled(self.enough) {
                settled = true;
                end = end.min(now + now.saturating_duration_since(start) * 2 + GRACE);
            }
            if state.unanswered == 0 || end <= now {
                return (mem::take(&mut state.results), state.unanswered);
            }
            drop(state);
            park(clock, &self.parker, Some(end), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the outcome is known when these of three have answered.
    fn is_settled(answers: &[bool]) -> bool {
        let mut state = State { unanswered: 3, results: Vec::new() };
        for released in answers {
            state.unanswered -= 1;
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
    fn a_refusal_does_not_settle_it_while_others_may_release() {
        assert!(!is_settled(&[true]));
        assert!(is_settled(&[true, true]));
        assert!(!is_settled(&[false, true]));
        assert!(is_settled(&[false, false]));
        assert!(is_settled(&[true, false, false]));
    }
}
