//! One release, from the guard that goes to the server's answer.
//!
//! A release begins with the end of the hold for everything in this process, before the first byte
//! is sent. Then the server is told: by the caller, which waits for the reply in
//! [`ReleaseInProgress::send`] and does not in [`ReleaseInProgress::send_on_drop`]; or by the
//! renewal worker. What the server does not acknowledge is queued with the watchdog (DESIGN: unread
//! releases, release queue).

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::client_core::{ClientCore, lost};
use crate::error::{Error, LostReason};
use crate::events::tracing;
use crate::hold::hold::Hold;
use crate::hold::state::Loss;
use crate::ledger::ledger::ReleaseAnswer;
use crate::ledger::release::ReleaseOp;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::SystemClock;
use crate::ops::release_many::ReleaseMany;
use crate::ops::{Found, Released, SetCountReply};
use crate::store::retry::{Answer, CallError, RetryLimit};
use crate::watchdog::SendLimit;
use crate::watchdog::settle::{NotReleased, classify_release};

/// What the server is still to be told of a guard that is gone.
#[derive(Debug)]
enum PendingRelease {
    /// The number of guards that are left.
    Count(u32),
    /// It was the last guard, of a hold that would have been valid until `valid_until`.
    Release {
        no: ReleaseNo,
        valid_until: Option<Instant>,
        /// Whether threads of this client wait for the end of the release.
        waited_for: bool,
    },
}

/// A release that begins after a deadline may take this long. Most are answered in it.
pub(crate) const SHORTEST_RELEASE: Duration = Duration::from_millis(50);

/// The last guard of a thread is gone: another thread of this client becomes the holder, if one is
/// next in line (DESIGN: hand-over). Nothing is sent then. False if the hold is to be released.
pub(crate) fn hand_over(core: &ClientCore, hold: &Arc<Hold>) -> bool {
    // Mostly nobody waits, and nothing is read or locked. A waiter that is missed here hears of the
    // release from the server.
    if core.waits.waiters() == 0 {
        return false;
    }
    // If the clock panics, the hold is released.
    let Some(now) = core.watchdog.context.catch_panic(|| core.now()) else { return false };
    // The time of this holder, which ends here, and its label. Read before they are the next
    // holder's.
    let (held_for, label) = (hold.held_for(now), hold.metrics_label());
    if !core.waits.hand_over(hold, now) {
        return false;
    }
    if let Some(label) = label {
        core.watchdog.context.counters.acquires().hold_ended(hold.kind, label, || held_for);
    }
    tracing::released(&hold.name, hold.kind, &hold.owner, || held_for);
    true
}

/// Ends `hold` for everything in this process. `release` has begun, so that a shutdown finds it here
/// or in the registry. An error if the hold was over before.
pub(crate) fn end_hold(
    core: &ClientCore,
    hold: &Arc<Hold>,
    release: ReleaseNo,
) -> Result<(), Error> {
    core.watchdog.end(hold, release).map_err(|Loss { reason, .. }| lost(hold, reason))?;
    tracing::released(&hold.name, hold.kind, &hold.owner, || hold.held_for(core.now()));
    Ok(())
}

/// What a server has answered to a release.
pub(crate) struct AnsweredRelease {
    pub(crate) verdict: Result<(), NotReleased>,
    /// How many subscribers the message has reached, if the server says so.
    receivers: Option<u32>,
    /// What it found of each hold, if it released many.
    each: Vec<Found>,
    has_copies: bool,
    answered_at: Instant,
}

/// Sends a request that gives back `releases` of `name`, and settles them by the answer. `in_time`:
/// whether the holds would still be valid at this time.
pub(crate) fn send_releases(
    core: &ClientCore,
    releases: &[ReleaseNo],
    operation: &ReleaseOp,
    name: &LockName,
    (timeout, limit): (Duration, RetryLimit),
    in_time: impl FnOnce(Instant) -> bool,
) -> Result<AnsweredRelease, Error> {
    let sent_at = core.now();
    match core.call_within(operation, timeout, limit) {
        Ok(answer) => {
            let has_copies = answer.late_copy_deadline.is_some();
            let (sent_at, reply) = (answer.sent_at, Ok(&answer.reply));
            let now = core.watchdog.settle(releases, ReleaseAnswer { sent_at, reply, has_copies });
            let Released { found, receivers, each, .. } = answer.reply;
            let verdict = classify_release(found, has_copies, in_time(now));
            Ok(AnsweredRelease { verdict, receivers, each, has_copies, answered_at: now })
        }
        Err(CallError { failure, late_copy_deadline }) => {
            let has_copies = late_copy_deadline.is_some();
            let reply = Err(&failure);
            let now = core.watchdog.settle(releases, ReleaseAnswer { sent_at, reply, has_copies });
            if releases.len() == 1 || !failure.separates_names() {
                return Err(failure.into_error(operation, name));
            }
            // The client did not know that the server separates slots, or the slot is being moved.
            // Nothing ran, and the releases are queued by now, each to be sent by itself.
            let deadline = SystemClock.now() + timeout;
            for no in releases {
                let left = deadline.saturating_duration_since(SystemClock.now());
                core.watchdog.releases.wait_for(*no, left);
                if core.watchdog.releases.ledger().is_open(*no) {
                    return Err(unsettled_release());
                }
            }
            let verdict = Ok(());
            let (each, answered_at) = (Vec::new(), now);
            Ok(AnsweredRelease { verdict, receivers: None, each, has_copies, answered_at })
        }
    }
}

