//! All pending releases of the client: those that callers send, and those that are queued for a
//! renewal thread (DESIGN: release queue). And what waits until none is pending.

use std::sync::Arc;
use std::time::Instant;

use hashed_wheel::Parker;

use crate::hold::hold::Hold;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::sync::Mutex;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::watchdog::context::Context;
use crate::watchdog::release_log::AcknowledgedRelease;
use crate::watchdog::release_queue::{DoneSignal, QueuedRelease, ROUND, ReleaseId};
use crate::watchdog::worker::RenewalWorker;
use crate::watchdog::workers::Workers;

#[derive(Debug)]
pub(crate) struct PendingReleases {
    context: Arc<Context>,
    workers: Arc<Workers>,
    /// The releases that callers send themselves, so that a shutdown knows of all.
    in_flight: Mutex<Vec<ReleaseId>>,
    /// The threads that wait for releases to be acknowledged.
    flush_waiters: Mutex<Vec<Parker>>,
}

/// The releases that no server has acknowledged.
struct Unacknowledged {
    is_empty: bool,
    /// Whether callers send some of them, which end by themselves on any store, or the renewal
    /// threads are about to.
    has_untried: bool,
    /// Whether a thread is there to send any of them.
    may_end: bool,
}

impl PendingReleases {
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        let (in_flight, flush_waiters) = (Mutex::default(), Mutex::default());
        Self { context, workers, in_flight, flush_waiters }
    }

    /// Notes that a caller sends this release itself, or will if its acquire is not granted.
    pub(crate) fn begin_in_flight(&self, id: impl Into<ReleaseId>) {
        self.in_flight.lock().push(id.into());
    }

    /// That release has an answer, or it is queued.
    pub(crate) fn end_in_flight(&self, id: &ReleaseId) {
        self.in_flight.lock().retain(|other| other != id);
        self.wake_flush_waiters();
    }

    /// Queues a release on the server that has its name now. False if it cannot be queued: that is
    /// counted, and the lease has to expire.
    pub(crate) fn queue(&self, release: QueuedRelease) -> bool {
        let server = self.context.server_of(&release.id().name);
        let push = |worker: &RenewalWorker| {
            let is_queued = worker.releases().push(release);
            worker.parker.unpark();
            is_queued
        };
        self.workers.with_worker(server, push).unwrap_or_else(|| {
            // There is no thread that could send it.
            self.workers.lock().abandoned += 1;
            false
        })
    }

    /// Queues the release of an acquire that was sent.
    pub(crate) fn queue_acquired(
        &self,
        now: Instant,
        hold_id: &HoldId,
        lease: Lease,
        late_copy_deadline: Option<ServerTime>,
        done: Option<DoneSignal>,
    ) -> bool {
        // A copy of a command may be under way for as long as its attempt may take.
        let lifetime = lease.duration() + self.context.settings.retry_timeout();
        let (id, release) = (ReleaseId::from(hold_id), hold_id.release());
        self.queue(QueuedRelease::new(now, id, release, lifetime, late_copy_deadline, done))
    }

    /// Queues the release of a hold that has ended.
    pub(crate) fn queue_hold(&self, now: Instant, hold: &Hold) -> bool {
        self.queue_acquired(now, &hold.id(), hold.longest_lease(), hold.late_copy_deadline(), None)
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
    pub(crate) fn move_to_new_servers(&self, worker: &RenewalWorker, now: Instant) {
        if self.context.only_server().is_some() {
            return;
        }
        let server_of = |id: &ReleaseId| self.context.server_of(&id.name);
        let has_moved = |id: &ReleaseId| server_of(id) != worker.server;
        let servers: Vec<_> =
            worker.releases().due(now, ROUND).filter(|id| has_moved(id)).map(server_of).collect();
        for server in &servers {
            // Starts its thread. If that fails, the release stays where it is.
            self.workers.with_worker(*server, |_| ());
        }
        if servers.is_empty() {
            return;
        }
        // With the list locked, so that whatever counts releases finds each in one of the queues.
        let list = self.workers.lock();
        let moved = worker.releases().take_due(now, ROUND, has_moved);
        for release in moved {
            match list.find(server_of(release.id())) {
                Some(other) if !other.is_dead() => {
                    other.releases().push(release);
                    other.parker.unpark();
                }
                _ => worker.releases().retry_later(now, release),
            }
        }
    }

    /// Whether a release of this name is pending, of whatever owner.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        let is_in_flight = self.in_flight.lock().iter().any(|id| id.name == *name);
        is_in_flight || self.workers.lock().iter().any(|worker| worker.releases().contains(name))
    }

    /// How many are queued.
    pub(crate) fn queued(&self) -> usize {
        self.workers.lock().iter().map(|worker| worker.releases().len()).sum()
    }

    pub(crate) fn abandoned(&self) -> u64 {
        let list = self.workers.lock();
        list.abandoned + list.iter().map(|worker| worker.releases().abandoned).sum::<u64>()
    }

    /// Waits for the pending releases until `deadline`. Returns those that no server has
    /// acknowledged.
    pub(crate) fn flush(&self, deadline: Instant) -> Vec<ReleaseId> {
        let parker = Parker::new();
        self.flush_waiters.lock().push(parker.clone());
        self.workers.wake();
        // Woken at the end of each round of a renewal thread, and of each caller's release.
        loop {
            let now = self.context.now();
            let left = self.unacknowledged(now);
            // On a store that stays as it is, what failed once fails again.
            let may_succeed = self.context.store.may_recover_by_itself() || left.has_untried;
            let is_over = left.is_empty || !left.may_end;
            if is_over || !may_succeed || now >= deadline {
                break;
            }
            self.context.clock.park(&parker, Some(deadline), &crossbeam_channel::never());
        }
        self.flush_waiters.lock().retain(|other| !other.is(&parker));
        self.unacknowledged_ids()
    }

    pub(crate) fn wake_flush_waiters(&self) {
        self.flush_waiters.lock().iter().for_each(Parker::unpark);
    }

    fn unacknowledged(&self, now: Instant) -> Unacknowledged {
        // Before the queues: a caller's release that gets no answer is queued before it leaves this
        // list.
        let mut is_empty = self.in_flight.lock().is_empty();
        let mut may_end = !is_empty;
        let mut has_untried = may_end;
        for worker in self.workers.lock().iter() {
            let releases = worker.releases();
            let is_queued = releases.has_unacknowledged();
            may_end |= is_queued && !worker.is_dead();
            has_untried |= releases.has_untried(now);
            is_empty &= !is_queued;
        }
        Unacknowledged { is_empty, has_untried, may_end }
    }

    fn unacknowledged_ids(&self) -> Vec<ReleaseId> {
        // In the same order.
        let mut ids = self.in_flight.lock().clone();
        for worker in self.workers.lock().iter() {
            ids.extend(worker.releases().unacknowledged());
        }
        ids
    }
}
