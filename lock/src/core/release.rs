//! One release, from the end of the guard to the server's answer.
//!
//! A release begins with the end of the hold for everything in this process, before the first byte
//! is sent. Then the caller sends the release, and waits for the reply in
//! [`GuardRelease::send`] but not in [`GuardRelease::send_on_drop`]; or the renewal
//! worker sends the release. Each release without an acknowledgement is queued with the watchdog,
//! until the server has acknowledged the release or the hold's lease has expired.
//!
//! A drop returns when its bytes are in the kernel, as only bad news in the reply matters: this
//! saves a tenth of an uncontended lock and drop on one core, and half where client and server have
//! a core each. The next call on the connection reads the reply, or the renewal thread does.
//! `CLIENT REPLY SKIP` would save no more, and would hide `NOSCRIPT`, `READONLY` and `MOVED`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::client_core::{ClientCore, lost};
use crate::error::{Error, LostReason};
use crate::events::tracing;
use crate::hold::hold::Hold;
use crate::hold::state::Loss;
use crate::ledger::ledger::ReleaseAnswer;
use crate::ledger::release::ReleaseOp;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::ops::release_many::ReleaseMany;
use crate::ops::{Found, Released, SetCountReply};
use crate::store::Failure;
use crate::store::retry::{Answer, CallError, RetryLimit};
use crate::watchdog::SendLimit;
use crate::watchdog::settle::{NotReleased, classify_release};

/// The update that the server needs after the end of a guard.
#[derive(Debug)]
enum ServerUpdate {
    /// The number of remaining guards.
    Count(u32),
    /// The last guard is gone. The hold would have been valid until `valid_until`.
    Release {
        no: ReleaseNo,
        valid_until: Option<Instant>,
        /// Whether threads of this client wait for the end of the release.
        waited_for: bool,
    },
}

/// The shortest time for a release begun after a deadline. Most releases are answered sooner.
pub(crate) const SHORTEST_RELEASE: Duration = Duration::from_millis(50);

/// Makes the next waiting thread of this client the holder, after the last guard of a thread. Sends
/// nothing. Returns `false` if no thread is next, and the caller has to release the hold.
pub(crate) fn hand_over(core: &ClientCore, hold: &Arc<Hold>) -> bool {
    // Usually no thread waits, and nothing is read or locked. A waiter missed here receives the
    // release's message from the server.
    if core.waits.waiters() == 0 {
        return false;
    }
    // If the clock panics, the hold is released.
    let Some(now) = core.watchdog.context.catch_panic(|| core.now()) else { return false };
    // The time of this holder, which ends here, and the holder's label. Read before the next holder
    // replaces both.
    let (held_for, label) = (hold.held_for(now), hold.metrics_label());
    if !core.waits.give_to_first_waiter(hold, now) {
        return false;
    }
    if let Some(label) = label {
        core.watchdog.context.counters.acquires().hold_ended(hold.kind, label, || held_for);
    }
    tracing::released(&hold.name, hold.kind, &hold.owner, || held_for);
    true
}

/// Ends `hold` for everything in this process. `release` has begun, so a shutdown finds the hold
/// among the releases or in the registry. Returns an error if the hold was over before.
pub(crate) fn end_hold(
    core: &ClientCore,
    hold: &Arc<Hold>,
    release: ReleaseNo,
) -> Result<(), Error> {
    core.watchdog.end(hold, release).map_err(|Loss { reason, .. }| lost(hold, reason))?;
    tracing::released(&hold.name, hold.kind, &hold.owner, || hold.held_for(core.now()));
    Ok(())
}

/// The outcome of a request with releases, by the server's answer.
pub(crate) struct ReleaseOutcome {
    pub(crate) verdict: Result<(), NotReleased>,
    /// The finding of the answer, whether or not an earlier copy has run.
    pub(crate) found: Found,
    /// How many subscribers the message has reached, if the server reports the number.
    receivers: Option<u32>,
    /// The finding for each hold, if the request released many.
    each: Vec<Found>,
    /// Whether a copy of the request may still arrive.
    has_copies: bool,
    /// When the answer arrived.
    answered_at: Instant,
}

