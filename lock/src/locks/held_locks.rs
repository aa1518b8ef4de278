//! What the guard of a multi-lock or of a red lock holds. It counts as held while a quorum of its
//! locks is held, and is lost for good as soon as fewer are.

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
use crate::model::sync::Mutex;
use crate::store::retry::RetryLimit;

/// Raw guards by the positions of their locks.
pub(crate) type RawGuards = BTreeMap<usize, RawGuard>;

/// The raw guards of one guard. Of a multi-lock the quorum is all of them, of a red lock a
/// majority.
///
/// In the child of a fork nothing of it is touched, and it counts as lost (DESIGN: forks).
///
/// Tickers and renewal threads that report a loss also take the mutex. So no clock is asked and
/// nothing is sent while it is locked.
#[derive(Debug)]
pub(crate) struct HeldLocks {
    home: HomeProcess,
    /// The name in errors.
    name: String,
    quorum_size: usize,
    state: Mutex<State>,
    /// Hears of the loss of each hold.
    group: Arc<GroupListener>,
}

/// The hold of one of the locks.
#[derive(Debug)]
pub(crate) struct MemberHold {
    pub(crate) position: usize,
    pub(crate) core: Arc<ClientCore>,
    hold: Arc<Hold>,
}

/// What the holds get from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extension {
    Lease(Lease),
    /// The client's lease, which the watchdog renews.
    Watched,
}

#[derive(Debug, Default)]
struct State {
    guards: RawGuards,
    /// Views of the guards, to look at with nothing locked. Empty until the quorum is complete.
    views: Arc<[(usize, View)]>,
    phase: Phase,
    /// How it was lost.
    lost: Option<Error>,
    /// Until the quorum is lost or released.
    listeners: Vec<Arc<dyn HoldListener>>,
    /// Whether the clients of all holds hear requests. The client of a hold that joins then does too.
    hears_requests: bool,
    /// Set once one of the holds was asked for.
    revocation: Option<Revocation>,
}

/// What has become of a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The quorum is not complete yet.
    #[default]
    Acquiring,
    Held,
    /// Fewer than a quorum were held, so all are released.
    Lost,
    /// It was released, or there never was a quorum.
    Closed,
}

impl Phase {
    /// Whether one more that is granted is wanted. Once a quorum was held, only if one `is_held`
    /// without it. Otherwise another owner may have had a quorum in between.
    pub(crate) fn wants_more(self, is_held: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Acquiring => true,
            Self::Held => is_held(),
            Self::Lost | Self::Closed => false,
        }
    }

    /// The end of the acquire, with a quorum or without one.
    pub(crate) fn after_acquire(self, has_quorum: bool) -> Self {
        match self {
            Self::Acquiring if has_quorum => Self::Held,
            Self::Acquiring => Self::Closed,
            other => other,
        }
    }

    /// After a look at how many are left.
    pub(crate) fn after_loss(self, has_quorum: bool) -> Self {
        if self == Self::Held && !has_quorum { Self::Lost } else { self }
    }
}

impl HeldLocks {
    pub(crate) fn new(name: String, quorum_size: usize) -> Arc<Self> {
        let home = HomeProcess::new();
        Arc::new_cyclic(|weak| {
            let group = Arc::new(GroupListener(Weak::clone(weak)));
            Self { home, name, quorum_size, state: Mutex::default(), group }
        })
    }

    /// Adds a guard, in place of a lost one of that position. Returned is the guard to release: the
    /// one that was replaced, or the new one if it is not [wanted](Phase::wants_more).
    pub(crate) fn join(&self, position: usize, guard: RawGuard) -> Option<RawGuard> {
        // Listen before it is added. A loss that is reported in between is seen below.
        guard.join_group(self.listener());
        let wanted = self.wants_more();
        let mut state = self.state.lock();
        let open = matches!(state.phase, Phase::Acquiring | Phase::Held);
        if !wanted || !open || guard.is_over() {
            drop(state);
            guard.leave_group(&self.listener());
            return Some(guard);
        }
        let core = state.hears_requests.then(|| guard.parts().0);
        let replaced = state.guards.insert(position, guard);
        state.update_views();
        drop(state);
        if let Some(core) = core {
            core.waits.hear_requests(&core.store);
        }
        replaced
    }

