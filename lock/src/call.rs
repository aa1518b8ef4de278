//! One call as its caller sees it: an operation is sent until it is answered, or patience ends.
//!
//! Every operation may be sent again, as `op` explains. What matters afterwards is the *doubt*: if an attempt went
//! unanswered, a copy of it may still reach the server until its not-after.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, never};
use hashed_wheel::{Clock, Parker};

use crate::op::Operation;
use crate::store::{Failure, Store};
use crate::value::ServerTime;

/// An answered call.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) reply: R,
    /// Just before the attempt that was answered was sent.
    pub(crate) sent_at: Instant,
    /// Until when copies of earlier attempts may still arrive.
    pub(crate) doubt: Option<ServerTime>,
}

/// A call that got no answer.
#[derive(Debug)]
pub(crate) struct GaveUp {
    pub(crate) failure: Failure,
    /// Until when copies of its attempts may still arrive.
    pub(crate) doubt: Option<ServerTime>,
}

/// How often to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// As often as patience allows.
    UntilAnswered,
    /// Once: the caller finishes in another way what this does not. Only if the connection broke, once more at once:
    /// it may have been closed while it lay idle, by a server or a firewall, and then says nothing about the server.
    One,
}

/// How long to keep trying.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    /// No attempt is under way after this.
    pub(crate) until: Instant,
    /// One attempt may take this long.
    pub(crate) attempt: Duration,
    pub(crate) attempts: Attempts,
    /// Once true, there is no further attempt.
    pub(crate) closed: Option<&'a AtomicBool>,
    /// A message here ends the pauses between attempts. It stays in the channel.
    pub(crate) cancel: Option<&'a Receiver<()>>,
}

impl Patience<'_> {
    /// Whether the caller wants no more attempts.
    fn is_over(&self) -> bool {
        let closed = self.closed.is_some_and(|closed| closed.load(Ordering::Acquire));
        closed || is_cancelled(self.cancel)
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Sends `operation` until it is answered.
pub(crate) fn call<O: Operation + ?Sized>(
    store: &Store,
    clock: &dyn Clock,
    operation: &O,
    patience: &Patience<'_>,
) -> Result<Answer<O::Reply>, GaveUp> {
    let mut doubt: Option<ServerTime> = None;
    let mut pause = FIRST_PAUSE;
    let one = patience.attempts == Attempts::One;
    let mut until = patience.until;
    let mut broke = false;
    loop {
        let sent_at = clock.now();
        if one {
            // Both together take no longer than one.
            until = until.min(sent_at + patience.attempt);
        }
        let left = until.saturating_duration_since(sent_at);
        let failure = match store.run(operation, patience.attempt.min(left)) {
            Ok(reply) => {
                return Ok(Answer { reply, sent_at, doubt });
            }
            Err(failure) => failure,
        };
        if let Failure::Unknown { not_after, .. } = &failure {
            doubt = doubt.max(Some(*not_after));
        }
        let at_once = one && !std::mem::replace(&mut broke, true) && failure.is_broken();
        let go_on_at = clock.now() + if one { Duration::ZERO } else { pause };
        let last = (one && !at_once) || go_on_at >= until || !store.may_recover_by_itself();
        if last || !failure.passes() || patience.is_over() {
            let failure = match doubt {
                // Whatever the last attempt met, an earlier one may have run.
                Some(not_after) if failure.passes() => failure.in_doubt(not_after),
                _ => failure,
            };
            return Err(GaveUp { failure, doubt });
        }
        if at_once {
            continue;
        }
        park(clock, &Parker::new(), Some(go_on_at), patience.cancel);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether there is a message, or nobody left to send one. Looks without taking: others may wait on the same channel.
pub(crate) fn is_cancelled(cancel: Option<&Receiver<()>>) -> bool {
    cancel.is_some_and(|cancel| {
        let mut look = Select::new();
        look.recv(cancel);
        look.try_ready().is_ok()
    })
}

/// Parks on a clock until `deadline`, unless woken or cancelled.
pub(crate) fn park(
    clock: &dyn Clock,
    parker: &Parker,
    deadline: Option<Instant>,
    cancel: Option<&Receiver<()>>,
) {
    match cancel {
        Some(cancel) => clock.park(parker, deadline, cancel),
        None => clock.park(parker, deadline, &never()),
    }
}
