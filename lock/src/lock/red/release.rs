//! The release on all servers: what each answered, and how many answers are waited for.

use std::mem;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::Error;
use crate::lock::red::pending::PendingReplies;
use crate::model::sync::{Mutex, Parker, park};

/// Shared by the thread that releases and the worker threads that send.
#[derive(Debug)]
pub(crate) struct QuorumRelease {
    /// How many answers are enough, if the others do not come soon.
    enough: usize,
    parker: Parker,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pending: PendingReplies,
    results: Vec<Result<(), Error>>,
}

impl State {
    /// Whether enough have answered, and the others cannot change the outcome. A server that
    /// refuses at once does not decide it while others may still release.
    fn is_settled(&self, enough: usize) -> bool {
        let released = self.results.iter().filter(|result| result.is_ok()).count();
        let most = released + self.pending.len();
        self.results.len() >= enough && (released >= enough || most < enough)
    }
}

/// Once enough have answered, the others are waited for twice as long as that took, and this.
const GRACE: Duration = Duration::from_millis(1);

impl QuorumRelease {
    pub(crate) fn new(positions: impl IntoIterator<Item = usize>, enough: usize) -> Self {
        let pending = PendingReplies::new(positions);
        let servers = pending.len();
        let state = State { pending, results: Vec::with_capacity(servers) };
        Self { enough: enough.min(servers), parker: Parker::new(), state: Mutex::new(state) }
    }

    /// A release is sent now. Until then it was queued.
    pub(crate) fn sent(&self, position: usize, now: Instant) {
        self.state.lock().pending.sent(position, now);
    }

    pub(crate) fn answered(&self, position: usize, result: Result<(), Error>) {
        let mut state = self.state.lock();
        state.pending.answered(position);
        state.results.push(result);
        let wakes = state.pending.len() == 0 || state.is_settled(self.enough);
        drop(state);
        if wakes {
            self.parker.unpark();
        }
    }

    /// Waits for the answers, at most until `end`: for all, if they come; once enough have come, a
    /// moment more; for each server for `timeout` from when its release was sent, and not for one
    /// that is `stuck`. Returns the results, and how many servers have not answered. Their releases
    /// go on without the caller.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        timeout: Duration,
        mut end: Option<Instant>,
        stuck: impl Fn() -> Vec<bool>,
    ) -> (Vec<Result<(), Error>>, usize) {
        let start = clock.now();
        let mut next_check = start + timeout;
        let mut settled = false;
        loop {
            let now = clock.now();
            // The queues are locked before the state, and only when a check is due.
            let stuck = if now >= next_check { stuck() } else { Vec::new() };
            let mut state = self.state.lock();
            if !settled && state.is_settled(self.enough) {
                settled = true;
                let soon = now + now.saturating_duration_since(start) * 2 + GRACE;
                end = Some(end.map_or(soon, |end| end.min(soon)));
            }
            let check = if now >= next_check {
                state.pending.next_check(now, timeout, 1, &stuck)
            } else {
                Some(next_check)
            };
            let is_over = state.pending.len() == 0 || end.is_some_and(|end| end <= now);
            let Some(check) = check.filter(|_| !is_over) else {
                return (mem::take(&mut state.results), state.pending.len());
            };
            drop(state);
            next_check = check;
            let wake = end.map_or(next_check, |end| end.min(next_check));
            park(clock, &self.parker, Some(wake), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the outcome is known when these of three have answered.
    fn is_settled(answers: &[bool]) -> bool {
        let mut state = State { pending: PendingReplies::new(0..3), results: Vec::new() };
        for (position, released) in answers.iter().enumerate() {
            state.pending.answered(position);
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
