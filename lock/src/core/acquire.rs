//! One acquire, from the owner's own hold to the guard, for every kind of lock.
//!
//! [`acquire`] re-enters a hold that the owner has; else [`wait_for`] asks the server, once or
//! whenever the wait queue says so. A [`LockRequest`] says what the caller wants, and never changes.
//! A [`LockTry`] says how far the acquire is. Dropping the [`LockTry`] of a failed acquire rolls back
//! what the acquire may have left on the server (DESIGN: late copies).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::cache::{AskedHolder, ask_holder};
use crate::core::client_core::ClientCore;
use crate::core::raw_guard::{RawGuard, Reuse};
use crate::core::spec::{LeasePolicy, LockSpec, Nesting};
use crate::core::traces::Traces;
use crate::core::tries::{Try, TryAnswer, WaitRequest, unanswered, wait_for};
use crate::error::{Error, LostReason};
use crate::events::acquires::{AcquireEnd, MetricsLabel};
use crate::events::tracing::{self, AcquireSpan};
use crate::hold::hold::Hold;
use crate::hold::named_acquires::{NamedAcquire, Turn};
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
use crate::watchdog::BegunRelease;

/// Acquires the lock for `holder`, or re-enters its hold. `None` if it could not be had in time.
/// `core` is that of `spec`.
pub(crate) fn acquire(
    core: &Arc<ClientCore>,
    spec: &LockSpec,
    holder: &LocalHolder,
    wait: WaitSpec<'_>,
) -> Result<Option<RawGuard>, Error> {
    let _span = AcquireSpan::enter(|| spec.shown_name(), spec.kind);
    let acquired = acquire_since(core, spec, holder, wait, None);
    if let Ok(Some(_)) = acquired {
        // Counted where it was granted.
        return acquired;
    }
    count_not_acquired(core, spec, acquired.as_ref().err());
    acquired
}

/// An acquire has ended without a grant.
pub(crate) fn count_not_acquired(core: &ClientCore, spec: &LockSpec, error: Option<&Error>) {
    let end = AcquireEnd::without_grant(error);
    let counters = core.watchdog.context.counters.acquires();
    counters.ended(spec.kind.into(), counters.label(spec.metrics_label), end);
    tracing::not_acquired(|| spec.shown_name(), spec.kind, end, error);
}

/// One try for a missing member of a red lock that has been held for `held_for`. `None` also if the
/// member would be renewed beyond the longest hold, and while a release of that name is queued: an
/// earlier hold there has to be released first, and what one try leaves behind has to be rolled
/// back before the next.
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

fn acquire_since(
    core: &Arc<ClientCore>,
    spec: &LockSpec,
    holder: &LocalHolder,
    wait: WaitSpec<'_>,
    held_since: Option<Instant>,
) -> Result<Option<RawGuard>, Error> {
    let request = LockRequest::new(core, spec, holder, wait, held_since)?;
    if request.cache.is_some() {
        core.holds.cache.set_used();
        core.waits.hear_requests(&core.store);
    }
    // 1. The holder's own hold, or a cached hold. The acquire of a named owner is listed before, so
    //    that a later grant to another thread of that owner wakes this thread. If the own hold turns
    //    out to be lost, the lock is acquired anew (DESIGN: re-entry).
    let named = core.holds.named.begin(&request.name, holder);
    if let Some(guard) = request.reuse()? {
        return Ok(Some(guard));
    }
    // 2. The server.
    let mut attempt = LockTry::new(&request, named.as_ref())?;
    let (channel, mode) = (attempt.id.wait_channel(), attempt.mode);
    let waiting = WaitRequest {
        retries: spec.retries,
        recipient: request.recipient(),
        named: named.as_ref(),
        need: Some(if spec.kind == Kind::Read { Need::Shared } else { Need::Exclusive }),
        ..WaitRequest::new(&request.name, &channel, mode, wait)
    };
    Ok(wait_for(core, waiting, &mut attempt)?.granted)
}

/// What an acquire is to get, for whom and how long. It never changes.
pub(crate) struct LockRequest<'a> {
    core: &'a Arc<ClientCore>,
    spec: &'a LockSpec,
    holder: &'a LocalHolder,
    wait: WaitSpec<'a>,
    name: LockName,
    lease: LeasePolicy,
    min_hold: Option<Lease>,
    /// For how long the hold stays with this client after its last use.
    cache: Option<Duration>,
    /// For a missing member of a red lock: when that was acquired.
    held_since: Option<Instant>,
    /// What the acquire is counted under.
    metrics_label: MetricsLabel,
    /// When the acquire began, by the client's clock.
    began: Instant,
}

impl<'a> LockRequest<'a> {
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

