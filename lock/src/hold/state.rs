//! The part of a hold that changes under its mutex.

use std::mem;
use std::sync::Arc;

use crate::error::LostReason;
use crate::events::acquires::MetricsLabel;
use crate::hold::listener::HoldListener;
use crate::hold::revocation::Revocation;
use crate::model::TimerKey;
use crate::model::lease::Lease;
use crate::model::sync::thread::ThreadId;

/// Who holds it and how often it is nested, where it is on the wheel, and how it ended.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "none depends on another")]
pub(crate) struct State {
    /// `None` if its holder has a name, which is one of the [`ColdFields`], or is the thread that
    /// has the guard.
    pub(crate) thread: Option<ThreadId>,
    pub(crate) guards: u32,
    /// How many of the guards are watched. The hold is renewed while there is one.
    pub(crate) watched: u32,
    /// The lease that renewals ask for: that of the last watched guard.
    pub(crate) lease: Lease,
    /// The longest lease that was requested: the server may keep the key that long.
    pub(crate) longest: Lease,
    pub(crate) timer_slot: TimerSlot,
    /// Whether the server may keep the key after the end of validity.
    pub(crate) key_may_outlive_validity: bool,
    /// Whether it was released or lost.
    pub(crate) is_over: bool,
    /// Whether a count was not acknowledged, and may still arrive at the server.
    pub(crate) count_unknown: bool,
    /// Whether the acquire of the present holder was counted. Then the end of the hold is counted.
    pub(crate) is_counted: bool,
    /// Boxed, as hardly any hold has it.
    pub(crate) cold: Option<Box<ColdFields>>,
}

impl State {
    /// How it ended, if it was lost.
    pub(crate) fn lost(&self) -> Option<LostReason> {
        self.cold.as_ref().and_then(|cold| cold.lost)
    }

    pub(crate) fn set_lost(&mut self, reason: LostReason) {
        self.cold.get_or_insert_default().lost = Some(reason);
    }
}

/// What few holds have.
#[derive(Debug, Default)]
pub(crate) struct ColdFields {
    /// How it ended, if it was lost.
    pub(crate) lost: Option<LostReason>,
    /// Each on behalf of one guard.
    pub(crate) listeners: Vec<(ListenerId, Arc<dyn HoldListener>)>,
    pub(crate) next_listener: u64,
    pub(crate) fencing_token: Option<u64>,
    /// The name of its holder, if it has one.
    pub(crate) holder_name: Option<Arc<str>>,
    /// How often it was handed over.
    pub(crate) hand_overs: u32,
    /// Since when its present holder has it, in nanoseconds after the start of the hold.
    pub(crate) held_since: u64,
    /// Until when its key stays after its release, in nanoseconds after the start of the hold.
    pub(crate) keep_until: u64,
    /// Whether it is cached: its one guard is that of the next acquire.
    pub(crate) is_cached: bool,
    /// Until when it may be cached, in nanoseconds after the start of the hold. Zero before it is
    /// cached for the first time.
    pub(crate) cache_until: u64,
    /// Whether it is in the list of the holds that are cached or were.
    pub(crate) is_listed: bool,
    /// Whether another client has asked for it: it is not cached any more.
    pub(crate) is_wanted: bool,
    /// The forced releases of its name that this client has under way.
    pub(crate) forced_releases: u32,
    /// Set once somebody has asked this client to let it go. Boxed, as hardly any hold has one.
    pub(crate) revocation: Option<Box<Revocation>>,
    /// The label that its present holder's time is counted under.
    pub(crate) metrics_label: MetricsLabel,
}

/// One of a hold's listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenerId(u64);

/// Where a hold is on the wheel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerSlot {
    /// Not yet on it.
    Unscheduled,
    /// On it, with the time at which the next action is due, in nanoseconds after the start of the
    /// hold. While a renewal is unanswered, that is the time of its first attempt.
    Scheduled(TimerKey, u64),
    /// It will never be on it again.
    Removed,
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// Whether the loss was not found before.
    pub(crate) first: bool,
}

