//! The holds of a multi-lock's or a red lock's guard. The guard counts as held while a quorum of
//! the locks is held, and is lost for good as soon as fewer locks are held.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::core::client_core::ClientCore;
use crate::core::extend::extend;
use crate::core::fencing::token_of;
use crate::core::raw_guard::{RawGuard, View};
use crate::error::{Error, LostReason};
use crate::hold::hold::Hold;
use crate::hold::listener::HoldListener;
use crate::hold::revocation::Revocation;
use crate::model::fork::HomeProcess;
use crate::model::lease::Lease;
use crate::model::panics;
use crate::model::sync::{Mutex, MutexGuard};
use crate::store::retry::RetryLimit;

/// Raw guards by lock position.
pub(crate) type RawGuards = BTreeMap<usize, RawGuard>;

/// The raw guards of a multi-lock's or a red lock's guard, with the quorum: all locks, or a
/// majority.
///
/// In the child of a fork the group counts as lost, and the guards are not touched: a thread of the
/// parent may have locked mutexes during the fork.
///
/// Tickers and renewal threads, often of another client, report losses and take the mutex. So
/// nothing reads a clock, sends a request or waits while the mutex is locked.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    home: HomeProcess,
    /// The name in errors.
    name: String,
    quorum_size: usize,
    state: Mutex<GroupState>,
    /// Listens to each hold.
    group: Arc<GroupListener>,
}

/// The hold of the member lock at `position`, with the member's client.
#[derive(Debug)]
pub(crate) struct MemberHold {
    pub(crate) position: usize,
    pub(crate) core: Arc<ClientCore>,
    hold: Arc<Hold>,
}

/// The lease which an extension gives to the holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extension {
    /// This lease, without renewal by the watchdog.
    Lease(Lease),
    /// The client's lease, which the watchdog renews.
    Watched,
}

/// The guards of a group, the phase, and the listeners.
#[derive(Debug, Default)]
struct GroupState {
    guards: RawGuards,
    /// Views of the guards, to read with nothing locked. Empty before the end of the acquire.
    views: Arc<[(usize, View)]>,
    phase: Phase,
    /// The loss of the quorum.
    lost: Option<Error>,
    /// The listeners to notify of the loss of the quorum and of revocation requests. Empty after
    /// the loss or the release.
    listeners: Vec<Arc<dyn HoldListener>>,
    /// Whether the clients of all holds, also of later holds, subscribe to revocation requests.
    is_subscribed_to_revocations: bool,
    /// The first revocation request for any of the holds.
    revocation: Option<Revocation>,
}

/// The state of a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The quorum is not complete yet.
    #[default]
    Acquiring,
    Held,
    /// Fewer than a quorum were held, so all locks were released.
    Lost,
    /// The quorum was released, or never complete.
    Closed,
}

impl Phase {
    /// Returns whether a newly granted guard may join in this phase. In phase `Held`, only if the
    /// present guards are a quorum (`is_held`): otherwise another owner may have had a quorum in
    /// between.
    pub(crate) fn wants_more(self, is_held: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Acquiring => true,
            Self::Held => is_held(),
            Self::Lost | Self::Closed => false,
        }
    }

    /// Returns the phase after the end of the acquire: `Held` with a quorum, else `Closed`. A later
    /// phase stays.
    pub(crate) fn after_acquire(self, has_quorum: bool) -> Self {
        match self {
            Self::Acquiring if has_quorum => Self::Held,
            Self::Acquiring => Self::Closed,
            other => other,
        }
    }

    /// Returns the phase after a count of the guards that are left: `Lost` if the phase was `Held`
    /// and the guards are no quorum.
    pub(crate) fn after_loss(self, has_quorum: bool) -> Self {
        if self == Self::Held && !has_quorum { Self::Lost } else { self }
    }
}

impl HeldLocks {
    /// Returns a group in phase `Acquiring` without guards. `name` is the name in errors.
    pub(crate) fn new(name: String, quorum_size: usize) -> Arc<Self> {
        let home = HomeProcess::new();
        Arc::new_cyclic(|weak| {
            let group = Arc::new(GroupListener(Weak::clone(weak)));
            Self { home, name, quorum_size, state: Mutex::default(), group }
        })
    }

