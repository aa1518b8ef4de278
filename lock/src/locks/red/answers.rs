//! The answers of all servers to a guard's requests, and the wait for enough answers.

use std::mem;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::Error;
use crate::model::sync::{Mutex, Parker, park};

/// The results of one request to several servers. The sending threads record the results, and the
/// asking thread waits for them.
#[derive(Debug)]
pub(crate) struct QuorumAnswers {
    /// The number of answers which may end the wait early.
    enough: usize,
    parker: Parker,
    state: Mutex<AnswersState>,
}

/// The results so far, and the number of servers without a result.
#[derive(Debug)]
struct AnswersState {
    /// How many servers have not answered.
    unanswered: usize,
    results: Vec<Result<(), Error>>,
}

impl AnswersState {
    /// Whether enough servers have answered, and further answers cannot change the outcome. An
    /// early refusal does not decide the outcome while the remaining servers may still succeed.
    fn is_decided(&self, enough: usize) -> bool {
        let done = self.results.iter().filter(|result| result.is_ok()).count();
        let most = done + self.unanswered;
        self.results.len() >= enough && (done >= enough || most < enough)
    }
}

/// Once the outcome is decided, the wait for further answers lasts twice the time taken so far,
/// plus this time.
const GRACE: Duration = Duration::from_millis(1);

impl QuorumAnswers {
    /// Returns an empty collection for the answers of `servers` servers, of which `enough` may
    /// decide the outcome.
    pub(crate) fn new(servers: usize, enough: usize) -> Self {
        let state = AnswersState { unanswered: servers, results: Vec::with_capacity(servers) };
        Self { enough: enough.min(servers), parker: Parker::new(), state: Mutex::new(state) }
    }

    /// Records the `result` of a server that has answered, or gets no request. Wakes the waiting
    /// thread once the outcome is decided.
    pub(crate) fn answered(&self, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.unanswered = state.unanswered.saturating_sub(1);
        state.results.push(result);
        let wakes = state.unanswered == 0 || state.is_decided(self.enough);
        drop(state);
        if wakes {
            self.parker.unpark();
        }
    }

    /// Waits for all answers, at most until `end`. Once the outcome is decided, the wait ends soon
    /// after, as [`GRACE`] explains; `start` is when the requests were sent. Returns the results,
    /// and the number of servers without an answer. The unanswered requests go on without the
    /// caller.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        start: Instant,
        mut end: Instant,
    ) -> (Vec<Result<(), Error>>, usize) {
        let mut decided = false;
        loop {
            let now = clock.now();
            let mut state = self.state.lock();
            if !decided && state.is_decided(self.enough) {
                decided = true;
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
    fn is_decided(answers: &[bool]) -> bool {
        let mut state = AnswersState { unanswered: 3, results: Vec::new() };
        for released in answers {
            state.unanswered -= 1;
            let refusal = Error::Refused {
                operation: "release",
                code: "BUSY".to_owned(),
                message: String::new(),
            };
            state.results.push(if *released { Ok(()) } else { Err(refusal) });
        }
        state.is_decided(2)
    }

    #[test]
    fn a_refusal_decides_nothing_while_others_may_release() {
        assert!(!is_decided(&[true]));
        assert!(is_decided(&[true, true]));
        assert!(!is_decided(&[false, true]));
        assert!(is_decided(&[false, false]));
        assert!(is_decided(&[true, false, false]));
    }
}
