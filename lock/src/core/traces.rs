//! The possible traces of one acquire's tries on the server, and the roll-back of an acquire
//! without a grant.
//!
//! A command can arrive long after its connection was given up. So a try without a reply leaves a
//! deadline until which a copy may run: the not-after of the try, by the server's clock. The
//! release of the acquire is queued until the server has acknowledged the release at a time past
//! this deadline. The renewal thread sends the release: a call of the caller, cut off after so
//! short a time, would close connections that others use.

use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::ledger::release::Release;
use crate::ops::value::ServerTime;
use crate::store::retry::{Answer, CallError, SHORTEST_CALL};

/// The longest expected round trip. A longer round trip comes from a stalled server, and the next
/// is expected to be shorter.
pub(crate) const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(250);

/// The possible traces of one acquire's tries on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Traces {
    /// Until when copies of the tries may arrive.
    pub(crate) late_copy_deadline: Option<ServerTime>,
    /// Whether the server granted the last try, and the grant must be released.
    must_roll_back: bool,
    /// Whether the server answered the last try.
    is_answered: bool,
    /// By when the last try was to be answered; `None` before the first try.
    answer_due: Option<Instant>,
}

impl Traces {
    /// Notes the result of a try, which was to be answered by `due`.
    pub(crate) fn note_result<R>(&mut self, due: Instant, result: &Result<Answer<R>, CallError>) {
        let copies = match result {
            Ok(answer) => answer.late_copy_deadline,
            Err(error) => error.late_copy_deadline,
        };
        self.late_copy_deadline = self.late_copy_deadline.max(copies);
        self.answer_due = Some(due);
        self.must_roll_back = result.as_ref().is_err_and(|error| error.failure.needs_roll_back());
        self.is_answered = result.is_ok() || self.must_roll_back;
    }

    /// Notes that the server granted the last try, and that no guard has the grant yet.
    pub(crate) fn expect_roll_back(&mut self) {
        self.must_roll_back = true;
    }

    /// Whether the next try may be for a new owner. `is_queued`: the owner of the last try may be
    /// in a queue on the server.
    pub(crate) fn allow_new_owner(&self, is_queued: bool) -> bool {
        let may_draw = may_change_owner(self.is_answered, is_queued, self.late_copy_deadline);
        may_draw && !self.must_roll_back
    }

    /// Whether an acquire that ends now without a grant has to be rolled back.
    pub(crate) fn need_roll_back(&self) -> bool {
        Leftover::of(self.must_roll_back, self.late_copy_deadline) != Leftover::Nothing
    }

    /// Rolls back an acquire without a grant, by queueing `release()`; does nothing if the server
    /// has no traces. `is_there`: the server may have a place in its queue, or a grant without a
    /// guard. Waits for [`rollback_time`] if the server has either and answered the last try.
    pub(crate) fn roll_back(
        &self,
        core: &ClientCore,
        is_there: bool,
        release: impl FnOnce() -> Release,
    ) {
        let is_there = is_there || self.must_roll_back;
        let answer_due = match Leftover::of(is_there, self.late_copy_deadline) {
            Leftover::Nothing => return,
            Leftover::LateCopy => None,
            Leftover::Owner => self.answer_due.filter(|_| self.is_answered),
        };
        // `Drop` calls this function. A panic of the clock during another panic would end the
        // process.
        core.watchdog.context.catch_panic(|| roll_back(core, release(), answer_due));
    }
}

/// The possible remains on the server of an acquire without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Nothing,
    /// Nothing yet: a copy of a try may arrive and be granted.
    LateCopy,
    /// A hold, or a place in the queue.
    Owner,
}

impl Leftover {
    /// Returns the possible remains of an acquire. `is_there`: the owner holds the lock on the
    /// server, or is in its queue.
    pub(crate) fn of(is_there: bool, late_copy_deadline: Option<ServerTime>) -> Self {
        match late_copy_deadline {
            _ if is_there => Self::Owner,
            Some(_) => Self::LateCopy,
            None => Self::Nothing,
        }
    }
}

/// Whether the next try of an acquire may be for a new owner: the last try was answered, the owner
/// is in no queue on the server, and no copy of a try may arrive.
pub(crate) fn may_change_owner(
    is_answered: bool,
    is_queued: bool,
    late_copy_deadline: Option<ServerTime>,
) -> bool {
    is_answered && !is_queued && late_copy_deadline.is_none()
}

/// Queues `release` for the renewal thread, and waits for [`rollback_time`]. `answer_due` is when
/// the acquire was to be answered, if the server answered.
pub(crate) fn roll_back(core: &ClientCore, release: Release, answer_due: Option<Instant>) {
    let (releases, now) = (&core.watchdog.releases, core.now());
    let no = releases.begin(release);
    // A release that cannot be queued is counted.
    releases.queue(no, now);
    releases.wait_for(no, rollback_time(core.now(), answer_due));
}

/// Returns how long to wait for a roll-back at `now`: not at all without an answer of the server;
/// otherwise until [`SHORTEST_CALL`] after the acquire's end, and for one round trip at most.
fn rollback_time(now: Instant, answer_due: Option<Instant>) -> Duration {
    let left = |due: Instant| (due + SHORTEST_CALL).saturating_duration_since(now);
    answer_due.map_or(Duration::ZERO, |due| left(due).min(LONGEST_ROUND_TRIP))
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn rollback_wait_ends_ten_milliseconds_after_the_acquire_ends() {
        let start = SystemClock.now();
        let at = |millis| start + Duration::from_millis(millis);
        let left = |now, due| rollback_time(at(now), Some(at(due))).as_millis();
        assert_eq!(left(95, 100), 15);
        // The last answer came late.
        assert_eq!(left(103, 100), 7);
        assert_eq!(left(111, 100), 0);
        assert_eq!(left(0, 60_000), LONGEST_ROUND_TRIP.as_millis());
        assert_eq!(rollback_time(start, None), Duration::ZERO);
    }
}