    /// Adds the `guard` of the lock at `position`, in place of a lost guard. Returns the guard to
    /// release: the replaced guard, or `guard` if not [wanted](Phase::wants_more) or lost already;
    /// `None` if there is none.
    pub(crate) fn join(&self, position: usize, guard: RawGuard) -> Option<RawGuard> {
        // Listen before adding the guard. `is_over` below finds a loss reported in between.
        guard.join_group(self.listener());
        let wanted = self.wants_more();
        let mut state = self.state.lock();
        let open = matches!(state.phase, Phase::Acquiring | Phase::Held);
        if !wanted || !open || guard.is_over() {
            drop(state);
            guard.leave_group(&self.listener());
            return Some(guard);
        }
        let core = state.is_subscribed_to_revocations.then(|| guard.parts().0);
        let replaced = state.guards.insert(position, guard);
        state.update_views();
        drop(state);
        if let Some(core) = core {
            core.waits.subscribe_to_revocations(&core.store);
        }
        replaced
    }

    /// Ends the acquire. Returns whether the guards are a quorum, and so the group is held until
    /// the loss or the release.
    pub(crate) fn grant(&self) -> bool {
        let views = {
            let mut state = self.state.lock();
            state.views = state.views();
            Arc::clone(&state.views)
        };
        // Read the clocks with nothing locked.
        let held = count(&views) >= self.quorum_size;
        let mut state = self.state.lock();
        // A loss reported before this lock was ignored in phase `Acquiring`, so the guards are
        // counted again. A later loss finds the phase `Held`.
        let granted = held && state.left() >= self.quorum_size;
        state.phase = state.phase.after_acquire(granted);
        state.update_views();
        state.phase == Phase::Held
    }

    /// Asks the servers for `extension` of all holds, in sequence. Stops at the first error.
    /// Returns an error also unless the group is held before and after.
    pub(crate) fn extend(&self, extension: Extension) -> Result<(), Error> {
        self.check()?;
        for member in self.members() {
            self.extend_member(&member, extension, RetryLimit::UntilAnswered)?;
        }
        self.check()
    }

    /// Asks the server for `extension` of the hold of one member, with retries up to `retries`.
    /// With [`Extension::Watched`], also marks the member's guard as watched, if the guard is in
    /// the group and not watched yet.
    pub(crate) fn extend_member(
        &self,
        member: &MemberHold,
        extension: Extension,
        retries: RetryLimit,
    ) -> Result<(), Error> {
        let MemberHold { position, core, hold } = member;
        let lease = match extension {
            Extension::Lease(lease) => return extend(core, hold, lease, false, retries),
            Extension::Watched => core.settings.watchdog_lease,
        };
        if hold.watched_lease().is_none() {
            extend(core, hold, lease, true, retries)?;
        } else {
            hold.watch_guard(lease);
        }
        // A concurrent call may have set the watch, or the guard may have been lost meanwhile.
        let state = self.state.lock();
        if !state.guards.get(position).is_some_and(|guard| guard.is_of(hold) && guard.set_watched())
        {
            hold.unwatch_guard();
        }
        Ok(())
    }

    /// Returns the holds of all guards, in order of position, for use with nothing locked.
    pub(crate) fn members(&self) -> Vec<MemberHold> {
        let state = self.state.lock();
        let member = |(position, guard): (&usize, &RawGuard)| {
            let (core, hold) = guard.parts();
            MemberHold { position: *position, core, hold }
        };
        state.guards.iter().map(member).collect()
    }