/// Sends `operation`, which has the `releases`, and settles the releases by the answer. `name` is
/// the first name of the releases. `in_time` says whether the holds would still be valid at a given
/// time.
pub(crate) fn send_and_settle(
    core: &ClientCore,
    releases: &[ReleaseNo],
    operation: &ReleaseOp,
    name: &LockName,
    (timeout, limit): (Duration, RetryLimit),
    in_time: impl FnOnce(Instant) -> bool,
) -> Result<ReleaseOutcome, Error> {
    let sent_at = core.now();
    let answer = core.call_within(operation, timeout, limit);
    settle(core, releases, sent_at, answer, in_time)
        .map_err(|failure| failure.into_error(operation, name))
}

/// Settles `releases` by the answer to their request, which was sent at `sent_at`. After a failure
/// the releases are queued.
fn settle(
    core: &ClientCore,
    releases: &[ReleaseNo],
    sent_at: Instant,
    answer: Result<Answer<Released>, CallError>,
    in_time: impl FnOnce(Instant) -> bool,
) -> Result<ReleaseOutcome, Failure> {
    match answer {
        Ok(answer) => {
            let has_copies = answer.late_copy_deadline.is_some();
            let (sent_at, reply) = (answer.sent_at, Ok(&answer.reply));
            let now = core.watchdog.settle(releases, ReleaseAnswer { sent_at, reply, has_copies });
            let Released { found, receivers, each, .. } = answer.reply;
            let verdict = classify_release(found, has_copies, in_time(now));
            Ok(ReleaseOutcome { verdict, found, receivers, each, has_copies, answered_at: now })
        }
        Err(CallError { failure, late_copy_deadline }) => {
            let has_copies = late_copy_deadline.is_some();
            let reply = Err(&failure);
            core.watchdog.settle(releases, ReleaseAnswer { sent_at, reply, has_copies });
            Err(failure)
        }
    }
}

/// Sends a release of `name` by `send_unread`. If `send_unread` returns `false`, if waiting threads
/// need the reply (`is_waited_for`), or if `wait_on_drop` is set, calls `wait` with the rest of a
/// command timeout. If no time is left, calls `queue` and marks the server silent: later drops call
/// `queue` at once, until the server answers. Without the mark a thousand guards would take a
/// thousand timeouts.
pub(crate) fn send_on_drop(
    core: &ClientCore,
    name: &LockName,
    is_waited_for: bool,
    wait: impl FnOnce(Duration) -> Result<(), Error>,
    queue: impl FnOnce(),
    send_unread: impl FnOnce(SendLimit) -> bool,
) -> Result<(), Error> {
    let releases = &core.watchdog.releases;
    if releases.is_server_silent(name) {
        queue();
        return Err(unsent_release());
    }
    let timeout = core.settings.command_timeout;
    let deadline = core.now() + timeout;
    let generation = core.waits.shutdown().generation();
    let is_sent = !is_waited_for
        && !core.settings.wait_on_drop
        && send_unread(SendLimit { timeout, generation });
    let left = deadline.saturating_duration_since(core.now());
    let (sent, waited_in_vain) = if is_sent {
        // `send_unread` may have waited for the reply.
        (Ok(()), left.is_zero())
    } else if left.is_zero() {
        queue();
        (Err(unsent_release()), true)
    } else {
        let sent = wait(left);
        let is_over = sent.as_ref().is_err_and(Error::is_retryable) && core.now() >= deadline;
        (sent, is_over)
    };
    if waited_in_vain {
        releases.set_server_silent(name);
    }
    sent
}

/// Makes the error of a release of which an earlier copy may have run, in time or not.
pub(crate) fn late_release() -> Error {
    Error::OutcomeUnknown {
        operation: "release",
        reason: "the first attempt was unanswered before the lease expired".into(),
    }
}

/// Makes the error of several releases that were not all answered. The unanswered releases are
/// queued.
fn unsettled_release(reason: &str) -> Error {
    Error::OutcomeUnknown { operation: "release", reason: reason.into() }
}

/// Makes the error of a release of which nothing was sent in time. The release is queued.
pub(crate) fn unsent_release() -> Error {
    let reason = "the connection did not take it in time".into();
    Error::OutcomeUnknown { operation: "release", reason }
}

/// The release of one guard, which was counted off its hold, until the server is notified. If the
/// last guard's value is dropped before, as when the clock panics, a renewal thread ends and
/// releases the hold.
#[derive(Debug)]
pub(crate) struct GuardRelease {
    core: Arc<ClientCore>,
    hold: Arc<Hold>,
    /// `None` once the server was notified, or the release was queued.
    pending: Option<ServerUpdate>,
}

