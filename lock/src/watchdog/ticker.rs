//! The ticker's handling of due holds. The ticker never touches a socket.

use std::sync::Arc;
use std::time::Instant;

use crate::hold::cache::CacheEnd;
use crate::hold::hold::Hold;
use crate::hold::state::WheelEntry;
use crate::watchdog::dispatch::dispatch;
use crate::watchdog::renewal_batch::DueRenewal;
use crate::watchdog::watchdog::Watchdog;

/// Takes the holds that the wheel returns: dispatches due renewals, and ends holds that are over.
/// After a panic of the clock, every hold is inspected again in the next tick.
pub(crate) fn on_due(watchdog: &Watchdog, holds: &mut Vec<Arc<Hold>>) {
    let context = &watchdog.context;
    let now = context.catch_panic(|| context.now());
    // All holds are brought into the cache first, so the loads overlap.
    for hold in holds.iter() {
        hold.prefetch();
    }
    let mut renewals = Vec::new();
    for hold in holds.drain(..) {
        let due = now.and_then(|now| context.catch_panic(|| renewal_of(watchdog, &hold, now)));
        match due {
            Some(due) => renewals.extend(due),
            None => drop(context.catch_panic(|| watchdog.scheduler.repeat(&hold))),
        }
    }
    if !renewals.is_empty() {
        dispatch(watchdog, renewals);
    }
}

/// Inspects one hold at `now`, and returns its renewal if due. Ends an expired hold as lost,
/// releases a cached hold whose cache is over, and reports a long hold.
///
/// Moves any remaining hold to the end of its validity on the wheel, or to an earlier inspection,
/// so a loss is found in time even while a renewal hangs.
fn renewal_of(watchdog: &Watchdog, hold: &Arc<Hold>, now: Instant) -> Option<DueRenewal> {
    let settings = &watchdog.context.settings;
    // If the hold was moved since the wheel returned it, the renewal is a little early.
    let at = match hold.wheel_entry() {
        WheelEntry::Scheduled(_, at) => hold.at_nanos(at).min(now),
        WheelEntry::Unscheduled => now,
        // Released or lost.
        WheelEntry::Removed => return None,
    };
    let Some(end) = hold.valid_until().filter(|_| hold.is_held(now)) else {
        watchdog.lose_at(hold, now, hold.reason_of_end());
        return None;
    };
    // Before the next tick.
    if hold.is_cache_over(now + settings.tick) && watchdog.release_cached(hold, CacheEnd::Expired) {
        return None;
    }
    if let Some(held) = hold.report_long(now, settings.long_hold) {
        watchdog.context.events.long_hold(|| held);
    }
    let is_due = hold.lease_to_renew(now, settings.max_hold).is_some();
    if is_due {
        // Until a reply clears the flag. Not only set when the renewal is sent: while the server
        // hangs, the renewal waits behind attempts at other holds.
        hold.set_unanswered();
    }
    // A hold without a renewal is next inspected at its end, or when its long duration must be
    // reported.
    let long_at = hold.long_at(settings.long_hold).filter(|_| !is_due);
    let next = long_at.map_or(end, |long_at| long_at.min(end));
    watchdog.scheduler.move_to(hold, watchdog.scheduler.by_cache_end(hold, next, now));
    is_due.then(|| DueRenewal::new(hold, at, end))
}
