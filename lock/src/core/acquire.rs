//! One acquire of any kind of lock, from the holder's own hold to the guard.
//!
//! [`acquire`] re-enters a hold of the holder. Otherwise [`wait_for`] tries at the server, once or
//! whenever the wait queue says so. The [`AcquireParameters`] never change. A
//! [`LockTry`] has the progress of the acquire. Dropping the [`LockTry`] of a failed acquire rolls
//! back its possible traces on the server: a try without a reply may still run there, until its
//! not-after. So an acquire which was sent twice, granted and released before its first copy
//! arrives leaves no orphan.
//!
//! A lost hold does not block its thread: while a guard of a lost hold exists, the thread acquires
//! a new hold with a new owner. The old guard reports the loss.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::cache::{AskedHolder, ask_holder};
use crate::core::client_core::ClientCore;
use crate::core::raw_guard::{RawGuard, Reuse};
use crate::core::spec::{LeasePolicy, LockSpec, Nesting};
use crate::core::traces::Traces;
use crate::core::tries::{Try, TryAnswer, WaitParameters, unanswered, wait_for};
use crate::error::{Error, LostReason};
use crate::events::acquires::{AcquireEnd, MetricsLabel};
use crate::events::tracing::{self, AcquireSpan};
use crate::hold::hold::Hold;
use crate::hold::named_acquires::{NamedAcquire, NamedTry};
use crate::hold::registry::FoundHold;
use crate::ledger::release::Release;
use crate::model::kind::{Kind, Layout};
use crate::model::lease::{self, Lease};
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::sync::park;
use crate::model::wait::WaitSpec;
use crate::model::wait_graph::Need;
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::ops::{Acquired, SetCountReply};
use crate::store::retry::{Answer, CallError, RetryPolicy, map_failure};
use crate::waits::registry::Recipient;
use crate::watchdog::CancellableRelease;

/// Acquires the lock for `holder`, or re-enters the holder's hold. Returns `None` if the time is
/// over before a grant. `core` must be `spec.core()`.
pub(crate) fn acquire(
    core: &Arc<ClientCore>,
    spec: &LockSpec,
    holder: &LocalHolder,
    wait: WaitSpec<'_>,
) -> Result<Option<RawGuard>, Error> {
    let _span = AcquireSpan::enter(|| spec.shown_name(), spec.kind);
    let acquired = acquire_since(core, spec, holder, wait, None);
    if let Ok(Some(_)) = acquired {
        // The grant was counted on its arrival.
        return acquired;
    }
    count_not_acquired(core, spec, acquired.as_ref().err());
    acquired
}

/// Counts an acquire without a grant, and writes its trace event. `error` is `None` if the time was
/// over.
pub(crate) fn count_not_acquired(core: &ClientCore, spec: &LockSpec, error: Option<&Error>) {
    let end = AcquireEnd::without_grant(error);
    let counters = core.watchdog.context.counters.acquires();
    counters.ended(spec.kind.into(), counters.label(spec.metrics_label), end);
    tracing::not_acquired(|| spec.shown_name(), spec.kind, end, error);
}

/// Tries once to acquire a missing member of a red lock held for `held_for`. Returns `None` after a
/// refusal, or without a request if the member's lease would exceed the longest hold, or while a
/// release of the member's name is pending: an earlier hold there has to be released first, and the
/// traces of one try have to be rolled back before the next try.
pub(crate) fn acquire_missing(
    spec: &LockSpec,
    holder: &LocalHolder,
    held_for: Duration,
) -> Result<Option<RawGuard>, Error> {
    let core = spec.core()?;
    let (name, policy) = (spec.name()?, spec.lease_policy()?);
    let now = core.now();
    let since = now.checked_sub(held_for).unwrap_or(now);
    let limit = core.settings.max_hold.and_then(|longest| since.checked_add(longest));
    let is_over = limit.is_some_and(|limit| policy.lease.valid_until(now) > limit);
    if is_over || core.watchdog.releases.ledger().contains(&name) {
        return Ok(None);
    }
    acquire_since(&core, spec, holder, WaitSpec::ONE_TRY, Some(since))
}

