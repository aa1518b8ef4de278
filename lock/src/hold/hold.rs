//! One hold, shared by its guards, its thread and the watchdog.
//!
//! A client may have a hundred thousand holds, and each renewal touches all fields of a hold. So
//! rarely used fields are boxed, instants count from the start of the hold, and one mutex protects
//! all fields but a few atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::error::{LostReason, code_of_number, number_of_code};
use crate::events::acquires::MetricsLabel;
use crate::events::report::{HeldLock, LostLock, OwnHold, OwnHolder};
use crate::hold::listener::{HoldListener, LossSender};
use crate::hold::revocation::Revocation;
use crate::hold::state::{ColdFields, HoldState, ListenerId, Loss, WheelEntry};
use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::sync::Mutex;
use crate::model::sync::thread::ThreadId;
use crate::model::validity::Validity;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;

/// The result of [`Hold::cache`], with the rest of the caller's work.
pub(crate) struct Cached {
    /// Until when the hold may be cached, after the first caching.
    pub(crate) until: Option<Instant>,
    /// Whether the hold is in the list of present and former cached holds.
    pub(crate) is_listed: bool,
    /// The last holder's listeners, to be dropped with nothing locked.
    #[expect(dead_code, reason = "dropped by whoever gets it")]
    pub(crate) listeners: Vec<(ListenerId, Arc<dyn HoldListener>)>,
}

/// One owner's possession of one lock, from its first acquire to its last release.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) owner: Owner,
    pub(crate) kind: Kind,
    /// Whether the holder has a name. The name never changes.
    pub(crate) has_named_holder: bool,
    validity: Validity,
    /// Until when a copy of the acquire may still arrive. Boxed, as hardly any hold has a deadline.
    late_copy_deadline: Option<Box<ServerTime>>,
    state: Mutex<HoldState>,
    /// Zero, unless a renewal has become due since the last grant: one if the renewal has no
    /// answer, and more after a refusal by the server, by the number of the code.
    unanswered: AtomicU8,
    /// Whether a renewal was left out since the last grant, as a renewal would have exceeded the
    /// longest hold.
    at_limit: AtomicBool,
    /// Whether the hold was reported to last long.
    long_reported: AtomicBool,
    /// Whether the key may be on another server than the server of the grant.
    needs_verification: AtomicBool,
    /// How often the hold was extended, saturating.
    renewals: AtomicU16,
}

