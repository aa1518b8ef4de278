//! One hold: what its guards, its thread and the watchdog know of it.
//!
//! There may be a hundred thousand of them, and each renewal touches all of one. So what hardly any
//! hold has is boxed, instants count from its start, and one mutex protects everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{LostReason, code_of_number, number_of_code};
use crate::events::acquires::MetricsLabel;
use crate::events::report::{HeldLock, LostLock, OwnHold, OwnHolder};
use crate::hold::listener::{HoldListener, LossSender};
use crate::hold::revocation::Revocation;
use crate::hold::state::{ColdFields, ListenerId, Loss, State, TimerSlot};
use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::sync::Mutex;
use crate::model::sync::thread::ThreadId;
use crate::model::validity::Validity;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;

/// What caching a hold has left to do.
pub(crate) struct Cached {
    /// Until when it may be cached, if it was cached for the first time.
    pub(crate) until: Option<Instant>,
    /// Whether it is in the list of the holds that are cached or were.
    pub(crate) is_listed: bool,
    /// Of its last holder, to be dropped with nothing locked.
    #[expect(dead_code, reason = "dropped by whoever gets it")]
    pub(crate) listeners: Vec<(ListenerId, Arc<dyn HoldListener>)>,
}

/// What one owner has of one lock, from its first acquire to its last release.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) kind: Kind,
    /// Whether its holder has a name. A hold with a name keeps it.
    pub(crate) has_named_holder: bool,
    validity: Validity,
    /// Until when a copy of its acquire may still arrive. Boxed, as hardly any hold has one.
    late_copy_deadline: Option<Box<ServerTime>>,
    state: Mutex<State>,
    /// Zero, unless a renewal has become due since the last grant: one if it went unanswered or is
    /// not answered yet, and more if the server refused it, by the number of the code.
    unanswered: AtomicU8,
    /// Whether a renewal was left out since then, because it would have exceeded the longest hold.
    at_limit: AtomicBool,
    /// Whether it was reported to last long.
    long_reported: AtomicBool,
    /// Whether its key may be on another server than the one that granted it.
    needs_verification: AtomicBool,
    /// How often it was extended, at most as often as fits.
    renewals: AtomicU16,
}

impl Hold {
    pub(crate) fn new(
        id: HoldId,
        holder: LocalHolder,
        lease: Lease,
        watched: bool,
        sent_at: Instant,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let HoldId { kind, name, owner } = id;
        // Another reader, or this owner's own read hold, keeps the key beyond this lease.
        let shares_its_key = matches!(kind.layout(), Layout::Reader | Layout::Writer);
        let has_named_holder = matches!(holder, LocalHolder::Named(_));
        let (thread, cold) = match holder {
            LocalHolder::Thread(thread) => (Some(thread), None),
            LocalHolder::Guard => (None, None),
            LocalHolder::Named(name) => {
                let cold = ColdFields { holder_name: Some(name), ..ColdFields::default() };
                (None, Some(Box::new(cold)))
            }
        };
        Self {
            name,
            owner,
            kind,
            has_named_holder,
            validity: Validity::new(sent_at, lease.valid_until(sent_at)),
            late_copy_deadline: late_copy_deadline.map(Box::new),
            state: Mutex::new(State::new(thread, lease, watched, watched || shares_its_key, cold)),
            unanswered: AtomicU8::new(0),
            at_limit: AtomicBool::new(false),
            long_reported: AtomicBool::new(false),
            needs_verification: AtomicBool::new(false),
            renewals: AtomicU16::new(0),
        }
    }

    /// The same hold, but it continues another that started at `since`: its longest time counts
    /// from there.
    pub(crate) fn started_at(mut self, since: Instant) -> Self {
        if let Some(until) = self.validity.until() {
            self.validity = Validity::new(since.min(until), until);
        }
        self
    }

    /// What identifies it on the server.
    pub(crate) fn id(&self) -> HoldId {
        HoldId { kind: self.kind, name: self.name.clone(), owner: self.owner.clone() }
    }

