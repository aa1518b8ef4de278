//! One release, from the guard that goes to the server's answer.
//!
//! A release begins with the end of the hold for everything in this process, before the first byte
//! is sent. Then the server is told: by the caller, which waits for the reply in
//! [`ReleaseInProgress::send`] and does not in [`ReleaseInProgress::send_on_drop`]; or by the
//! renewal worker. What the server does not acknowledge is queued with the watchdog (DESIGN: unread
//! releases, release queue).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::error::{Error, LostReason};
use crate::events::tracing;
use crate::hold::hold::Hold;
use crate::hold::state::{Left, Loss};
use crate::ledger::release::{ReleaseId, ReleaseOp, may_be_undone};
use crate::model::lease::{self, Lease};
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::permit_id::PermitId;
use crate::model::sync::wait_for_end;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::ops::{Found, ReleasePermits, SetCountReply};
use crate::runtime::client_core::{ClientCore, lost};
use crate::runtime::wait::LONGEST_ROUND_TRIP;
use crate::store::retry::{Answer, RetryLimit, SHORTEST_CALL, map_failure};
use crate::watchdog::{SendLimit, reason_of_loss};

/// What the server is still to be told of a guard that is gone.
#[derive(Debug)]
enum PendingRelease {
    /// The number of guards that are left.
    Count(u32),
    /// It was the last guard, of a hold that would have been valid until then.
    Release {
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
    let Some(now) = core.watchdog.catch_panic(|| core.now()) else { return false };
    // The time of this holder, which ends here, and its label. Read before they are the next
    // holder's.
    let (held_for, label) = (hold.held_for(now), hold.metrics_label());
    if !core.waits.hand_over(hold, now) {
        return false;
    }
    core.watchdog.counters().acquires().hold_ended(hold.kind, label, || held_for);
    tracing::released(&hold.name, hold.kind, &hold.owner, || held_for);
    true
}

/// Ends `hold` for everything in this process, and leaves it to the caller to release it on the
/// server. An error if it was over before.
pub(crate) fn end_hold(core: &ClientCore, hold: &Arc<Hold>) -> Result<(), Error> {
    // First, so that a shutdown finds it here or in the registry.
    core.watchdog.releases().begin_in_flight(hold.id());
    forget_hold(core, hold).inspect_err(|_| core.watchdog.releases().end_in_flight(hold.id()))?;
    tracing::released(&hold.name, hold.kind, &hold.owner, || hold.held_for(core.now()));
    Ok(())
}

/// Ends `hold` for everything in this process, and leaves its key on the server. An error if it was
/// over before.
pub(crate) fn forget_hold(core: &ClientCore, hold: &Arc<Hold>) -> Result<(), Error> {
    core.watchdog.end(hold).map_err(|Loss { reason, .. }| lost(hold, reason))
}

/// Tells the server, for `timeout` at most, and returns its verdict.
fn send_release(
    core: &ClientCore,
    hold: &Arc<Hold>,
    pending: &PendingRelease,
    timeout: Duration,
    limit: RetryLimit,
) -> Result<(), Error> {
    match *pending {
        PendingRelease::Count(count) => send_count(core, hold, count, timeout, limit),
        PendingRelease::Release { valid_until, waited_for } => {
            let sent = send_last(core, hold, valid_until, timeout, limit);
            if waited_for {
                let receivers = sent.as_ref().ok().copied().flatten();
                core.waits.release_ends(&core.store, hold, receivers);
            }
            sent.map(drop)
        }
    }
}

/// Tells the server without waiting for its reply, which is read later. It waits for the reply, in
/// one attempt, if the program wants that, if the release cannot be sent without a wait, and if
/// threads of this client wait for the lock: the reply says when the first of them may ask for it.
/// It queues the release if an earlier drop has waited for the server in vain.
fn send_release_on_drop(
    core: &ClientCore,
    hold: &Arc<Hold>,
    pending: &PendingRelease,
) -> Result<(), Error> {
    let wait = |left| send_release(core, hold, pending, left, RetryLimit::One);
    let queue = || defer_release(core, hold, pending);
    let is_waited_for = matches!(pending, PendingRelease::Release { waited_for: true, .. });
    send_on_drop(core, &hold.name, is_waited_for, wait, queue, |limit| match *pending {
        PendingRelease::Count(count) => {
            hold.count_sent();
            core.watchdog.send_count_unread(hold, count, limit)
        }
        PendingRelease::Release { valid_until, .. } => {
            core.watchdog.send_release_unread(hold, valid_until, limit)
        }
    })
}

/// Sends a release of `name` by `send_unread`. If that does not send it, or the reply `is_waited_for`
/// or the program waits for dropped guards, by `wait` in the rest of a command timeout. If that is
/// over, it is left to `queue`; and so are the next ones, until the server answers.
pub(crate) fn send_on_drop(
    core: &ClientCore,
    name: &LockName,
    is_waited_for: bool,
    wait: impl FnOnce(Duration) -> Result<(), Error>,
    queue: impl FnOnce(),
    send_unread: impl FnOnce(SendLimit) -> bool,
) -> Result<(), Error> {
    let releases = core.watchdog.releases();
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
        releases.set_server_silent(name, true);
    }
    sent
}