/// Acquires as [`acquire`] does, but counts no failure. `held_since` is the start of the hold;
/// `None` stands for the time of the granted request.
fn acquire_since(
    core: &Arc<ClientCore>,
    spec: &LockSpec,
    holder: &LocalHolder,
    wait: WaitSpec<'_>,
    held_since: Option<Instant>,
) -> Result<Option<RawGuard>, Error> {
    let parameters = AcquireParameters::new(core, spec, holder, wait, held_since)?;
    if parameters.cache.is_some() {
        core.holds.cache.set_used();
        core.waits.subscribe_to_revocations(&core.store);
    }
    // 1. The holder's own hold, or a cached hold. The acquire of a named owner is listed before, so
    //    a later grant to another thread of the owner wakes this thread. If the own hold is lost,
    //    the lock is acquired again.
    let named = core.holds.named.begin(&parameters.name, holder);
    if let Some(guard) = parameters.reuse()? {
        return Ok(Some(guard));
    }
    // 2. The server.
    let mut lock_try = LockTry::new(&parameters, named.as_ref())?;
    let (channel, mode) = (lock_try.id.wait_channel(), lock_try.mode);
    let waiting = WaitParameters {
        retries: spec.retries,
        recipient: parameters.recipient(),
        named: named.as_ref(),
        need: Some(if spec.kind == Kind::Read { Need::Shared } else { Need::Exclusive }),
        ..WaitParameters::new(&parameters.name, &channel, mode, wait)
    };
    Ok(wait_for(core, waiting, &mut lock_try)?.granted)
}

/// The parameters of an acquire: which lock, for whom and for how long. These never change.
pub(crate) struct AcquireParameters<'a> {
    core: &'a Arc<ClientCore>,
    spec: &'a LockSpec,
    holder: &'a LocalHolder,
    wait: WaitSpec<'a>,
    name: LockName,
    lease: LeasePolicy,
    min_hold: Option<Lease>,
    /// For how long the hold stays with this client after its last use.
    cache: Option<Duration>,
    /// For a missing member of a red lock: when the red lock was acquired.
    held_since: Option<Instant>,
    /// The label under which the acquire is counted.
    metrics_label: MetricsLabel,
    /// When the acquire began, by the client's clock.
    began: Instant,
}

impl<'a> AcquireParameters<'a> {
    /// Reads the parameters from `spec`, and the time from the client's clock. Returns an error for
    /// an invalid setting.
    pub(crate) fn new(
        core: &'a Arc<ClientCore>,
        spec: &'a LockSpec,
        holder: &'a LocalHolder,
        wait: WaitSpec<'a>,
        held_since: Option<Instant>,
    ) -> Result<Self, Error> {
        Ok(Self {
            core,
            spec,
            holder,
            wait,
            name: spec.name()?,
            lease: spec.lease_policy()?,
            min_hold: spec.min_hold()?,
            cache: spec.cache(holder)?,
            held_since,
            metrics_label: core.watchdog.context.counters.acquires().label(spec.metrics_label),
            began: core.now(),
        })
    }