    /// Whether `holder` holds it, and may nest it.
    pub(crate) fn belongs_to(&self, holder: &LocalHolder) -> bool {
        let named = matches!(holder, LocalHolder::Named(_));
        named == self.has_named_holder && {
            let state = self.state.lock();
            match holder {
                LocalHolder::Thread(thread) => state.thread == Some(*thread),
                LocalHolder::Named(name) => state.holder_name() == Some(name),
                LocalHolder::Guard => false,
            }
        }
    }

    /// Whether both have the same holder: one thread, or one name.
    pub(crate) fn has_same_holder(&self, other: &Self) -> bool {
        let holder = |hold: &Self| {
            let state = hold.state.lock();
            (state.thread, state.holder_name().cloned())
        };
        let own = holder(self);
        own != (None, None) && own == holder(other)
    }

    /// Gives it to another acquire of this client, in place of its last guard. `thread` is the
    /// holder from `now` on; with `None` it is the thread that takes it. What belongs to the hold
    /// stays: owner, validity, renewals, what the server may still do for it (DESIGN: hand-over).
    /// Only if another may have it without a word to the server, and at most `limit` times.
    ///
    /// Returned are the listeners of the last holder, to be dropped with nothing locked.
    pub(crate) fn hand_over(
        &self,
        thread: Option<ThreadId>,
        lease: Lease,
        now: Instant,
        limit: Option<u32>,
    ) -> Option<Vec<(ListenerId, Arc<dyn HoldListener>)>> {
        let mut state = self.state.lock();
        let may = state.may_be_handed_over(lease, limit)
            // A renewal was left out for the last holder, and none would come for the next.
            && !self.at_limit.load(Ordering::Relaxed)
            && self.is_fresh(now, lease);
        if !may {
            return None;
        }
        state.hand_over(thread, self.nanos_at(now));
        self.long_reported.store(false, Ordering::Relaxed);
        Some(state.take_listeners())
    }

    /// Keeps it for the next acquire of this client, in place of its last guard: `given` after the
    /// first time at most. Only if another may have it without a word to the server.
    pub(crate) fn cache(&self, lease: Lease, now: Instant, given: Duration) -> Option<Cached> {
        let (now_nanos, until) = (self.nanos_at(now), self.nanos_at(now + given));
        let mut state = self.state.lock();
        if state.is_cached() || !self.may_be_reused(&state, lease, now) {
            return None;
        }
        let is_first = state.cache_until() == 0;
        let until = self.at_nanos(state.cache(now_nanos, until)?);
        Some(Cached {
            until: is_first.then_some(until),
            is_listed: state.is_listed(),
            listeners: state.take_listeners(),
        })
    }

    /// Gives it to an acquire, if it is cached. `thread` is the holder from `now` on; with `None` it
    /// is the thread that takes it. False if it is not to be had: it is not cached, the time is
    /// over, or it may not be on the server any more.
    pub(crate) fn take_cached(&self, thread: Option<ThreadId>, lease: Lease, now: Instant) -> bool {
        let nanos = self.nanos_at(now);
        let mut state = self.state.lock();
        let may = state.is_cached()
            && nanos < state.cache_until()
            && self.may_be_reused(&state, lease, now);
        if may {
            state.uncache();
            state.thread = thread;
            state.cold.get_or_insert_default().held_since = nanos;
            self.long_reported.store(false, Ordering::Relaxed);
        }
        may
    }

    fn may_be_reused(&self, state: &State, lease: Lease, now: Instant) -> bool {
        state.may_be_handed_over(lease, None)
            && !self.at_limit.load(Ordering::Relaxed)
            && self.is_fresh(now, lease)
    }

    /// If it is cached, no acquire takes it from now on, and it has no guard. False if it is not
    /// cached.
    pub(crate) fn end_cached(&self) -> bool {
        let mut state = self.state.lock();
        let was_cached = state.uncache();
        if was_cached {
            state.remove_guard(true);
        }
        was_cached
    }

