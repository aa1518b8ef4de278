//! How a hold ends in this process: it is released, or it is lost.

use std::sync::Arc;
use std::time::Instant;

use crate::error::LostReason;
use crate::hold::hold::Hold;
use crate::hold::state::Loss;
use crate::ledger::ledger::Stage;
use crate::model::kind::Kind;
use crate::model::release_no::ReleaseNo;
use crate::ops::value::ServerTime;
use crate::watchdog::shared::Shared;
use crate::watchdog::worker::RenewalWorker;

/// Ends a hold that is released by `release`, which has begun, and leaves it to the caller to send
/// that. An error if the hold was over before; then the release is queued if there is anything to
/// release, and else not needed.
pub(crate) fn end(shared: &Shared, hold: &Arc<Hold>, release: ReleaseNo) -> Result<(), Loss> {
    shared.scheduler.remove(hold);
    shared.context.holds.remove(hold);
    let now = shared.context.now();
    let result = hold.end_released(now);
    if result.as_ref().map_or_else(|loss| loss.first, |()| true) {
        count_end(shared, hold, now);
    }
    // If it was not the first to find out, the loss is reported and the release queued already.
    if let Err(Loss { reason, first: true }) = result {
        report_loss(shared, hold, now, reason);
        if leaves_release(hold, reason) {
            shared.releases.queue(release, now);
        }
        tell_waiters(shared, hold);
    }
    if result.is_err() {
        shared.releases.cancel(release);
    }
    result
}

/// Ends a hold that is lost.
pub(crate) fn lose(shared: &Shared, hold: &Arc<Hold>, reason: LostReason) {
    lose_at(shared, hold, shared.context.now(), reason);
}

pub(crate) fn lose_at(shared: &Shared, hold: &Arc<Hold>, now: Instant, reason: LostReason) {
    // A thread that sees the loss finds the release, here or in the queue.
    let release = shared.releases.begin_guarded(shared.releases.of_hold(hold), Stage::Sending);
    shared.scheduler.remove(hold);
    shared.context.holds.remove(hold);
    if !hold.lose(now, reason) {
        return;
    }
    count_end(shared, hold, now);
    report_loss(shared, hold, now, reason);
    if leaves_release(hold, reason) {
        shared.releases.queue(release.no, now);
    }
    tell_waiters(shared, hold);
}

fn count_end(shared: &Shared, hold: &Hold, now: Instant) {
    if let Some(label) = hold.metrics_label() {
        let acquires = shared.context.counters.acquires();
        acquires.hold_ended(hold.kind, label, || hold.held_for(now));
    }
}

fn leaves_release(hold: &Hold, reason: LostReason) -> bool {
    loss_leaves_release(reason, hold.key_may_outlive_validity(), hold.late_copy_deadline())
}

/// Whether a hold that was lost is to be released all the same: the server may still have its key,
/// or a copy of its acquire may arrive.
pub(crate) fn loss_leaves_release(
    reason: LostReason,
    key_may_outlive_validity: bool,
    late_copy_deadline: Option<ServerTime>,
) -> bool {
    let is_gone = matches!(reason, LostReason::Deleted | LostReason::TakenOver);
    late_copy_deadline.is_some() || (!is_gone && key_may_outlive_validity)
}

/// Threads of this client may wait for it that no message reaches.
fn tell_waiters(shared: &Shared, hold: &Hold) {
    if hold.kind == Kind::Reentrant {
        shared.context.ended.hold_ended(&hold.name);
    }
}

/// Counts a loss and reports it to the user.
pub(crate) fn report_loss(shared: &Shared, hold: &Hold, now: Instant, reason: LostReason) {
    shared.context.counters.lost(reason);
    shared.context.events.lost(|| hold.loss_report(now, reason));
}

/// Leaves a hold without a guard to a renewal thread, which ends and releases it by `release`, if
/// that has begun. Waits for no server and reads no clock. Without a thread the hold is not renewed
/// either, and expires.
pub(crate) fn end_in_background(shared: &Shared, hold: &Arc<Hold>, release: Option<ReleaseNo>) {
    // Until it is queued, so that a shutdown knows of it.
    let release = release.unwrap_or_else(|| shared.releases.begin(shared.releases.of_hold(hold)));
    // If its owner asks now, it acquires the lock anew.
    shared.context.holds.remove(hold);
    let server = shared.context.server_of(&hold.name);
    let is_taken = {
        let list = shared.workers.lock();
        // Any of them can do it: it queues the release on the server that has the name. None is
        // started here, as that would read the clock.
        let mut workers = list.find(server).into_iter().chain(list.iter());
        workers.any(|worker| worker.end_in_background(hold, release))
    };
    if !is_taken {
        shared.releases.cancel(release);
    }
    tell_waiters(shared, hold);
}

/// On a renewal thread: ends the holds without a guard, and queues their releases.
pub(crate) fn end_unguarded(shared: &Shared, worker: &RenewalWorker) {
    for (hold, release) in worker.take_unguarded() {
        shared.context.catch_panic(|| {
            if hold.is_released() || end(shared, &hold, release).is_ok() {
                shared.releases.queue(release, shared.context.now());
            }
        });
        shared.releases.cancel(release);
    }
}

/// The thread of this worker has ended although nothing told it to. Nothing renews on its
/// server any more, so every watched hold there is lost. Every hold, even if the clock panics:
/// its time matters only to a report.
pub(crate) fn lose_all_watched(shared: &Shared, worker: &RenewalWorker) {
    // Before the registry is read: a thread that inserts a hold later sees it.
    shared.workers.set_dead(worker);
    for hold in shared.context.holds.all() {
        if hold.watched_lease().is_none() || shared.context.server_of(&hold.name) != worker.server {
            continue;
        }
        let reason = hold.reason_of_end();
        if shared.context.catch_panic(|| lose(shared, &hold, reason)).is_none() {
            shared.context.catch_panic(|| lose_at(shared, &hold, hold.granted_at(), reason));
        }
    }
    end_unguarded(shared, worker);
    // Nothing sends what is queued either.
    shared.releases.wake_waiters();
}