fn send_count(
    core: &ClientCore,
    hold: &Arc<Hold>,
    count: u32,
    timeout: Duration,
    limit: RetryLimit,
) -> Result<(), Error> {
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

/// Returns how many subscribers the message has reached, if the server says so.
fn send_last(
    core: &ClientCore,
    hold: &Arc<Hold>,
    valid_until: Option<Instant>,
    timeout: Duration,
    limit: RetryLimit,
) -> Result<Option<u32>, Error> {
    let id = hold.id();
    let keep = hold.keep(|| core.now());
    let is_kept = keep.is_some();
    let release = keep.unwrap_or_else(|| id.release());
    let answer = core.call_within(&release, timeout, limit);
    // While a copy of the acquire may still arrive, one answer does not end it: the watchdog sends
    // the release again afterwards (DESIGN: late copies).
    let acknowledged = answer
        .as_ref()
        .ok()
        .filter(|answer| !may_be_undone(hold.late_copy_deadline(), answer.reply.at));
    if acknowledged.is_none() {
        core.watchdog.queue_hold_release(hold);
    }
    core.watchdog.releases().end_in_flight(id);
    // One whose key stays must not be released after a failover.
    if let Some(answer) = acknowledged.filter(|_| !is_kept) {
        core.watchdog.log_release(answer.sent_at, hold);
    }
    let answer = map_failure(answer, &release, &hold.name)?;
    let in_time = || valid_until.is_some_and(|end| core.now() < end);
    let reason = match classify_release(answer.reply.found, answer.late_copy_deadline, in_time) {
        Ok(()) => return Ok(answer.reply.receivers),
        Err(NotReleased::Unknown) => return Err(late_release()),
        Err(NotReleased::Lost(reason)) => reason,
    };
    // No other thread can have reported it: for all others the hold was released.
    core.watchdog.report_loss(hold, reason);
    Err(lost(hold, reason))
}

/// Why an answered release does not prove that the hold lasted until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReleased {
    Lost(LostReason),
    /// An earlier copy of the release may have run, in time or not.
    Unknown,
}

/// What an answered release means, if copies of it may have come before, and if the answer came
/// before the lease expired.
pub(crate) fn classify_release(
    found: Found,
    late_copy_deadline: Option<ServerTime>,
    in_time: impl FnOnce() -> bool,
) -> Result<(), NotReleased> {
    match found {
        Found::Own => Ok(()),
        // An earlier copy of this release may have found it. While the lease ran, no other owner
        // could have it.
        Found::Nothing | Found::OtherOwner if late_copy_deadline.is_some() => {
            if in_time() {
                Ok(())
            } else {
                Err(NotReleased::Unknown)
            }
        }
        _ => Err(NotReleased::Lost(reason_of_loss(found, in_time()))),
    }
}

/// An earlier copy of a release may have run, in time or not.
pub(crate) fn late_release() -> Error {
    Error::OutcomeUnknown {
        operation: "release",
        reason: "the first attempt was unanswered before the lease expired".into(),
    }
}

/// Nothing of a release was sent in time. It is queued.
pub(crate) fn unsent_release() -> Error {
    let reason = "the connection did not take it in time".into();
    Error::OutcomeUnknown { operation: "release", reason }
}

/// No caller waits for the server. The release is queued. A count stays one too high there, which
/// the last release ignores.
fn defer_release(core: &ClientCore, hold: &Arc<Hold>, pending: &PendingRelease) {
    match *pending {
        PendingRelease::Count(_) => hold.count_sent(),
        PendingRelease::Release { waited_for, .. } => {
            core.watchdog.queue_hold_release(hold);
            core.watchdog.releases().end_in_flight(hold.id());
            if waited_for {
                core.waits.release_ends(&core.store, hold, None);
            }
        }
    }
}

/// A failed acquire leaves the queue on the server, and what it was granted. The renewal worker
/// sends that. It is waited for as long as [`rollback_time`] says: `answer_due` is when the acquire
/// was to be answered, if the server did answer.
pub(crate) fn roll_back(
    core: &ClientCore,
    id: &HoldId,
    lease: Lease,
    late_copy_deadline: Option<ServerTime>,
    answer_due: Option<Instant>,
) {
    let (waiting, acknowledged) = bounded(0);
    // The server drops a waiter that has not asked for this long.
    let lease = lease.max(lease::DEFAULT);
    core.watchdog.releases().queue_acquired(id, lease, late_copy_deadline, Some(waiting));
    core.watchdog.releases().end_in_flight(id);
    wait_for(&acknowledged, rollback_time(core.now(), answer_due));
}

/// Gives back the permits that a failed acquire was granted. The renewal worker sends `release`,
/// which is waited for as in [`roll_back`]. It is not needed any more after `ttl`.
pub(crate) fn roll_back_permits(
    core: &ClientCore,
    request: (LockName, Owner),
    release: ReleaseOp,
    ttl: Duration,
    answer_due: Option<Instant>,
) {
    let (name, owner) = request;
    let id = ReleaseId { kind: None, name, owner };
    let (waiting, acknowledged) = bounded(0);
    // If too many are queued already, that is counted.
    core.watchdog.queue_permit_release(id, release, ttl, Some(waiting));
    wait_for(&acknowledged, rollback_time(core.now(), answer_due));
}

