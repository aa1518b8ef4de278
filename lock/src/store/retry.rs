//! Sends an operation until a reply arrives or the deadline passes.
//!
//! Every operation may be sent again, as `ops` explains. So one loop serves all calls, on a single
//! server and in a cluster. The loop does not depend on the type of a reply, so all calls run the
//! same machine code.
//!
//! An attempt without a reply may still reach the server, until the attempt's not-after. So each
//! call reports a deadline for such late copies. The release of an acquire is queued until the
//! server has acknowledged the release past this deadline: an acquire that is sent twice, granted
//! and released before its first copy arrives leaves no orphan.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::error::Error;
use crate::model::name::LockName;
use crate::model::sync::is_cancelled;
use crate::ops::value::ServerTime;
use crate::ops::value::Value;
use crate::ops::{AnyOperation, Operation, Untyped};
use crate::store::failure::Failure;
use crate::store::shutdown::{CallGeneration, ShutdownState};
use crate::store::store::Store;

/// The reply to a call.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) reply: R,
    /// The time before the answered attempt began.
    pub(crate) sent_at: Instant,
    /// Until when copies of earlier attempts may still arrive.
    pub(crate) late_copy_deadline: Option<ServerTime>,
}

/// The failure of a call without a reply.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) failure: Failure,
    /// Until when copies of the call's attempts may still arrive.
    pub(crate) late_copy_deadline: Option<ServerTime>,
}

/// Converts the failure of a call into the error for the caller.
pub(crate) fn map_failure<O: Operation + ?Sized>(
    answer: Result<Answer<O::Reply>, CallError>,
    operation: &O,
    name: &LockName,
) -> Result<Answer<O::Reply>, Error> {
    answer.map_err(|error| error.failure.into_error(operation, name))
}

/// The number of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryLimit {
    /// Until a reply arrives, or the deadline passes.
    UntilAnswered,
    /// One attempt: the caller finishes a failed operation in another way. A second attempt follows
    /// at once if the connection broke: a server or a firewall may have closed an idle connection,
    /// which says nothing about the server.
    One,
}

/// How long a call tries, and which events end the call earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy<'a> {
    /// No attempt is under way after this time.
    pub(crate) deadline: Instant,
    /// How long one attempt may take.
    pub(crate) attempt_timeout: Duration,
    pub(crate) limit: RetryLimit,
    pub(crate) shutdown: &'a ShutdownState,
    /// Whether the call is part of a wait for a lock, which ends when a shutdown begins.
    pub(crate) is_wait: bool,
    /// A message here ends the pauses between attempts. The message stays in the channel.
    pub(crate) cancel: Option<&'a Receiver<()>>,
}

/// The minimum time for a call that begins just before a deadline, so a short wait is not an error.
pub(crate) const SHORTEST_CALL: Duration = Duration::from_millis(10);

/// The first pause between two attempts. The pauses double up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Sends `operation` until a reply arrives or `policy` ends the call, and returns the decoded
/// reply. `now` is a fresh reading of the clock.
pub(crate) fn call<O: Operation>(
    store: &Store,
    clock: &dyn Clock,
    operation: &O,
    policy: &RetryPolicy<'_>,
    now: Instant,
) -> Result<Answer<O::Reply>, CallError> {
    let answer = send_until_answered(store, clock, &Untyped(operation), policy, now)?;
    let Answer { reply, sent_at, late_copy_deadline } = answer;
    match operation.decode(reply).map_err(Failure::unexpected) {
        Ok(reply) => Ok(Answer { reply, sent_at, late_copy_deadline }),
        Err(failure) => Err(CallError { failure, late_copy_deadline }),
    }
}

/// Sends `operation` like [`call`], and returns the undecoded reply. A refusal of a divisible
/// operation because of its hash slots becomes `CrossSlot`.
fn send_until_answered(
    store: &Store,
    clock: &dyn Clock,
    operation: &AnyOperation<'_>,
    policy: &RetryPolicy<'_>,
    now: Instant,
) -> Result<Answer<Value>, CallError> {
    call_with(store, clock, policy, now, |timeout, generation| {
        let reply = store.execute(operation, timeout, generation);
        // The keys are in several hash slots, or their hash slot is being moved. A separate request
        // for each key is better than the same request again.
        reply.map_err(|failure| {
            let is_to_be_divided = operation.is_divisible() && failure.is_cross_slot();
            if is_to_be_divided { Failure::CrossSlot { name: String::new() } } else { failure }
        })
    })
}