    /// Returns the number of guards in the group, held or lost.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().guards.len()
    }

    /// Whether a quorum was completed and has not been released since.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Held | Phase::Lost)
    }

    /// Whether [`join`](Self::join) would accept a guard now.
    pub(crate) fn wants_more(&self) -> bool {
        let phase = self.state.lock().phase;
        phase.wants_more(|| self.is_held())
    }

    /// Whether [`join`](Self::join) would accept a guard at `position`, where no held guard is yet.
    pub(crate) fn wants(&self, position: usize) -> bool {
        self.wants_more() && !self.views_if_held().is_some_and(|views| is_held_at(&views, position))
    }

    /// Returns whether a quorum is held for certain. If not, ends the group as lost: after the
    /// acquire, `false` is final.
    pub(crate) fn is_held(&self) -> bool {
        while let Some(views) = self.views_if_held() {
            if count(&views) >= self.quorum_size {
                return true;
            }
            let lost = last_lost(&views);
            let state = self.state.lock();
            // If the views have changed, a guard has joined meanwhile, and so the guards before
            // were a quorum a moment ago: count again.
            if Arc::ptr_eq(&state.views, &views) {
                GroupState::lose(state, &lost);
                return false;
            }
        }
        false
    }

    /// Returns how long a quorum is held for certain: until the first moment with too few held
    /// locks. Zero unless a quorum is held.
    pub(crate) fn remaining(&self) -> Duration {
        let views = self.views_if_held().filter(|_| self.is_held()).unwrap_or_default();
        let mut times: Vec<Duration> = views.iter().map(|(_, view)| view.remaining()).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        times.get(self.quorum_size.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Returns an error unless a quorum is held for certain: the loss that ended the quorum, or the
    /// loss of a member. In the child of a fork the reason is the fork.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.home.is_current() {
            return Err(Error::Lost { name: self.name.clone(), reason: LostReason::Forked });
        }
        if self.is_held() {
            return Ok(());
        }
        let views = match &*self.state.lock() {
            GroupState { lost: Some(lost), .. } => return Err(lost.clone()),
            // The quorum was never complete.
            state => Arc::clone(&state.views),
        };
        Err(last_lost(&views))
    }

    /// Returns the number of locks held for certain, zero unless the phase is `Held`.
    pub(crate) fn held(&self) -> usize {
        self.views_if_held().map_or(0, |views| count(&views))
    }

    /// Returns the positions below `positions` without a held lock. Empty unless a quorum is held.
    pub(crate) fn missing(&self, positions: usize) -> Vec<usize> {
        let views = self.views_if_held().filter(|_| self.is_held());
        let Some(views) = views else { return Vec::new() };
        (0..positions).filter(|position| !is_held_at(&views, *position)).collect()
    }

    /// The fencing tokens, in order of position. Empty in the child of a fork.
    pub(crate) fn tokens(&self) -> Vec<Option<u64>> {
        if !self.home.is_current() {
            return Vec::new();
        }
        self.state.lock().guards.values().map(RawGuard::token).collect()
    }

    /// Returns the fencing tokens, in order of position. Draws each missing token with a request.
    /// Stops at the first error.
    pub(crate) fn draw_tokens(&self) -> Result<Vec<u64>, Error> {
        self.check()?;
        // Nothing is locked during the round trips.
        let holds: Vec<_> = self.state.lock().guards.values().map(RawGuard::parts).collect();
        holds.iter().map(|(core, hold)| token_of(core, hold)).collect()
    }

    /// Notifies `listener` when the quorum is lost, at once if lost already, and of revocation
    /// requests. Drops `listener` when the quorum is released.
    pub(crate) fn add_listener(&self, listener: Arc<dyn HoldListener>) {
        let mut state = self.state.lock();
        if let Some(Error::Lost { reason, .. }) = state.lost {
            drop(state);
            listener.on_lost(reason);
            return;
        }
        let asked = state.revocation.clone().map(|it| (Arc::clone(&listener), it));
        state.listeners.push(listener);
        drop(state);
        if let Some((listener, revocation)) = asked {
            listener.on_revocation(&revocation);
        }
    }

    /// Adds `listener` as [`add_listener`](Self::add_listener) does, and subscribes the clients of
    /// present and later holds to revocation requests.
    pub(crate) fn subscribe_to_revocations(&self, listener: Arc<dyn HoldListener>) {
        self.state.lock().is_subscribed_to_revocations = true;
        for MemberHold { core, .. } in self.members() {
            core.waits.subscribe_to_revocations(&core.store);
        }
        self.add_listener(listener);
    }

    /// Closes the group and returns the guards, for the caller to release. Empty after a loss,
    /// which has released all guards. [`join`](Self::join) returns later guards.
    pub(crate) fn close(self: &Arc<Self>) -> RawGuards {
        if !self.home.is_current() {
            // The parent's guards: a thread of the parent may have locked the mutexes. Never
            // dropped.
            mem::forget(Arc::clone(self));
            return RawGuards::new();
        }
        // Report a loss first. The clock may panic.
        panics::catch_panic(|| self.is_held());
        let closed = GroupState { phase: Phase::Closed, ..GroupState::default() };
        let GroupState { guards, phase, .. } = mem::replace(&mut *self.state.lock(), closed);
        // Nested guards may use the holds long after this group.
        let group = self.listener();
        for guard in guards.values() {
            guard.leave_group(&group);
        }
        match phase {
            Phase::Lost => RawGuards::new(),
            Phase::Acquiring | Phase::Held | Phase::Closed => guards,
        }
    }

    /// Returns the listener that each hold notifies.
    fn listener(&self) -> Arc<dyn HoldListener> {
        Arc::<GroupListener>::clone(&self.group)
    }

    /// Returns the views of the guards in phase `Held`, else `None`. `None` also in the child of a
    /// fork.
    fn views_if_held(&self) -> Option<Arc<[(usize, View)]>> {
        if !self.home.is_current() {
            return None;
        }
        let state = self.state.lock();
        (state.phase == Phase::Held).then(|| Arc::clone(&state.views))
    }
}