    /// If it is cached, the calling thread has its last guard again. `is_first`: it was cached for
    /// the first time, which does not count then.
    pub(crate) fn undo_cache(&self, is_first: bool) -> bool {
        let mut state = self.state.lock();
        let was_cached = state.uncache();
        if was_cached && is_first {
            state.forget_cache_until();
        }
        was_cached
    }

    /// Another client has asked for it: its next release goes to the server.
    pub(crate) fn set_wanted(&self) {
        self.state.lock().set_wanted();
    }

    /// Whether it is cached, or was when it was lost.
    pub(crate) fn is_cached(&self) -> bool {
        self.state.lock().is_cached()
    }

    /// Whether the time is over for which it may be cached.
    pub(crate) fn is_cache_over(&self, now: Instant) -> bool {
        let nanos = self.nanos_at(now);
        let state = self.state.lock();
        state.is_cached() && state.cache_until() <= nanos
    }

    /// Until when it may be cached, if it was cached, and whether it is.
    pub(crate) fn cache_until(&self) -> Option<(Instant, bool)> {
        let state = self.state.lock();
        let until = state.cache_until();
        (until > 0).then(|| (self.at_nanos(until), state.is_cached()))
    }

    /// Since when it is cached, if it is.
    pub(crate) fn cached_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_cached().then(|| self.since_of(&state))
    }

    /// Sets whether it is in the list of the holds that are cached or were. Returns whether it was.
    pub(crate) fn set_listed(&self, is_listed: bool) -> bool {
        let mut state = self.state.lock();
        let listed = &mut state.cold.get_or_insert_default().is_listed;
        std::mem::replace(listed, is_listed)
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.state.lock().is_listed()
    }

    /// Whether it is held for certain, and was granted or renewed as lately as a watched hold is
    /// whose renewals are answered.
    pub(crate) fn is_fresh(&self, now: Instant, lease: Lease) -> bool {
        self.remaining(now) >= lease.least_remaining()
    }

    /// Whether it has a watched guard and is held for certain, so that its end will be noticed.
    pub(crate) fn is_in_use(&self, now: Instant) -> bool {
        let is_guarded = {
            let state = self.state.lock();
            !state.is_over && state.watched > 0
        };
        is_guarded && self.is_held(now)
    }

    /// A count is sent. Until [`count_answered`](Self::count_answered) the hold is not handed over.
    pub(crate) fn count_sent(&self) {
        self.state.lock().count_unknown = true;
    }

    /// The count that was sent last is acknowledged.
    pub(crate) fn count_answered(&self) {
        self.state.lock().count_unknown = false;
    }

    /// This client is about to force its release, or has the answer. It is not handed over
    /// meanwhile.
    pub(crate) fn count_forced_release(&self, begins: bool) {
        self.state.lock().count_forced_release(begins);
    }

    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.validity.holds(now)
    }

    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.validity.remaining(now)
    }

    /// The end of its validity, unless it is over.
    pub(crate) fn valid_until(&self) -> Option<Instant> {
        self.validity.until()
    }

    /// A renewal or a nested acquire, sent at `sent_at`, was granted. False if the hold was over by
    /// then.
    pub(crate) fn extend(&self, now: Instant, lease: Lease, sent_at: Instant) -> bool {
        let before = self.validity.until();
        let is_valid = self.validity.extend(now, lease.valid_until(sent_at));
        if is_valid {
            // Relaxed: they only choose the reason in a report.
            self.unanswered.store(0, Ordering::Relaxed);
            // A request for the rest of a lease does not extend it.
            if self.validity.until() > before {
                self.at_limit.store(false, Ordering::Relaxed);
                // One thread at a time renews a hold; a nested acquire beside it may go uncounted.
                let renewals = self.renewals.load(Ordering::Relaxed);
                self.renewals.store(renewals.saturating_add(1), Ordering::Relaxed);
            }
        }
        is_valid
    }

    /// The label under which the time of the present holder is counted; `None` if the acquire of the
    /// present holder was not counted as granted.
    pub(crate) fn metrics_label(&self) -> Option<MetricsLabel> {
        if cfg!(not(feature = "metrics")) {
            return None;
        }
        let state = self.state.lock();
        let label = || state.cold.as_ref().map_or(MetricsLabel::NONE, |cold| cold.metrics_label);
        state.is_counted.then(label)
    }

    /// It was granted or handed over to an acquire that is counted under this label.
    pub(crate) fn set_metrics_label(&self, label: MetricsLabel) {
        if cfg!(not(feature = "metrics")) {
            return;
        }
        let mut state = self.state.lock();
        state.is_counted = true;
        // Hardly any hold has one, and what was handed over has the label of the holder before.
        if label != MetricsLabel::NONE || state.cold.is_some() {
            state.cold.get_or_insert_default().metrics_label = label;
        }
    }

    pub(crate) fn guards(&self) -> u32 {
        self.state.lock().guards
    }

    /// Adds a guard, for whose `lease` the server is about to be asked. Returns how many guards
    /// there are, or `None` if the last one is gone or the hold is over. The guard is added before
    /// the request, so that the hold lives until the reply. If that is a failure, the guard is
    /// [removed](Self::remove_guard).
    pub(crate) fn add_guard(&self, lease: Lease, watched: bool) -> Option<u32> {
        self.state.lock().add_guard(lease, watched)
    }

    /// One of the guards, which was not watched, is from now on: renewals ask for `lease`.
    pub(crate) fn watch_guard(&self, lease: Lease) {
        self.state.lock().watch_guard(lease);
    }

    /// A guard that was to be watched is not there any more, or is watched already.
    pub(crate) fn unwatch_guard(&self) {
        self.state.lock().unwatch_guard();
    }

    /// Returns how many guards are left.
    pub(crate) fn remove_guard(&self, watched: bool) -> u32 {
        self.state.lock().remove_guard(watched)
    }

    /// The lease that a renewal should ask for, or `None` if no guard is watched.
    pub(crate) fn watched_lease(&self) -> Option<Lease> {
        self.state.lock().watched_lease()
    }

    /// The lease by whose thirds it is renewed, or `None` if it never is. The renewals of a
    /// `foreign` client can shorten a reader's key to that client's lease, so a reader asks at
    /// least as often, even for a lease that is not extended (DESIGN: Redisson). A hold whose key
    /// may not be on the server asks until there is a reply.
    pub(crate) fn renewal_lease(&self, foreign: Lease) -> Option<Lease> {
        let watched = self.watched_lease();
        if self.kind.layout() == Layout::Reader {
            return Some(watched.unwrap_or_else(|| self.longest_lease()).min(foreign));
        }
        let to_verify = || self.needs_verification().then(|| self.longest_lease().min(foreign));
        watched.or_else(to_verify)
    }

    /// The lease by whose thirds it is renewed, after a renewal that asked for `asked`.
    pub(crate) fn renewal_lease_after(&self, asked: Lease, foreign: Lease) -> Lease {
        let is_verified = self.needs_verification() && self.watched_lease().is_none();
        if self.kind.layout() == Layout::Reader || is_verified {
            self.renewal_lease(foreign).unwrap_or(asked)
        } else {
            asked
        }
    }

    /// The lease that a renewal sent at `now` should ask for, or `None` if none should be sent.
    pub(crate) fn lease_to_renew(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        self.lease_to_extend(now, max_hold).or_else(|| self.lease_to_verify(now))
    }

    /// `None` if no guard is watched, or the hold would be valid for longer than `max_hold` after
    /// it was granted.
    fn lease_to_extend(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        // Locked until it is decided: a hand-over in between would begin without a renewal.
        let state = self.state.lock();
        let lease = state.watched_lease()?;
        let limit = max_hold.and_then(|longest| self.since_of(&state).checked_add(longest));
        if limit.is_some_and(|limit| lease.valid_until(now) > limit) {
            // Relaxed: the lock orders it.
            self.at_limit.store(true, Ordering::Relaxed);
            return None;
        }
        Some(lease)
    }

    /// The rest of the lease, of a reader or of a hold whose key may not be on the server. It is
    /// asked for again, and not extended.
    fn lease_to_verify(&self, now: Instant) -> Option<Lease> {
        /// Whatever shortens a key leaves it more than this.
        const MIN: Duration = Duration::from_millis(250);
        let asks = self.kind.layout() == Layout::Reader || self.needs_verification();
        let end = self.valid_until().filter(|_| asks)?;
        let left = end.saturating_duration_since(now);
        (left >= MIN).then(|| Lease::covering(left))
    }

    /// Whether its key may be on another server than the one that granted it, or on none: until a
    /// server has answered, and in a cluster always, as a replica may take over unnoticed.
    pub(crate) fn set_needs_verification(&self, needs_verification: bool) {
        // Relaxed: the mark alone starts nothing. The thread that sets it then puts the hold on the
        // wheel, under a lock.
        self.needs_verification.store(needs_verification, Ordering::Relaxed);
    }

    pub(crate) fn needs_verification(&self) -> bool {
        self.needs_verification.load(Ordering::Relaxed)
    }

    /// When its acquire was sent, or when the hold that it [continues](Self::started_at) started.
    pub(crate) fn granted_at(&self) -> Instant {
        self.validity.origin()
    }

    /// Since when its present holder has it.
    pub(crate) fn since(&self) -> Instant {
        self.since_of(&self.state.lock())
    }

    fn since_of(&self, state: &State) -> Instant {
        self.at_nanos(state.held_since())
    }

    /// For how long its present holder has had it.
    pub(crate) fn held_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since())
    }

    /// When it will have lasted for `long`, unless that was reported already.
    pub(crate) fn long_at(&self, long: Option<Duration>) -> Option<Instant> {
        self.long_at_of(&self.state.lock(), long)
    }

    fn long_at_of(&self, state: &State, long: Option<Duration>) -> Option<Instant> {
        let at = self.since_of(state).checked_add(long?)?;
        (!self.long_reported.load(Ordering::Relaxed)).then_some(at)
    }

    /// The report that it has lasted for `long` at `now`. Only once.
    pub(crate) fn report_long(&self, now: Instant, long: Option<Duration>) -> Option<HeldLock> {
        long?;
        // Locked, so that it is one holder's.
        let state = self.state.lock();
        if state.is_cached() {
            return None;
        }
        self.long_at_of(&state, long).filter(|at| *at <= now)?;
        // Relaxed: the lock orders it.
        self.long_reported.store(true, Ordering::Relaxed);
        Some(HeldLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            held_for: now.saturating_duration_since(self.since_of(&state)),
        })
    }

    /// What it is now, unless it is over.
    pub(crate) fn snapshot(&self, now: Instant) -> Option<OwnHold> {
        let remaining = self.validity.remaining(now);
        if remaining.is_zero() {
            return None;
        }
        let state = self.state.lock();
        let holder = match (state.thread, state.holder_name()) {
            _ if state.is_cached() => OwnHolder::Cached,
            (Some(thread), _) => OwnHolder::Thread(thread),
            (None, Some(name)) => OwnHolder::Named(name.to_string()),
            (None, None) => OwnHolder::Guard,
        };
        Some(OwnHold {
            name: self.name.as_str().to_owned(),
            kind: self.kind.word(),
            owner: self.owner.to_string(),
            holder,
            held_for: now.saturating_duration_since(self.since_of(&state)),
            remaining,
            watched: state.watched > 0,
            guards: state.guards,
            // Relaxed: a plain sum.
            renewals: self.renewals.load(Ordering::Relaxed).into(),
        })
    }

    /// The report of its loss.
    pub(crate) fn loss_report(&self, now: Instant, reason: LostReason) -> LostLock {
        LostLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            reason,
            held_for: self.held_for(now),
        }
    }

    /// The server is about to be asked for `lease`. Whatever the reply, and even without one, it
    /// may keep the key that long from now on.
    pub(crate) fn request(&self, lease: Lease) {
        self.state.lock().request(lease);
    }

    /// Whether the server may keep its key after its validity: it was renewed, or meant to be, or
    /// nested.
    pub(crate) fn key_may_outlive_validity(&self) -> bool {
        self.state.lock().key_may_outlive_validity
    }

    pub(crate) fn longest_lease(&self) -> Lease {
        self.state.lock().longest
    }

    /// Until when a copy of its acquire may still arrive, if there may be one.
    pub(crate) fn late_copy_deadline(&self) -> Option<ServerTime> {
        self.late_copy_deadline.as_deref().copied()
    }

    /// Its fencing token, if it has one.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().cold.as_ref()?.fencing_token
    }

    /// The hold has `token` from now on, unless the hold has another. Returns the token of the hold:
    /// all guards of a hold have one.
    pub(crate) fn keep_token(&self, token: u64) -> u64 {
        let mut state = self.state.lock();
        *state.cold.get_or_insert_default().fencing_token.get_or_insert(token)
    }

    /// Its key stays at least until `until` when it is released before.
    pub(crate) fn keep_until(&self, until: Instant) {
        let nanos = self.nanos_at(until);
        self.state.lock().keep_until(nanos);
    }

    /// Until when its key stays if it is released before; `None` for nearly every hold.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        let until = self.state.lock().cold.as_ref()?.keep_until;
        (until > 0).then(|| self.at_nanos(until))
    }

    /// Brings it into the processor's cache: reads a little of all that a renewal touches, and
    /// locks nothing. Done with many in a row, memory is waited for once and not for each, as plain
    /// reads overlap and locks do not.
    pub(crate) fn prefetch(&self) {
        let first = self.name.as_str().as_bytes().first();
        self.state.fetch();
        std::hint::black_box((
            first.copied(),
            self.validity.until(),
            self.unanswered.load(Ordering::Relaxed),
        ));
    }

    /// Where it is on the watchdog's wheel.
    pub(crate) fn timer_slot(&self) -> TimerSlot {
        self.state.lock().timer_slot
    }

    /// Changes where it is on the watchdog's wheel. `change` must not ask anything else of this
    /// hold.
    pub(crate) fn change_timer_slot<R>(&self, change: impl FnOnce(&mut TimerSlot) -> R) -> R {
        change(&mut self.state.lock().timer_slot)
    }

    /// The form of an instant in its [`TimerSlot`].
    pub(crate) fn nanos_at(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.granted_at());
        u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The inverse of [`nanos_at`](Self::nanos_at).
    pub(crate) fn at_nanos(&self, nanos: u64) -> Instant {
        self.granted_at() + Duration::from_nanos(nanos)
    }

    /// Ends it as released. If it was over before, that is a loss, and its listeners are notified.
    pub(crate) fn end_released(&self, now: Instant) -> Result<(), Loss> {
        let (result, listeners) = {
            let mut state = self.state.lock();
            let was_valid = self.validity.end(now);
            let first = !std::mem::replace(&mut state.is_over, true);
            if first && !was_valid {
                let reason = self.reason(&state);
                state.set_lost(reason);
            }
            let result = state.lost().map_or(Ok(()), |reason| Err(Loss { reason, first }));
            (result, state.take_listeners())
        };
        if let Err(loss) = result {
            notify(&listeners, loss.reason);
        }
        // Otherwise the listeners are dropped without a call: released, not lost.
        result
    }

    /// Ends it as lost, and notifies its listeners. Only the first reason counts; false if it was
    /// over before.
    pub(crate) fn lose(&self, now: Instant, reason: LostReason) -> bool {
        let listeners = {
            let mut state = self.state.lock();
            self.validity.end(now);
            if std::mem::replace(&mut state.is_over, true) {
                return false;
            }
            state.set_lost(reason);
            state.take_listeners()
        };
        notify(&listeners, reason);
        true
    }

    /// Why its validity has ended, if nothing has ended it.
    pub(crate) fn reason_of_end(&self) -> LostReason {
        self.reason(&self.state.lock())
    }

    fn reason(&self, state: &State) -> LostReason {
        // Relaxed: they only choose the reason in a report.
        if state.watched == 0 {
            // It was not to be renewed.
            LostReason::Expired
        } else if self.is_unanswered() {
            let number = self.unanswered.load(Ordering::Relaxed);
            let code = code_of_number(number.saturating_sub(1));
            code.map_or(LostReason::ServerUnreachable, |code| LostReason::Refused { code })
        } else if self.at_limit.load(Ordering::Relaxed) {
            LostReason::Expired
        } else {
            // It should have been renewed, but no renewal became due in time.
            LostReason::Paused
        }
    }

    /// Whether a renewal has become due since the last grant.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// A renewal becomes due. What the server said of the one before counts until it is answered.
    pub(crate) fn set_unanswered(&self) {
        // Relaxed: it only chooses the reason in a report.
        self.unanswered.fetch_max(1, Ordering::Relaxed);
    }

    /// The server refused a renewal with this code, or did not answer.
    pub(crate) fn note_refusal(&self, code: Option<&str>) {
        let number = code.map_or(0, number_of_code);
        self.unanswered.store(number + 1, Ordering::Relaxed);
    }

    /// Whether it was released, or found to be lost.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Whether it was released, and not lost.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.state.lock();
        state.is_over && state.lost().is_none()
    }

    /// How it was lost, if that was found already.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.state.lock().lost()
    }

    /// A channel that gets the reason if the hold is lost, and closes without one if it is
    /// released, or when the listener is [removed](Self::remove_listener).
    pub(crate) fn listen(&self) -> (Receiver<LostReason>, Option<ListenerId>) {
        let (sender, receiver) = LossSender::new();
        (receiver, self.add_listener(sender))
    }

    /// Notifies `listener` when the hold is lost, at once if it is already, and drops it when it is
    /// released. `None` if it is over.
    pub(crate) fn add_listener(&self, listener: Arc<dyn HoldListener>) -> Option<ListenerId> {
        let mut state = self.state.lock();
        if let Some(reason) = state.lost() {
            drop(state);
            listener.on_lost(reason);
        } else if !state.is_over {
            let asked = state.revocation().map(|it| (Arc::clone(&listener), it.clone()));
            let id = state.add_listener(listener);
            drop(state);
            if let Some((listener, revocation)) = asked {
                listener.on_revocation(&revocation);
            }
            return Some(id);
        }
        None
    }

    /// Somebody asks this client to let it go: each of its guards is told, now or when the guard is
    /// asked. It is not given to another thread of this client any more.
    pub(crate) fn revoke(&self, revocation: &Revocation) {
        let listeners = self.state.lock().revoke(revocation);
        for listener in listeners {
            listener.on_revocation(revocation);
        }
    }

    /// Drops a listener whose guard is gone, unless it was notified.
    pub(crate) fn remove_listener(&self, id: ListenerId) {
        let removed = self.state.lock().take_listener(id);
        // With nothing locked.
        drop(removed);
    }

    /// Drops the listener of a group that the hold has left, unless it was notified.
    pub(crate) fn remove_group_listener(&self, listener: &Arc<dyn HoldListener>) {
        let removed = self.state.lock().take_group_listener(listener);
        // With nothing locked.
        drop(removed);
    }

    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        self.state.lock().cold.as_ref().map_or(0, |cold| cold.listeners.len())
    }
}

