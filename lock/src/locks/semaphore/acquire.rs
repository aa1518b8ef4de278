//! One acquire of permits: all tries, and the rollback.
//!
//! A try without an answer may have taken permits, or may still take permits. All copies of a
//! call have the same request id, or name the same permit ids, so a later copy finds the permits
//! taken by an earlier copy. If no further copy follows, a rollback is queued, after which no copy
//! takes anything.

use std::sync::Arc;
use std::time::Instant;

use crate::core::client_core::ClientCore;
use crate::core::named::{begin_request, dedup_ttl};
use crate::core::traces::Traces;
use crate::core::tries::{Try, TryAnswer};
use crate::error::{Error, LostReason};
use crate::ledger::release::Release;
use crate::locks::semaphore::held::{HeldPermits, LONGEST_RETRY, PermitLease};
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::model::permit_id::PermitId;
use crate::model::wait_mode::WakeHint;
use crate::ops::{
    AcquirePermits, DrainPermits, ReleasePermits, RequestId, TakePermits, UndoAcquire,
};
use crate::store::retry::{Answer, CallError, RetryPolicy, map_failure};

/// A call that may take permits without ids. The drop undoes the call if necessary, even if the
/// clock panics before the caller gets the guard.
pub(crate) struct UndoOnDrop<'a> {
    core: &'a ClientCore,
    name: LockName,
    request: RequestId,
    traces: Traces,
    /// Whether the call is unanswered, or the caller has not yet taken over the grant.
    is_open: bool,
}

impl<'a> UndoOnDrop<'a> {
    /// Returns a call for the semaphore `name` with a new request id. Nothing is sent yet.
    fn begin(core: &'a ClientCore, name: LockName) -> Self {
        let request = begin_request(core, &name);
        Self { core, name, request, traces: Traces::default(), is_open: true }
    }

    /// Notes the `result` of the call, whose answer was due at `due`.
    fn note_result<R>(&mut self, due: Instant, result: &Result<Answer<R>, CallError>) {
        self.is_open = false;
        self.traces.note_result(due, result);
    }

    /// Leaves the granted permits to the caller: the drop undoes nothing. A copy of the call
    /// arriving now finds the grant, or a later call, and takes nothing.
    pub(crate) fn disarm(mut self) {
        (self.traces, self.is_open) = (Traces::default(), false);
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        self.traces.roll_back(self.core, self.is_open, || {
            let (name, owner) = (self.name.clone(), self.request.owner().clone());
            let undo = Arc::new(UndoAcquire::new(name.clone(), self.request.clone()));
            Release::by_operation((name, owner), undo, dedup_ttl(self.core), None)
        });
    }
}

/// An acquire of permits without ids. Each try is a separate call, so a sleeping waiter uses no
/// request sequence.
pub(crate) struct SemaphoreAcquire<'a> {
    core: &'a ClientCore,
    name: LockName,
    permits: u32,
    /// The try whose error ended the wait, undone after the waiter has left the queue.
    failed: Option<UndoOnDrop<'a>>,
}

impl<'a> SemaphoreAcquire<'a> {
    /// Returns an acquire of `permits` permits of the semaphore `name`. Nothing is sent yet.
    pub(crate) fn new(core: &'a ClientCore, name: LockName, permits: u32) -> Self {
        Self { core, name, permits, failed: None }
    }
}

impl<'a> Try for SemaphoreAcquire<'a> {
    /// The granted call: the permits are the caller's only after [`disarm`](UndoOnDrop::disarm).
    type Grant = UndoOnDrop<'a>;

    fn ask(
        &mut self,
        policy: &RetryPolicy<'_>,
        now: Instant,
    ) -> Result<TryAnswer<UndoOnDrop<'a>>, Error> {
        let mut undo = UndoOnDrop::begin(self.core, self.name.clone());
        let (name, request) = (self.name.clone(), undo.request.clone());
        let take = TakePermits { name, permits: self.permits, request };
        let result = self.core.call_with_policy_at(now, &take, policy);
        undo.note_result(policy.deadline, &result);
        match map_failure(result, &take, &self.name) {
            Ok(answer) if answer.reply.granted => {
                undo.is_open = true;
                Ok(TryAnswer::Granted(undo, wake_hint(answer.reply.left)))
            }
            // A late copy would take permits while this thread sleeps, so dropping `undo` rolls the
            // call back.
            Ok(answer) => Ok(TryAnswer::Busy(None, wake_hint(answer.reply.left))),
            Err(error) => {
                self.failed = Some(undo);
                Err(error)
            }
        }
    }
}