/// Repeats `attempt` until a reply arrives or `policy` ends the call. `attempt` gets a timeout, and
/// must return within the timeout.
pub(crate) fn call_with<R>(
    store: &Store,
    clock: &dyn Clock,
    policy: &RetryPolicy<'_>,
    now: Instant,
    attempt: impl Fn(Duration, CallGeneration) -> Result<R, Failure>,
) -> Result<Answer<R>, CallError> {
    let generation = policy.shutdown.generation();
    let one = policy.limit == RetryLimit::One;
    let mut until = policy.deadline;
    let mut late_copy_deadline: Option<ServerTime> = None;
    let mut pause = FIRST_PAUSE;
    let mut broke = false;
    let mut refused = None;
    let mut sent_at = now;
    loop {
        // 1. Make one attempt, within the time left.
        if one {
            // The second attempt gets the rest of the first attempt's time.
            until = until.min(sent_at + policy.attempt_timeout);
        }
        let left = until.saturating_duration_since(sent_at);
        let failure = match attempt(policy.attempt_timeout.min(left), generation) {
            Ok(reply) => return Ok(Answer { reply, sent_at, late_copy_deadline }),
            Err(failure) if left < policy.attempt_timeout => {
                // An earlier refusal by the server is more informative than a timeout.
                let refused = refused.take().filter(|_| failure.is_unsent_timeout());
                refused.unwrap_or_else(|| failure.cut_off_after(left))
            }
            Err(failure) => failure,
        };
        // 2. Without a reply, a copy of the attempt may run later.
        late_copy_deadline = deadline_after_failure(late_copy_deadline, &failure);
        // 3. Retry if this may help, time is left and nothing ends the call.
        let at_once = one && !std::mem::replace(&mut broke, true) && failure.is_connection_error();
        let retry_at = clock.now() + if one { Duration::ZERO } else { pause };
        let is_last = (one && !at_once) || retry_at >= until || !store.may_answer_later();
        let retries = !is_last
            && failure.is_transient()
            && !policy.is_over(generation)
            && (at_once || policy.pause(store, clock, retry_at, generation));
        if !retries {
            let failure = match late_copy_deadline {
                // Whatever ended the last attempt, an earlier attempt may have run.
                Some(not_after) if failure.is_transient() || matches!(failure, Failure::Closed) => {
                    failure.into_unknown(not_after)
                }
                _ => failure,
            };
            return Err(CallError { failure, late_copy_deadline });
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        refused = Some(failure).filter(|failure| matches!(failure, Failure::Refused { .. }));
        sent_at = clock.now();
    }
}

/// Returns until when copies of a call may still arrive, after an attempt with `failure`.
/// `late_copy_deadline` is the time for the earlier attempts.
pub(crate) fn deadline_after_failure(
    late_copy_deadline: Option<ServerTime>,
    failure: &Failure,
) -> Option<ServerTime> {
    match failure {
        Failure::Unknown { not_after, .. } => late_copy_deadline.max(Some(*not_after)),
        _ => late_copy_deadline,
    }
}

impl RetryPolicy<'_> {
    /// Returns the policy for a repeated attempt at `now`, possibly after the deadline. Extends the
    /// deadline to at least [`SHORTEST_CALL`]: without time, the attempt would fail although the
    /// server answers.
    pub(crate) fn of_last_try(&self, now: Instant) -> Self {
        Self { deadline: self.deadline.max(now + SHORTEST_CALL), ..*self }
    }

    /// Returns the same policy with [`RetryLimit::One`].
    pub(crate) fn of_one_attempt(&self) -> Self {
        Self { limit: RetryLimit::One, ..*self }
    }

    /// Returns whether an abort, a shutdown or the caller ends a call of `generation`.
    fn is_over(&self, generation: CallGeneration) -> bool {
        self.shutdown.generation() != generation
            || (self.is_wait && self.shutdown.has_begun())
            || is_cancelled(self.cancel)
    }

    /// Returns whether a shutdown or the caller ends further work of this call. Aborts of calls are
    /// ignored: the work would begin now.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_over(self.shutdown.generation())
    }

    /// Waits until `until`, the time of the next attempt. Returns `false` if the call of
    /// `generation` ends instead.
    fn pause(
        &self,
        store: &Store,
        clock: &dyn Clock,
        until: Instant,
        generation: CallGeneration,
    ) -> bool {
        self.shutdown.while_pausing(|parker| {
            if !self.is_over(generation) {
                store.pause(clock, parker, until, self.cancel);
            }
        });
        !self.is_over(generation)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Weak;

    use hashed_wheel::SystemClock;

    use super::*;
    use crate::store::Location;
    use crate::store::listener::NoListener;

    #[test]
    fn close_after_a_possibly_run_attempt_is_an_unknown_outcome() {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let not_after = ServerTime(7);
        for unanswered in [false, true] {
            let location = Location::parse("redis://127.0.0.1:1").unwrap();
            let store = Store::redis(location, TIMEOUT, None, Weak::<NoListener>::new()).unwrap();
            let shutdown = ShutdownState::default();
            let now = SystemClock.now();
            let policy = RetryPolicy {
                deadline: now + TIMEOUT,
                attempt_timeout: TIMEOUT,
                limit: RetryLimit::UntilAnswered,
                shutdown: &shutdown,
                is_wait: false,
                cancel: None,
            };
            let first = Cell::new(unanswered);
            let called = call_with(&store, &SystemClock, &policy, now, |_, _| {
                let (reason, broken) = ("it broke".into(), true);
                let unknown = Failure::Unknown { not_after, reason, broken };
                Err::<(), _>(if first.take() { unknown } else { Failure::Closed })
            });
            let CallError { failure, late_copy_deadline } = called.unwrap_err();
            assert_eq!(late_copy_deadline, unanswered.then_some(not_after));
            assert_eq!(matches!(failure, Failure::Unknown { .. }), unanswered, "{failure:?}");
        }
    }
}