/// Sends a release of `name` by `send_unread`. If `send_unread` returns false, if the reply
/// `is_waited_for`, or if `wait_on_drop` is set, calls `wait` with the rest of a command timeout. If
/// no time is left, calls `queue` and marks the server silent: later drops call `queue` at once,
/// until the server answers.
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
        // It may have waited for the reply.
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

/// An earlier copy of a release may have run, in time or not.
pub(crate) fn late_release() -> Error {
    Error::OutcomeUnknown {
        operation: "release",
        reason: "the first attempt was unanswered before the lease expired".into(),
    }
}

/// Releases that are sent one by one, in the background, were not all answered in time.
fn unsettled_release() -> Error {
    let reason = "the server has not answered for each lock in time".into();
    Error::OutcomeUnknown { operation: "release", reason }
}

/// Nothing of a release was sent in time. It is queued.
pub(crate) fn unsent_release() -> Error {
    let reason = "the connection did not take it in time".into();
    Error::OutcomeUnknown { operation: "release", reason }
}

/// A guard that is gone, and of which the server is still to be told. If this is dropped before, as
/// when the clock panics, the renewal worker ends and releases the hold.
#[derive(Debug)]
pub(crate) struct ReleaseInProgress {
    core: Arc<ClientCore>,
    hold: Arc<Hold>,
    /// `None` once the server was told, or the release was queued.
    pending: Option<PendingRelease>,
}

