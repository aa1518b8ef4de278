//! One release: the operation, and when to send it again. Pure: time is an argument.
//!
//! A release is queued when its call got no answer, when a hold was lost while the server may still
//! have the key, and when a copy of an acquire may still be under way. The release stays queued
//! until the server has acknowledged it at a time past the copy's not-after, or until the hold must
//! have expired.
//!
//! The not-after is a time by the clock of the server that received the copy, also after a
//! failover. A late copy can only change the old master. Changes before the promotion are on the
//! new master, too.

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

/// A command that releases a hold or permits, or undoes an acquire. May be sent any number of
/// times.
pub(crate) type ReleaseOp = SharedOperation<Released>;

/// The target of a release: a hold, a permit, or the permits taken by one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseId {
    /// Compared first: two releases rarely have the same owner.
    pub(crate) owner: Owner,
    /// `None` for the permits taken by one request.
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
    /// Returns the id of the hold; `None` if the target is the permits of a request.
    fn hold_id(&self) -> Option<HoldId> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        self.kind.map(|kind| HoldId { kind, name, owner })
    }
}

/// A release with its target and operation.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) id: ReleaseId,
    /// `None` for a hold, whose id determines the operation: a million stored operations would be
    /// 150 MB.
    operation: Option<ReleaseOp>,
    /// If the hold is released earlier, its key is retained until this time.
    keep_until: Option<Instant>,
    /// How long after queueing there may be something to release.
    pub(crate) lifetime: Duration,
    /// Until when a copy of the acquire may arrive.
    pub(crate) late_copy_deadline: Option<ServerTime>,
    /// The hold whose loss the answer may reveal. Cleared once a copy of the release may have run.
    pub(crate) ended: Option<EndedHold>,
}

/// When a release is sent next, and when the ledger gives the release up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseSchedule {
    /// Until when a copy of the acquire may arrive.
    late_copy_deadline: Option<ServerTime>,
    pub(crate) due: Instant,
    /// The pause after the next attempt without an answer.
    pause: Duration,
    /// When nothing can be left to release.
    expires: Instant,
    pub(crate) acknowledged: bool,
}

/// Returns whether a copy of the acquire may still arrive after a release that ran at server time
/// `at`, and create the hold again.
pub(crate) fn may_be_undone(late_copy_deadline: Option<ServerTime>, at: ServerTime) -> bool {
    late_copy_deadline.is_some_and(|deadline| deadline >= at)
}

impl ReleaseSchedule {
    /// Makes a schedule due at `due`. The release expires `lifetime` and [`GRACE`] later, when
    /// nothing can be left to release.
    pub(crate) fn new(
        due: Instant,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let expires = due + lifetime + GRACE;
        Self { late_copy_deadline, due, pause: FIRST_PAUSE, expires, acknowledged: false }
    }

    /// Records at `now` that the server ran the release at server time `at`. Returns whether the
    /// release must be sent again, because a copy of the acquire may still arrive. The release is
    /// then due when such a copy would be too late, at the latest when the release expires.
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

    /// Records an attempt without an answer at `now`. Returns `true` if the release is to be sent
    /// again, due after a pause that doubles each time; `false` if the release has expired.
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

/// A released hold. If the reply shows that the server did not have the hold, a loss is reported.
#[derive(Clone, Debug)]
pub(crate) struct EndedHold {
    pub(crate) hold: Arc<Hold>,
    /// Until when the hold would have been valid.
    pub(crate) valid_until: Option<Instant>,
}

impl Release {
    /// Makes the release for an acquire of `lease` that was sent. A copy of the acquire may be
    /// under way for `retries`.
    pub(crate) fn of_acquire(
        id: HoldId,
        lease: Lease,
        retries: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let lifetime = lease.duration() + retries;
        Self::new(id.into(), None, lifetime, late_copy_deadline)
    }

    /// Makes the release of a hold. A copy of its acquire may be under way for `retries`. The
    /// release retains the key until the minimum hold is over.
    pub(crate) fn of_hold(hold: &Hold, retries: Duration) -> Self {
        let (lease, late_copy_deadline) = (hold.longest_lease(), hold.late_copy_deadline());
        let release = Self::of_acquire(hold.id(), lease, retries, late_copy_deadline);
        Self { keep_until: hold.kept_until(), ..release }
    }

    /// Makes the release of the permits of a request, by `operation`.
    pub(crate) fn by_operation(
        (name, owner): (LockName, Owner),
        operation: ReleaseOp,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let id = ReleaseId { owner, kind: None, name };
        Self::new(id, Some(operation), lifetime, late_copy_deadline)
    }

    /// Makes a release without a hold whose loss the answer may reveal. `operation` is `None` for a
    /// hold, and for a mere note that a release will follow.
    pub(crate) fn new(
        id: ReleaseId,
        operation: Option<ReleaseOp>,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        Self { id, operation, keep_until: None, lifetime, late_copy_deadline, ended: None }
    }

    /// Adds the hold that the release ends, which would be valid until `valid_until` otherwise.
    pub(crate) fn ending(mut self, hold: &Arc<Hold>, valid_until: Option<Instant>) -> Self {
        self.ended = Some(EndedHold { hold: Arc::clone(hold), valid_until });
        self
    }

    /// Returns whether a release sent at `now` retains the hold's key, under another owner.
    pub(crate) fn keeps_key(&self, now: Instant) -> bool {
        self.keep_until.is_some_and(|until| now < until)
    }

    /// Returns the operation to send at `now`: a keep while the key must be retained, else a
    /// release. `None` for a mere note that a release will follow.
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

    /// Records an acknowledgement: later attempts do not retain a key created by a late copy of the
    /// acquire.
    pub(crate) fn stop_keeping(&mut self) {
        self.keep_until = None;
    }
}

/// The pause after the first attempt without an answer. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts of one release.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of the lease a key is certain to be gone.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