    /// Set if another thread may give its hold to the calling thread: the acquire waits for a plain,
    /// watched lock, and not for a named owner.
    fn recipient(&self) -> Option<Recipient<'_>> {
        let thread = match *self.holder {
            LocalHolder::Thread(thread) => Some(thread),
            LocalHolder::Guard => None,
            LocalHolder::Named(_) => return None,
        };
        let may_be_given = self.spec.hand_over && self.lease.watched;
        let watchdog = &self.core.watchdog;
        may_be_given.then_some(Recipient { name: &self.name, thread, watchdog })
    }

    /// A guard of a hold that this client has: one more of the holder's own, or the only one of a
    /// hold that is cached.
    fn reuse(&self) -> Result<Option<RawGuard>, Error> {
        let layout = self.spec.kind.layout();
        match self.core.holds.find_for(&self.name, self.holder, layout) {
            None => Ok(None),
            Some(FoundHold::Own(hold)) => self.nest(&hold),
            Some(FoundHold::Cached(hold)) => self.take_cached(hold),
        }
    }

    /// One more guard of the holder's own hold. `None` if the hold turns out to be lost.
    fn nest(&self, hold: &Arc<Hold>) -> Result<Option<RawGuard>, Error> {
        let core = self.core;
        let now = core.now();
        if !hold.is_held(now) {
            core.watchdog.lose(hold, hold.reason_of_end());
            return Ok(None);
        }
        // It would wait for its own renewed hold without end.
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
            // Another thread of the same owner releases it just now.
            return Ok(None);
        };
        // If the clock panics, it is dropped.
        let guard = self.guard(Arc::clone(hold));
        let policy = core.policy_at(now, self.wait, self.spec.retries);
        match self.send_nested(hold, count, &policy) {
            Ok(true) => {
                self.keep(hold);
                Ok(Some(guard))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                // The count on the server may be one too high, which no decision reads. What
                // matters is whether this was the last guard by now: then its release is queued.
                drop(guard.defer_release());
                Err(core.or_shut_down(error))
            }
        }
    }

    /// The guard of a cached hold. `None` if this acquire may not have the hold: then it is released,
    /// as for another client.
    fn take_cached(&self, hold: Arc<Hold>) -> Result<Option<RawGuard>, Error> {
        let core = self.core;
        if !core.waits.take_cached(&hold, self.recipient(), self.began) {
            return Ok(None);
        }
        self.count_acquired(&hold, self.began, false);
        let guard = self.guard(hold);
        // As with a hold that was handed over.
        if core.is_shut_down() { Err(Error::Shutdown) } else { Ok(Some(guard)) }
    }

    /// Tells the server of one more guard. False if the hold turns out to be lost.
    fn send_nested(
        &self,
        hold: &Arc<Hold>,
        count: u32,
        policy: &RetryPolicy<'_>,
    ) -> Result<bool, Error> {
        let (core, lease) = (self.core, self.lease.lease);
        let set_count = hold.id().set_count(count, Some(lease));
        // Until it is acknowledged, and only once sent.
        hold.count_sent();
        let answer =
            map_failure(core.call_with_policy(&set_count, policy), &set_count, &hold.name)?;
        if answer.reply == SetCountReply::Gone {
            core.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        }
        if !hold.extend(core.now(), lease, answer.sent_at) {
            // It ended while the answer was on its way.
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
        // It was acquired as a lock without tokens. A late copy draws one more, which does no harm.
        let draw = hold.id().draw_token();
        let answer = map_failure(core.call_with_policy(&draw, policy), &draw, &hold.name)?;
        let Some(token) = answer.reply else {
            core.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        };
        hold.keep_token(token);
        Ok(true)
    }

    /// The write hold of the same holder under which a reader gets in. The new hold has an owner of
    /// its own all the same: a late copy for an earlier read hold would end this one otherwise.
    fn find_write_hold(&self) -> Result<Option<Owner>, Error> {
        let held = |layout| {
            let hold = self.core.holds.find(&self.name, self.holder, layout)?;
            hold.is_held(self.core.now()).then(|| hold.owner.clone())
        };
        enclosing_write_hold(self.spec.kind, held)
            .map_err(|Upgrade| Error::Upgrade { name: self.name.shown() })
    }

    /// Has the hold stay for the minimum time if it is released earlier.
    fn keep(&self, hold: &Hold) {
        if let Some(min_hold) = self.min_hold {
            hold.keep_until(hold.since() + min_hold.duration());
        }
    }

    fn guard(&self, hold: Arc<Hold>) -> RawGuard {
        let guard = RawGuard::new(Arc::clone(self.core), hold, self.lease.watched);
        guard.reused_by(match self.cache {
            Some(cache) => Reuse::Cache(cache),
            None if self.spec.hand_over && self.lease.watched => Reuse::HandOver,
            None => Reuse::Never,
        })
    }

    /// The holder has the lock at `now`.
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

    /// The acquire ends without a grant.
    pub(crate) fn count_end(&self, end: AcquireEnd) {
        let counters = self.core.watchdog.context.counters.acquires();
        counters.ended(self.spec.kind.into(), self.metrics_label, end);
        tracing::not_acquired(|| self.spec.shown_name(), self.spec.kind, end, None);
    }

    /// An error if the hold would be watched and nothing would renew it.
    pub(crate) fn check_watchdog(&self) -> Result<(), Error> {
        let gone = self.lease.watched && self.core.watchdog.is_dead(&self.name);
        if gone { Err(Error::WatchdogGone) } else { Ok(()) }
    }
}

