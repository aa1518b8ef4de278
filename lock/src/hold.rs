//! One hold: what its guards, its thread and the watchdog know of it.
//!
//! There may be a hundred thousand of them, and each renewal touches all of one. So what hardly any hold has is boxed,
//! instants count from its beginning, and one mutex does for everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use hashed_wheel::TimerKey;
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::claim::Claim;
use crate::error::LostReason;
use crate::kind::{Kind, Layout};
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::{Holder, Owner};
use crate::report::{HeldLock, LostLock};
use crate::told::Listener;
use crate::validity::Validity;
use crate::value::ServerTime;

/// From the first `lock()` of a thread to its last `unlock()`, with one owner.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    /// None if its holder has a name: that stands among what few holds have.
    thread: Option<ThreadId>,
    pub(crate) kind: Kind,
    validity: Validity,
    /// Until when a copy of its acquire may still arrive. Boxed, as hardly any hold has one.
    doubt: Option<Box<ServerTime>>,
    state: Mutex<State>,
    /// Whether a renewal was due since the last that was answered: it went unanswered, or is not answered yet.
    pub(crate) unanswered: AtomicBool,
    /// Whether a renewal was left out since then, because it would have gone beyond the longest hold.
    at_limit: AtomicBool,
    /// Whether somebody was told that it lasts for long.
    told_long: AtomicBool,
    /// Whether the server that has its key may be another than the one that granted it.
    unsure: AtomicBool,
}

/// How often it is nested, who wants what, and how it ended.
#[derive(Debug)]
struct State {
    guards: u32,
    /// How many of the guards are watched; the hold is renewed while there is one.
    watched: u32,
    /// The lease that renewals ask for: that of the last watched guard.
    lease: Lease,
    /// The longest lease it was given: the server may keep its key that long.
    longest: Lease,
    place: Place,
    /// Whether the server may keep its key after its validity.
    may_outlive: bool,
    over: bool,
    /// How it ended, if it was lost.
    lost: Option<LostReason>,
    /// Boxed, as hardly any hold has it.
    rare: Option<Box<Rare>>,
}

/// What few holds have.
#[derive(Debug, Default)]
struct Rare {
    /// Who is to be told if it is lost.
    listeners: Vec<Listener>,
    /// Its fencing token.
    token: Option<u64>,
    /// The name of its holder, if that is no thread.
    holder: Option<Arc<str>>,
}

/// Where a hold stands on the wheel.
#[derive(Debug)]
pub(crate) enum Place {
    /// Not yet there.
    Nowhere,
    /// There, and what is to be done has been due since so many nanoseconds [after its beginning](Hold::nanos_at), or
    /// will be then. While a renewal goes unanswered, that is when it was tried first.
    On(TimerKey, u64),
    /// It will never stand there again.
    Off,
}

/// What is left of a hold after one guard is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// That many guards.
    Guards(u32),
    Nothing,
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// Whether nobody had found it out before.
    pub(crate) first: bool,
}

impl Hold {
    pub(crate) fn new(
        claim: Claim,
        holder: Holder,
        lease: Lease,
        watched: bool,
        sent_at: Instant,
        doubt: Option<ServerTime>,
    ) -> Self {
        let Claim { kind, name, owner } = claim;
        // Whoever else reads, or this holder's own read hold, keeps the key beyond this lease.
        let shares_its_key = matches!(kind.layout(), Layout::Reader | Layout::Writer);
        let (thread, rare) = match holder {
            Holder::Thread(thread) => (Some(thread), None),
            Holder::Named(name) => {
                (None, Some(Box::new(Rare { holder: Some(name), ..Rare::default() })))
            }
        };
        Self {
            name,
            owner,
            thread,
            kind,
            validity: Validity::new(sent_at, lease.valid_until(sent_at)),
            doubt: doubt.map(Box::new),
            state: Mutex::new(State {
                guards: 1,
                watched: u32::from(watched),
                lease,
                longest: lease,
                place: Place::Nowhere,
                may_outlive: watched || shares_its_key,
                over: false,
                lost: None,
                rare,
            }),
            unanswered: AtomicBool::new(false),
            at_limit: AtomicBool::new(false),
            told_long: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
        }
    }

