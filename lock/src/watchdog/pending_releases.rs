//! All pending releases of the client: those that callers send, those whose replies are unread, and
//! those that are queued for a renewal thread (DESIGN: release queue, unread releases). And what
//! waits until none is pending.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::hold::hold::Hold;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::sync::{Mutex, Parker, park};
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
    pending: Mutex<Pending>,
    /// The holds that a thread is about to end as lost. What is left to release of them is queued
    /// before they are removed here.
    being_lost: Mutex<Vec<ReleaseId>>,
    /// The next [`LogicalTime`].
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Pending {
    /// The releases that are not queued, so that a shutdown knows of all.
    in_flight: Vec<InFlightRelease>,
    settled: VecDeque<Settled>,
    /// The threads that wait for releases to be acknowledged.
    flush_waiters: Vec<Parker>,
}

/// Logical time: the order in which releases begin and are settled, and acquires are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogicalTime(u64);

/// A release that is not queued.
#[derive(Debug)]
struct InFlightRelease {
    id: ReleaseId,
    begun: LogicalTime,
    stage: ReleaseStage,
}

/// A release that ended a short time ago: it was acknowledged, or queued.
#[derive(Debug)]
struct Settled {
    name: LockName,
    begun: LogicalTime,
    at: LogicalTime,
}

/// The most that are remembered. If more are settled while an acquire is under way, it is sent once
/// more.
const SETTLED: usize = 256;

#[derive(Debug)]
enum ReleaseStage {
    /// A fair lock's owner waits in the queue on the server. It is released if it is not granted.
    Waiting,
    /// A caller sends it, or is about to queue it.
    Sending,
    /// It was sent, and nobody waits for the reply. Without an acknowledgement this is queued.
    Unread(Box<QueuedRelease>),
    /// The reply was read, or none will come. It is about to be queued if it is not acknowledged.
    Settling,
}

/// Counts the release of a hold that is being lost as pending, until it is dropped.
pub(crate) struct PendingLoss<'a> {
    releases: &'a PendingReleases,
    id: ReleaseId,
}

impl Drop for PendingLoss<'_> {
    fn drop(&mut self) {
        let mut being_lost = self.releases.being_lost.lock();
        if let Some(index) = being_lost.iter().position(|id| *id == self.id) {
            being_lost.swap_remove(index);
        }
        drop(being_lost);
        // What is still queued wakes them when it is sent: less often if very many holds are lost.
        if !self.releases.will_be_sent(&self.id.name) {
            self.releases.wake_flush_waiters();
        }
    }
}

/// The releases that no server has acknowledged.
struct Unacknowledged {
    is_empty: bool,
    /// Whether callers are sending some of them, or some are queued and were not tried yet.
    has_untried: bool,
    /// Whether a thread is there to send any of them.
    may_end: bool,
}

impl Pending {
    fn wake_flush_waiters(&self) {
        self.flush_waiters.iter().for_each(Parker::unpark);
    }
}

impl PendingReleases {
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        Self {
            context,
            workers,
            pending: Mutex::default(),
            being_lost: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// Notes that a caller sends this release itself, or is about to queue it, until
    /// [`end_in_flight`](Self::end_in_flight).
    pub(crate) fn begin_in_flight(&self, id: impl Into<ReleaseId>) {
        self.begin(id.into(), ReleaseStage::Sending);
    }

    /// Notes that an owner is in a queue on the server: this release has to be sent unless its
    /// acquire is granted.
    pub(crate) fn begin_in_server_queue(&self, id: impl Into<ReleaseId>) {
        self.begin(id.into(), ReleaseStage::Waiting);
    }

    /// Whether an owner of this client is in a queue on the server.
    pub(crate) fn has_waiters(&self) -> bool {
        let is_waiting = |other: &InFlightRelease| matches!(other.stage, ReleaseStage::Waiting);
        self.pending.lock().in_flight.iter().any(is_waiting)
    }

    fn begin(&self, id: ReleaseId, stage: ReleaseStage) {
        let mut pending = self.pending.lock();
        pending.in_flight.push(InFlightRelease { id, begun: self.advance(), stage });
    }

    /// Notes that this hold may be lost now. Others can see the loss before its release is queued:
    /// until then it counts as pending.
    pub(crate) fn begin_loss(&self, hold: &Hold) -> PendingLoss<'_> {
        let id = ReleaseId::from(hold.id());
        self.being_lost.lock().push(id.clone());
        PendingLoss { releases: self, id }
    }