/// Whether the owner of an acquire is in the queue on the server.
enum QueueState<'a> {
    Outside,
    /// It asked, and there was no answer.
    Perhaps,
    /// A shutdown waits until it has left, by this release.
    Inside {
        #[expect(dead_code, reason = "dropped when the owner has left")]
        release: BegunRelease<'a>,
    },
}

/// How far an acquire is, over all tries. Dropping a `LockTry` without a guard leaves the queue on
/// the server; and if a copy of a try may still arrive there, a release is queued.
pub(crate) struct LockTry<'a> {
    request: &'a LockRequest<'a>,
    /// Set if a named owner acquires.
    named: Option<&'a NamedAcquire<'a>>,
    /// What the last try asked for, or the first will.
    id: HoldId,
    mode: WaitMode,
    /// The owner of the write hold under which the holder reads.
    enclosing_write_hold: Option<Owner>,
    queue: QueueState<'a>,
    traces: Traces,
    /// How many tries were refused.
    refusals: u32,
    /// What the holder's client was asked for, which may have cached the lock.
    asked: Option<AskedHolder>,
}

impl<'a> LockTry<'a> {
    pub(crate) fn new(
        request: &'a LockRequest<'a>,
        named: Option<&'a NamedAcquire<'a>>,
    ) -> Result<Self, Error> {
        let owner = request.core.id.next_lock_owner(request.began, request.lease.watched);
        let id = HoldId { kind: request.spec.kind, name: request.name.clone(), owner };
        Ok(Self {
            request,
            named,
            mode: id.wait_mode(),
            id,
            enclosing_write_hold: request.find_write_hold()?,
            queue: QueueState::Outside,
            traces: Traces::default(),
            refusals: 0,
            asked: None,
        })
    }