impl GuardRelease {
    /// Counts one guard off `hold`. After the last guard, begins the release in the ledger and ends
    /// the hold for everything in this process. Sends nothing. Returns an error if the hold was
    /// over before.
    pub(crate) fn begin(
        core: &Arc<ClientCore>,
        hold: &Arc<Hold>,
        watched: bool,
    ) -> Result<Self, Error> {
        let left = hold.remove_guard(watched);
        let (core, hold) = (Arc::clone(core), Arc::clone(hold));
        if left > 0 {
            // Perhaps the last guard of the same named owner has just released the hold: then the
            // hold is not lost.
            core.check(&hold)
                .or_else(|lost| if hold.is_released() { Ok(()) } else { Err(lost) })?;
            return Ok(Self { core, hold, pending: Some(ServerUpdate::Count(left)) });
        }
        let (releases, valid_until) = (&core.watchdog.releases, hold.valid_until());
        let no = releases.begin(releases.of_hold(&hold).ending(&hold, valid_until));
        let pending = |waited_for| Some(ServerUpdate::Release { no, valid_until, waited_for });
        // Before the clock is read.
        let mut release = Self { core, hold, pending: pending(false) };
        let Self { core, hold, .. } = &release;
        if let Err(lost) = end_hold(core, hold, no) {
            release.pending = None;
            return Err(lost);
        }
        core.note_kept(hold);
        release.pending = pending(core.waits.release_begins(&core.store, hold));
        Ok(release)
    }

    /// Sends the release, for `timeout` at most, and returns the server's verdict.
    pub(crate) fn send(&mut self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        self.finish(|release, pending| release.wait(pending, timeout, limit))
    }

    /// Sends the release until the server answers, and returns the server's verdict.
    pub(crate) fn send_until_answered(&mut self) -> Result<(), Error> {
        self.send(self.core.settings.retry_timeout(), RetryLimit::UntilAnswered)
    }

    /// Sends the release in one attempt, within `timeout`. If `timeout` is zero, queues the
    /// release.
    pub(crate) fn send_within(mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = timeout.min(self.core.settings.command_timeout);
        if timeout.is_zero() {
            self.queue();
            return Ok(());
        }
        self.send(timeout, RetryLimit::One)
    }

    /// Sends the release in one attempt, and returns the server's verdict.
    pub(crate) fn send_once(&mut self) -> Result<(), Error> {
        self.send(self.core.settings.command_timeout, RetryLimit::One)
    }

    /// Sends the release and returns before the reply, as dropping the guard does. Waits for the
    /// reply, in one attempt, in three cases: `wait_on_drop` is set, the release cannot be sent
    /// without a wait, or threads of this client wait for the lock and learn their turn from the
    /// reply (after hand-overs, about one release in 5 ms of a hot lock). Queues the release if an
    /// earlier drop has waited for the server in vain.
    pub(crate) fn send_on_drop(&mut self) -> Result<(), Error> {
        self.finish(|release, pending| {
            let ServerUpdate::Release { no, waited_for, .. } = *pending else {
                // The server's count stays one too high. The last release ignores the count, and
                // the next nested acquire corrects it.
                return Ok(());
            };
            let (core, name) = (&*release.core, &release.hold.name);
            let wait = |left| release.wait(pending, left, RetryLimit::One);
            let queue = || release.defer(pending);
            send_on_drop(core, name, waited_for, wait, queue, |limit| {
                let now = core.now();
                let operation = release.operation(no, now);
                core.watchdog.send_unread(&[no], (name, &operation), now, limit)
            })
        })
    }

    /// Queues the release: no caller waits for the server. A count is not sent.
    pub(crate) fn queue(mut self) {
        drop(self.finish(|release, pending| {
            release.defer(pending);
            Ok(())
        }));
    }

    /// Calls `action` with the pending update, and clears the update. If `action` panics, the
    /// update stays, and a renewal thread sends the release. Without an update, does nothing.
    fn finish(
        &mut self,
        action: impl FnOnce(&Self, &ServerUpdate) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sent = self.pending.as_ref().map_or(Ok(()), |pending| action(self, pending));
        self.pending = None;
        sent
    }

