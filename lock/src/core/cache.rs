//! A hold that stays with its client after its last guard, for the next acquire (DESIGN: cache).
//!
//! A cached hold is a hand-over to a thread that has not come yet. The hold keeps one watched guard,
//! so the watchdog renews it as any other. An acquire of this client takes it; otherwise it is
//! released when its time is over, when another client asks for it, or when there are too many.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::events::tracing;
use crate::hold::cache::{CacheEnd, is_fresh};
use crate::hold::hold::Hold;
use crate::hold::revocation::Revocation;
use crate::model::name::LockName;
use crate::ops::acquire::HoldingOwner;
use crate::ops::client_record::record_key;
use crate::ops::revoke::{RevocationRequest, Revoke};
use crate::store::retry::RetryPolicy;
use crate::waits::registry::{Recipient, WaitRegistry};

/// The last guard of `hold` is gone: the hold stays with this client, `time` after the first time at
/// most. Nothing is sent. False if the hold is to be released.
pub(crate) fn cache(core: &ClientCore, hold: &Arc<Hold>, time: Duration) -> bool {
    // If the clock panics, the hold is released.
    let Some(now) = core.watchdog.context.catch_panic(|| core.now()) else { return false };
    let (cache, waits) = (&core.holds.cache, &core.waits);
    if !waits.hears_requests() || cache.is_wanted(&hold.name, now) {
        return false;
    }
    // 1. The time of this holder, which ends here, and its label.
    let (held_for, label) = (hold.held_for(now), hold.metrics_label());
    let lease = core.settings.watchdog_lease;
    let Some(cached) = hold.cache(lease, now, time) else { return false };
    // 2. It is listed, once for each hold: acquires look for cached holds if there are some.
    if !cached.is_listed
        && let Some(excess) = cache.list(hold, now)
    {
        core.watchdog.release_cached(&excess, CacheEnd::Evicted);
    }
    // 3. A thread of this client that began to wait just now looks for a cached hold before it
    //    sleeps: this thread sees the waiter, or the waiter sees the hold.
    fence(Ordering::SeqCst);
    if waits.waiters() > 0 && waits.waits_for(hold) && hold.undo_cache(cached.until.is_some()) {
        return false;
    }
    if let Some(label) = label {
        core.watchdog.context.counters.acquires().hold_ended(hold.kind, label, || held_for);
    }
    tracing::released(&hold.name, hold.kind, &hold.owner, || held_for);
    // 4. It is looked at when its time is over. Later the scheduler sees to that.
    if let Some(until) = cached.until {
        core.watchdog.scheduler.look_by_cache_end(hold, until, now);
    }
    true
}

/// The hold that an acquire was refused for, and when the acquire asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedHolder {
    holder: HoldingOwner,
    at: Instant,
}

/// Tells the holder's client, which may have cached the lock `name`, that another client wants the
/// lock. Once for each hold, and again when a waiter polls: a message may be lost. `asked` is the
/// hold that the acquire asked for last.
pub(crate) fn ask_holder(
    core: &ClientCore,
    name: &LockName,
    holder: HoldingOwner,
    policy: &RetryPolicy<'_>,
    asked: &mut Option<AskedHolder>,
) {
    let at = core.now();
    let is_asked = asked.is_some_and(|asked| asked.holder == holder && is_fresh(asked.at, at));
    if core.id.is(holder.client) || is_asked {
        return;
    }
    *asked = Some(AskedHolder { holder, at });
    let revoke = Revoke::new(record_key(holder.client.hyphenated()), name, None);
    drop(core.call_with_policy(&revoke, &policy.of_one_attempt()));
}

impl WaitRegistry {
    /// Gives a cached hold to an acquire of this client, which is `recipient` if it may have the
    /// hold. Otherwise the hold is released. False if the acquire does not have it.
    pub(crate) fn take_cached(
        &self,
        hold: &Arc<Hold>,
        recipient: Option<Recipient<'_>>,
        now: Instant,
    ) -> bool {
        let lease = self.settings.lease;
        if recipient.is_some_and(|recipient| hold.take_cached(recipient.thread, lease, now)) {
            self.holds.cache.count_hit();
            return true;
        }
        self.release_cached(hold, CacheEnd::Revoked);
        false
    }

    /// Another client wants a lock, or somebody asks this client to let the lock go.
    pub(crate) fn wanted(&self, request: &RevocationRequest<'_>, now: Instant) {
        self.holds.cache.set_wanted(&request.name, now);
        for hold in self.holds.of_name(&request.name) {
            // In use: its release goes to the server.
            hold.set_wanted();
            self.release_cached(&hold, CacheEnd::Revoked);
            if let Some(reason) = request.reason {
                hold.revoke(&Revocation { reason: reason.to_owned() });
            }
        }
    }

    fn release_cached(&self, hold: &Arc<Hold>, end: CacheEnd) {
        if let Some(watchdog) = self.watchdog.get().and_then(Weak::upgrade) {
            watchdog.release_cached(hold, end);
        }
    }
}