    /// Waits for the turn of this thread among the threads of the named owner, within the time of
    /// the call.
    fn take_turn(
        &self,
        named: &'a NamedAcquire<'a>,
        policy: &RetryPolicy<'_>,
    ) -> Result<Turn<'a>, Error> {
        let core = self.request.core;
        loop {
            if let Some(turn) = named.take_turn() {
                return Ok(turn);
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

    /// Asks the server until it answers, and records what that may have left there. After a grant
    /// the hold answers for late copies; otherwise `Drop` rolls back what a copy may do.
    fn call(&mut self, policy: &RetryPolicy<'_>, now: Instant) -> Result<Answer<Acquired>, Error> {
        let LockRequest { core, wait, lease, .. } = self.request;
        let write_hold = self.enclosing_write_hold.as_ref();
        let acquire = match self.request.cache {
            None => self.id.acquire(lease.lease, wait.waits, write_hold),
            Some(_) => self.id.acquire_from_holder(lease.lease),
        };
        // The owner is in the queue on the server from when the request is sent, although no answer
        // may come.
        let joins = wait.waits && self.mode == WaitMode::Queued;
        if joins && matches!(self.queue, QueueState::Outside) {
            self.queue = QueueState::Perhaps;
        }
        let result = core.call_with_policy_at(now, &acquire, policy);
        self.record(policy, &result);
        let is_unsent = result.as_ref().is_err_and(|error| error.failure.is_unsent());
        if is_unsent && matches!(self.queue, QueueState::Perhaps) {
            // There is no queue to leave.
            self.queue = QueueState::Outside;
        }
        map_failure(result, &acquire, &self.id.name)
    }

    /// Records what a call that `policy` has ended may have left on the server.
    pub(crate) fn record<R>(
        &mut self,
        policy: &RetryPolicy<'_>,
        result: &Result<Answer<R>, CallError>,
    ) {
        // The policy of a last try may end a little after the wait. For the roll-back the wait's end
        // counts.
        let due = self.request.wait.deadline.unwrap_or(policy.deadline).min(policy.deadline);
        self.traces.record(due, result);
    }

    /// The server has granted it: unless [`granted`](Self::granted) follows, it is rolled back.
    pub(crate) fn expect_roll_back(&mut self) {
        self.traces.expect_roll_back();
    }

    /// The name and the owner that are asked for.
    pub(crate) fn hold(&self) -> (LockName, Owner) {
        (self.id.name.clone(), self.id.owner.clone())
    }

    /// How long to sleep after a refusal.
    fn refused(&mut self, busy: Option<Duration>) -> Option<Duration> {
        let refusals = self.refusals;
        self.refusals = refusals.saturating_add(1);
        if matches!(self.queue, QueueState::Perhaps) {
            let release = self.release(None);
            let release = self.request.core.watchdog.begin_in_server_queue(release);
            self.queue = QueueState::Inside { release };
        }
        if self.mode != WaitMode::Polled {
            return busy;
        }
        let pause = self.request.spec.backoff.pause(refusals);
        Some(busy.map_or(pause, |busy| busy.min(pause)))
    }

    /// Makes the hold, gives it to the registry and to the watchdog, and makes the guard.
    pub(crate) fn granted(
        &mut self,
        sent_at: Instant,
        token: Option<u64>,
    ) -> Result<RawGuard, Error> {
        let request = self.request;
        let (core, LeasePolicy { lease, watched }) = (request.core, request.lease);
        // From here on the hold answers for late copies, and a holder is in no queue.
        let late_copy_deadline = std::mem::take(&mut self.traces).late_copy_deadline;
        self.queue = QueueState::Outside;
        let (id, holder) = (self.id.clone(), request.holder.clone());
        let hold = Hold::new(id, holder, lease, watched, sent_at, late_copy_deadline);
        let hold = Arc::new(match request.held_since {
            None => hold,
            Some(since) => hold.started_at(since),
        });
        if let Some(token) = token {
            hold.keep_token(token);
        }
        // Before the clock is read: if that panics, the guard releases it.
        let guard = request.guard(Arc::clone(&hold));
        let now = core.now();
        let in_time = hold.is_held(now);
        if in_time {
            request.keep(&hold);
        } else {
            // The server counts from when the request arrived, which was late.
            hold.request(lease);
        }
        core.holds.insert(&hold);
        core.watchdog.watch(&hold, sent_at);
        if core.is_shut_down() {
            // The shutdown may have ended all holds before this one was among them. Dropping the
            // guard releases it.
            return Err(Error::Shutdown);
        }
        if in_time {
            request.count_acquired(&hold, now, self.refusals > 0);
            return Ok(guard);
        }
        // The lease was over before the answer arrived. The release says so, and cleans up.
        guard.release()?;
        Err(Error::Lost { name: request.name.shown(), reason: LostReason::Expired })
    }

    /// What ends whatever the server may have of this owner. A server drops a waiter that has not
    /// asked for the default lease.
    fn release(&self, late_copy_deadline: Option<ServerTime>) -> Release {
        let lease = self.request.lease.lease.max(lease::DEFAULT);
        let releases = &self.request.core.watchdog.releases;
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
        let LockRequest { core, lease, .. } = self.request;
        // 1. Threads of one named owner ask in turns. What another of them was granted is the own
        //    hold of this one, or the write hold under which it reads.
        let turn = self.named.map(|named| self.take_turn(named, policy)).transpose()?;
        if turn.is_some() {
            if let Some(guard) = self.request.reuse()? {
                return Ok(TryAnswer::Granted(guard, WakeHint::Wait));
            }
            self.enclosing_write_hold = self.request.find_write_hold()?;
            now = core.now();
        }
        // 2. Nothing that nobody would renew.
        self.request.check_watchdog()?;
        // 3. The owner. After a refusal a new one, whose number says when it asked, unless the owner
        //    is in a queue on the server or an earlier try may still be granted.
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
                ask_holder(core, &self.request.name, holder, policy, &mut self.asked);
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
        // 5. The hold. It is in the registry before the turn ends.
        self.granted(answer.sent_at, token).map(|guard| TryAnswer::Granted(guard, hint))
    }

    fn take_over(&mut self, hold: &Arc<Hold>) -> Result<RawGuard, Error> {
        let guard = self.request.guard(Arc::clone(hold));
        // Dropping the guard releases what a shutdown has not released.
        if self.request.core.is_shut_down() {
            return Err(Error::Shutdown);
        }
        self.request.count_acquired(hold, self.request.core.now(), true);
        Ok(guard)
    }
}

impl Drop for LockTry<'_> {
    fn drop(&mut self) {
        let is_queued = !matches!(self.queue, QueueState::Outside);
        let release = || self.release(self.traces.late_copy_deadline);
        self.traces.roll_back(self.request.core, is_queued, release);
    }
}

/// A reader cannot become a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upgrade;

/// The write hold under which an acquire of this kind reads, if its holder has one. `held` is what
/// the holder has of a layout.
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
