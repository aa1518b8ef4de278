//! Finishing the releases that are owed, on the renewal thread, between its turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::releases::{GivesBack, Owed};
use crate::op::Released;
use crate::store::{Failure, Request, Stream};

/// Releases that are sent together.
const AT_ONCE: usize = 100;

/// Sends the releases that are owed and due, and answers whether there were any and the server answered.
pub(super) fn send_owed_releases(shared: &Shared, now: Instant) -> bool {
    let due = shared.releases.lock().take_due(now, AT_ONCE);
    let any = !due.is_empty();
    let mut round = Round { shared, due: due.into(), answered: false };
    if any {
        shared.store.stream(&mut round);
        let now = shared.clock.now();
        let mut book = shared.releases.lock();
        round.due.drain(..).for_each(|owed| book.unanswered(now, owed));
        book.round_over();
    }
    shared.wake_flushers();
    round.answered
}

/// Releases on their way to the server and back.
struct Round<'a> {
    shared: &'a Shared,
    due: VecDeque<Owed>,
    answered: bool,
}

impl Stream for Round<'_> {
    type Operation = GivesBack;
    type Note = Owed;

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn next(&mut self) -> Option<Request<GivesBack, Owed>> {
        let note = self.due.pop_front()?;
        let timeout = self.shared.release_timeout();
        Some(Request { operation: Arc::clone(&note.release), note, timeout })
    }

    fn answered(&mut self, owed: Owed, answer: Result<Released, Failure>) {
        let now = self.shared.clock.now();
        let mut book = self.shared.releases.lock();
        match answer {
            Ok(released) => {
                self.answered = true;
                book.acknowledged(now, owed, released.at);
            }
            Err(_) => book.unanswered(now, owed),
        }
    }
}

/// At the end: every release that is owed gets its chance, as long as the server answers. Without an answer there is a
/// second one, on a new connection: the first may have met one that the server had closed. What a copy that is still
/// on its way may create is left to its lease.
pub(super) fn send_last_releases(shared: &Shared) {
    let mut unanswered = 0;
    while unanswered < 2 {
        let Some(last) = shared.releases.lock().last_due() else {
            return;
        };
        if !send_owed_releases(shared, last) {
            unanswered += 1;
        }
    }
}