    /// Returns the calling thread as a recipient of hand-overs. Returns `None` if the lock is not
    /// handed over or the hold would not be watched, and for a named owner.
    fn recipient(&self) -> Option<Recipient<'_>> {
        let thread = match *self.holder {
            LocalHolder::Thread(thread) => Some(thread),
            LocalHolder::Guard => None,
            LocalHolder::Named(_) => return None,
        };
        let may_be_given = self.spec.hands_over() && self.lease.watched;
        let watchdog = &self.core.watchdog;
        may_be_given.then_some(Recipient { name: &self.name, thread, watchdog })
    }

    /// Returns a guard of a hold of this client: another guard of the holder's own hold, or the
    /// only guard of a cached hold. Returns `None` if the acquire has to try at the server.
    fn reuse(&self) -> Result<Option<RawGuard>, Error> {
        let layout = self.spec.kind.layout();
        match self.core.holds.find_for(&self.name, self.holder, layout) {
            None => Ok(None),
            Some(FoundHold::Own(hold)) => self.nest(&hold),
            Some(FoundHold::Cached(hold)) => self.take_cached(hold),
        }
    }

    /// Adds a guard to the holder's own hold, sends the new count, and returns the guard. Returns
    /// `None` if the hold is lost or being released, or if the acquire is to wait for the own hold
    /// as for any hold.
    fn nest(&self, hold: &Arc<Hold>) -> Result<Option<RawGuard>, Error> {
        let core = self.core;
        let now = core.now();
        if !hold.is_held(now) {
            core.watchdog.lose(hold, hold.reason_of_end());
            return Ok(None);
        }
        // The wait for the thread's own renewed hold would never end.
        let forever = hold.watched_lease().is_some() && self.wait.is_unlimited();
        match self.spec.nesting {
            Nesting::Allowed => {}
            Nesting::Contends if !forever => return Ok(None),
            Nesting::Contends | Nesting::Refused => {
                return Err(Error::AlreadyHeld { name: self.name.shown() });
            }
        }
        self.check_watchdog()?;
        let LeasePolicy { lease, watched } = self.lease;
        let Some(count) = hold.add_guard(lease, watched) else {
            // Another thread of the same owner is releasing the hold.
            return Ok(None);
        };
        // If the clock panics, the guard is dropped.
        let guard = self.guard(Arc::clone(hold));
        let policy = core.policy_at(now, self.wait, self.spec.retries);
        match self.send_nested(hold, count, &policy) {
            Ok(true) => {
                self.set_min_hold(hold);
                Ok(Some(guard))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                // The count on the server may be one too high, which no decision reads. If this was
                // the last guard by now, its release is queued.
                drop(guard.defer_release());
                Err(core.or_shut_down(error))
            }
        }
    }

    /// Takes a cached hold for this acquire, and returns the guard. Sends nothing. If this acquire
    /// may not have the hold, releases the hold, as for another client, and returns `None`.
    fn take_cached(&self, hold: Arc<Hold>) -> Result<Option<RawGuard>, Error> {
        let core = self.core;
        if !core.waits.take_cached(&hold, self.recipient(), self.began) {
            return Ok(None);
        }
        self.count_acquired(&hold, self.began, false);
        let guard = self.guard(hold);
        // As after a hand-over.
        if core.is_shut_down() { Err(Error::Shutdown) } else { Ok(Some(guard)) }
    }

    /// Sends `count`, the number of guards, and extends the hold by the reply. Draws a token for a
    /// fenced lock without a token. Returns `false` if the hold is lost, and reports the loss.
    ///
    /// The count is absolute: a command that is sent twice has the effect of one. Redisson needs a
    /// latch key and a third round trip instead.
    fn send_nested(
        &self,
        hold: &Arc<Hold>,
        count: u32,
        policy: &RetryPolicy<'_>,
    ) -> Result<bool, Error> {
        let (core, lease) = (self.core, self.lease.lease);
        let set_count = hold.id().set_count(count, Some(lease));
        // From the sending until the acknowledgement.
        hold.count_sent();
        let answer =
            map_failure(core.call_with_policy(&set_count, policy), &set_count, &hold.name)?;
        if answer.reply == SetCountReply::Gone {
            core.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        }
        if !hold.extend(core.now(), lease, answer.sent_at) {
            // The hold ended before the answer arrived.
            core.watchdog.lose(hold, hold.reason_of_end());
            return Ok(false);
        }
        core.watchdog.watch(hold, answer.sent_at);
        if answer.late_copy_deadline.is_none() {
            hold.count_answered();
        }
        if self.spec.kind != Kind::Fenced || hold.token().is_some() {
            return Ok(true);
        }
        // The hold was acquired as a lock without tokens. A late copy draws one more token, which
        // is harmless.
        let draw = hold.id().draw_token();
        let answer = map_failure(core.call_with_policy(&draw, policy), &draw, &hold.name)?;
        let Some(token) = answer.reply else {
            core.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        };
        hold.get_or_set_token(token);
        Ok(true)
    }

    /// Returns the owner of the holder's own write hold, under which an acquire of a read hold gets
    /// in; otherwise `None`. Returns [`Error::Upgrade`] if the holder reads and would write. The
    /// read hold has an owner of its own: a late copy for an earlier read hold would end the new
    /// hold otherwise.
    fn find_write_hold(&self) -> Result<Option<Owner>, Error> {
        let held = |layout| {
            let hold = self.core.holds.find(&self.name, self.holder, layout)?;
            hold.is_held(self.core.now()).then(|| hold.owner.clone())
        };
        enclosing_write_hold(self.spec.kind, held)
            .map_err(|Upgrade| Error::Upgrade { name: self.name.shown() })
    }

    /// Makes an early release leave the key until `min_hold` after the grant.
    fn set_min_hold(&self, hold: &Hold) {
        if let Some(min_hold) = self.min_hold {
            hold.keep_until(hold.since() + min_hold.duration());
        }
    }

    /// Makes a guard for an already counted guard of `hold`, and sets the next user of the hold
    /// after its last guard by the settings.
    fn guard(&self, hold: Arc<Hold>) -> RawGuard {
        let guard = RawGuard::new(Arc::clone(self.core), hold, self.lease.watched);
        guard.reused_by(match self.cache {
            Some(cache) => Reuse::Cache(cache),
            None if self.spec.hands_over() && self.lease.watched => Reuse::HandOver,
            None => Reuse::Never,
        })
    }

    /// Counts a grant at `now`, labels the hold for the count of its time, and writes the trace
    /// event. `was_refused`: whether a try of the acquire was refused before.
    fn count_acquired(&self, hold: &Hold, now: Instant, was_refused: bool) {
        hold.set_metrics_label(self.metrics_label);
        let waited = now.saturating_duration_since(self.began);
        let counters = self.core.watchdog.context.counters.acquires();
        counters.acquired(hold.kind.into(), self.metrics_label, || waited, was_refused);
        tracing::acquired(&hold.name, hold.kind, &hold.owner, waited);
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn lease(&self) -> LeasePolicy {
        self.lease
    }

    /// Counts the end of an acquire without a grant, and writes its trace event.
    pub(crate) fn count_end(&self, end: AcquireEnd) {
        let counters = self.core.watchdog.context.counters.acquires();
        counters.ended(self.spec.kind.into(), self.metrics_label, end);
        tracing::not_acquired(|| self.spec.shown_name(), self.spec.kind, end, None);
    }

    /// Returns [`Error::WatchdogGone`] if the hold would be watched and no thread would renew the
    /// hold.
    pub(crate) fn check_watchdog(&self) -> Result<(), Error> {
        let gone = self.lease.watched && self.core.watchdog.is_dead(&self.name);
        if gone { Err(Error::WatchdogGone) } else { Ok(()) }
    }
}

