//! How a hold ends in this process: by a release or by a loss.
//!
//! The release of a lost hold counts as pending before `lost`, `check` and `unlock` report the
//! loss. Otherwise a single try afterwards could be refused by the hold's own key, and a shutdown
//! could end before the release is queued.

use std::sync::Arc;
use std::time::Instant;

use crate::error::LostReason;
use crate::hold::cache::CacheEnd;
use crate::hold::hold::Hold;
use crate::hold::state::Loss;
use crate::ledger::ledger::Stage;
use crate::model::kind::Kind;
use crate::model::release_no::ReleaseNo;
use crate::ops::value::ServerTime;
use crate::watchdog::watchdog::Watchdog;
use crate::watchdog::worker::RenewalWorker;

impl Watchdog {
    /// Ends a hold for all its guards, and removes the hold from wheel and registry. The caller
    /// then sends `release`, which has begun.
    ///
    /// Returns an error if the hold was over before. Then queues `release` if the server may still
    /// have the key, and cancels `release` otherwise.
    pub(crate) fn end(&self, hold: &Arc<Hold>, release: ReleaseNo) -> Result<(), Loss> {
        self.scheduler.remove(hold);
        self.context.holds.remove(hold);
        let now = self.context.now();
        let result = hold.end_released(now);
        if result.as_ref().map_or_else(|loss| loss.first, |()| true) {
            self.count_end(hold, now);
        }
        // If another thread was first, the loss is reported and the release queued already.
        if let Err(Loss { reason, first: true }) = result {
            self.report_loss(hold, now, reason);
            if leaves_release(hold, reason) {
                self.releases.queue(release, now);
            }
            self.tell_waiters(hold);
        }
        if result.is_err() {
            self.releases.cancel(release);
        }
        result
    }

    /// Ends a hold for all its guards, and leaves its key on the server without a release. Returns
    /// an error if the hold was over before; then a release may be queued, as in
    /// [`end`](Self::end).
    pub(crate) fn forget(&self, hold: &Arc<Hold>) -> Result<(), Loss> {
        // Cancelled at the end of this function.
        let release = self.releases.begin_guarded(self.releases.of_hold(hold), Stage::Sending);
        self.end(hold, release.no)
    }