    /// Sends the update in `pending`, waits for the reply, and returns the server's verdict.
    /// Afterwards waiting threads of this client may try.
    fn wait(
        &self,
        pending: &ServerUpdate,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        let Self { core, hold, .. } = self;
        let (no, valid_until, waited_for) = match *pending {
            ServerUpdate::Count(count) => return self.send_count(count, timeout, limit),
            ServerUpdate::Release { no, valid_until, waited_for } => (no, valid_until, waited_for),
        };
        let operation = self.operation(no, core.now());
        let in_time = |now| valid_until.is_some_and(|end| now < end);
        let sent = send_and_settle(core, &[no], &operation, &hold.name, (timeout, limit), in_time);
        if waited_for {
            let receivers = sent.as_ref().ok().and_then(|released| released.receivers);
            core.waits.release_ends(&core.store, hold, receivers);
        }
        sent?.verdict.map_err(|not_released| not_released_error(hold, not_released))
    }

    /// Queues the release in `pending`, after which waiting threads of this client may try. A count
    /// is not sent.
    fn defer(&self, pending: &ServerUpdate) {
        if let ServerUpdate::Release { no, waited_for, .. } = *pending {
            self.core.watchdog.releases.queue(no, self.core.now());
            if waited_for {
                self.core.waits.release_ends(&self.core.store, &self.hold, None);
            }
        }
    }

    /// Returns the operation to send `now`, which ends the hold on the server.
    fn operation(&self, no: ReleaseNo, now: Instant) -> ReleaseOp {
        let operation = self.core.watchdog.releases.ledger().operation(no, now);
        operation.unwrap_or_else(|| self.hold.id().release())
    }

    /// Sends `count`, the number of remaining guards, and waits for the reply. If the server does
    /// not have the hold, reports the loss, unless another thread has released the hold meanwhile.
    fn send_count(&self, count: u32, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        let Self { core, hold, .. } = self;
        let set_count = hold.id().set_count(count, None);
        hold.count_sent();
        match core.call_within(&set_count, timeout, limit) {
            Ok(Answer { reply: SetCountReply::Written, late_copy_deadline, .. }) => {
                if late_copy_deadline.is_none() {
                    hold.count_answered();
                }
                Ok(())
            }
            Ok(Answer { reply: SetCountReply::Gone, .. }) if hold.is_released() => Ok(()),
            Ok(Answer { reply: SetCountReply::Gone, .. }) => {
                core.watchdog.lose(hold, LostReason::Deleted);
                Err(lost(hold, LostReason::Deleted))
            }
            // The count on the server is one too high. The last release ignores the count.
            Err(error) => Err(error.failure.into_error(&set_count, &hold.name)),
        }
    }

    pub(crate) fn core(&self) -> Arc<ClientCore> {
        Arc::clone(&self.core)
    }

    /// Returns the hash slot of the lock. One request may touch the keys of one slot.
    pub(crate) fn hash_slot(&self) -> u16 {
        self.core.store.hash_slot(self.hold.name.as_str()).0
    }
}

/// Releases of plain locks in one request. All locks have the same client and hash slot.
pub(crate) struct ReleaseBatch {
    core: Arc<ClientCore>,
    first: LockName,
    /// If the batch is dropped unsent, as when the clock panics, these releases finish themselves.
    releases: Vec<GuardRelease>,
    nos: Vec<ReleaseNo>,
    operation: ReleaseOp,
    parts: Vec<BatchedRelease>,
}

/// One release of a batch.
struct BatchedRelease {
    hold: Arc<Hold>,
    /// Until when the hold would have been valid.
    valid_until: Option<Instant>,
    /// Whether threads of this client wait for the end of the release.
    waited_for: bool,
}

