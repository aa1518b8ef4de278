//! The part of a hold protected by its mutex.

use std::mem;
use std::sync::Arc;

use crate::error::LostReason;
use crate::events::acquires::MetricsLabel;
use crate::hold::listener::HoldListener;
use crate::hold::revocation::Revocation;
use crate::model::TimerKey;
use crate::model::lease::Lease;
use crate::model::sync::thread::ThreadId;

/// The holder and the guards of a hold, its place on the wheel, and its end.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "none depends on another")]
pub(crate) struct HoldState {
    /// `None` if the holder has a name, in the [`ColdFields`], or is the thread with the guard.
    pub(crate) thread: Option<ThreadId>,
    pub(crate) guards: u32,
    /// How many of the guards are watched. Watched holds are renewed.
    pub(crate) watched: u32,
    /// The lease for renewals: the lease of the last watched guard.
    pub(crate) lease: Lease,
    /// The longest requested lease: the server may retain the key for so long.
    pub(crate) longest: Lease,
    pub(crate) wheel_entry: WheelEntry,
    /// Whether the server may retain the key after the end of validity.
    pub(crate) key_may_outlive_validity: bool,
    /// Whether the hold was released or lost.
    pub(crate) is_over: bool,
    /// Whether a count was not acknowledged, and may still arrive at the server.
    pub(crate) count_unknown: bool,
    /// Whether the acquire of the present holder was counted. Then the end of the hold is counted.
    pub(crate) is_counted: bool,
    /// Boxed, as hardly any hold has cold fields.
    pub(crate) cold: Option<Box<ColdFields>>,
}

impl HoldState {
    /// Returns how the hold was lost; `None` if not lost.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.cold.as_ref().and_then(|cold| cold.lost)
    }

    /// Notes the loss of the hold, for queries and reports.
    pub(crate) fn set_lost(&mut self, reason: LostReason) {
        self.cold.get_or_insert_default().lost = Some(reason);
    }
}

/// Fields used by few holds.
#[derive(Debug, Default)]
pub(crate) struct ColdFields {
    /// How the hold was lost; `None` if not lost.
    pub(crate) lost: Option<LostReason>,
    /// Each listener belongs to one guard or group.
    pub(crate) listeners: Vec<(ListenerId, Arc<dyn HoldListener>)>,
    pub(crate) next_listener: u64,
    pub(crate) fencing_token: Option<u64>,
    /// The name of the holder, if any.
    pub(crate) holder_name: Option<Arc<str>>,
    /// How often the hold was handed over.
    pub(crate) hand_overs: u32,
    /// Since when the present holder has the hold, in nanoseconds after the start of the hold.
    pub(crate) held_since: u64,
    /// Until when the key stays after the release, in nanoseconds after the start of the hold.
    pub(crate) keep_until: u64,
    /// Whether the hold is cached: its single guard belongs to the next acquire.
    pub(crate) is_cached: bool,
    /// Until when the hold may be cached, in nanoseconds after the start of the hold. Zero before
    /// the first caching.
    pub(crate) cache_until: u64,
    /// Whether the hold is in the list of present and former cached holds.
    pub(crate) is_listed: bool,
    /// Whether another client has requested the lock: the hold is not cached any more.
    pub(crate) is_wanted: bool,
    /// How many forced releases of the name this client has under way.
    pub(crate) forced_releases: u32,
    /// Set by the first request to release the lock. Boxed, as hardly any hold has a request.
    pub(crate) revocation: Option<Box<Revocation>>,
    /// The label under which the present holder's time is counted.
    pub(crate) metrics_label: MetricsLabel,
}

/// The identity of a listener of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerId(u64);

/// The place of a hold on the wheel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WheelEntry {
    /// Not on the wheel yet.
    Unscheduled,
    /// On the wheel, with the time of the next action, in nanoseconds after the start of the hold.
    /// While a renewal is unanswered, the time of its first attempt.
    Scheduled(TimerKey, u64),
    /// Never on the wheel again.
    Removed,
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// Whether this call has found the loss.
    pub(crate) first: bool,
}