    /// What it is to the server.
    pub(crate) fn claim(&self) -> Claim {
        Claim { kind: self.kind, name: self.name.clone(), owner: self.owner.clone() }
    }

    /// Whether that is its holder, who may nest it.
    pub(crate) fn is_of(&self, holder: &Holder) -> bool {
        match holder {
            Holder::Thread(thread) => self.thread == Some(*thread),
            Holder::Named(name) => {
                let own = || self.state.lock().rare.as_ref().and_then(|rare| rare.holder.clone());
                self.thread.is_none() && own().is_some_and(|own| own == *name)
            }
        }
    }

    /// Whether that is a hold of the same holder.
    pub(crate) fn has_holder_of(&self, other: &Self) -> bool {
        let name =
            |hold: &Self| hold.state.lock().rare.as_ref().and_then(|rare| rare.holder.clone());
        match (self.thread, other.thread) {
            (Some(own), Some(theirs)) => own == theirs,
            (None, None) => name(self) == name(other),
            _ => false,
        }
    }

    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.validity.holds(now)
    }

    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.validity.remaining(now)
    }

    /// Until when it may be believed, unless it is over.
    pub(crate) fn valid_until(&self) -> Option<Instant> {
        self.validity.until()
    }

    /// A renewal or a nested acquire, sent at `sent_at`, was granted. False if the hold was over by then.
    pub(crate) fn extend(&self, now: Instant, lease: Lease, sent_at: Instant) -> bool {
        let before = self.validity.until();
        let valid = self.validity.extend(now, lease.valid_until(sent_at));
        if valid {
            // Relaxed: they only choose between the words of one report.
            self.unanswered.store(false, Ordering::Relaxed);
            // What only asked for the rest of a lease is no renewal.
            if self.validity.until() > before {
                self.at_limit.store(false, Ordering::Relaxed);
            }
        }
        valid
    }

    pub(crate) fn guards(&self) -> u32 {
        self.state.lock().guards
    }

    /// One more guard, with a lease that the server is about to be asked for: how many there are now. `None` if the
    /// last one is gone, or the hold is over. Before the server is asked, so that the hold lives until the answer is
    /// here; if that is none, the guard [leaves](Self::leave).
    pub(crate) fn enter(&self, lease: Lease, watched: bool) -> Option<u32> {
        let mut state = self.state.lock();
        if state.over || state.guards == 0 {
            return None;
        }
        state.guards += 1;
        state.ask_for(lease);
        if watched {
            state.watched += 1;
            state.lease = lease;
        }
        Some(state.guards)
    }

    /// One guard less.
    pub(crate) fn leave(&self, watched: bool) -> Left {
        let mut state = self.state.lock();
        state.guards = state.guards.saturating_sub(1);
        if watched {
            state.watched = state.watched.saturating_sub(1);
        }
        if state.guards == 0 { Left::Nothing } else { Left::Guards(state.guards) }
    }

    /// The lease that a renewal should ask for, or `None` if no guard is watched.
    pub(crate) fn watched_lease(&self) -> Option<Lease> {
        let state = self.state.lock();
        (state.watched > 0).then_some(state.lease)
    }

    /// The lease by whose thirds it is renewed, or `None` if it never is. A reader's key can be cut short by a
    /// `foreign` client's renewals of that lease, so he asks at least as often, also for a lease that is not prolonged.
    /// What is not sure to be on the server is asked for until there is an answer.
    pub(crate) fn rhythm(&self, foreign: Lease) -> Option<Lease> {
        if self.kind.layout() != Layout::Reader {
            let unsure = || self.is_unsure().then(|| self.longest_lease().min(foreign));
            return self.watched_lease().or_else(unsure);
        }
        let lease = self.watched_lease().unwrap_or_else(|| self.longest_lease());
        Some(lease.min(foreign))
    }

    /// The lease by whose thirds it is renewed, after a renewal that asked for `asked`.
    pub(crate) fn rhythm_after(&self, asked: Lease, foreign: Lease) -> Lease {
        let is_asserted = self.is_unsure() && self.watched_lease().is_none();
        if self.kind.layout() == Layout::Reader || is_asserted {
            self.rhythm(foreign).unwrap_or(asked)
        } else {
            asked
        }
    }

    /// The lease that a renewal sent at `now` should ask for, or `None` if there should be none.
    pub(crate) fn lease_to_renew(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        self.lease_to_prolong(now, max_hold).or_else(|| self.lease_to_assert(now))
    }

    /// What is left of a reader's lease, or of one that is not sure to be on the server. It is asked for again, and not
    /// prolonged.
    fn lease_to_assert(&self, now: Instant) -> Option<Lease> {
        /// Whatever cuts a key leaves it more than that.
        const NOT_WORTH_IT: Duration = Duration::from_millis(250);
        let asks = self.kind.layout() == Layout::Reader || self.is_unsure();
        let end = self.valid_until().filter(|_| asks)?;
        let left = end.saturating_duration_since(now);
        (left >= NOT_WORTH_IT).then(|| Lease::that_lasts(left))
    }

    /// `None` if no guard is watched, or the hold would be valid for longer than `max_hold` after it was granted.
    fn lease_to_prolong(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        let lease = self.watched_lease()?;
        let limit = max_hold.and_then(|longest| self.since().checked_add(longest));
        if limit.is_some_and(|limit| lease.valid_until(now) > limit) {
            // Relaxed: it only chooses between two words of one report.
            self.at_limit.store(true, Ordering::Relaxed);
            return None;
        }
        Some(lease)
    }

    /// Its key may be on another server than the one that granted it, or nowhere: until a server has said; in a cluster
    /// always, as a replica may take over without anybody here hearing of it.
    pub(crate) fn set_unsure(&self, unsure: bool) {
        // Relaxed: the mark alone makes nobody do anything. Who set it puts the hold on the wheel, under a lock.
        self.unsure.store(unsure, Ordering::Relaxed);
    }

    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Relaxed)
    }

    /// When its acquire was sent.
    pub(crate) fn since(&self) -> Instant {
        self.validity.origin()
    }

    fn held_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since())
    }

    /// When it has lasted for `long`, unless somebody was told so already.
    pub(crate) fn long_at(&self, long: Option<Duration>) -> Option<Instant> {
        let at = self.since().checked_add(long?)?;
        (!self.told_long.load(Ordering::Relaxed)).then_some(at)
    }

    /// What is told of it if it has lasted for `long` at `now`. Only once.
    pub(crate) fn tell_long(&self, now: Instant, long: Option<Duration>) -> Option<HeldLock> {
        self.long_at(long).filter(|at| *at <= now)?;
        // Relaxed: a mark that only the first sets. Nothing else hangs on it.
        let told = self.told_long.swap(true, Ordering::Relaxed);
        (!told).then(|| HeldLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            held_for: self.held_for(now),
        })
    }

    /// What is told of its loss.
    pub(crate) fn as_lost(&self, now: Instant, reason: LostReason) -> LostLock {
        LostLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            reason,
            held_for: self.held_for(now),
        }
    }

    /// The server is about to be asked for `lease`. Whatever the answer, and if there is none, it may keep the key that
    /// long from now on.
    pub(crate) fn ask_for(&self, lease: Lease) {
        self.state.lock().ask_for(lease);
    }

    /// Whether the server may keep its key after its validity: it was renewed, or meant to be, or nested.
    pub(crate) fn may_outlive(&self) -> bool {
        self.state.lock().may_outlive
    }

    pub(crate) fn longest_lease(&self) -> Lease {
        self.state.lock().longest
    }

    pub(crate) fn doubt(&self) -> Option<ServerTime> {
        self.doubt.as_deref().copied()
    }

    /// Its fencing token, if it has one.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().rare.as_ref()?.token
    }

    pub(crate) fn set_token(&self, token: u64) {
        self.state.lock().rare.get_or_insert_default().token = Some(token);
    }

    /// Brings it into the processor's cache: reads a little of all that a renewal touches, and locks nothing. Who does
    /// so with many in a row waits for memory once and not for each, as plain reads overlap and locks do not.
    pub(crate) fn fetch(&self) {
        let first = self.name.as_str().as_bytes().first();
        std::hint::black_box((
            first.copied(),
            self.state.is_locked(),
            self.validity.until(),
            self.unanswered.load(Ordering::Relaxed),
        ));
    }

    /// Where it stands on the watchdog's wheel. Nothing else may be asked of it meanwhile.
    pub(crate) fn place(&self) -> MappedMutexGuard<'_, Place> {
        MutexGuard::map(self.state.lock(), |state| &mut state.place)
    }

    /// How an instant is written in its [`Place`].
    pub(crate) fn nanos_at(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.since());
        u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant that is written so.
    pub(crate) fn at_nanos(&self, nanos: u64) -> Instant {
        self.since() + Duration::from_nanos(nanos)
    }

    /// It is being released: from now on nobody believes in it. If it was over before, that is a loss, and whoever
    /// listens is told.
    pub(crate) fn finish(&self, now: Instant) -> Result<(), Loss> {
        let (result, listeners) = {
            let mut state = self.state.lock();
            let valid = self.validity.end(now);
            let first = !std::mem::replace(&mut state.over, true);
            if first && !valid {
                state.lost = Some(self.reason(&state));
            }
            let result = state.lost.map_or(Ok(()), |reason| Err(Loss { reason, first }));
            (result, state.take_listeners())
        };
        if let Err(loss) = result {
            tell(listeners, loss.reason);
        }
        // Else their channels close without a message: released, not lost.
        result
    }

    /// It is lost: whoever listens is told. Only the first reason counts; false if it had ended before.
    pub(crate) fn lose(&self, now: Instant, reason: LostReason) -> bool {
        let listeners = {
            let mut state = self.state.lock();
            self.validity.end(now);
            if std::mem::replace(&mut state.over, true) {
                return false;
            }
            state.lost = Some(reason);
            state.take_listeners()
        };
        tell(listeners, reason);
        true
    }

    /// Why its validity ended, if nobody ended it.
    pub(crate) fn reason_of_end(&self) -> LostReason {
        self.reason(&self.state.lock())
    }

    fn reason(&self, state: &State) -> LostReason {
        // Relaxed: they only choose between the words of one report.
        if state.watched == 0 {
            // Nobody was to renew it.
            LostReason::Expired
        } else if self.unanswered.load(Ordering::Relaxed) {
            LostReason::ServerUnreachable
        } else if self.at_limit.load(Ordering::Relaxed) {
            LostReason::Expired
        } else {
            // It should have been renewed, and nobody came to it.
            LostReason::Paused
        }
    }

    /// Whether it was released, and not lost.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.state.lock();
        state.over && state.lost.is_none()
    }

    /// How it was lost, if it was told so already.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.state.lock().lost
    }

    /// A channel that gets the reason if the hold is lost, and closes without one if it is released.
    pub(crate) fn listen(&self) -> Receiver<LostReason> {
        let (tell, told) = bounded(1);
        self.listen_by(Listener::Alone(tell));
        told
    }

    /// Tells this one if the hold is lost, at once if it is already, and drops it if it is released.
    pub(crate) fn listen_by(&self, listener: Listener) {
        let mut state = self.state.lock();
        if let Some(reason) = state.lost {
            drop(state);
            listener.tell(reason);
        } else if !state.over {
            state.rare.get_or_insert_default().listeners.push(listener);
        }
    }
}

