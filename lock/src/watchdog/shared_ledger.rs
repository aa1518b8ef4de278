//! The releases of the client as shared by its threads: the ledger, and the threads waiting for
//! entries.
//!
//! One mutex holds all entries, from before a hold ends until its release is settled. Lists in
//! flight and a queue for each server were the alternative. These needed an order between three
//! mutexes, and a release had to move between queues whenever its hash slot moved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::hold::hold::Hold;
use crate::ledger::ledger::{Ledger, MAX_PER_PASS, Stage};
use crate::ledger::log::AcknowledgedRelease;
use crate::ledger::release::{Release, ReleaseId};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, MutexGuard, Parker, Parkers, SystemClock, park};
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::store::ServerId;
use crate::watchdog::context::Context;
use crate::watchdog::worker::RenewalWorker;
use crate::watchdog::workers::Workers;

/// The ledger of one client behind a mutex, with the threads that wait for releases.
#[derive(Debug)]
pub(crate) struct SharedLedger {
    context: Arc<Context>,
    workers: Arc<Workers>,
    /// While the ledger is locked, no other lock is acquired, except by a store to find the server
    /// of a key.
    ledger: Mutex<Ledger>,
    /// The threads waiting until releases are settled.
    waiting: Parkers,
}

/// A release which has begun. Dropping this value cancels the release, unless queued.
pub(crate) struct CancellableRelease<'a> {
    releases: &'a SharedLedger,
    pub(crate) no: ReleaseNo,
}

impl Drop for CancellableRelease<'_> {
    fn drop(&mut self) {
        self.releases.cancel(self.no);
    }
}

// One release.
impl SharedLedger {
    pub(crate) fn new(context: Arc<Context>, workers: Arc<Workers>) -> Self {
        Self { context, workers, ledger: Mutex::default(), waiting: Parkers::default() }
    }

    /// Locks the ledger.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Makes the release of a hold, without a begin.
    pub(crate) fn of_hold(&self, hold: &Hold) -> Release {
        Release::of_hold(hold, self.context.settings.retry_timeout())
    }

    /// Makes the release of an acquire whose request was sent, without a begin.
    pub(crate) fn of_acquire(
        &self,
        hold_id: &HoldId,
        lease: Lease,
        late_copy_deadline: Option<ServerTime>,
    ) -> Release {
        let retries = self.context.settings.retry_timeout();
        Release::of_acquire(hold_id.clone(), lease, retries, late_copy_deadline)
    }

    /// Begins a release which the caller sends, queues or cancels.
    pub(crate) fn begin(&self, release: Release) -> ReleaseNo {
        self.ledger().begin(release, Stage::Sending)
    }

    /// Begins a release which this thread queues or cancels. Dropping the returned value cancels
    /// the release, also in a panic.
    pub(crate) fn begin_guarded(&self, release: Release, stage: Stage) -> CancellableRelease<'_> {
        CancellableRelease { releases: self, no: self.ledger().begin(release, stage) }
    }

    /// Cancels a release which is not needed. No effect if the release is queued.
    pub(crate) fn cancel(&self, no: ReleaseNo) {
        let has_ended = self.ledger().cancel(no);
        // A queued release wakes the waiters when sent: fewer wakes if very many holds are lost.
        if has_ended {
            self.wake_waiters();
        }
    }

    /// Queues a release on the current server of its name, due at `due`. Returns false if the
    /// release cannot be queued: the failure is counted, and the lease has to expire.
    pub(crate) fn queue(&self, no: ReleaseNo, due: Instant) -> bool {
        let name = self.ledger().name(no);
        let Some(name) = name else { return true };
        let server = self.context.server_of(&name);
        // With the workers locked, so an idle thread does not end meanwhile.
        let push = |worker: &RenewalWorker| {
            let is_queued = self.ledger().queue(no, server, due);
            worker.parker.unpark();
            is_queued && !worker.is_dead()
        };
        let is_queued = self.workers.with_worker(server, push).unwrap_or_else(|| {
            self.ledger().give_up(no);
            false
        });
        if !is_queued {
            // Nothing will send the release, and so nothing else wakes the waiting threads.
            self.wake_waiters();
        }
        is_queued
    }

    /// Begins and queues a release, due at `now`. Returns `false` if the release cannot be queued.
    pub(crate) fn queue_new(&self, now: Instant, release: Release) -> bool {
        let no = self.begin(release);
        self.queue(no, now)
    }

    /// Queues every release whose reply is unread, and wakes the renewal threads.
    pub(crate) fn queue_unread(&self) {
        self.ledger().queue_unread(|name| self.context.server_of(name));
        self.workers.wake();
    }

    /// Logs an acknowledged release whose request was sent at `sent_at`. If a server was replaced
    /// since then, queues the release again instead.
    pub(crate) fn log(&self, sent_at: Instant, release: AcknowledgedRelease) {
        let again = self.ledger().log(sent_at, release);
        if let Some(release) = again {
            self.queue_again(sent_at, release);
        }
    }

    /// Queues recent releases of the servers which have `moved` again, due at `due`. `now` is when
    /// the move was seen.
    pub(crate) fn server_moved(
        &self,
        now: Instant,
        due: Instant,
        moved: impl Fn(&ReleaseId) -> bool,
    ) {
        let released = self.ledger().server_moved(now, moved);
        for release in released {
            self.queue_again(due, release);
        }
    }

    /// Begins an acknowledged release again, and queues the release, due at `due`.
    fn queue_again(&self, due: Instant, release: AcknowledgedRelease) {
        let no = self.ledger().begin_again(release, due);
        self.queue(no, due);
    }

    /// Moves releases queued on `from`, due at `now`, to the queues of the servers that have their
    /// names now. Starts the renewal threads of these servers.
    pub(crate) fn move_to_new_servers(&self, from: ServerId, now: Instant) {
        if self.context.only_server().is_some() {
            return;
        }
        let moved =
            self.ledger().moved(from, now, MAX_PER_PASS, |name| self.context.server_of(name));
        for (no, to) in moved {
            // Starts its thread. On failure the release stays in its queue.
            self.workers.with_worker(to, |worker| {
                if !worker.is_dead() {
                    self.ledger().move_to(no, to);
                    worker.parker.unpark();
                }
            });
        }
    }
}

