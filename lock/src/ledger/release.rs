//! One release: what it gives back, and when it is sent again. Pure: time is an argument.
//!
//! A release is queued when its call got no answer, when a hold was lost while the server may still
//! keep its key, and when a copy of an acquire may still be on its way (DESIGN: release queue, late
//! copies). It stays queued until the server has acknowledged it at a time past that copy's
//! not-after, or until whatever it would release must have expired.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hold::hold::Hold;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::Released;
use crate::ops::by_kind::{HoldId, SharedOperation};
use crate::ops::value::ServerTime;

/// A command that releases something. It may be sent any number of times.
pub(crate) type ReleaseOp = SharedOperation<Released>;

/// What is released: a hold, a permit, or what one request took of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseId {
    /// Compared first: two releases rarely have the same owner.
    pub(crate) owner: Owner,
    /// `None` for what one request took.
    pub(crate) kind: Option<Kind>,
    pub(crate) name: LockName,
}

impl From<HoldId> for ReleaseId {
    fn from(hold_id: HoldId) -> Self {
        let HoldId { kind, name, owner } = hold_id;
        Self { kind: Some(kind), name, owner }
    }
}

impl ReleaseId {
    /// The hold, if it is one.
    fn hold_id(&self) -> Option<HoldId> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        self.kind.map(|kind| HoldId { kind, name, owner })
    }
}

/// What one release gives back.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) id: ReleaseId,
    /// `None` for a hold, whose id says how it is released: a million of them would be 150 MB.
    operation: Option<ReleaseOp>,
    /// Until when the key of a hold stays that is released before.
    keep_until: Option<Instant>,
    /// For how long after its release is queued there may be something to release.
    pub(crate) lifetime: Duration,
    /// Until when a copy of the acquire may arrive.
    pub(crate) late_copy_deadline: Option<ServerTime>,
    /// The hold whose loss the answer may tell, until a copy of the release may have run.
    pub(crate) ended: Option<EndedHold>,
}

/// When a release is sent, and when no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseSchedule {
    /// Until when a copy of the acquire may arrive.
    late_copy_deadline: Option<ServerTime>,
    pub(crate) due: Instant,
    pause: Duration,
    /// When nothing can be left to release.
    expires: Instant,
    pub(crate) acknowledged: bool,
}

/// Whether a release that ran at this time of the server may be undone by a copy of the acquire.
pub(crate) fn may_be_undone(late_copy_deadline: Option<ServerTime>, at: ServerTime) -> bool {
    late_copy_deadline.is_some_and(|deadline| deadline >= at)
}

impl ReleaseSchedule {
    /// Due at `due`. Nothing is left to release `lifetime` later.
    pub(crate) fn new(
        due: Instant,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let expires = due + lifetime + GRACE;
        Self { late_copy_deadline, due, pause: FIRST_PAUSE, expires, acknowledged: false }
    }

    /// The server released it when its clock was at `at`. True if it is to be sent again: once a
    /// copy of the acquire would be too late, at the latest when the lease has ended.
    #[must_use]
    pub(crate) fn acknowledge(&mut self, now: Instant, at: ServerTime) -> bool {
        self.acknowledged = true;
        let Some(deadline) = self.late_copy_deadline else { return false };
        if !may_be_undone(self.late_copy_deadline, at) || now >= self.expires {
            return false;
        }
        let wait = u64::try_from(deadline.0.saturating_sub(at.0)).unwrap_or(u64::MAX);
        let wait = Duration::from_millis(wait.saturating_add(1));
        self.due = now.checked_add(wait).map_or(self.expires, |due| due.min(self.expires));
        true
    }

    /// It got no answer. True if it is to be sent again, after a pause; false if its lease has
    /// expired.
    #[must_use]
    pub(crate) fn fail(&mut self, now: Instant) -> bool {
        if now >= self.expires {
            return false;
        }
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        true
    }
}

/// A hold that was released, so that its owner is told if the server does not know it.
#[derive(Clone, Debug)]
pub(crate) struct EndedHold {
    pub(crate) hold: Arc<Hold>,
    /// Until when it would have been valid.
    pub(crate) valid_until: Option<Instant>,
}

impl Release {
    /// Of an acquire of `lease` that was sent. A copy of the acquire may be under way for `retries`.
    pub(crate) fn of_acquire(
        id: HoldId,
        lease: Lease,
        retries: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let lifetime = lease.duration() + retries;
        Self::new(id.into(), None, lifetime, late_copy_deadline)
    }

    /// Of a hold. A copy of its acquire may be under way for `retries`.
    pub(crate) fn of_hold(hold: &Hold, retries: Duration) -> Self {
        let (lease, late_copy_deadline) = (hold.longest_lease(), hold.late_copy_deadline());
        let release = Self::of_acquire(hold.id(), lease, retries, late_copy_deadline);
        Self { keep_until: hold.kept_until(), ..release }
    }

    /// Of what `operation` gives back.
    pub(crate) fn of_request(
        (name, owner): (LockName, Owner),
        operation: ReleaseOp,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let id = ReleaseId { owner, kind: None, name };
        Self::new(id, Some(operation), lifetime, late_copy_deadline)
    }

    pub(crate) fn new(
        id: ReleaseId,
        operation: Option<ReleaseOp>,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        Self { id, operation, keep_until: None, lifetime, late_copy_deadline, ended: None }
    }

    /// The same release, with the hold that it ends, which would have been valid until then.
    pub(crate) fn ending(mut self, hold: &Arc<Hold>, valid_until: Option<Instant>) -> Self {
        self.ended = Some(EndedHold { hold: Arc::clone(hold), valid_until });
        self
    }

    /// Whether the key of the hold stays under another owner if this is sent `now`.
    pub(crate) fn keeps_key(&self, now: Instant) -> bool {
        self.keep_until.is_some_and(|until| now < until)
    }

    /// What is sent `now`; `None` for a mere note that a release will follow.
    pub(crate) fn operation(&self, now: Instant) -> Option<ReleaseOp> {
        if let Some(operation) = &self.operation {
            return Some(Arc::clone(operation));
        }
        let hold_id = self.id.hold_id()?;
        Some(match self.keep_until {
            Some(until) if now < until => hold_id.keep(until - now),
            _ => hold_id.release(),
        })
    }

    /// It was acknowledged. What a late copy of the acquire creates does not stay.
    pub(crate) fn keeps_nothing(&mut self) {
        self.keep_until = None;
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two tries of one release.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of its lease a key is certain to be gone.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