impl ReleaseInProgress {
    /// One guard of `hold` is gone, for everything in this process. An error if the hold was over
    /// before.
    pub(crate) fn begin(
        core: &Arc<ClientCore>,
        hold: &Arc<Hold>,
        watched: bool,
    ) -> Result<Self, Error> {
        let left = hold.remove_guard(watched);
        let (core, hold) = (Arc::clone(core), Arc::clone(hold));
        if left > 0 {
            // Unless another guard of the same named owner was the last one just now: then it is
            // released, not lost.
            core.check(&hold)
                .or_else(|lost| if hold.is_released() { Ok(()) } else { Err(lost) })?;
            return Ok(Self { core, hold, pending: Some(PendingRelease::Count(left)) });
        }
        let (releases, valid_until) = (&core.watchdog.releases, hold.valid_until());
        let no = releases.begin(releases.of_hold(&hold).ending(&hold, valid_until));
        let pending = |waited_for| Some(PendingRelease::Release { no, valid_until, waited_for });
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

    /// Tells the server, for `timeout` at most, and returns its verdict.
    pub(crate) fn send(&mut self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        self.finish(|release, pending| release.wait(pending, timeout, limit))
    }

    /// Tells the server until it answers, and returns its verdict.
    pub(crate) fn send_until_answered(&mut self) -> Result<(), Error> {
        self.send(self.core.settings.retry_timeout(), RetryLimit::UntilAnswered)
    }

    /// Tells the server in one attempt that ends within `timeout`. Queues the release if that is
    /// nothing.
    pub(crate) fn send_within(mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = timeout.min(self.core.settings.command_timeout);
        if timeout.is_zero() {
            self.queue();
            return Ok(());
        }
        self.send(timeout, RetryLimit::One)
    }

    /// Tells the server in one attempt, and returns its verdict.
    pub(crate) fn send_once(&mut self) -> Result<(), Error> {
        self.send(self.core.settings.command_timeout, RetryLimit::One)
    }

    /// Sends the release and returns before the reply, as dropping the guard does. Waits for the
    /// reply, in one attempt, in three cases: `wait_on_drop` is set, the release cannot be sent
    /// without a wait, or threads of this client wait for the lock, whose turn the reply says.
    /// Queues the release if an earlier drop has waited for the server in vain.
    pub(crate) fn send_on_drop(&mut self) -> Result<(), Error> {
        self.finish(|release, pending| {
            let PendingRelease::Release { no, waited_for, .. } = *pending else {
                // The server's count stays one too high, which the last release ignores.
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

    /// Runs `action`. If `action` panics, `pending` stays, and the worker sends the release.
    fn finish(
        &mut self,
        action: impl FnOnce(&Self, &PendingRelease) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sent = self.pending.as_ref().map_or(Ok(()), |pending| action(self, pending));
        self.pending = None;
        sent
    }

    fn wait(
        &self,
        pending: &PendingRelease,
        timeout: Duration,
        limit: RetryLimit,
    ) -> Result<(), Error> {
        let Self { core, hold, .. } = self;
        let (no, valid_until, waited_for) = match *pending {
            PendingRelease::Count(count) => return self.send_count(count, timeout, limit),
            PendingRelease::Release { no, valid_until, waited_for } => {
                (no, valid_until, waited_for)
            }
        };
        let operation = self.operation(no, core.now());
        let in_time = |now| valid_until.is_some_and(|end| now < end);
        let sent = send_releases(core, &[no], &operation, &hold.name, (timeout, limit), in_time);
        if waited_for {
            let receivers = sent.as_ref().ok().and_then(|released| released.receivers);
            core.waits.release_ends(&core.store, hold, receivers);
        }
        sent?.verdict.map_err(|not_released| not_released_error(hold, not_released))
    }

    fn defer(&self, pending: &PendingRelease) {
        if let PendingRelease::Release { no, waited_for, .. } = *pending {
            self.core.watchdog.releases.queue(no, self.core.now());
            if waited_for {
                self.core.waits.release_ends(&self.core.store, &self.hold, None);
            }
        }
    }

    /// What ends the hold on the server if it is sent `now`.
    fn operation(&self, no: ReleaseNo, now: Instant) -> ReleaseOp {
        let operation = self.core.watchdog.releases.ledger().operation(no, now);
        operation.unwrap_or_else(|| self.hold.id().release())
    }

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
            // The count on the server is one too high. The last release deletes whatever count it
            // finds.
            Err(error) => Err(error.failure.into_error(&set_count, &hold.name)),
        }
    }

    pub(crate) fn core(&self) -> Arc<ClientCore> {
        Arc::clone(&self.core)
    }

    /// The slot of the lock. One request may touch the keys of one.
    pub(crate) fn slot(&self) -> u16 {
        self.core.store.hash_slot(self.hold.name.as_str()).0
    }
}

/// Releases of plain locks that one request carries. All are of one client and one slot.
pub(crate) struct ReleaseBatch {
    core: Arc<ClientCore>,
    first: LockName,
    /// If this is dropped before it was sent, as when the clock panics, these see to it.
    releases: Vec<ReleaseInProgress>,
    nos: Vec<ReleaseNo>,
    operation: ReleaseOp,
    parts: Vec<BatchedRelease>,
}

/// One of them.
struct BatchedRelease {
    hold: Arc<Hold>,
    valid_until: Option<Instant>,
    /// Whether threads of this client wait for the end of the release.
    waited_for: bool,
}

impl ReleaseBatch {
    /// The releases back if they are sent one by one: there is one alone, or one that leaves another
    /// guard.
    pub(crate) fn of(releases: Vec<ReleaseInProgress>) -> Result<Self, Vec<ReleaseInProgress>> {
        let [first, _, ..] = releases.as_slice() else { return Err(releases) };
        let (core, name) = (Arc::clone(&first.core), first.hold.name.clone());
        let (mut nos, mut holds, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for ReleaseInProgress { hold, pending, .. } in &releases {
            let &Some(PendingRelease::Release { no, valid_until, waited_for }) = pending else {
                return Err(releases);
            };
            nos.push(no);
            holds.push((hold.name.clone(), hold.owner.clone()));
            parts.push(BatchedRelease { hold: Arc::clone(hold), valid_until, waited_for });
        }
        let operation: ReleaseOp = Arc::new(ReleaseMany { holds });
        Ok(Self { core, first: name, releases, nos, operation, parts })
    }

    /// Tells the server, for `timeout` at most, and returns the first verdict that is an error.
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

    /// As [`ReleaseInProgress::send_on_drop`].
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

    fn finish(&mut self) {
        for release in &mut self.releases {
            release.pending = None;
        }
    }

    /// Waits for the answer, and returns the first verdict that is an error.
    fn wait(&self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        let Self { core, first, nos, operation, parts, .. } = self;
        let sent = send_releases(core, nos, operation, first, (timeout, limit), |_| true);
        self.end();
        let AnsweredRelease { each, has_copies, answered_at, .. } = sent?;
        parts.iter().zip(each).try_for_each(|(BatchedRelease { hold, valid_until, .. }, found)| {
            let in_time = valid_until.is_some_and(|end| answered_at < end);
            classify_release(found, has_copies, in_time)
                .map_err(|not_released| not_released_error(hold, not_released))
        })
    }

    /// Leaves them to the renewal thread.
    fn queue(&self) {
        let now = self.core.now();
        for no in &self.nos {
            self.core.watchdog.releases.queue(*no, now);
        }
        self.end();
    }

    /// Waiting threads of this client may try.
    fn end(&self) {
        for BatchedRelease { hold, .. } in self.parts.iter().filter(|part| part.waited_for) {
            self.core.waits.release_ends(&self.core.store, hold, None);
        }
    }
}

fn not_released_error(hold: &Arc<Hold>, not_released: NotReleased) -> Error {
    match not_released {
        NotReleased::Unknown => late_release(),
        NotReleased::Lost(reason) => lost(hold, reason),
    }
}

impl Drop for ReleaseInProgress {
    fn drop(&mut self) {
        if let Some(PendingRelease::Release { no, .. }) = self.pending
            && self.core.is_current()
        {
            self.core.watchdog.end_in_background(&self.hold, Some(no));
        }
    }
}