// Waiting for releases.
impl SharedLedger {
    /// Returns whether a release of this name had begun at the mark and may still end the hold:
    /// sent without an answer, or queued and not refused. On a store which does not recover by
    /// itself, a release which failed once does not count.
    pub(crate) fn is_outstanding(&self, name: &LockName, mark: ReleaseNo) -> bool {
        let recovers = self.context.store.may_recover_by_itself();
        let tried_by = (!recovers).then(|| self.context.now());
        self.ledger().is_outstanding(name, mark, tried_by)
    }

    /// Returns whether a release of this name explains the refusal of an acquire that began at the
    /// mark: some release is [outstanding](Self::is_outstanding) since then, or refused by the
    /// server.
    pub(crate) fn explain_refusal(&self, name: &LockName, mark: ReleaseNo) -> bool {
        self.is_outstanding(name, mark) || self.ledger().has_refused(name)
    }

    /// Runs `wait`. Meanwhile, unparks `parker` whenever a release may be settled.
    pub(crate) fn while_waiting(&self, parker: &Parker, wait: impl FnOnce()) {
        self.waiting.with(parker, wait);
    }

    /// Waits until a release is acknowledged or given up, for `timeout` at most. The timeout counts
    /// by the system's clock: a server's speed does not depend on the client's clock.
    pub(crate) fn wait_for(&self, no: ReleaseNo, timeout: Duration) {
        if timeout.is_zero() {
            return;
        }
        let (parker, deadline) = (Parker::new(), SystemClock.now() + timeout);
        self.while_waiting(&parker, || {
            while self.ledger().is_open(no) && SystemClock.now() < deadline {
                park(&SystemClock, &parker, Some(deadline), None);
            }
        });
    }

    /// Waits until no release is unacknowledged, until `deadline`, or until no waiting can help.
    /// Returns the targets of the unacknowledged releases.
    pub(crate) fn flush(&self, deadline: Instant) -> Vec<ReleaseId> {
        let parker = Parker::new();
        self.workers.wake();
        let mut is_done = false;
        // Woken at the end of each pass of a renewal thread, and of each caller's release.
        self.while_waiting(&parker, || {
            loop {
                let dead = self.workers.dead();
                let now = self.context.now();
                let left = self.ledger().unacknowledged(now, &dead);
                // On a store which never recovers by itself, a failed release fails again.
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

    /// Unparks every thread that waits for releases.
    pub(crate) fn wake_waiters(&self) {
        self.waiting.unpark_all();
    }

    /// Returns whether a dropped guard has waited for the server of this name in vain, and the
    /// server has answered no queued release since. Then the next dropped guard does not wait.
    pub(crate) fn is_server_silent(&self, name: &LockName) -> bool {
        let server = self.context.server_of(name);
        self.workers.lock().find(server).is_some_and(RenewalWorker::is_silent)
    }

    /// Records that a dropped guard has waited for the server of this name in vain.
    pub(crate) fn set_server_silent(&self, name: &LockName) {
        let server = self.context.server_of(name);
        self.workers.with_worker(server, |worker| worker.set_silent(true));
    }
}