fn notify(listeners: &[(ListenerId, Arc<dyn HoldListener>)], reason: LostReason) {
    for (_, listener) in listeners {
        listener.on_lost(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;
    use crate::model::owner::ClientId;

    const SECOND: Duration = Duration::from_secs(1);

    fn hold(watched: bool) -> Hold {
        let name = LockName::parse("a").unwrap();
        let lease = Lease::new(SECOND * 30).unwrap();
        let id = HoldId { kind: Kind::Reentrant, name, owner: ClientId::random().next_owner() };
        Hold::new(id, LocalHolder::current_thread(), lease, watched, origin(), None)
    }

    #[test]
    fn a_hold_fits_in_three_cache_lines() {
        // With the two counts of an `Arc`, and the word in front of whatever is allocated.
        assert!(size_of::<Hold>() + 3 * size_of::<usize>() <= 3 * 64, "{}", size_of::<Hold>());
    }

    #[test]
    fn an_unwatched_hold_has_expired_whatever_happened_before() {
        let leased = hold(false);
        assert_eq!(leased.reason_of_end(), LostReason::Expired);
        let left = hold(true);
        assert_eq!(left.add_guard(left.longest_lease(), false), Some(2));
        left.set_unanswered();
        assert_eq!(left.remove_guard(true), 1);
        assert_eq!(left.reason_of_end(), LostReason::Expired);
    }

    #[test]
    fn a_watched_hold_with_an_unanswered_renewal_is_lost_as_unreachable() {
        let watched = hold(true);
        watched.set_unanswered();
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn a_reply_after_the_end_extends_nothing() {
        let watched = hold(true);
        let (since, lease) = (watched.since(), watched.longest_lease());
        watched.set_unanswered();
        assert!(!watched.extend(since + SECOND * 30, lease, since + SECOND * 10));
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn removed_listeners_leave_nothing_behind() {
        let hold = hold(true);
        let (receiver, kept) = hold.listen();
        for _ in 0..10_000 {
            let (_, id) = hold.listen();
            hold.remove_listener(id.unwrap());
        }
        let listeners = || {
            let state = hold.state.lock();
            state.cold.as_ref().map(|cold| (cold.listeners.len(), cold.listeners.capacity() < 100))
        };
        assert_eq!(listeners(), Some((1, true)));
        hold.lose(hold.since(), LostReason::Deleted);
        hold.remove_listener(kept.unwrap());
        assert_eq!(receiver.try_recv(), Ok(LostReason::Deleted));
        assert_eq!(listeners(), Some((0, true)));
        assert!(hold.listen().1.is_none(), "it is over");
    }

    #[test]
    fn a_watched_hold_without_a_due_renewal_is_lost_as_paused_even_after_a_reply() {
        let watched = hold(true);
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
        let (since, lease) = (watched.since(), watched.longest_lease());
        watched.set_unanswered();
        assert!(watched.extend(since + SECOND * 10, lease, since + SECOND * 10));
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
    }

    #[test]
    fn a_watched_hold_at_its_limit_has_expired_unless_a_renewal_was_unanswered() {
        let watched = hold(true);
        let late = watched.since() + SECOND * 40;
        assert!(watched.lease_to_renew(late, Some(SECOND * 60)).is_none());
        assert_eq!(watched.reason_of_end(), LostReason::Expired);
        watched.set_unanswered();
        assert_eq!(watched.reason_of_end(), LostReason::ServerUnreachable);
    }

    #[test]
    fn a_renewal_that_would_exceed_the_limit_is_left_out() {
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
    fn a_long_hold_is_reported_once_and_not_early() {
        let hold = hold(true);
        let (since, long) = (hold.since(), Some(SECOND * 5));
        assert!(hold.report_long(since + SECOND * 4, long).is_none());
        assert!(hold.report_long(since + SECOND * 9, None).is_none());
        assert!(hold.report_long(since + SECOND * 9, Some(Duration::MAX)).is_none());
        let reported = hold.report_long(since + SECOND * 5, long).map(|held| held.held_for());
        assert_eq!(reported, Some(SECOND * 5));
        assert!(hold.report_long(since + SECOND * 9, long).is_none());
    }
}