    /// Ends the acquire: whether the quorum is complete. If so it is held from now on, until it is
    /// lost.
    pub(crate) fn grant(&self) -> bool {
        let views = {
            let mut state = self.state.lock();
            state.views = state.views();
            Arc::clone(&state.views)
        };
        // The clocks are asked with nothing locked.
        let held = count(&views) >= self.quorum_size;
        let mut state = self.state.lock();
        // A loss reported before this lock was ignored, as the phase was `Acquiring`, so the guards
        // are counted again. A later one finds the phase `Held`.
        let granted = held && state.left() >= self.quorum_size;
        state.phase = state.phase.after_acquire(granted);
        state.update_views();
        state.phase == Phase::Held
    }

    /// Asks the servers for `extension`, one after the other.
    pub(crate) fn extend(&self, extension: Extension) -> Result<(), Error> {
        self.check()?;
        for member in self.members() {
            self.extend_member(&member, extension, RetryLimit::UntilAnswered)?;
        }
        self.check()
    }

    /// Asks the server of one member for `extension`.
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
        // Another call may have done the same, or the guard may have been lost meanwhile.
        let state = self.state.lock();
        if !state.guards.get(position).is_some_and(|guard| guard.is_of(hold) && guard.set_watched())
        {
            hold.unwatch_guard();
        }
        Ok(())
    }

    /// The holds, to be used with nothing locked.
    pub(crate) fn members(&self) -> Vec<MemberHold> {
        let state = self.state.lock();
        let member = |(position, guard): (&usize, &RawGuard)| {
            let (core, hold) = guard.parts();
            MemberHold { position: *position, core, hold }
        };
        state.guards.iter().map(member).collect()
    }

    /// The number of guards, held or lost.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().guards.len()
    }

    /// Whether a quorum was complete, and it was not released since.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Held | Phase::Lost)
    }

    /// Whether [`join`](Self::join) would keep a guard now.
    pub(crate) fn wants_more(&self) -> bool {
        let phase = self.state.lock().phase;
        phase.wants_more(|| self.is_held())
    }

    /// Whether a guard of this position would be [kept](Self::wants_more) and is not held already,
    /// as one that has just joined is.
    pub(crate) fn wants(&self, position: usize) -> bool {
        self.wants_more() && !self.views_if_held().is_some_and(|views| is_held_at(&views, position))
    }

    /// Whether a quorum is held for certain. Once it is not, it never is again.
    pub(crate) fn is_held(&self) -> bool {
        while let Some(views) = self.views_if_held() {
            if count(&views) >= self.quorum_size {
                return true;
            }
            let lost = last_lost(&views);
            let mut state = self.state.lock();
            // If the views have changed, one has joined meanwhile, and then the others were a
            // quorum a moment ago: count again.
            if Arc::ptr_eq(&state.views, &views) {
                state.lose(lost);
                return false;
            }
        }
        false
    }

    /// How long a quorum is held for certain: until the first moment at which too few are left.
    pub(crate) fn remaining(&self) -> Duration {
        let views = self.views_if_held().filter(|_| self.is_held()).unwrap_or_default();
        let mut times: Vec<Duration> = views.iter().map(|(_, view)| view.remaining()).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        times.get(self.quorum_size.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// An error unless a quorum is held for certain: how one of the others was lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.home.is_current() {
            return Err(Error::Lost { name: self.name.clone(), reason: LostReason::Forked });
        }
        if self.is_held() {
            return Ok(());
        }
        let views = match &*self.state.lock() {
            State { lost: Some(lost), .. } => return Err(lost.clone()),
            // There never was a quorum.
            state => Arc::clone(&state.views),
        };
        Err(last_lost(&views))
    }

    /// How many are held for certain; none if fewer than a quorum are.
    pub(crate) fn held(&self) -> usize {
        self.views_if_held().map_or(0, |views| count(&views))
    }

    /// Which of the first `positions` are not held, if a quorum is.
    pub(crate) fn missing(&self, positions: usize) -> Vec<usize> {
        let views = self.views_if_held().filter(|_| self.is_held());
        let Some(views) = views else { return Vec::new() };
        (0..positions).filter(|position| !is_held_at(&views, *position)).collect()
    }

    /// The fencing tokens, in the order of the positions. None in the child of a fork.
    pub(crate) fn tokens(&self) -> Vec<Option<u64>> {
        if !self.home.is_current() {
            return Vec::new();
        }
        self.state.lock().guards.values().map(RawGuard::token).collect()
    }

    /// The fencing tokens, in the order of the positions. A token that a hold does not have is drawn.
    pub(crate) fn draw_tokens(&self) -> Result<Vec<u64>, Error> {
        self.check()?;
        // Nothing is locked during the round trips.
        let holds: Vec<_> = self.state.lock().guards.values().map(RawGuard::parts).collect();
        holds.iter().map(|(core, hold)| token_of(core, hold)).collect()
    }

    /// Notifies `listener` when the quorum is lost, at once if it is already, and drops it when the
    /// quorum is released.
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

    /// Notifies `listener` of a request for one of the holds too. Their clients hear requests from now
    /// on, and the client of a hold that joins does from then on.
    pub(crate) fn hear_requests(&self, listener: Arc<dyn HoldListener>) {
        self.state.lock().hears_requests = true;
        for MemberHold { core, .. } in self.members() {
            core.waits.hear_requests(&core.store);
        }
        self.add_listener(listener);
    }

    /// Ends it and returns the guards, for the caller to release; none if they were released when
    /// the quorum was lost. A guard that joins later is handed back.
    pub(crate) fn close(self: &Arc<Self>) -> RawGuards {
        if !self.home.is_current() {
            // The parent's, with mutexes that a thread of the parent may have locked. Never
            // dropped.
            mem::forget(Arc::clone(self));
            return RawGuards::new();
        }
        // If it is lost, that is reported first. The clock may panic.
        panics::catch_panic(|| self.is_held());
        let closed = State { phase: Phase::Closed, ..State::default() };
        let State { guards, phase, .. } = mem::replace(&mut *self.state.lock(), closed);
        // Other guards may nest the holds for long.
        let group = self.listener();
        for guard in guards.values() {
            guard.leave_group(&group);
        }
        match phase {
            Phase::Lost => RawGuards::new(),
            Phase::Acquiring | Phase::Held | Phase::Closed => guards,
        }
    }

    fn listener(&self) -> Arc<dyn HoldListener> {
        Arc::<GroupListener>::clone(&self.group)
    }

    fn views_if_held(&self) -> Option<Arc<[(usize, View)]>> {
        if !self.home.is_current() {
            return None;
        }
        let state = self.state.lock();
        (state.phase == Phase::Held).then(|| Arc::clone(&state.views))
    }
}