/// Whether the owner of an acquire is in the queue on the server.
enum QueueState<'a> {
    Outside,
    /// The owner has sent a request, and no answer has arrived.
    Perhaps,
    /// The owner is in the queue. A shutdown waits for `release`. Dropping `release` cancels the
    /// release, unless queued.
    Inside {
        #[expect(dead_code, reason = "dropped when the owner has left")]
        release: CancellableRelease<'a>,
    },
}

/// The progress of an acquire, over all tries. Dropping a `LockTry` without a guard queues a
/// release if the server may have a grant, or a place of the owner in its queue, or if a copy of a
/// try may still arrive there.
pub(crate) struct LockTry<'a> {
    parameters: &'a AcquireParameters<'a>,
    /// Set if a named owner acquires.
    named: Option<&'a NamedAcquire<'a>>,
    /// The hold requested by the last try, or to be requested by the first.
    id: HoldId,
    mode: WaitMode,
    /// The owner of the write hold under which the holder reads.
    enclosing_write_hold: Option<Owner>,
    queue: QueueState<'a>,
    traces: Traces,
    /// How many tries were refused.
    refusals: u32,
    /// The holder that may have cached the lock. Its client was sent a revocation request.
    asked: Option<AskedHolder>,
}

impl<'a> LockTry<'a> {
    /// Prepares the first try, for a new owner. Sends nothing. Returns [`Error::Upgrade`] if the
    /// holder reads and would write.
    pub(crate) fn new(
        parameters: &'a AcquireParameters<'a>,
        named: Option<&'a NamedAcquire<'a>>,
    ) -> Result<Self, Error> {
        let owner = parameters.core.id.next_lock_owner(parameters.began, parameters.lease.watched);
        let id = HoldId { kind: parameters.spec.kind, name: parameters.name.clone(), owner };
        Ok(Self {
            parameters,
            named,
            mode: id.wait_mode(),
            id,
            enclosing_write_hold: parameters.find_write_hold()?,
            queue: QueueState::Outside,
            traces: Traces::default(),
            refusals: 0,
            asked: None,
        })
    }

