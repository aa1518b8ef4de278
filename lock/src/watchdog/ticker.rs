//! The wheel's ticker: what it does with the holds whose time has come. It never touches a socket.

use std::sync::Arc;
use std::time::Instant;

use crate::hold::cache::CacheEnd;
use crate::hold::hold::Hold;
use crate::hold::state::TimerSlot;
use crate::watchdog::batch::Due;
use crate::watchdog::dispatch::dispatch;
use crate::watchdog::watchdog::Watchdog;

/// These holds have come to a renewal or to their end. A panic of the clock forgets no hold: it is
/// looked at again in the next tick.
pub(crate) fn on_due(watchdog: &Watchdog, holds: &mut Vec<Arc<Hold>>) {
    let context = &watchdog.context;
    let now = context.catch_panic(|| context.now());
    // All are brought into the cache first, so that the loads overlap.
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

/// Looks at one hold: declares it lost if it has ended, and puts it back at the end of its
/// validity, so that a loss is found in time even while a renewal hangs. Returns its renewal if
/// that is due.
fn renewal_of(watchdog: &Watchdog, hold: &Arc<Hold>, now: Instant) -> Option<Due> {
    let settings = &watchdog.context.settings;
    // If it was moved since the wheel returned it, it is renewed a little early.
    let at = match hold.timer_slot() {
        TimerSlot::Scheduled(_, at) => hold.at_nanos(at).min(now),
        TimerSlot::Unscheduled => now,
        // Released or lost.
        TimerSlot::Removed => return None,
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
        // Until a reply clears it. Not set only when it is sent: while the server hangs, it waits
        // behind attempts at others.
        hold.set_unanswered();
    }
    // What is not renewed is looked at next at its end, or when it is to be reported as long.
    let long_at = hold.long_at(settings.long_hold).filter(|_| !is_due);
    let next = long_at.map_or(end, |long_at| long_at.min(end));
    watchdog.scheduler.move_to(hold, watchdog.scheduler.by_cache_end(hold, next, now));
    is_due.then(|| Due::new(hold, at, end))
}