impl State {
    fn ask_for(&mut self, lease: Lease) {
        self.longest = self.longest.max(lease);
        self.may_outlive = true;
    }

    fn take_listeners(&mut self) -> Vec<Listener> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.listeners)).unwrap_or_default()
    }
}

fn tell(listeners: Vec<Listener>, reason: LostReason) {
    for listener in listeners {
        listener.tell(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;
    use crate::owner::ClientId;

    const SECOND: Duration = Duration::from_secs(1);

    fn hold(watched: bool) -> Hold {
        let name = LockName::parse("a").unwrap();
        let lease = Lease::new(SECOND * 30).unwrap();
        let claim = Claim { kind: Kind::Reentrant, name, owner: ClientId::random().draw() };
        Hold::new(claim, Holder::current_thread(), lease, watched, origin(), None)
    }

    #[test]
    fn a_hold_takes_less_than_four_lines_of_cache() {
        // With the two counts of an `Arc`, and the word in front of whatever is allocated.
        assert!(size_of::<Hold>() + 3 * size_of::<usize>() <= 3 * 64, "{}", size_of::<Hold>());
    }

    #[test]
    fn a_hold_that_nobody_was_to_renew_expired_whatever_happened_before() {
        let leased = hold(false);
        assert_eq!(leased.reason_of_end(), LostReason::Expired);
        let left = hold(true);
        assert_eq!(left.enter(left.longest_lease(), false), Some(2));
        left.unanswered.store(true, Ordering::Relaxed);
        assert_eq!(left.leave(true), Left::Guards(1));
        assert_eq!(left.reason_of_end(), LostReason::Expired);
    }

    #[test]
    fn a_watched_hold_whose_renewal_is_not_answered_was_lost_by_the_server() {
        let watched = hold(true);
        watched.unanswered.store(true, Ordering::Relaxed);
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn an_answer_that_comes_after_the_end_was_none() {
        let watched = hold(true);
        let (since, lease) = (watched.since(), watched.longest_lease());
        watched.unanswered.store(true, Ordering::Relaxed);
        assert!(!watched.extend(since + SECOND * 30, lease, since + SECOND * 10));
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn a_watched_hold_that_nobody_came_to_was_paused_also_after_an_answer() {
        let watched = hold(true);
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
        let (since, lease) = (watched.since(), watched.longest_lease());
        watched.unanswered.store(true, Ordering::Relaxed);
        assert!(watched.extend(since + SECOND * 10, lease, since + SECOND * 10));
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
    }

    #[test]
    fn a_watched_hold_at_its_limit_expired_unless_its_renewal_was_not_answered_before() {
        let watched = hold(true);
        let late = watched.since() + SECOND * 40;
        assert!(watched.lease_to_renew(late, Some(SECOND * 60)).is_none());
        assert_eq!(watched.reason_of_end(), LostReason::Expired);
        watched.unanswered.store(true, Ordering::Relaxed);
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn a_renewal_is_left_out_if_it_would_be_valid_beyond_the_limit() {
        let watched = hold(true);
        let since = watched.since();
        let renews =
            |after: Duration, limit| watched.lease_to_renew(since + after, limit).is_some();
        // A lease of 30 s is valid for 29.698 s.
        assert!(renews(Duration::from_millis(30_302), Some(SECOND * 60)));
        assert!(!renews(Duration::from_millis(30_303), Some(SECOND * 60)));
        assert!(renews(SECOND * 3600, None));
        assert!(renews(SECOND * 3600, Some(Duration::MAX)));
        assert!(hold(false).lease_to_renew(since, None).is_none());
    }

    #[test]
    fn a_long_hold_is_told_once_and_not_before() {
        let hold = hold(true);
        let (since, long) = (hold.since(), Some(SECOND * 5));
        assert!(hold.tell_long(since + SECOND * 4, long).is_none());
        assert!(hold.tell_long(since + SECOND * 9, None).is_none());
        assert!(hold.tell_long(since + SECOND * 9, Some(Duration::MAX)).is_none());
        let told = hold.tell_long(since + SECOND * 5, long).map(|held| held.held_for());
        assert_eq!(told, Some(SECOND * 5));
        assert!(hold.tell_long(since + SECOND * 9, long).is_none());
    }
}