    /// Ends a hold as lost now: see [`lose_at`](Self::lose_at).
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        self.lose_at(hold, self.context.now(), reason);
    }

    /// Ends a hold as lost at `now`, and removes the hold from wheel and registry. If the hold was
    /// not over before, reports the loss, wakes waiters, and queues a release if the server may
    /// have the key.
    pub(crate) fn lose_at(&self, hold: &Arc<Hold>, now: Instant, reason: LostReason) {
        // A thread which sees the loss finds the release, here or in the queue.
        let release = self.releases.begin_guarded(self.releases.of_hold(hold), Stage::Sending);
        self.scheduler.remove(hold);
        self.context.holds.remove(hold);
        if !hold.lose(now, reason) {
            return;
        }
        self.count_end(hold, now);
        self.report_loss(hold, now, reason);
        if leaves_release(hold, reason) {
            self.releases.queue(release.no, now);
        }
        self.tell_waiters(hold);
    }

    /// Records the holding time of an ended hold for metrics. No effect without a metrics label.
    fn count_end(&self, hold: &Hold, now: Instant) {
        if let Some(label) = hold.metrics_label() {
            let acquires = self.context.counters.acquires();
            acquires.hold_ended(hold.kind, label, || hold.held_for(now));
        }
    }

    /// Wakes the waiters of this client that are not subscribed, after the end of a reentrant
    /// lock's hold.
    fn tell_waiters(&self, hold: &Hold) {
        if hold.kind == Kind::Reentrant {
            self.context.ended.hold_ended(&hold.name);
        }
    }

    /// Ends a cached hold. A renewal thread releases the hold. Returns false, without effect, if
    /// the hold is no longer cached. Reads no clock.
    pub(crate) fn release_cached(&self, hold: &Arc<Hold>, end: CacheEnd) -> bool {
        let was_cached = hold.end_cached();
        if was_cached {
            self.context.holds.cache.count_end(end);
            self.end_in_background(hold, None);
        }
        was_cached
    }

    /// Counts a loss and reports the loss to the user. The loss of a cached hold is only counted.
    pub(crate) fn report_loss(&self, hold: &Hold, now: Instant, reason: LostReason) {
        if hold.is_cached() {
            self.context.holds.cache.count_end(CacheEnd::Lost);
            return;
        }
        self.context.counters.lost(reason);
        self.context.events.lost(|| hold.loss_report(now, reason));
    }

    /// Leaves a hold without a guard to a renewal thread, which ends the hold and sends its
    /// release. `release` is the release of the hold if already begun. Waits for no server and
    /// reads no clock.
    ///
    /// Without a thread the release is cancelled. Then the hold is not renewed either, and expires.
    pub(crate) fn end_in_background(&self, hold: &Arc<Hold>, release: Option<ReleaseNo>) {
        // Begun before the hold is handed over, so a shutdown waits for the release.
        let release = release.unwrap_or_else(|| self.releases.begin(self.releases.of_hold(hold)));
        // If the owner asks now, the lock is acquired again.
        self.context.holds.remove(hold);
        let server = self.context.server_of(&hold.name);
        let is_taken = {
            let list = self.workers.lock();
            // Any thread can do this: the release is queued on the server with the name. No thread
            // is started here, as a start reads the clock.
            let mut workers = list.find(server).into_iter().chain(list.iter());
            workers.any(|worker| worker.end_in_background(hold, release))
        };
        if !is_taken {
            self.releases.cancel(release);
        }
        self.tell_waiters(hold);
    }

    /// Ends the holds without a guard that were left to `worker`, and queues their releases. Runs
    /// on a renewal thread.
    pub(crate) fn end_unguarded(&self, worker: &RenewalWorker) {
        for (hold, release) in worker.take_unguarded() {
            self.context.catch_panic(|| {
                if hold.is_released() || self.end(&hold, release).is_ok() {
                    self.releases.queue(release, self.context.now());
                }
            });
            self.releases.cancel(release);
        }
    }

    /// Marks `worker` as dead, because its thread has ended unexpectedly. Ends every watched hold
    /// of the worker's server as lost, because no thread renews these holds any more. Ends the
    /// holds without a guard that were left to the worker, and wakes the threads that wait for a
    /// release.
    ///
    /// If the clock panics, the loss is dated to the grant: only the report needs the time.
    pub(crate) fn lose_all_watched(&self, worker: &RenewalWorker) {
        // Before the registry is read: a thread which inserts a hold later sees the flag.
        self.workers.set_dead(worker);
        for hold in self.context.holds.all() {
            if hold.watched_lease().is_none() || self.context.server_of(&hold.name) != worker.server
            {
                continue;
            }
            let reason = hold.reason_of_end();
            if self.context.catch_panic(|| self.lose(&hold, reason)).is_none() {
                self.context.catch_panic(|| self.lose_at(&hold, hold.granted_at(), reason));
            }
        }
        self.end_unguarded(worker);
        // Nothing sends the queued releases either.
        self.releases.wake_waiters();
    }
}

/// Returns [`loss_leaves_release`] for a hold lost for `reason`.
fn leaves_release(hold: &Hold, reason: LostReason) -> bool {
    loss_leaves_release(reason, hold.key_may_outlive_validity(), hold.late_copy_deadline())
}

/// Returns whether a lost hold must be released all the same: the server may still have its key, or
/// a copy of its acquire may arrive.
pub(crate) fn loss_leaves_release(
    reason: LostReason,
    key_may_outlive_validity: bool,
    late_copy_deadline: Option<ServerTime>,
) -> bool {
    let is_gone = matches!(reason, LostReason::Deleted | LostReason::TakenOver);
    late_copy_deadline.is_some() || (!is_gone && key_may_outlive_validity)
}