impl HoldState {
    /// Makes the state of a hold with one guard. The parameters are the fields.
    pub(crate) fn new(
        thread: Option<ThreadId>,
        lease: Lease,
        watched: bool,
        key_may_outlive_validity: bool,
        cold: Option<Box<ColdFields>>,
    ) -> Self {
        Self {
            thread,
            guards: 1,
            watched: u32::from(watched),
            lease,
            longest: lease,
            wheel_entry: WheelEntry::Unscheduled,
            key_may_outlive_validity,
            is_over: false,
            count_unknown: false,
            is_counted: false,
            cold,
        }
    }

    /// Notes that a request for `lease` is about to be sent: the server may retain the key for
    /// `lease`.
    pub(crate) fn note_sent_lease(&mut self, lease: Lease) {
        self.longest = self.longest.max(lease);
        self.key_may_outlive_validity = true;
    }

    /// Adds a guard, which requests `lease`. Returns how many guards there are, or `None` if the
    /// last guard is gone or the hold is over.
    pub(crate) fn add_guard(&mut self, lease: Lease, watched: bool) -> Option<u32> {
        if self.is_over || self.guards == 0 {
            return None;
        }
        self.guards += 1;
        self.note_sent_lease(lease);
        if watched {
            self.watched += 1;
            self.lease = lease;
        }
        Some(self.guards)
    }

    /// Counts one of the unwatched guards as watched from now on: renewals ask for `lease`.
    pub(crate) fn watch_guard(&mut self, lease: Lease) {
        self.watched += 1;
        self.lease = lease;
    }

    /// Takes back [`watch_guard`](Self::watch_guard).
    pub(crate) fn unwatch_guard(&mut self) {
        self.watched = self.watched.saturating_sub(1);
    }

    /// Counts a guard off the hold, as a watched guard if `watched`. Returns how many guards are
    /// left.
    pub(crate) fn remove_guard(&mut self, watched: bool) -> u32 {
        self.guards = self.guards.saturating_sub(1);
        self.watched = self.watched.saturating_sub(u32::from(watched));
        self.guards
    }

    /// Whether the hold may go to another holder: its last guard is watched, and whatever the
    /// server may retain for the hold ends with the watched `lease`. Never called for the hold of a
    /// named owner.
    ///
    /// A hold is handed over at most `limit` times. A hold is not handed over during a forced
    /// release, with a token, which belongs to one holder, after a request to release, or if the
    /// key is to stay after the release.
    pub(crate) fn may_be_handed_over(&self, lease: Lease, limit: Option<u32>) -> bool {
        (self.guards, self.watched) == (1, 1)
            && (self.lease, self.longest) == (lease, lease)
            && !(self.is_over || self.count_unknown)
            && self.cold.as_ref().is_none_or(|cold| {
                cold.fencing_token.is_none()
                    && cold.keep_until == 0
                    && cold.forced_releases == 0
                    && cold.revocation.is_none()
                    && limit.is_none_or(|limit| cold.hand_overs < limit)
            })
    }

    /// Makes `thread` the holder from `held_since` on, and counts a hand-over. `None` stands for
    /// the thread with the guard.
    pub(crate) fn set_holder(&mut self, thread: Option<ThreadId>, held_since: u64) {
        self.thread = thread;
        self.is_counted = false;
        let cold = self.cold.get_or_insert_default();
        cold.held_since = held_since;
        cold.hand_overs = cold.hand_overs.saturating_add(1);
    }

    /// Caches the hold: no thread is the holder from `now` on, until an acquire takes the hold. The
    /// first call sets the end of caching to `until`. Returns this end, or `None` if the time is
    /// over, or another client wants the lock.
    pub(crate) fn cache(&mut self, now: u64, until: u64) -> Option<u64> {
        let cold = self.cold.get_or_insert_default();
        if cold.cache_until == 0 {
            cold.cache_until = until.max(1);
        }
        let until = cold.cache_until;
        if until <= now || cold.is_wanted {
            return None;
        }
        cold.held_since = now;
        cold.is_cached = true;
        self.thread = None;
        self.is_counted = false;
        Some(until)
    }