/// Returns the number of views of held locks.
fn count(views: &[(usize, View)]) -> usize {
    views.iter().filter(|(_, view)| view.is_held()).count()
}

/// Returns whether the guard at `position` is held.
fn is_held_at(views: &[(usize, View)], position: usize) -> bool {
    views.iter().any(|(other, view)| *other == position && view.is_held())
}

/// Returns the loss of a lock that is not held any more. Prefers an unreported loss, as the latest.
/// Without a lost lock returns an expiry without a name.
fn last_lost(views: &[(usize, View)]) -> Error {
    let not_held = views.iter().map(|(_, view)| view).filter(|view| !view.is_held());
    let last = not_held.min_by_key(|view| view.is_over()).map(View::lost);
    last.unwrap_or_else(|| Error::Lost { name: String::new(), reason: LostReason::Expired })
}

/// Passes losses and revocation requests of each hold to the group. The reference is weak, as the
/// group owns the holds.
#[derive(Debug)]
struct GroupListener(Weak<HeldLocks>);

impl HoldListener for GroupListener {
    fn on_lost(&self, reason: LostReason) {
        let Some(group) = self.0.upgrade() else { return };
        let state = group.state.lock();
        // Of simultaneous losses, the first to break the quorum ends the group.
        if state.phase == Phase::Held && state.left() < group.quorum_size {
            let of = |guard: &&RawGuard| guard.lost_reason() == Some(reason);
            let name = state.guards.values().find(of).map(RawGuard::name).unwrap_or_default();
            GroupState::lose(state, &Error::Lost { name, reason });
        }
    }

    fn on_revocation(&self, revocation: &Revocation) {
        let Some(group) = self.0.upgrade() else { return };
        let listeners = {
            let mut state = group.state.lock();
            if state.revocation.is_some() {
                return;
            }
            state.revocation = Some(revocation.clone());
            state.listeners.clone()
        };
        for listener in listeners {
            listener.on_revocation(revocation);
        }
    }
}