impl ReleaseBatch {
    /// Makes a batch. Returns `releases` as an error if the caller has to send the releases one by
    /// one: there is only one, or a release leaves another guard.
    pub(crate) fn of(releases: Vec<GuardRelease>) -> Result<Self, Vec<GuardRelease>> {
        let [first, _, ..] = releases.as_slice() else { return Err(releases) };
        let (core, name) = (Arc::clone(&first.core), first.hold.name.clone());
        let (mut nos, mut holds, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for GuardRelease { hold, pending, .. } in &releases {
            let &Some(ServerUpdate::Release { no, valid_until, waited_for }) = pending else {
                return Err(releases);
            };
            nos.push(no);
            holds.push((hold.name.clone(), hold.owner.clone()));
            parts.push(BatchedRelease { hold: Arc::clone(hold), valid_until, waited_for });
        }
        let operation: ReleaseOp = Arc::new(ReleaseMany { holds });
        Ok(Self { core, first: name, releases, nos, operation, parts })
    }

    /// Sends the batch, for `timeout` at most, and returns the first error among the verdicts.
    pub(crate) fn send(mut self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        let timeout = match limit {
            RetryLimit::UntilAnswered => timeout.min(self.core.settings.retry_timeout()),
            RetryLimit::One => timeout.min(self.core.settings.command_timeout),
        };
        let sent = if timeout.is_zero() {
            self.queue();
            Ok(())
        } else {
            self.wait(timeout, limit)
        };
        self.finish();
        sent
    }

    /// Sends the batch as [`GuardRelease::send_on_drop`] sends a single release.
    pub(crate) fn send_on_drop(mut self) -> Result<(), Error> {
        let (core, name) = (&self.core, &self.first);
        let is_waited_for = self.parts.iter().any(|part| part.waited_for);
        let wait = |left| self.wait(left, RetryLimit::One);
        let queue = || self.queue();
        let sent = send_on_drop(core, name, is_waited_for, wait, queue, |limit| {
            core.watchdog.send_unread(&self.nos, (name, &self.operation), core.now(), limit)
        });
        self.finish();
        sent
    }

    /// Marks all releases as sent or queued: dropping the releases does nothing more.
    fn finish(&mut self) {
        for release in &mut self.releases {
            release.pending = None;
        }
    }

    /// Sends the batch and waits for the answer. Then lets the waiting threads of this client try,
    /// also after an error. Returns the error of the request, or the first error among the
    /// verdicts.
    ///
    /// If the server refuses the names together, sends each release in a request of its own.
    fn wait(&self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        let Self { core, first, nos, operation, parts, .. } = self;
        let sent_at = core.now();
        let answer = core.call_within(operation, timeout, limit);
        let is_separated = answer.as_ref().is_err_and(|error| error.failure.separates_names());
        // Without an unanswered copy of the request, nothing was released.
        if is_separated && answer.as_ref().is_err_and(|error| error.late_copy_deadline.is_none()) {
            return self.wait_for_each(sent_at + timeout, limit);
        }
        let sent = settle(core, nos, sent_at, answer, |_| true);
        self.end();
        let ReleaseOutcome { each, has_copies, answered_at, .. } = match sent {
            Ok(outcome) => outcome,
            Err(_) if is_separated => {
                let reason = "an earlier request for all locks was unanswered, and the server then \
                              refused the locks together";
                return Err(unsettled_release(reason));
            }
            Err(failure) => return Err(failure.into_error(operation, first)),
        };
        parts.iter().zip(each).try_for_each(|(BatchedRelease { hold, valid_until, .. }, found)| {
            let in_time = valid_until.is_some_and(|end| answered_at < end);
            classify_release(found, has_copies, in_time)
                .map_err(|not_released| not_released_error(hold, not_released))
        })
    }

    /// Sends each release in a request of its own until `deadline`, and returns the first error.
    /// After an unanswered release the rest is queued.
    fn wait_for_each(&self, deadline: Instant, limit: RetryLimit) -> Result<(), Error> {
        let (mut result, mut answers) = (Ok(()), true);
        for release in &self.releases {
            let Some(pending) = &release.pending else { continue };
            let left = deadline.saturating_duration_since(self.core.now());
            let sent = if answers && !left.is_zero() {
                release.wait(pending, left, limit)
            } else {
                release.defer(pending);
                Err(unsettled_release("the server has not answered for each lock in time"))
            };
            answers = answers && !sent.as_ref().is_err_and(Error::is_retryable);
            result = result.and(sent);
        }
        result
    }

    /// Queues the releases for the renewal thread.
    fn queue(&self) {
        let now = self.core.now();
        for no in &self.nos {
            self.core.watchdog.releases.queue(*no, now);
        }
        self.end();
    }

    /// Lets the waiting threads of this client try, after the end of the request.
    fn end(&self) {
        for BatchedRelease { hold, .. } in self.parts.iter().filter(|part| part.waited_for) {
            self.core.waits.release_ends(&self.core.store, hold, None);
        }
    }
}

/// Makes the error of a release that did not end the hold.
fn not_released_error(hold: &Arc<Hold>, not_released: NotReleased) -> Error {
    match not_released {
        NotReleased::Unknown => late_release(),
        NotReleased::Lost(reason) => lost(hold, reason),
    }
}

impl Drop for GuardRelease {
    fn drop(&mut self) {
        if let Some(ServerUpdate::Release { no, .. }) = self.pending
            && self.core.is_current()
        {
            self.core.watchdog.end_in_background(&self.hold, Some(no));
        }
    }
}