    pub(crate) fn is_cached(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.is_cached)
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.is_listed)
    }

    /// Ends the caching. Returns whether the hold was cached.
    pub(crate) fn uncache(&mut self) -> bool {
        self.cold.as_mut().is_some_and(|cold| mem::take(&mut cold.is_cached))
    }

    /// Returns until when the hold may be cached, in nanoseconds after the start of the hold. Zero
    /// before the first caching.
    pub(crate) fn cache_until(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.cache_until)
    }

    /// Resets the end of caching, as before the first caching.
    pub(crate) fn forget_cache_until(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.cache_until = 0;
        }
    }

    /// Notes that another client has requested the lock: the hold is not cached any more.
    pub(crate) fn set_wanted(&mut self) {
        self.cold.get_or_insert_default().is_wanted = true;
    }

    /// Stores a request to release the lock. Returns the listeners, to be called with nothing
    /// locked. Returns none after an earlier request, or if the hold is over.
    pub(crate) fn revoke(&mut self, revocation: &Revocation) -> Vec<Arc<dyn HoldListener>> {
        let is_over = self.is_over;
        let cold = self.cold.get_or_insert_default();
        if is_over || cold.revocation.is_some() {
            return Vec::new();
        }
        cold.revocation = Some(Box::new(revocation.clone()));
        cold.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
    }

    /// Returns the request to release the lock, if any.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.cold.as_ref()?.revocation.as_deref()
    }

    /// Returns since when the present holder has the hold, in nanoseconds after the start of the
    /// hold.
    pub(crate) fn held_since(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.held_since)
    }

    /// Counts a forced release of the name by this client, at its beginning or its end.
    pub(crate) fn count_forced_release(&mut self, begins: bool) {
        let forced = &mut self.cold.get_or_insert_default().forced_releases;
        *forced = if begins { forced.saturating_add(1) } else { forced.saturating_sub(1) };
    }

    /// Makes a release leave the key at least until `until`.
    pub(crate) fn keep_until(&mut self, until: u64) {
        let cold = self.cold.get_or_insert_default();
        cold.keep_until = cold.keep_until.max(until);
    }

    /// Returns the lease for a renewal, or `None` if no guard is watched.
    pub(crate) fn watched_lease(&self) -> Option<Lease> {
        (self.watched > 0).then_some(self.lease)
    }

    pub(crate) fn holder_name(&self) -> Option<&Arc<str>> {
        self.cold.as_ref()?.holder_name.as_ref()
    }

    /// Adds a listener, and returns its new identity.
    pub(crate) fn add_listener(&mut self, listener: Arc<dyn HoldListener>) -> ListenerId {
        let cold = self.cold.get_or_insert_default();
        let id = ListenerId(cold.next_listener);
        cold.next_listener += 1;
        // Most holds with listeners have a single listener.
        cold.listeners.reserve_exact(1);
        cold.listeners.push((id, listener));
        id
    }

    /// Takes a listener out, to be dropped with nothing locked.
    pub(crate) fn take_listener(&mut self, id: ListenerId) -> Option<Arc<dyn HoldListener>> {
        let listeners = &mut self.cold.as_mut()?.listeners;
        // Nested guards usually end in the reverse order.
        let index = listeners.iter().rposition(|(other, _)| *other == id)?;
        Some(listeners.swap_remove(index).1)
    }

    /// Takes out the listener of a group, which is the same listener for each hold.
    pub(crate) fn take_group_listener(
        &mut self,
        listener: &Arc<dyn HoldListener>,
    ) -> Option<Arc<dyn HoldListener>> {
        let listeners = &mut self.cold.as_mut()?.listeners;
        let index = listeners.iter().rposition(|(_, other)| Arc::ptr_eq(other, listener))?;
        Some(listeners.swap_remove(index).1)
    }

    /// Takes all listeners out, to be called with nothing locked.
    pub(crate) fn take_listeners(&mut self) -> Vec<(ListenerId, Arc<dyn HoldListener>)> {
        self.cold.as_mut().map(|cold| mem::take(&mut cold.listeners)).unwrap_or_default()
    }
}