/// Not at all for a server that did not answer; else until [`SHORTEST_CALL`] after the acquire's
/// time has ended, and at most for one round trip.
fn rollback_time(now: Instant, answer_due: Option<Instant>) -> Duration {
    let left = |due: Instant| (due + SHORTEST_CALL).saturating_duration_since(now);
    answer_due.map_or(Duration::ZERO, |due| left(due).min(LONGEST_ROUND_TRIP))
}

/// Waits until a release was acknowledged or dropped. By the system's clock: how long a server
/// takes does not depend on the client's.
fn wait_for(acknowledged: &Receiver<Infallible>, timeout: Duration) {
    if !timeout.is_zero() {
        wait_for_end(acknowledged, timeout);
    }
}

/// Permits were given back by their ids, in a request that was sent at `sent_at`. After a failover
/// it is sent again, for each by itself: one that is gone must not keep the others from being given
/// back.
pub(crate) fn permits_released(
    core: &ClientCore,
    name: &LockName,
    ids: &[PermitId],
    sent_at: Instant,
    ttl: Duration,
) {
    for (id, release) in permit_releases(core, name, ids, Duration::ZERO) {
        core.watchdog.log_permit_release(sent_at, id, release, ttl);
    }
}

/// The releases of each of these permits by itself, which the server remembers for `dedup_ttl`.
pub(crate) fn permit_releases(
    core: &ClientCore,
    name: &LockName,
    ids: &[PermitId],
    dedup_ttl: Duration,
) -> Vec<(ReleaseId, ReleaseOp)> {
    let release = |permit: &PermitId| -> (ReleaseId, ReleaseOp) {
        let owner = core.id.next_owner();
        let release = ReleasePermits::new(name.clone(), vec![*permit], owner.clone(), dedup_ttl);
        let id = ReleaseId { kind: None, name: name.clone(), owner };
        (id, Arc::new(release))
    };
    ids.iter().map(release).collect()
}

/// A guard that is gone, and of which the server is still to be told. If it is dropped before, as
/// when the clock panics, the renewal worker ends and releases the hold.
#[derive(Debug)]
pub(crate) struct ReleaseInProgress {
    core: Arc<ClientCore>,
    hold: Arc<Hold>,
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
        if let Left::Guards(count) = left {
            // Unless another guard of the same named owner was the last one just now: then it is
            // released, not lost.
            core.check(&hold)
                .or_else(|lost| if hold.is_released() { Ok(()) } else { Err(lost) })?;
            return Ok(Self { core, hold, pending: Some(PendingRelease::Count(count)) });
        }
        let valid_until = hold.valid_until();
        let pending = |waited_for| Some(PendingRelease::Release { valid_until, waited_for });
        // Before the clock is read.
        let mut release = Self { core, hold, pending: pending(false) };
        let Self { core, hold, .. } = &release;
        if let Err(lost) = end_hold(core, hold) {
            release.pending = None;
            return Err(lost);
        }
        core.note_kept(hold);
        release.pending = pending(core.waits.release_begins(&core.store, hold));
        Ok(release)
    }

    /// Tells the server, for `timeout` at most, and returns its verdict.
    pub(crate) fn send(&mut self, timeout: Duration, limit: RetryLimit) -> Result<(), Error> {
        // Taken out only afterwards: if sending panics, the worker sends it.
        let sent = self.pending.as_ref().map_or(Ok(()), |pending| {
            send_release(&self.core, &self.hold, pending, timeout, limit)
        });
        self.pending = None;
        sent
    }

    /// Tells the server in one attempt, and returns its verdict.
    pub(crate) fn send_once(&mut self) -> Result<(), Error> {
        self.send(self.core.settings.command_timeout, RetryLimit::One)
    }

    /// Queues it.
    pub(crate) fn queue(mut self) {
        // As above.
        if let Some(pending) = &self.pending {
            defer_release(&self.core, &self.hold, pending);
        }
        self.pending = None;
    }

    /// Tells the server, as dropping the guard does.
    pub(crate) fn send_on_drop(&mut self) -> Result<(), Error> {
        // As above.
        let sent = self
            .pending
            .as_ref()
            .map_or(Ok(()), |pending| send_release_on_drop(&self.core, &self.hold, pending));
        self.pending = None;
        sent
    }

    pub(crate) fn core(&self) -> Arc<ClientCore> {
        Arc::clone(&self.core)
    }
}

impl Drop for ReleaseInProgress {
    fn drop(&mut self) {
        if let Some(PendingRelease::Release { .. }) = self.pending
            && self.core.is_current()
        {
            self.core.watchdog.end_in_background(&self.hold);
            self.core.watchdog.releases().end_in_flight(self.hold.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn a_rollback_is_waited_for_until_ten_milliseconds_after_the_end_of_the_acquire() {
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