    /// Waits until no other thread of the named owner tries, and begins the try of this thread.
    /// Returns the error of a wait without an answer if the time of the call is over before.
    fn begin_try(
        &self,
        named: &'a NamedAcquire<'a>,
        policy: &RetryPolicy<'_>,
    ) -> Result<NamedTry<'a>, Error> {
        let core = self.parameters.core;
        loop {
            if let Some(named_try) = named.begin_try() {
                return Ok(named_try);
            }
            if core.now() >= policy.deadline || policy.is_ended() {
                return Err(unanswered(core, None));
            }
            let parker = named.parker();
            policy.shutdown.while_parked(parker, || {
                if !policy.is_ended() {
                    park(&*core.clock, parker, Some(policy.deadline), policy.cancel);
                }
            });
        }
    }

    /// Sends the acquire `now` until the server answers, and notes the call's possible traces on
    /// the server. After a grant the hold has the deadline of late copies. Otherwise `Drop` rolls
    /// back the effect of late copies.
    fn call(&mut self, policy: &RetryPolicy<'_>, now: Instant) -> Result<Answer<Acquired>, Error> {
        let AcquireParameters { core, wait, lease, .. } = self.parameters;
        let write_hold = self.enclosing_write_hold.as_ref();
        let acquire = match self.parameters.cache {
            None => self.id.acquire(lease.lease, wait.waits, write_hold),
            Some(_) => self.id.acquire_from_holder(lease.lease),
        };
        // The owner is in the queue on the server from the sending of the request, even without an
        // answer.
        let joins = wait.waits && self.mode == WaitMode::Queued;
        if joins && matches!(self.queue, QueueState::Outside) {
            self.queue = QueueState::Perhaps;
        }
        let result = core.call_with_policy_at(now, &acquire, policy);
        self.note_result(policy, &result);
        let is_unsent = result.as_ref().is_err_and(|error| error.failure.is_unsent());
        if is_unsent && matches!(self.queue, QueueState::Perhaps) {
            // The owner is in no queue.
            self.queue = QueueState::Outside;
        }
        map_failure(result, &acquire, &self.id.name)
    }

    /// Notes the possible traces on the server of a call within `policy` with this `result`.
    pub(crate) fn note_result<R>(
        &mut self,
        policy: &RetryPolicy<'_>,
        result: &Result<Answer<R>, CallError>,
    ) {
        // The policy of a last try may end a little after the wait. For the roll-back the end of
        // the wait counts.
        let due = self.parameters.wait.deadline.unwrap_or(policy.deadline).min(policy.deadline);
        self.traces.note_result(due, result);
    }

    /// Notes that the server has granted the lock. Dropping this value rolls the grant back, unless
    /// [`granted`](Self::granted) follows.
    pub(crate) fn expect_roll_back(&mut self) {
        self.traces.expect_roll_back();
    }

    /// Returns the name and the owner of the requested hold.
    pub(crate) fn hold(&self) -> (LockName, Owner) {
        (self.id.name.clone(), self.id.owner.clone())
    }

    /// Counts a refusal, and notes that a queued owner is in the queue on the server. Returns how
    /// long to sleep: for `busy`, or in polled mode for the pause of the backoff if shorter. `None`
    /// if unknown.
    fn refused(&mut self, busy: Option<Duration>) -> Option<Duration> {
        let refusals = self.refusals;
        self.refusals = refusals.saturating_add(1);
        if matches!(self.queue, QueueState::Perhaps) {
            let release = self.release(None);
            let release = self.parameters.core.watchdog.begin_in_server_queue(release);
            self.queue = QueueState::Inside { release };
        }
        if self.mode != WaitMode::Polled {
            return busy;
        }
        let pause = self.parameters.spec.backoff.pause(refusals);
        Some(busy.map_or(pause, |busy| busy.min(pause)))
    }

    /// Makes the hold and the guard, and gives the hold to the registry and the watchdog. If the
    /// lease was over before the answer, releases the hold and returns [`Error::Lost`]. Returns
    /// [`Error::Shutdown`] after a shutdown.
    pub(crate) fn granted(
        &mut self,
        sent_at: Instant,
        token: Option<u64>,
    ) -> Result<RawGuard, Error> {
        let parameters = self.parameters;
        let (core, LeasePolicy { lease, watched }) = (parameters.core, parameters.lease);
        // From here on the hold answers for late copies, and a holder is in no queue.
        let late_copy_deadline = std::mem::take(&mut self.traces).late_copy_deadline;
        self.queue = QueueState::Outside;
        let (id, holder) = (self.id.clone(), parameters.holder.clone());
        let hold = Hold::new(id, holder, lease, watched, sent_at, late_copy_deadline);
        let hold = Arc::new(match parameters.held_since {
            None => hold,
            Some(since) => hold.started_at(since),
        });
        if let Some(token) = token {
            hold.get_or_set_token(token);
        }
        // Before the clock is read: if the clock panics, the guard releases the hold.
        let guard = parameters.guard(Arc::clone(&hold));
        let now = core.now();
        let in_time = hold.is_held(now);
        if in_time {
            parameters.set_min_hold(&hold);
        } else {
            // The server counts the lease from the arrival of the request, which was late.
            hold.note_sent_lease(lease);
        }
        core.holds.insert(&hold);
        core.watchdog.watch(&hold, sent_at);
        if core.is_shut_down() {
            // The shutdown may have ended all holds before this one was inserted. Dropping the
            // guard releases the hold.
            return Err(Error::Shutdown);
        }
        if in_time {
            parameters.count_acquired(&hold, now, self.refusals > 0);
            return Ok(guard);
        }
        // The lease was over before the answer arrived. The release reports the loss, and cleans
        // up.
        guard.release()?;
        Err(Error::Lost { name: parameters.name.shown(), reason: LostReason::Expired })
    }

    /// Returns the release, not begun yet, of any traces of this owner on the server. The lease of
    /// the release is at least the default, after which a server drops a silent waiter from its
    /// queue.
    fn release(&self, late_copy_deadline: Option<ServerTime>) -> Release {
        let lease = self.parameters.lease.lease.max(lease::DEFAULT);
        let releases = &self.parameters.core.watchdog.releases;
        releases.of_acquire(&self.id, lease, late_copy_deadline)
    }
}

