//! One release: what it releases, and when it is sent again. Pure: time is an argument.
//!
//! A release is queued when its call got no answer, when a hold was lost while the server may still
//! keep its key, and when a copy of an acquire may still be on its way (DESIGN: release queue, late
//! copies). It stays queued until the server has acknowledged it at a time past that copy's
//! not-after, or until whatever it would release must have expired.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use crate::hold::hold::Hold;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::Released;
use crate::ops::by_kind::{HoldId, SharedOperation};
use crate::ops::value::ServerTime;

/// A command that releases something. It may be sent any number of times.
pub(crate) type ReleaseOp = SharedOperation<Released>;

/// Signals that a release was acknowledged or given up: nothing is sent, it is dropped.
pub(crate) type DoneSignal = Sender<Infallible>;

/// What is released: a hold, or what one request took of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseId {
    /// Compared first: two releases rarely have the same owner.
    pub(crate) owner: Owner,
    /// `None` for a semaphore.
    pub(crate) kind: Option<Kind>,
    pub(crate) name: LockName,
}

impl From<HoldId> for ReleaseId {
    fn from(hold_id: HoldId) -> Self {
        let HoldId { kind, name, owner } = hold_id;
        Self { kind: Some(kind), name, owner }
    }
}

impl From<&HoldId> for ReleaseId {
    fn from(hold_id: &HoldId) -> Self {
        Self::from(hold_id.clone())
    }
}

impl ReleaseId {
    /// The hold, if it is one.
    pub(crate) fn hold_id(&self) -> Option<HoldId> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        self.kind.map(|kind| HoldId { kind, name, owner })
    }
}

/// A release that a thread of the watchdog sends until it is acknowledged.
#[derive(Debug)]
pub(crate) struct QueuedRelease {
    pub(crate) id: ReleaseId,
    pub(crate) plan: Box<ReleasePlan>,
}

/// What is sent for a release, and when.
#[derive(Debug)]
pub(crate) struct ReleasePlan {
    /// `None` for a hold, whose id says how it is released: a million of them would be 150 MB. Not
    /// for a hold whose key stays.
    operation: Option<ReleaseOp>,
    pub(crate) schedule: ReleaseSchedule,
    /// The last answer of the server was a lasting refusal.
    pub(crate) refused: bool,
    /// Dropped with the acknowledgement.
    pub(crate) done: Option<DoneSignal>,
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

/// What is known of a release that was acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Whether it was not acknowledged before.
    pub(crate) first: bool,
    /// How long what it released would have lasted.
    pub(crate) lifetime: Duration,
    /// The hold, if this acknowledgement tells whether it was there.
    pub(crate) ended: Option<EndedHold>,
    /// Whether the key of the hold stays.
    pub(crate) is_kept: bool,
}

impl QueuedRelease {
    /// Due at `due`. Nothing is left to release `lifetime` later.
    pub(crate) fn new(
        due: Instant,
        id: ReleaseId,
        release: ReleaseOp,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
        done: Option<DoneSignal>,
    ) -> Self {
        let operation = id.kind.is_none().then_some(release);
        let schedule = ReleaseSchedule::new(due, lifetime, late_copy_deadline);
        let plan = ReleasePlan { operation, schedule, refused: false, done, ended: None };
        Self { id, plan: Box::new(plan) }
    }

    /// The same release, with the hold that it ends, if the release has not run so far.
    pub(crate) fn of_hold(mut self, ended: Option<EndedHold>) -> Self {
        self.plan.ended = ended;
        self
    }

    /// The same release, but with `keep` as the command that ends the hold, if its key is to stay.
    pub(crate) fn keeping(mut self, keep: Option<ReleaseOp>) -> Self {
        if keep.is_some() {
            self.plan.operation = keep;
        }
        self
    }

    /// A release that one server has acknowledged, but another may not know. Due at `due`. Nothing
    /// is left to release `lifetime` later.
    pub(crate) fn acknowledged(
        due: Instant,
        id: ReleaseId,
        release: ReleaseOp,
        lifetime: Duration,
    ) -> Self {
        let mut queued = Self::new(due, id, release, lifetime, None, None);
        queued.plan.schedule.acknowledged = true;
        queued
    }

    pub(crate) fn id(&self) -> &ReleaseId {
        &self.id
    }

    /// Whether a copy of the acquire may arrive after a release at this time of the server.
    pub(crate) fn may_be_undone_after(&self, at: ServerTime) -> bool {
        may_be_undone(self.plan.schedule.late_copy_deadline, at)
    }
}

impl ReleasePlan {
    /// What is sent to release `id`.
    pub(crate) fn operation(&self, id: &ReleaseId) -> Option<ReleaseOp> {
        let of_hold = || id.hold_id().map(|hold_id| hold_id.release());
        self.operation.clone().or_else(of_hold)
    }

    /// The server released it when its clock was at `at`. True if it is to be sent again.
    #[must_use]
    pub(crate) fn acknowledge(
        &mut self,
        id: &ReleaseId,
        now: Instant,
        at: ServerTime,
    ) -> (Acknowledged, bool) {
        let acknowledged = Acknowledged {
            first: !self.schedule.acknowledged,
            lifetime: self.schedule.expires.saturating_duration_since(now + GRACE),
            ended: self.ended.take(),
            // The key stays under another owner. What a late copy creates does not stay.
            is_kept: id.kind.is_some() && self.operation.take().is_some(),
        };
        let again = self.schedule.acknowledge(now, at);
        (acknowledged, again)
    }

    /// Whether it may still change what the server has. False once the server has refused it: what
    /// refuses an acquire then stays there, and to wait for this release is of no use.
    pub(crate) fn is_outstanding(&self) -> bool {
        !self.schedule.acknowledged && !self.refused
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two tries of one release.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of its lease a key is certain to be gone.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