impl Hold {
    /// Makes the hold `id` of `holder`, with one guard, valid for `lease` after `sent_at`.
    /// `watched`: whether the guard is watched. Until `late_copy_deadline` a copy of the acquire
    /// may arrive.
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
            state: Mutex::new(HoldState::new(
                thread,
                lease,
                watched,
                watched || shares_its_key,
                cold,
            )),
            unanswered: AtomicU8::new(0),
            at_limit: AtomicBool::new(false),
            long_reported: AtomicBool::new(false),
            needs_verification: AtomicBool::new(false),
            renewals: AtomicU16::new(0),
        }
    }

    /// Returns the same hold, as the continuation of a hold started at `since`: the longest time
    /// counts from there.
    pub(crate) fn started_at(mut self, since: Instant) -> Self {
        if let Some(until) = self.validity.until() {
            self.validity = Validity::new(since.min(until), until);
        }
        self
    }

    /// Returns the identity of the hold on the server.
    pub(crate) fn id(&self) -> HoldId {
        HoldId { kind: self.kind, name: self.name.clone(), owner: self.owner.clone() }
    }

    /// Whether `holder` has the hold, and so may nest the hold.
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

    /// Whether both holds have the same holder: one thread, or one name.
    pub(crate) fn has_same_holder(&self, other: &Self) -> bool {
        let holder = |hold: &Self| {
            let state = hold.state.lock();
            (state.thread, state.holder_name().cloned())
        };
        let own = holder(self);
        own != (None, None) && own == holder(other)
    }

    /// Gives the hold to another acquire of this client, in place of the last guard. `thread` is
    /// the holder from `now` on; `None` stands for the thread with the guard. Thread, start and
    /// listeners are exchanged in one step under the mutex. The rest of the hold stays: owner,
    /// validity, renewals, the deadline of late copies. So each operation of the owner applies to
    /// the present holder.
    ///
    /// Returns the listeners of the last holder, to be dropped with nothing locked. Returns `None`
    /// if the hold may not change its holder without the server, or changed it `limit` times.
    pub(crate) fn change_holder(
        &self,
        thread: Option<ThreadId>,
        lease: Lease,
        now: Instant,
        limit: Option<u32>,
    ) -> Option<Vec<(ListenerId, Arc<dyn HoldListener>)>> {
        let mut state = self.state.lock();
        let may = state.may_be_handed_over(lease, limit)
            // A renewal was left out for the last holder, and the next holder would get none.
            && !self.at_limit.load(Ordering::Relaxed)
            && self.is_fresh(now, lease);
        if !may {
            return None;
        }
        state.set_holder(thread, self.nanos_at(now));
        self.long_reported.store(false, Ordering::Relaxed);
        Some(state.take_listeners())
    }

    /// Caches the hold for the next acquire of this client, in place of the last guard, until
    /// `given` after the first time at most. Returns `None` if the hold is cached, the time for
    /// caching is over, another client wants the lock, or the hold may not change its holder
    /// without the server.
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

    /// Gives a cached hold to an acquire. `thread` is the holder from `now` on; `None` stands for
    /// the thread with the guard. Returns `false` if the hold is not cached, the time is over, or
    /// the hold may not be on the server any more.
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

    /// Whether the hold, with its `state` locked, may go to another acquire without the server.
    fn may_be_reused(&self, state: &HoldState, lease: Lease, now: Instant) -> bool {
        state.may_be_handed_over(lease, None)
            && !self.at_limit.load(Ordering::Relaxed)
            && self.is_fresh(now, lease)
    }

    /// Ends the caching of a hold, which has no guard then: no acquire takes the hold from now on.
    /// Returns `false` if the hold is not cached.
    pub(crate) fn end_cached(&self) -> bool {
        let mut state = self.state.lock();
        let was_cached = state.uncache();
        if was_cached {
            state.remove_guard(true);
        }
        was_cached
    }

    /// Returns the last guard of a cached hold to the calling thread. `is_first`: the hold was
    /// cached for the first time, which does not count then. Returns `false` if the hold is not
    /// cached.
    pub(crate) fn undo_cache(&self, is_first: bool) -> bool {
        let mut state = self.state.lock();
        let was_cached = state.uncache();
        if was_cached && is_first {
            state.forget_cache_until();
        }
        was_cached
    }

    /// Notes that another client has requested the lock: the hold is not cached any more.
    pub(crate) fn set_wanted(&self) {
        self.state.lock().set_wanted();
    }

    /// Whether the hold is cached, or was cached when lost.
    pub(crate) fn is_cached(&self) -> bool {
        self.state.lock().is_cached()
    }

    /// Whether the hold is cached, and the time for caching is over.
    pub(crate) fn is_cache_over(&self, now: Instant) -> bool {
        let nanos = self.nanos_at(now);
        let state = self.state.lock();
        state.is_cached() && state.cache_until() <= nanos
    }

    /// Returns until when the hold may be cached, and whether the hold is cached. Returns `None` if
    /// never cached.
    pub(crate) fn cache_until(&self) -> Option<(Instant, bool)> {
        let state = self.state.lock();
        let until = state.cache_until();
        (until > 0).then(|| (self.at_nanos(until), state.is_cached()))
    }

    /// Returns since when the hold is cached; `None` if not cached.
    pub(crate) fn cached_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_cached().then(|| self.since_of(&state))
    }

    /// Sets whether the hold is in the list of present and former cached holds. Returns the value
    /// before.
    pub(crate) fn set_listed(&self, is_listed: bool) -> bool {
        let mut state = self.state.lock();
        let listed = &mut state.cold.get_or_insert_default().is_listed;
        std::mem::replace(listed, is_listed)
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.state.lock().is_listed()
    }

    /// Whether the hold is certainly valid, and was granted or renewed no longer ago than a third
    /// of the lease.
    pub(crate) fn is_fresh(&self, now: Instant, lease: Lease) -> bool {
        self.remaining(now) >= lease.least_remaining()
    }

    /// Whether the hold has a watched guard and is certainly valid, so the watchdog will notice the
    /// end.
    pub(crate) fn is_in_use(&self, now: Instant) -> bool {
        let is_guarded = {
            let state = self.state.lock();
            !state.is_over && state.watched > 0
        };
        is_guarded && self.is_held(now)
    }

    /// Notes that a count of guards is sent. The hold is not handed over until
    /// [`count_answered`](Self::count_answered).
    pub(crate) fn count_sent(&self) {
        self.state.lock().count_unknown = true;
    }

    /// Notes that the last count is acknowledged.
    pub(crate) fn count_answered(&self) {
        self.state.lock().count_unknown = false;
    }

    /// Notes that a forced release by this client begins, or has ended. The hold is not handed over
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

    /// Returns the end of the validity; `None` once the hold is over.
    pub(crate) fn valid_until(&self) -> Option<Instant> {
        self.validity.until()
    }

    /// Extends the validity by a renewal or a nested acquire for `lease`, sent at `sent_at` and
    /// granted. A later end stays. Returns `false`, without effect, if the hold was over by `now`.
    pub(crate) fn extend(&self, now: Instant, lease: Lease, sent_at: Instant) -> bool {
        let before = self.validity.until();
        let is_valid = self.validity.extend(now, lease.valid_until(sent_at));
        if is_valid {
            // Relaxed: the flags only choose the reason in a report.
            self.unanswered.store(0, Ordering::Relaxed);
            // A request for the rest of a lease does not extend the validity.
            if self.validity.until() > before {
                self.at_limit.store(false, Ordering::Relaxed);
                // One thread at a time renews a hold; a concurrent nested acquire may go uncounted.
                let renewals = self.renewals.load(Ordering::Relaxed);
                self.renewals.store(renewals.saturating_add(1), Ordering::Relaxed);
            }
        }
        is_valid
    }

    /// Returns the label under which the time of the present holder is counted; `None` if the
    /// acquire of the present holder was not counted as granted.
    pub(crate) fn metrics_label(&self) -> Option<MetricsLabel> {
        if cfg!(not(feature = "metrics")) {
            return None;
        }
        let state = self.state.lock();
        let label = || state.cold.as_ref().map_or(MetricsLabel::NONE, |cold| cold.metrics_label);
        state.is_counted.then(label)
    }

    /// Sets the label under which the acquire of the present holder is counted.
    pub(crate) fn set_metrics_label(&self, label: MetricsLabel) {
        if cfg!(not(feature = "metrics")) {
            return;
        }
        let mut state = self.state.lock();
        state.is_counted = true;
        // Hardly any hold has a label, and after a hand-over the label of the holder before is
        // there.
        if label != MetricsLabel::NONE || state.cold.is_some() {
            state.cold.get_or_insert_default().metrics_label = label;
        }
    }

    /// Returns how many guards the hold has.
    pub(crate) fn guards(&self) -> u32 {
        self.state.lock().guards
    }

    /// Adds a guard, before the request for its `lease`, so the hold lives until the reply. After a
    /// failure the caller [removes](Self::remove_guard) the guard. Returns how many guards there
    /// are, or `None` if the last guard is gone or the hold is over.
    ///
    /// Of two threads with one named owner, one nesting and one releasing, either the hold lives on
    /// or the nesting thread sees the end.
    pub(crate) fn add_guard(&self, lease: Lease, watched: bool) -> Option<u32> {
        self.state.lock().add_guard(lease, watched)
    }

    /// Counts one of the unwatched guards as watched from now on: renewals ask for `lease`.
    pub(crate) fn watch_guard(&self, lease: Lease) {
        self.state.lock().watch_guard(lease);
    }

    /// Takes back [`watch_guard`](Self::watch_guard): the guard is gone, or was watched before.
    pub(crate) fn unwatch_guard(&self) {
        self.state.lock().unwatch_guard();
    }

    /// Counts a guard off the hold, as a watched guard if `watched`. Returns how many guards are
    /// left.
    pub(crate) fn remove_guard(&self, watched: bool) -> u32 {
        self.state.lock().remove_guard(watched)
    }

    /// Returns the lease for a renewal, or `None` if no guard is watched.
    pub(crate) fn watched_lease(&self) -> Option<Lease> {
        self.state.lock().watched_lease()
    }

    /// Returns the lease whose thirds are the times between renewals, or `None` without renewals.
    ///
    /// A renewal by a `foreign` client, such as Redisson's, sets the time to live of a reader's
    /// whole key to the foreign lease. So a reader asks at least as often, even for a lease that is
    /// not extended. A hold whose key may not be on the server asks until there is a reply.
    pub(crate) fn renewal_lease(&self, foreign: Lease) -> Option<Lease> {
        let watched = self.watched_lease();
        if self.kind.layout() == Layout::Reader {
            return Some(watched.unwrap_or_else(|| self.longest_lease()).min(foreign));
        }
        let to_verify = || self.needs_verification().then(|| self.longest_lease().min(foreign));
        watched.or_else(to_verify)
    }

    /// Returns the lease whose thirds are the times between renewals, after a renewal for `asked`:
    /// for a reader and for a hold that is only verified, the [renewal lease](Self::renewal_lease);
    /// else `asked`.
    pub(crate) fn renewal_lease_after(&self, asked: Lease, foreign: Lease) -> Lease {
        let is_verified = self.needs_verification() && self.watched_lease().is_none();
        if self.kind.layout() == Layout::Reader || is_verified {
            self.renewal_lease(foreign).unwrap_or(asked)
        } else {
            asked
        }
    }

    /// Returns the lease for a renewal sent at `now`, or `None` if no renewal should be sent.
    pub(crate) fn lease_to_renew(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        self.lease_to_extend(now, max_hold).or_else(|| self.lease_to_verify(now))
    }

    /// Returns the lease by which a renewal sent at `now` extends the hold. Returns `None` if no
    /// guard is watched, or if the hold would be valid for longer than `max_hold` after the present
    /// holder's start.
    fn lease_to_extend(&self, now: Instant, max_hold: Option<Duration>) -> Option<Lease> {
        // Locked until the decision: a hand-over in between would begin without a renewal.
        let state = self.state.lock();
        let lease = state.watched_lease()?;
        let limit = max_hold.and_then(|longest| self.since_of(&state).checked_add(longest));
        if limit.is_some_and(|limit| lease.valid_until(now) > limit) {
            // Relaxed: the mutex orders the store.
            self.at_limit.store(true, Ordering::Relaxed);
            return None;
        }
        Some(lease)
    }

    /// Returns a lease for the rest of the validity, of a reader or of a hold whose key may not be
    /// on the server; otherwise or for a short rest `None`. The renewal asks for the rest again,
    /// and extends nothing.
    fn lease_to_verify(&self, now: Instant) -> Option<Lease> {
        /// A shortened key always has a longer time to live than this.
        const MIN: Duration = Duration::from_millis(250);
        let asks = self.kind.layout() == Layout::Reader || self.needs_verification();
        let end = self.valid_until().filter(|_| asks)?;
        let left = end.saturating_duration_since(now);
        (left >= MIN).then(|| Lease::covering(left))
    }

    /// Sets whether the key may be on another server than the server of the grant, or on none:
    /// until a server has answered, and in a cluster always, as a replica may take over unnoticed.
    pub(crate) fn set_needs_verification(&self, needs_verification: bool) {
        // Relaxed: the mark alone starts nothing. The thread that sets the mark then puts the hold
        // on the wheel, under a lock.
        self.needs_verification.store(needs_verification, Ordering::Relaxed);
    }

    pub(crate) fn needs_verification(&self) -> bool {
        self.needs_verification.load(Ordering::Relaxed)
    }

    /// Returns when the acquire was sent, or when the [continued](Self::started_at) hold started.
    pub(crate) fn granted_at(&self) -> Instant {
        self.validity.origin()
    }

    /// Returns since when the present holder has the hold.
    pub(crate) fn since(&self) -> Instant {
        self.since_of(&self.state.lock())
    }

    /// Returns since when the present holder has the hold, with `state` locked.
    fn since_of(&self, state: &HoldState) -> Instant {
        self.at_nanos(state.held_since())
    }

    /// Returns for how long the present holder has had the hold.
    pub(crate) fn held_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since())
    }

    /// Returns when the present holder will have had the hold for `long`; `None` after the report,
    /// or without `long`.
    pub(crate) fn long_at(&self, long: Option<Duration>) -> Option<Instant> {
        self.long_at_of(&self.state.lock(), long)
    }

    /// Decides [`long_at`](Self::long_at), with `state` locked.
    fn long_at_of(&self, state: &HoldState, long: Option<Duration>) -> Option<Instant> {
        let at = self.since_of(state).checked_add(long?)?;
        (!self.long_reported.load(Ordering::Relaxed)).then_some(at)
    }

    /// Returns the report of a hold of at least `long` at `now`, once for each holder; otherwise
    /// `None`.
    pub(crate) fn report_long(&self, now: Instant, long: Option<Duration>) -> Option<HeldLock> {
        long?;
        // Locked, so that the report is about one holder.
        let state = self.state.lock();
        if state.is_cached() {
            return None;
        }
        self.long_at_of(&state, long).filter(|at| *at <= now)?;
        // Relaxed: the mutex orders the store.
        self.long_reported.store(true, Ordering::Relaxed);
        Some(HeldLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            held_for: now.saturating_duration_since(self.since_of(&state)),
        })
    }

    /// Returns a snapshot for [`Client::holds`](crate::Client::holds); `None` once ended.
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

    /// Makes the report of the loss.
    pub(crate) fn loss_report(&self, now: Instant, reason: LostReason) -> LostLock {
        LostLock {
            name: self.name.clone(),
            owner: self.owner.to_string(),
            reason,
            held_for: self.held_for(now),
        }
    }

    /// Notes that a request for `lease` is about to be sent. Whatever the reply, and even without a
    /// reply, the server may retain the key for `lease` from now on.
    pub(crate) fn note_sent_lease(&self, lease: Lease) {
        self.state.lock().note_sent_lease(lease);
    }

    /// Whether the server may retain the key beyond the validity: the hold was renewed, was to be
    /// renewed, or was nested.
    pub(crate) fn key_may_outlive_validity(&self) -> bool {
        self.state.lock().key_may_outlive_validity
    }

    /// Returns the longest requested lease, for which the server may retain the key.
    pub(crate) fn longest_lease(&self) -> Lease {
        self.state.lock().longest
    }

    /// Returns until when a copy of the acquire may still arrive; `None` without copies.
    pub(crate) fn late_copy_deadline(&self) -> Option<ServerTime> {
        self.late_copy_deadline.as_deref().copied()
    }

    /// Returns the fencing token, if drawn.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().cold.as_ref()?.fencing_token
    }

    /// Sets the token, unless the hold has a token. Returns the token of the hold: all guards of a
    /// hold have the same token.
    pub(crate) fn get_or_set_token(&self, token: u64) -> u64 {
        let mut state = self.state.lock();
        *state.cold.get_or_insert_default().fencing_token.get_or_insert(token)
    }

    /// Makes an earlier release leave the key at least until `until`.
    pub(crate) fn keep_until(&self, until: Instant) {
        let nanos = self.nanos_at(until);
        self.state.lock().keep_until(nanos);
    }

    /// Returns until when the key stays after an earlier release; `None` for nearly every hold.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        let until = self.state.lock().cold.as_ref()?.keep_until;
        (until > 0).then(|| self.at_nanos(until))
    }

    /// Loads the hold into the processor's cache: reads a little of all fields of a renewal, and
    /// locks nothing. For many holds in a row, memory is waited for once and not for each hold, as
    /// plain reads overlap and locks do not.
    pub(crate) fn prefetch(&self) {
        let first = self.name.as_str().as_bytes().first();
        self.state.fetch();
        std::hint::black_box((
            first.copied(),
            self.validity.until(),
            self.unanswered.load(Ordering::Relaxed),
        ));
    }

    /// Returns the place on the watchdog's wheel.
    pub(crate) fn wheel_entry(&self) -> WheelEntry {
        self.state.lock().wheel_entry
    }

    /// Changes the place on the watchdog's wheel. `change` must not call this hold.
    pub(crate) fn change_wheel_entry<R>(&self, change: impl FnOnce(&mut WheelEntry) -> R) -> R {
        change(&mut self.state.lock().wheel_entry)
    }

    /// Converts an instant into nanoseconds after the start of the hold, as in its [`WheelEntry`].
    pub(crate) fn nanos_at(&self, at: Instant) -> u64 {
        let after = at.saturating_duration_since(self.granted_at());
        u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Converts nanoseconds after the start of the hold into an instant.
    pub(crate) fn at_nanos(&self, nanos: u64) -> Instant {
        self.granted_at() + Duration::from_nanos(nanos)
    }

    /// Ends the hold as released. If the hold was over before, returns the loss, and notifies the
    /// listeners.
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
        // After a release the listeners are dropped without a call.
        result
    }

    /// Ends the hold as lost at `now` for `reason`, notifies the listeners on this thread, and
    /// returns `true`. If the hold was over before, has no effect and returns `false`.
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

    /// Decides why the validity has ended, if nothing has ended the hold. The only place of this
    /// decision. A server that hangs during a due renewal does not count as a pause of this
    /// process.
    pub(crate) fn reason_of_end(&self) -> LostReason {
        self.reason(&self.state.lock())
    }

    /// Decides the [reason of the end](Self::reason_of_end), with `state` locked.
    fn reason(&self, state: &HoldState) -> LostReason {
        // Relaxed: the flags only choose the reason in a report.
        if state.watched == 0 {
            // The hold was not to be renewed.
            LostReason::Expired
        } else if self.is_unanswered() {
            let number = self.unanswered.load(Ordering::Relaxed);
            let code = code_of_number(number.saturating_sub(1));
            code.map_or(LostReason::ServerUnreachable, |code| LostReason::Refused { code })
        } else if self.at_limit.load(Ordering::Relaxed) {
            LostReason::Expired
        } else {
            // No renewal became due in time.
            LostReason::Paused
        }
    }

    /// Whether a renewal has become due since the last grant.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// Notes that a renewal becomes due. The server's last refusal counts until the next answer.
    pub(crate) fn set_unanswered(&self) {
        // Relaxed: the value only chooses the reason in a report.
        self.unanswered.fetch_max(1, Ordering::Relaxed);
    }

    /// Notes that the server refused a renewal with this code, or did not answer (`None`).
    pub(crate) fn note_refusal(&self, code: Option<&str>) {
        let number = code.map_or(0, number_of_code);
        self.unanswered.store(number + 1, Ordering::Relaxed);
    }

    /// Whether the hold was released, or found to be lost.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Whether the hold was released, and not lost.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.state.lock();
        state.is_over && state.lost().is_none()
    }

    /// Returns how the hold was lost, if the loss was found.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.state.lock().lost()
    }

    /// Makes a channel for the reason of a loss, and adds its listener. The channel closes without
    /// a reason at a release, or when the listener is [removed](Self::remove_listener).
    pub(crate) fn listen(&self) -> (Receiver<LostReason>, Option<ListenerId>) {
        let (sender, receiver) = LossSender::new();
        (receiver, self.add_listener(sender))
    }

    /// Notifies `listener` of a loss, at once if the hold is lost, and drops `listener` at a
    /// release. A request to release the lock is passed too, also an earlier request. Returns
    /// `None` if the hold is over.
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

    /// Passes the first request to release the lock to each guard, present or future. The hold goes
    /// to no other thread of this client any more. Later requests have no effect.
    pub(crate) fn revoke(&self, revocation: &Revocation) {
        let listeners = self.state.lock().revoke(revocation);
        for listener in listeners {
            listener.on_revocation(revocation);
        }
    }

    /// Drops the listener of an ended guard, unless the listener was notified.
    pub(crate) fn remove_listener(&self, id: ListenerId) {
        let removed = self.state.lock().take_listener(id);
        // With nothing locked.
        drop(removed);
    }

    /// Drops the listener of a group left by the hold, unless the listener was notified.
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