impl Try for LockTry<'_> {
    type Grant = RawGuard;

    fn ask(
        &mut self,
        policy: &RetryPolicy<'_>,
        mut now: Instant,
    ) -> Result<TryAnswer<RawGuard>, Error> {
        let AcquireParameters { core, lease, .. } = self.parameters;
        // 1. Threads of one named owner try one by one. A grant to another of these threads is this
        //    thread's own hold, or the write hold under which this thread reads.
        let named_try = self.named.map(|named| self.begin_try(named, policy)).transpose()?;
        if named_try.is_some() {
            if let Some(guard) = self.parameters.reuse()? {
                return Ok(TryAnswer::Granted(guard, WakeHint::Wait));
            }
            self.enclosing_write_hold = self.parameters.find_write_hold()?;
            now = core.now();
        }
        // 2. No hold that no thread would renew.
        self.parameters.check_watchdog()?;
        // 3. The owner. After a refusal the owner is new, with a number that says when the request
        //    was made, unless the owner is in a queue on the server or an earlier try may still be
        //    granted.
        if self.traces.allow_new_owner(self.mode == WaitMode::Queued) {
            self.id.owner = core.id.next_lock_owner(now, lease.watched);
        }
        // 4. The call, and its answer.
        let answer = self.call(policy, now)?;
        let token = match answer.reply {
            Acquired::Busy(busy) => {
                return Ok(TryAnswer::Busy(self.refused(busy), WakeHint::Wait));
            }
            Acquired::HeldBy(busy, holder) => {
                ask_holder(core, &self.parameters.name, holder, policy, &mut self.asked);
                return Ok(TryAnswer::Busy(self.refused(busy), WakeHint::Wait));
            }
            Acquired::Granted => None,
            Acquired::Fenced(token) => Some(token),
        };
        let hint = match self.mode {
            WaitMode::Shared => WakeHint::MayTry,
            _ if lease.watched => WakeHint::Wait,
            _ => WakeHint::WaitFor(lease.lease.duration()),
        };
        // 5. The hold, which is in the registry before the try ends.
        self.granted(answer.sent_at, token).map(|guard| TryAnswer::Granted(guard, hint))
    }

    fn take_over(&mut self, hold: &Arc<Hold>) -> Result<RawGuard, Error> {
        let guard = self.parameters.guard(Arc::clone(hold));
        // Dropping the guard releases a hold that a shutdown has not released.
        if self.parameters.core.is_shut_down() {
            return Err(Error::Shutdown);
        }
        self.parameters.count_acquired(hold, self.parameters.core.now(), true);
        Ok(guard)
    }
}

impl Drop for LockTry<'_> {
    fn drop(&mut self) {
        let is_queued = !matches!(self.queue, QueueState::Outside);
        let release = || self.release(self.traces.late_copy_deadline);
        self.traces.roll_back(self.parameters.core, is_queued, release);
    }
}

/// The refusal of an acquire whose holder reads and would write: a reader cannot become a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upgrade;

/// Returns the write hold under which an acquire of this kind reads; `None` if the acquire does not
/// read, or the holder does not write. `held` returns the holder's hold of a layout. Returns
/// [`Upgrade`] if the holder reads and would write.
pub(crate) fn enclosing_write_hold<T>(
    kind: Kind,
    held: impl Fn(Layout) -> Option<T>,
) -> Result<Option<T>, Upgrade> {
    match kind {
        Kind::Write if held(Layout::Reader).is_some() => Err(Upgrade),
        Kind::Read => Ok(held(Layout::Writer)),
        _ => Ok(None),
    }
}
