//! Finishing the releases that a server is owed, on its renewal thread, between that one's turns.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};

use super::Shared;
use super::releases::{Debt, GivesBack, Releases};
use super::renewer::Renewer;
use crate::op::Released;
use crate::store::{Failure, Request, Stream};

/// Releases that are sent together.
const AT_ONCE: usize = 100;
/// For how long, at the end, what is owed is still sent.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// Sends the releases that are owed and due, within `timeout`. Answers whether the server has answered any.
pub(super) fn send_owed_releases(
    shared: &Shared,
    renewer: &Renewer,
    now: Instant,
    timeout: Duration,
) -> bool {
    // At the end the other's thread may have ended before. What belongs there finds its way from here.
    let ending = shared.stopping.load(Ordering::Acquire);
    if !ending {
        shared.move_owed(renewer, now);
    }
    let due = renewer.with_releases(|book| book.begin_round(now, AT_ONCE));
    let any = !due.is_empty();
    let mut round = Round { shared, renewer, due: due.into(), timeout, now, answered: false };
    if any {
        let home = |(debt, _): &(Debt, GivesBack)| shared.store.lane_of(debt.name.as_str());
        let lane = round.due.front().filter(|_| ending).map_or(renewer.lane, home);
        shared.store.stream(lane, &mut round);
        round.now = shared.clock.now();
    }
    round.answered
}

/// Releases on their way to the server and back.
struct Round<'a> {
    shared: &'a Shared,
    renewer: &'a Renewer,
    due: VecDeque<(Debt, GivesBack)>,
    timeout: Duration,
    /// When the clock was read last.
    now: Instant,
    answered: bool,
}

impl Stream for Round<'_> {
    type Operation = GivesBack;
    type Note = Debt;

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn next(&mut self) -> Option<Request<GivesBack, Debt>> {
        let (note, operation) = self.due.pop_front()?;
        Some(Request { operation, note, timeout: self.timeout })
    }

    fn answered(&mut self, debt: Debt, answer: Result<Released, Failure>) {
        self.now = self.shared.clock.now();
        let now = self.now;
        self.answered |= answer.is_ok();
        self.renewer.with_releases(|book| match answer {
            Ok(released) => book.acknowledged(now, &debt, released.at),
            Err(_) => book.unanswered(now, &debt),
        });
    }
}

impl Drop for Round<'_> {
    /// Also if it panicked: what got no answer stays owed, and nobody waits for a round that is over. The clock is not
    /// asked, as it may be what has panicked.
    fn drop(&mut self) {
        self.renewer.with_releases(|book| book.end_round(self.now));
        self.shared.wake_flushers();
    }
}

/// At the end: every release that is owed gets its chance, as long as the server answers, for [`LAST_RELEASES`] at
/// most. By the system's clock: how long a server takes is the outside world's. Without an answer there is a second
/// round, on a new connection: the first may have met one that the server had closed. What a copy that is still on its
/// way may create is left to its lease, and so is what was not sent in time.
pub(super) fn send_last_releases(shared: &Shared, renewer: &Renewer) {
    let deadline = SystemClock.now() + LAST_RELEASES;
    let mut unanswered = 0;
    while unanswered < 2 {
        let left = deadline.saturating_duration_since(SystemClock.now());
        let Some(last) = renewer.releases().last_due().filter(|_| !left.is_zero()) else {
            break;
        };
        if !send_owed_releases(shared, renewer, last, shared.release_timeout().min(left)) {
            unanswered += 1;
        }
    }
    renewer.with_releases(Releases::abandon);
}
