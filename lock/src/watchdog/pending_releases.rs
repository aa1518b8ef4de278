//! The releases of the client as its threads share them: the ledger, and what waits for its entries
//! (DESIGN: release queue, unread releases).

use std::sync::Arc;
use std::time::Instant;

use crate::hold::hold::Hold;
use crate::ledger::ledger::{Ledger, ROUND, ReleaseNo, Stage};
use crate::ledger::log::AcknowledgedRelease;
use crate::ledger::release::{DoneSignal, QueuedRelease, ReleaseId};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::sync::{Mutex, MutexGuard, Parker, park};
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::store::ServerId;
use crate::watchdog::context::Context;
use crate::watchdog::worker::RenewalWorker;
use crate::watchdog::workers::Workers;

#[derive(Debug)]
pub(crate) struct PendingReleases {
    context: Arc<Context>,
    workers: Arc<Workers>,
    /// Nothing is locked while this is, but for what a store needs to name the server of a key.
    ledger: Mutex<Ledger>,
    /// The threads that wait for releases to be settled.
    waiting: Mutex<Vec<Parker>>,
}

/// Counts the release of a hold that is being lost as pending, until it is dropped.
pub(crate) struct PendingLoss<'a> {
    releases: &'a PendingReleases,
    id: ReleaseId,
}

impl Drop for PendingLoss<'_> {
    fn drop(&mut self) {
        let dead = self.releases.workers.dead();
        let is_queued = {
            let mut ledger = self.releases.ledger();
            ledger.end(&self.id);
            ledger.will_be_sent(&self.id.name, &dead)
        };
        // What is still queued wakes them when it is sent: less often if very many holds are lost.
        if !is_queued {
            self.releases.wake_flush_waiters();
        }
    }
}

impl PendingReleases {
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        Self { context, workers, ledger: Mutex::default(), waiting: Mutex::default() }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Notes that a caller sends this release itself, or is about to queue it, until
    /// [`end_in_flight`](Self::end_in_flight).
    pub(crate) fn begin_in_flight(&self, id: impl Into<ReleaseId>) {
        self.ledger().begin(id.into(), Stage::Sending);
    }

    /// Notes that an owner is in a queue on the server: this release has to be sent unless its
    /// acquire is granted.
    pub(crate) fn begin_in_server_queue(&self, id: impl Into<ReleaseId>) {
        self.ledger().begin(id.into(), Stage::InServerQueue);
    }