    fn is_being_lost(&self, name: &LockName) -> bool {
        self.being_lost.lock().iter().any(|id| id.name == *name)
    }

    /// Notes that this release is not in flight any more: it has an answer, is queued, or is not
    /// needed.
    pub(crate) fn end_in_flight(&self, id: impl Into<ReleaseId>) {
        let id = id.into();
        let mut pending = self.pending.lock();
        if let Some(index) = pending.in_flight.iter().position(|own| own.id == id) {
            let begun = pending.in_flight.swap_remove(index).begun;
            self.note_settled(&mut pending, id.name, begun);
        }
        pending.wake_flush_waiters();
    }

    /// A queued release of this name is about to be settled. It is noted before it is removed from
    /// the queue: a thread that looks there first and here afterwards finds it.
    pub(crate) fn note_dequeued(&self, name: &LockName) {
        self.note_settled(&mut self.pending.lock(), name.clone(), LogicalTime(0));
    }

    fn note_settled(&self, pending: &mut Pending, name: LockName, begun: LogicalTime) {
        if pending.settled.len() == SETTLED {
            pending.settled.pop_front();
        }
        pending.settled.push_back(Settled { name, begun, at: self.advance() });
    }

    /// Where it is now in the order of releases and acquires.
    pub(crate) fn logical_time(&self) -> LogicalTime {
        LogicalTime(self.next.load(Ordering::SeqCst))
    }

    /// Returns the present time, and advances it by one.
    fn advance(&self) -> LogicalTime {
        LogicalTime(self.next.fetch_add(1, Ordering::SeqCst))
    }

    /// Notes that a release in flight is about to be sent without a wait for its reply. `release`
    /// is queued if it is not acknowledged.
    pub(crate) fn set_unread(&self, release: QueuedRelease) {
        let mut pending = self.pending.lock();
        if let Some(own) = pending.in_flight.iter_mut().find(|other| other.id == *release.id()) {
            own.stage = ReleaseStage::Unread(Box::new(release));
        }
    }

    /// The release is unread no longer: it has a reply, or gets none. It counts as unread until
    /// [`end_in_flight`](Self::end_in_flight), and the caller queues it before if it must be.
    /// `None` if another thread has queued it already: then its reply says nothing any more.
    pub(crate) fn take_unread(&self, id: &ReleaseId) -> Option<QueuedRelease> {
        self.end_unread(id, ReleaseStage::Settling)
    }

    /// The release is unread no longer: it was not sent. It is in flight as before.
    pub(crate) fn cancel_unread(&self, id: &ReleaseId) {
        drop(self.end_unread(id, ReleaseStage::Sending));
    }

    fn end_unread(&self, id: &ReleaseId, then: ReleaseStage) -> Option<QueuedRelease> {
        let mut pending = self.pending.lock();
        let own = pending.in_flight.iter_mut().find(|other| other.id == *id)?;
        match std::mem::replace(&mut own.stage, then) {
            ReleaseStage::Unread(release) => Some(*release),
            stage => {
                own.stage = stage;
                None
            }
        }
    }

    /// The releases whose replies nobody has read, or that are being settled by them.
    pub(crate) fn unread(&self) -> usize {
        let is_unread = |other: &&InFlightRelease| {
            matches!(other.stage, ReleaseStage::Unread(_) | ReleaseStage::Settling)
        };
        self.pending.lock().in_flight.iter().filter(is_unread).count()
    }

    /// Queues every release whose reply nobody has read.
    pub(crate) fn queue_unread(&self) {
        let is_unread = |other: &&InFlightRelease| matches!(other.stage, ReleaseStage::Unread(_));
        let ids = |pending: &Pending| -> Vec<ReleaseId> {
            pending.in_flight.iter().filter(is_unread).map(|other| other.id.clone()).collect()
        };
        let unread = ids(&self.pending.lock());
        for id in unread {
            if let Some(release) = self.take_unread(&id) {
                self.queue(release);
                self.end_in_flight(id);
            }
        }
    }

    /// Whether a release of this name is queued for a thread that sends it.
    fn will_be_sent(&self, name: &LockName) -> bool {
        let is_it =
            |worker: &RenewalWorker| !worker.is_dead() && worker.releases().is_outstanding(name);
        self.workers.lock().iter().any(is_it)
    }