impl State {
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
            timer_slot: TimerSlot::Unscheduled,
            key_may_outlive_validity,
            is_over: false,
            count_unknown: false,
            is_counted: false,
            cold,
        }
    }

    /// The server is about to be asked for `lease`.
    pub(crate) fn request(&mut self, lease: Lease) {
        self.longest = self.longest.max(lease);
        self.key_may_outlive_validity = true;
    }

    pub(crate) fn add_guard(&mut self, lease: Lease, watched: bool) -> Option<u32> {
        if self.is_over || self.guards == 0 {
            return None;
        }
        self.guards += 1;
        self.request(lease);
        if watched {
            self.watched += 1;
            self.lease = lease;
        }
        Some(self.guards)
    }

    /// One of the guards, which was not watched, is from now on.
    pub(crate) fn watch_guard(&mut self, lease: Lease) {
        self.watched += 1;
        self.lease = lease;
    }

    /// Takes back [`watch_guard`](Self::watch_guard).
    pub(crate) fn unwatch_guard(&mut self) {
        self.watched = self.watched.saturating_sub(1);
    }

    /// Returns how many guards are left.
    pub(crate) fn remove_guard(&mut self, watched: bool) -> u32 {
        self.guards = self.guards.saturating_sub(1);
        self.watched = self.watched.saturating_sub(u32::from(watched));
        self.guards
    }

    /// Whether the hold may go to another holder: its last guard is watched, and whatever the server
    /// may keep for the hold ends with the watched `lease`. Not asked for the hold of a named owner.
    ///
    /// At most `limit` times. Not while its release is being forced, not with a token, which is one
    /// holder's, and not if its key is to stay after the release.
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

    /// Another thread is the holder from `held_since` on, or `None`: the thread that gets it.
    pub(crate) fn hand_over(&mut self, thread: Option<ThreadId>, held_since: u64) {
        self.thread = thread;
        self.is_counted = false;
        let cold = self.cold.get_or_insert_default();
        cold.held_since = held_since;
        cold.hand_overs = cold.hand_overs.saturating_add(1);
    }

    /// No thread is the holder from `now` on, until an acquire takes the hold. The first time sets
    /// until when: returns that time. `None` if the time is over, or another client wants it.
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

    /// It is cached no longer. Returns whether it was.
    pub(crate) fn uncache(&mut self) -> bool {
        self.cold.as_mut().is_some_and(|cold| mem::take(&mut cold.is_cached))
    }

    /// Until when it may be cached, in nanoseconds after the start of the hold.
    pub(crate) fn cache_until(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.cache_until)
    }

    /// As if it had never been cached.
    pub(crate) fn forget_cache_until(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.cache_until = 0;
        }
    }

    /// Another client has asked for it.
    pub(crate) fn set_wanted(&mut self) {
        self.cold.get_or_insert_default().is_wanted = true;
    }

    /// Somebody asks this client to let it go. Returns its listeners, to be called with nothing
    /// locked; none if it was asked for before, or is over.
    pub(crate) fn revoke(&mut self, revocation: &Revocation) -> Vec<Arc<dyn HoldListener>> {
        let is_over = self.is_over;
        let cold = self.cold.get_or_insert_default();
        if is_over || cold.revocation.is_some() {
            return Vec::new();
        }
        cold.revocation = Some(Box::new(revocation.clone()));
        cold.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
    }

    /// What somebody has asked for.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.cold.as_ref()?.revocation.as_deref()
    }

    /// Since when its present holder has it, in nanoseconds after the start of the hold.
    pub(crate) fn held_since(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.held_since)
    }

    /// The release of its name is being forced by this client, once more or once less.
    pub(crate) fn count_forced_release(&mut self, begins: bool) {
        let forced = &mut self.cold.get_or_insert_default().forced_releases;
        *forced = if begins { forced.saturating_add(1) } else { forced.saturating_sub(1) };
    }

    /// Its key stays at least until then.
    pub(crate) fn keep_until(&mut self, until: u64) {
        let cold = self.cold.get_or_insert_default();
        cold.keep_until = cold.keep_until.max(until);
    }

    /// The lease that a renewal should ask for, or `None` if no guard is watched.
    pub(crate) fn watched_lease(&self) -> Option<Lease> {
        (self.watched > 0).then_some(self.lease)
    }

    pub(crate) fn holder_name(&self) -> Option<&Arc<str>> {
        self.cold.as_ref()?.holder_name.as_ref()
    }

    pub(crate) fn add_listener(&mut self, listener: Arc<dyn HoldListener>) -> ListenerId {
        let cold = self.cold.get_or_insert_default();
        let id = ListenerId(cold.next_listener);
        cold.next_listener += 1;
        // Most have one.
        cold.listeners.reserve_exact(1);
        cold.listeners.push((id, listener));
        id
    }

    /// Takes a listener out, so that it can be dropped with nothing locked.
    pub(crate) fn take_listener(&mut self, id: ListenerId) -> Option<Arc<dyn HoldListener>> {
        let listeners = &mut self.cold.as_mut()?.listeners;
        // Nested guards mostly go in the reverse order.
        let index = listeners.iter().rposition(|(other, _)| *other == id)?;
        Some(listeners.swap_remove(index).1)
    }

    /// Takes out the listener of a group of holds, which is the same for each of them.
    pub(crate) fn take_group_listener(
        &mut self,
        listener: &Arc<dyn HoldListener>,
    ) -> Option<Arc<dyn HoldListener>> {
        let listeners = &mut self.cold.as_mut()?.listeners;
        let index = listeners.iter().rposition(|(_, other)| Arc::ptr_eq(other, listener))?;
        Some(listeners.swap_remove(index).1)
    }

    /// Takes all listeners out, so that they can be called with nothing locked.
    pub(crate) fn take_listeners(&mut self) -> Vec<(ListenerId, Arc<dyn HoldListener>)> {
        self.cold.as_mut().map(|cold| mem::take(&mut cold.listeners)).unwrap_or_default()
    }
}