/// Calls each listener with the reason of the loss.
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
    fn watched_hold_with_unanswered_renewal_is_lost_as_unreachable() {
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
    fn watched_hold_without_a_due_renewal_is_lost_as_paused() {
        let watched = hold(true);
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
        let (since, lease) = (watched.since(), watched.longest_lease());
        watched.set_unanswered();
        assert!(watched.extend(since + SECOND * 10, lease, since + SECOND * 10));
        assert_eq!(watched.reason_of_end(), LostReason::Paused);
    }

    #[test]
    fn watched_hold_at_limit_is_expired_unless_renewal_unanswered() {
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

    #[test]
    fn cached_holds_time_counts_from_the_first_caching_not_undone() {
        let hold = hold(true);
        let (now, lease) = (hold.since(), hold.longest_lease());
        let cache = |after: Duration| hold.cache(lease, now + after, SECOND).unwrap().until;
        let until = |after: Duration| now + after + SECOND;
        let millis = Duration::from_millis;
        assert_eq!(cache(millis(0)), Some(until(millis(0))));
        assert!(hold.undo_cache(true));
        assert_eq!(hold.cache_until(), None);
        assert_eq!(cache(millis(100)), Some(until(millis(100))));
        // Another thread was faster.
        assert!(hold.take_cached(None, lease, now + millis(200)));
        assert!(!hold.undo_cache(true));
        assert_eq!(hold.cache_until(), Some((until(millis(100)), false)));
        assert_eq!(cache(millis(300)), None);
        assert!(hold.undo_cache(false));
        assert_eq!(hold.cache_until(), Some((until(millis(100)), false)));
    }

    #[test]
    fn hold_once_nested_with_a_longer_lease_is_not_handed_over() {
        let now = |hold: &Hold| hold.since() + SECOND;
        for (nested, is_handed_over) in [(20, true), (30, true), (31, false)] {
            let hold = hold(true);
            let lease = hold.longest_lease();
            assert_eq!(hold.add_guard(Lease::new(SECOND * nested).unwrap(), false), Some(2));
            assert_eq!(hold.longest_lease().duration(), SECOND * nested.max(30));
            assert_eq!(hold.remove_guard(false), 1);
            let listeners = hold.change_holder(None, lease, now(&hold), None);
            assert_eq!(listeners.is_some(), is_handed_over);
        }
    }
}