impl GroupState {
    /// Ends a held group with too few locks left by the loss `lost`, and releases the remaining
    /// locks: renewals end, and waiting owners can proceed. The renewal thread of each lock's
    /// client sends the release. Notifies the listeners with the mutex unlocked. Does nothing in
    /// another phase.
    fn lose(mut state: MutexGuard<'_, Self>, lost: &Error) {
        let phase = state.phase.after_loss(false);
        if mem::replace(&mut state.phase, phase) == phase {
            return;
        }
        // The guards stay here until the group's guard is dropped: dropping the last guard of a
        // client would end the client, which waits.
        state.guards.values_mut().for_each(RawGuard::abandon);
        let listeners = mem::take(&mut state.listeners);
        state.lost = Some(lost.clone());
        drop(state);
        if let Error::Lost { reason, .. } = lost {
            for listener in listeners {
                listener.on_lost(*reason);
            }
        }
    }

    /// Returns the number of guards without a reported loss.
    fn left(&self) -> usize {
        self.guards.values().filter(|guard| !guard.is_over()).count()
    }

    /// Returns a view of each guard, with the guard's position.
    fn views(&self) -> Arc<[(usize, View)]> {
        self.guards.iter().map(|(position, guard)| (*position, guard.view())).collect()
    }

    /// Replaces the views after a change of the guards. Does nothing during the acquire, when
    /// nothing reads the views.
    fn update_views(&mut self) {
        if self.phase != Phase::Acquiring {
            self.views = self.views();
        }
    }
}

#[cfg(test)]
mod tests {
    use hashed_wheel::{Clock, ManualClock};

    use super::*;
    use crate::core::client_core::{ClientCore, StartMode, Target};
    use crate::events::callbacks::Callbacks;
    use crate::hold::hold::Hold;
    use crate::model::kind::Kind;
    use crate::model::lease::Lease;
    use crate::model::name::LockName;
    use crate::model::owner::{ClientId, LocalHolder};
    use crate::model::settings::Settings;
    use crate::ops::by_kind::HoldId;
    use crate::store::memory::Memory;

    /// A client in memory and its clock.
    fn client() -> (Arc<ClientCore>, ManualClock) {
        let clock = ManualClock::new();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let target = Target::Memory(Memory::with_clock(Arc::clone(&shared)));
        let settings = Settings::default();
        let core =
            ClientCore::start(target, shared, settings, Callbacks::default(), StartMode::Connected);
        (Arc::new(core.unwrap()), clock)
    }

    /// A guard with this lease. The watchdog does not know its hold, so nothing reports its end.
    fn guard(core: &Arc<ClientCore>, name: &str, lease: Duration) -> RawGuard {
        let (name, owner) = (LockName::parse(name).unwrap(), ClientId::random().next_owner());
        let id = HoldId { kind: Kind::Reentrant, name, owner };
        let (lease, holder) = (Lease::new(lease).unwrap(), LocalHolder::current_thread());
        let hold = Hold::new(id, holder, lease, false, core.now(), None);
        RawGuard::new(Arc::clone(core), Arc::new(hold), false)
    }

    #[test]
    fn a_member_does_not_join_a_quorum_that_has_expired_unreported() {
        let (core, clock) = client();
        let held = HeldLocks::new("a".to_owned(), 2);
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            assert!(held.join(index, guard(&core, name, Duration::from_secs(30))).is_none());
        }
        assert!(held.grant());
        let third = guard(&core, "c", Duration::from_secs(60));
        clock.advance(Duration::from_secs(31));
        assert!(third.is_held());
        let returned = held.join(2, third);
        assert!(returned.is_some(), "it would be a quorum of locks that were lost in between");
        assert!(held.check().is_err());
    }

    #[test]
    fn member_is_wanted_until_joined_and_again_after_lease_end() {
        let (core, clock) = client();
        let held = HeldLocks::new("a".to_owned(), 2);
        assert!(held.wants(2));
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            assert!(held.join(index, guard(&core, name, Duration::from_secs(60))).is_none());
        }
        assert!(held.grant());
        assert!(held.wants(2) && !held.wants(0));
        assert!(held.join(2, guard(&core, "c", Duration::from_secs(30))).is_none());
        assert!(!held.wants(2));
        clock.advance(Duration::from_secs(31));
        assert!(held.wants(2) && !held.wants(0));
        held.close();
        assert!(!held.wants(2));
    }
}