    /// Whether a release of this name had begun at `sent_at` and may still end the hold: it is sent
    /// and not answered, or queued and not refused. On a store that does not recover by itself,
    /// what was tried once in vain does not count.
    pub(crate) fn is_outstanding(&self, name: &LockName, sent_at: LogicalTime) -> bool {
        let is_it = |other: &InFlightRelease| {
            let is_release = !matches!(other.stage, ReleaseStage::Waiting);
            is_release && other.begun < sent_at && other.id.name == *name
        };
        if self.is_being_lost(name) || self.pending.lock().in_flight.iter().any(is_it) {
            return true;
        }
        if self.context.store.may_recover_by_itself() {
            return self.workers.lock().iter().any(|worker| worker.releases().is_outstanding(name));
        }
        let now = self.context.now();
        self.workers.lock().iter().any(|worker| worker.releases().has_untried_of(now, name))
    }

    /// Whether a release of this name may have been [outstanding](Self::is_outstanding) at
    /// `sent_at`, and was settled since. To be asked once none is outstanding.
    pub(crate) fn was_settled(&self, name: &LockName, sent_at: LogicalTime) -> bool {
        let settled = &self.pending.lock().settled;
        // The list is full, and its oldest entry was settled after `sent_at`: one that was dropped
        // from it may have had this name.
        let forgot =
            settled.len() == SETTLED && settled.front().is_some_and(|old| old.at > sent_at);
        let is_it =
            |other: &Settled| other.at >= sent_at && other.begun < sent_at && other.name == *name;
        forgot || settled.iter().any(is_it)
    }

    /// Unparks `parker` whenever a release may be settled, while `wait` runs.
    pub(crate) fn while_waiting(&self, parker: &Parker, wait: impl FnOnce()) {
        self.pending.lock().flush_waiters.push(parker.clone());
        wait();
        self.pending.lock().flush_waiters.retain(|other| !other.is(parker));
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
        let is_in_flight = self.pending.lock().in_flight.iter().any(|other| other.id.name == *name);
        is_in_flight
            || self.is_being_lost(name)
            || self.workers.lock().iter().any(|worker| worker.releases().contains(name))
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
        self.pending.lock().flush_waiters.push(parker.clone());
        self.workers.wake();
        // Woken at the end of each round of a renewal thread, and of each caller's release.
        let is_done = loop {
            let (left, now) = self.unacknowledged();
            // On a store that stays as it is, what failed once fails again.
            let may_succeed = self.context.store.may_recover_by_itself() || left.has_untried;
            let is_over = left.is_empty || !left.may_end;
            if is_over || !may_succeed || now >= deadline {
                break left.is_empty;
            }
            park(&*self.context.clock, &parker, Some(deadline), None);
        };
        self.pending.lock().flush_waiters.retain(|other| !other.is(&parker));
        if is_done { Vec::new() } else { self.unacknowledged_ids() }
    }

    pub(crate) fn wake_flush_waiters(&self) {
        self.pending.lock().wake_flush_waiters();
    }

    /// With the time for which it is true.
    fn unacknowledged(&self) -> (Unacknowledged, Instant) {
        // Before the queues: a caller's release that gets no answer is queued before it leaves this
        // list, and so is that of a lost hold.
        let mut is_empty =
            self.pending.lock().in_flight.is_empty() && self.being_lost.lock().is_empty();
        // After that: what was queued meanwhile is due.
        let now = self.context.now();
        let mut may_end = !is_empty;
        let mut has_untried = may_end;
        for worker in self.workers.lock().iter() {
            let releases = worker.releases();
            let is_queued = releases.has_unacknowledged();
            may_end |= is_queued && !worker.is_dead();
            has_untried |= releases.has_untried(now);
            is_empty &= !is_queued;
        }
        (Unacknowledged { is_empty, has_untried, may_end }, now)
    }

    fn unacknowledged_ids(&self) -> Vec<ReleaseId> {
        // In the same order.
        let mut ids: Vec<ReleaseId> =
            self.pending.lock().in_flight.iter().map(|other| other.id.clone()).collect();
        ids.extend(self.being_lost.lock().iter().cloned());
        for worker in self.workers.lock().iter() {
            ids.extend(worker.releases().unacknowledged());
        }
        ids
    }
}