    /// Notes that this hold may be lost now. Others can see the loss before its release is queued:
    /// until then it counts as pending.
    pub(crate) fn begin_loss(&self, hold: &Hold) -> PendingLoss<'_> {
        let id = ReleaseId::from(hold.id());
        self.begin_in_flight(id.clone());
        PendingLoss { releases: self, id }
    }

    /// Notes that this release is not in flight any more: it has an answer, is queued, or is not
    /// needed.
    pub(crate) fn end_in_flight(&self, id: impl Into<ReleaseId>) {
        self.ledger().end(&id.into());
        self.wake_flush_waiters();
    }

    /// Queues every release whose reply nobody has read.
    pub(crate) fn queue_unread(&self) {
        self.ledger().queue_unread(|name| self.context.server_of(name));
        self.workers.wake();
    }

    /// Whether a release of this name had begun at the mark and may still end the hold: it is sent
    /// and not answered, or queued and not refused. On a store that does not recover by itself,
    /// what was tried once in vain does not count.
    pub(crate) fn is_outstanding(&self, name: &LockName, mark: ReleaseNo) -> bool {
        let recovers = self.context.store.may_recover_by_itself();
        let tried_by = (!recovers).then(|| self.context.now());
        self.ledger().is_outstanding(name, mark, tried_by)
    }

    /// Whether a release of this name explains a refusal of an acquire that began at the mark: the
    /// release is [outstanding](Self::is_outstanding) since then, or the server refuses it.
    pub(crate) fn explain_refusal(&self, name: &LockName, mark: ReleaseNo) -> bool {
        self.is_outstanding(name, mark) || self.ledger().has_refused(name)
    }

    /// Unparks `parker` whenever a release may be settled, while `wait` runs.
    pub(crate) fn while_waiting(&self, parker: &Parker, wait: impl FnOnce()) {
        self.waiting.lock().push(parker.clone());
        wait();
        self.waiting.lock().retain(|other| !other.is(parker));
    }

    /// Queues a release on the server that has its name now. False if it cannot be queued: that is
    /// counted, and the lease has to expire.
    pub(crate) fn queue(&self, release: QueuedRelease) -> bool {
        let server = self.context.server_of(&release.id().name);
        // With the workers locked: a thread that has nothing to do does not end meanwhile.
        let push = |worker: &RenewalWorker| {
            let is_queued = self.ledger().queue(release, server);
            worker.parker.unpark();
            is_queued
        };
        self.workers.with_worker(server, push).unwrap_or_else(|| {
            // There is no thread that could send it.
            self.ledger().abandoned += 1;
            false
        })
    }

    /// Queues the release of an acquire that was sent.
    pub(crate) fn queue_acquired(
        &self,
        hold_id: &HoldId,
        lease: Lease,
        late_copy_deadline: Option<ServerTime>,
        done: Option<DoneSignal>,
    ) -> bool {
        let now = self.context.now();
        self.queue(self.of_acquired(now, hold_id, lease, late_copy_deadline, done))
    }

    fn of_acquired(
        &self,
        now: Instant,
        hold_id: &HoldId,
        lease: Lease,
        late_copy_deadline: Option<ServerTime>,
        done: Option<DoneSignal>,
    ) -> QueuedRelease {
        // A copy of a command may be under way for as long as its attempt may take.
        let lifetime = lease.duration() + self.context.settings.retry_timeout();
        let (id, release) = (ReleaseId::from(hold_id), hold_id.release());
        QueuedRelease::new(now, id, release, lifetime, late_copy_deadline, done)
    }

    /// Queues the release of a hold that has ended.
    pub(crate) fn queue_hold(&self, now: Instant, hold: &Hold) -> bool {
        self.queue(self.of_hold(now, hold))
    }

    /// What is queued for a hold that has ended.
    pub(crate) fn of_hold(&self, now: Instant, hold: &Hold) -> QueuedRelease {
        let (lease, late_copy_deadline) = (hold.longest_lease(), hold.late_copy_deadline());
        self.of_acquired(now, &hold.id(), lease, late_copy_deadline, None)
            .keeping(hold.keep(|| now))
    }

    /// Queues what is released by itself because it could not be released with others.
    pub(crate) fn queue_anew(&self, due: Instant, release: AcknowledgedRelease) {
        let AcknowledgedRelease { id, permits, lifetime } = release;
        if let Some(release) = permits {
            self.queue(QueuedRelease::new(due, id, release, lifetime, None, None));
        }
    }

    /// Queues a release that one server has acknowledged, but another may not know.
    pub(crate) fn queue_acknowledged(&self, due: Instant, release: AcknowledgedRelease) {
        let AcknowledgedRelease { id, permits, lifetime } = release;
        let of_hold = || id.hold_id().map(|hold_id| hold_id.release());
        if let Some(release) = permits.or_else(of_hold) {
            self.queue(QueuedRelease::acknowledged(due, id, release, lifetime));
        }
    }

    /// Moves what is queued and due on one server, but has moved to another since, to the queue of
    /// that one.
    pub(crate) fn move_to_new_servers(&self, from: ServerId, now: Instant) {
        if self.context.only_server().is_some() {
            return;
        }
        let moved = self.ledger().moved(from, now, ROUND, |name| self.context.server_of(name));
        for (no, to) in moved {
            // Starts its thread. If that fails, the release stays where it is.
            self.workers.with_worker(to, |worker| {
                if !worker.is_dead() {
                    self.ledger().move_to(no, to);
                    worker.parker.unpark();
                }
            });
        }
    }

    /// Whether a dropped guard has waited for the server of this name in vain, and no release was
    /// answered there since. Then the next does not wait.
    pub(crate) fn is_server_silent(&self, name: &LockName) -> bool {
        let server = self.context.server_of(name);
        self.workers.lock().find(server).is_some_and(RenewalWorker::is_silent)
    }

    /// Notes that the server of this name has answered a release, or that a dropped guard has waited
    /// for it in vain.
    pub(crate) fn set_server_silent(&self, name: &LockName, silent: bool) {
        let server = self.context.server_of(name);
        self.workers.with_worker(server, |worker| worker.set_silent(silent));
    }

    /// Waits for the pending releases until `deadline`. Returns those that no server has
    /// acknowledged.
    pub(crate) fn flush(&self, deadline: Instant) -> Vec<ReleaseId> {
        let parker = Parker::new();
        self.workers.wake();
        let mut is_done = false;
        // Woken at the end of each round of a renewal thread, and of each caller's release.
        self.while_waiting(&parker, || {
            loop {
                let dead = self.workers.dead();
                let now = self.context.now();
                let left = self.ledger().unacknowledged(now, &dead);
                // On a store that stays as it is, what failed once fails again.
                let may_succeed = self.context.store.may_recover_by_itself() || left.has_untried;
                is_done = left.is_empty;
                if is_done || !left.may_end || !may_succeed || now >= deadline {
                    break;
                }
                park(&*self.context.clock, &parker, Some(deadline), None);
            }
        });
        if is_done { Vec::new() } else { self.ledger().unacknowledged_ids() }
    }

    pub(crate) fn wake_flush_waiters(&self) {
        self.waiting.lock().iter().for_each(Parker::unpark);
    }
}