/// How many of them are held.
fn count(views: &[(usize, View)]) -> usize {
    views.iter().filter(|(_, view)| view.is_held()).count()
}

/// Whether the guard of this position is held.
fn is_held_at(views: &[(usize, View)], position: usize) -> bool {
    views.iter().any(|(other, view)| *other == position && view.is_held())
}

/// How one of those that are not held any more was lost: preferably one whose loss was not
/// reported yet, as that is the latest.
fn last_lost(views: &[(usize, View)]) -> Error {
    let not_held = views.iter().map(|(_, view)| view).filter(|view| !view.is_held());
    let last = not_held.min_by_key(|view| view.is_over()).map(View::lost);
    last.unwrap_or_else(|| Error::Lost { name: String::new(), reason: LostReason::Expired })
}

/// Listens to the loss of each guard's hold. Weak, as the group has the holds.
#[derive(Debug)]
struct GroupListener(Weak<HeldLocks>);

impl HoldListener for GroupListener {
    fn on_lost(&self, reason: LostReason) {
        let Some(group) = self.0.upgrade() else { return };
        let mut state = group.state.lock();
        // Of many that are lost together, the first ends the group.
        if state.phase == Phase::Held && state.left() < group.quorum_size {
            let of = |guard: &&RawGuard| guard.lost_reason() == Some(reason);
            let name = state.guards.values().find(of).map(RawGuard::name).unwrap_or_default();
            state.lose(Error::Lost { name, reason });
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

impl State {
    /// Fewer than a quorum are left: the others are released, so that they are not renewed and no
    /// other owner has to wait for them.
    fn lose(&mut self, lost: Error) {
        let phase = self.phase.after_loss(false);
        if mem::replace(&mut self.phase, phase) == phase {
            return;
        }
        // They stay here until the guard is dropped: dropping the last guard of a client would end
        // the client, which waits.
        self.guards.values_mut().for_each(RawGuard::abandon);
        if let Error::Lost { reason, .. } = lost {
            // Each is a channel or what tasks await, and takes no lock but its own.
            for listener in mem::take(&mut self.listeners) {
                listener.on_lost(reason);
            }
        }
        self.lost = Some(lost);
    }

    /// The number of guards whose loss was not reported.
    fn left(&self) -> usize {
        self.guards.values().filter(|guard| !guard.is_over()).count()
    }

    fn views(&self) -> Arc<[(usize, View)]> {
        self.guards.iter().map(|(position, guard)| (*position, guard.view())).collect()
    }

    /// The guards have changed. During the acquire nothing reads the views.
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
    fn a_member_is_wanted_until_it_has_joined_and_again_when_its_lease_is_over() {
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
