//! A hold stays with its client after its last guard, for the next acquire.
//!
//! A cached hold is a hand-over to a thread that has not arrived yet. The hold retains one watched
//! guard, so the watchdog renews the hold as usual. An acquire of this client takes the hold.
//! Otherwise the hold is released when its time is over, when another client requests the lock, or
//! when too many holds are cached. GFS2 retains the locks of its lock manager at a node in the same
//! way.
//!
//! The price: a single try elsewhere is refused although no thread is inside, and a crash between
//! two uses costs the lease. So the cache is off by default. Not cached are holds of fenced locks
//! (each use needs a new token), fair locks (the queue decides) and read-write locks (readers share
//! a key).

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
use crate::ops::client_record::client_record_key;
use crate::ops::revoke::{RevocationRequest, Revoke};
use crate::store::retry::RetryPolicy;
use crate::waits::registry::{Recipient, WaitRegistry};

/// Caches `hold`, whose last guard is gone, until `time` after the first caching at most. Sends
/// nothing. Returns `false` if the caller has to release the hold.
pub(crate) fn cache(core: &ClientCore, hold: &Arc<Hold>, time: Duration) -> bool {
    // If the clock panics, the hold is released.
    let Some(now) = core.watchdog.context.catch_panic(|| core.now()) else { return false };
    let (cache, waits) = (&core.holds.cache, &core.waits);
    if !waits.is_subscribed_to_revocations() || cache.is_wanted(&hold.name, now) {
        return false;
    }
    // 1. The time of this holder, which ends here, and the holder's label.
    let (held_for, label) = (hold.held_for(now), hold.metrics_label());
    let lease = core.settings.watchdog_lease;
    let Some(cached) = hold.cache(lease, now, time) else { return false };
    // 2. Each hold is listed once: acquires search for cached holds only if some are listed.
    if !cached.is_listed
        && let Some(excess) = cache.list(hold, now)
    {
        core.watchdog.release_cached(&excess, CacheEnd::Evicted);
    }
    // 3. A thread of this client that began to wait just now searches for a cached hold before the
    //    sleep: this thread sees the waiter, or the waiter sees the hold.
    fence(Ordering::SeqCst);
    if waits.waiters() > 0 && waits.waits_for(hold) && hold.undo_cache(cached.until.is_some()) {
        return false;
    }
    if let Some(label) = label {
        core.watchdog.context.counters.acquires().hold_ended(hold.kind, label, || held_for);
    }
    tracing::released(&hold.name, hold.kind, &hold.owner, || held_for);
    // 4. The wheel visits the hold when its time is over. The scheduler arranges later visits.
    if let Some(until) = cached.until {
        core.watchdog.scheduler.look_by_cache_end(hold, until, now);
    }
    true
}

/// The hold for which an acquire was refused, and when the acquire requested the hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedHolder {
    holder: HoldingOwner,
    at: Instant,
}

/// Sends one message to the client of `holder`, which may have cached the lock `name`: this client
/// requests the lock. Sends nothing if this client is the holder, or if `asked`, the acquire's last
/// request, was for the same hold and is recent. A lost message is repeated when a waiter polls.
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
    let revoke = Revoke::new(client_record_key(holder.client.hyphenated()), name, None);
    drop(core.call_with_policy(&revoke, &policy.of_one_attempt()));
}

impl WaitRegistry {
    /// Gives a cached hold to an acquire of this client, or releases the hold. `recipient` is the
    /// acquire; `None` if the acquire may not have the hold. Returns `false` if the hold was
    /// released.
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

    /// Handles a `request` of another client for a lock. Caches the name no more for a while,
    /// releases a cached hold of the name, and passes a request with a reason to the guards.
    pub(crate) fn wanted(&self, request: &RevocationRequest<'_>, now: Instant) {
        self.holds.cache.set_wanted(&request.name, now);
        for hold in self.holds.of_name(&request.name) {
            // A hold in use: the hold is not cached after its last guard.
            hold.set_wanted();
            self.release_cached(&hold, CacheEnd::Revoked);
            if let Some(reason) = request.reason {
                hold.revoke(&Revocation { reason: reason.to_owned() });
            }
        }
    }

    /// Has the watchdog release `hold`, if still cached, and count `end`.
    fn release_cached(&self, hold: &Arc<Hold>, end: CacheEnd) {
        if let Some(watchdog) = self.watchdog.get().and_then(Weak::upgrade) {
            watchdog.release_cached(hold, end);
        }
    }
}