/// Takes all free permits and returns the number of permits taken. If the number is unknown, or the
/// grant must not be retained, a rollback gives the permits back: no other client knows the number.
pub(crate) fn drain(core: &ClientCore, name: LockName) -> Result<i64, Error> {
    let mut undo = UndoOnDrop::begin(core, name.clone());
    let drain = DrainPermits { name, request: undo.request.clone() };
    let due = core.now() + core.settings.retry_timeout();
    let result = core.call(&drain);
    undo.note_result(due, &result);
    let answer = map_failure(result, &drain, &drain.name)?;
    undo.disarm();
    Ok(answer.reply)
}

/// An acquire of permits with ids. All tries name the same ids, unless a refused try has to
/// be rolled back.
pub(crate) struct PermitAcquire<'a> {
    core: &'a Arc<ClientCore>,
    name: LockName,
    owners: Vec<Owner>,
    lease: PermitLease,
    acquire: AcquirePermits,
    traces: Traces,
}

impl<'a> PermitAcquire<'a> {
    /// Returns an acquire of `permits` permits with new ids, for `lease`. Nothing is sent yet.
    pub(crate) fn new(
        core: &'a Arc<ClientCore>,
        name: LockName,
        permits: u32,
        lease: PermitLease,
    ) -> Self {
        let owners: Vec<Owner> = (0..permits).map(|_| core.id.next_owner()).collect();
        let ids = owners.iter().map(PermitId::of).collect();
        let acquire = AcquirePermits::new(name.clone(), ids, lease.lease(core));
        Self { core, name, owners, lease, acquire, traces: Traces::default() }
    }
}

impl Try for PermitAcquire<'_> {
    type Grant = HeldPermits;

    fn ask(
        &mut self,
        policy: &RetryPolicy<'_>,
        now: Instant,
    ) -> Result<TryAnswer<HeldPermits>, Error> {
        let (core, is_watched) = (self.core, self.lease == PermitLease::Watched);
        if is_watched && core.watchdog.is_dead(&self.name) {
            return Err(Error::WatchdogGone);
        }
        let result = core.call_with_policy_at(now, &self.acquire, policy);
        self.traces.note_result(policy.deadline, &result);
        let answer = map_failure(result, &self.acquire, &self.name)?;
        let hint = wake_hint(answer.reply.left);
        if !answer.reply.granted {
            if self.traces.need_roll_back() {
                // New ids, and a rollback of the old ids, for the same reason as in
                // `SemaphoreAcquire`.
                let permits = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
                *self = Self::new(core, self.name.clone(), permits, self.lease);
            }
            return Ok(TryAnswer::Busy(answer.reply.wait, hint));
        }
        // From here on `HeldPermits` handles late copies, and gives the permits back on drop.
        let late_copy_deadline = std::mem::take(&mut self.traces).late_copy_deadline;
        let held = HeldPermits::new(
            Arc::clone(core),
            self.name.clone(),
            self.owners.clone(),
            self.lease,
            answer.sent_at,
            late_copy_deadline,
        );
        if is_watched && core.is_shut_down() {
            // The shutdown may have ended all holds before these holds were added.
            return Err(Error::Shutdown);
        }
        if held.is_valid() {
            held.count();
            return Ok(TryAnswer::Granted(held, hint));
        }
        // The grant expired before the answer arrived.
        Err(Error::Lost { name: self.name.shown(), reason: LostReason::Expired })
    }
}

impl Drop for PermitAcquire<'_> {
    fn drop(&mut self) {
        self.traces.roll_back(self.core, false, || {
            let (name, request) = (self.name.clone(), self.core.id.next_owner());
            let dedup_ttl = dedup_ttl(self.core);
            let ids = self.owners.iter().map(PermitId::of).collect();
            let release = ReleasePermits::new(name.clone(), ids, request.clone(), dedup_ttl);
            let lease = self.lease.lease(self.core);
            let ttl = lease.map_or(LONGEST_RETRY, |lease| lease.duration() + dedup_ttl);
            Release::by_operation((name, request), Arc::new(release), ttl, None)
        });
    }
}

/// Returns the hint for other waiters after an answer: to try if `left` free permits remain.
fn wake_hint(left: i64) -> WakeHint {
    if left > 0 { WakeHint::MayTry } else { WakeHint::Wait }
}
