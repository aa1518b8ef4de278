//! One acquire, from the owner's own hold to the guard, for every kind of lock.
//!
//! [`acquire`] reads from top to bottom: it re-enters a hold that the owner has; else it asks the
//! server, once or whenever its place in the wait queue says so. [`LockAcquire`] is its state over
//! all attempts. What a failed acquire may have left on the server, its `Drop` rolls back (DESIGN:
//! late copies).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, LostReason};
use crate::events::acquires::{AcquireEnd, MetricsLabel};
use crate::events::tracing::{self, AcquireSpan};
use crate::hold::hold::Hold;
use crate::hold::siblings::SiblingAcquire;
use crate::ledger::release::Release;
use crate::lock::raw_guard::RawGuard;
use crate::lock::spec::{LeasePolicy, LockSpec, Nesting};
use crate::model::kind::{Kind, Layout};
use crate::model::lease::{self, Lease};
use crate::model::name::LockName;
use crate::model::owner::{LocalHolder, Owner};
use crate::model::sync::{is_cancelled, park};
use crate::model::wait::WaitSpec;
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::ops::by_kind::{HoldId, SharedOperation};
use crate::ops::value::ServerTime;
use crate::ops::{Acquired, DrawToken, SetCountReply};
use crate::runtime::client_core::ClientCore;
use crate::runtime::release::roll_back;
use crate::runtime::wait::{Attempt, WaitAction};
use crate::runtime::wait_registry::Recipient;
use crate::store::retry::{Answer, RetryPolicy, map_failure};
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
    let end = AcquireEnd::without_grant(acquired.as_ref().err());
    let counters = core.watchdog.counters().acquires();
    counters.ended(spec.kind.into(), counters.label(spec.metrics_label), end);
    tracing::not_acquired(|| spec.shown_name(), spec.kind, end, acquired.as_ref().err());
    acquired
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
    if is_over || core.watchdog.releases().ledger().contains(&name) {
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
    let (name, lease, min_hold) = (spec.name()?, spec.lease_policy()?, spec.min_hold()?);
    let policy = || core.policy_at(core.now(), wait, spec.retries);

    // 1. The holder's own hold. It registers as a sibling before it looks, so that it is woken if
    //    another thread of the same named owner is granted a hold afterwards. If the own hold
    //    turns out to be lost, the lock is acquired anew (DESIGN: re-entry).
    let siblings = core.holds.siblings.begin(&name, holder);
    let (began, began_at) = (core.now(), core.watchdog.releases().ledger().mark());
    let owner = core.id.next_lock_owner(began, lease.watched);
    let id = HoldId { kind: spec.kind, name: name.clone(), owner };
    let mut acquire = LockAcquire {
        spec,
        core,
        holder,
        siblings: siblings.as_ref(),
        wait,
        lease,
        min_hold,
        mode: id.wait_mode(),
        id,
        held_since,
        enclosing_write_hold: None,
        metrics_label: core.watchdog.counters().acquires().label(spec.metrics_label),
        began,
        was_refused: false,
        refusals: 0,
        late_copy_deadline: None,
        queue: QueueState::Outside,
        answer_due: None,
        answered: false,
        must_roll_back: false,
    };
    let mut now = began;
    if let Some(hold) = acquire.own_hold() {
        if let Some(guard) = acquire.reenter(&hold, policy)? {
            return Ok(Some(guard));
        }
        now = core.now();
    }
    acquire.enclosing_write_hold = acquire.find_write_hold()?;

    // 2. Without a wait: one try.
    if !wait.waits {
        let of_try = core.policy_at(now, wait, spec.retries);
        let mut attempt =
            acquire.attempt(&of_try, now).map_err(|error| core.or_shut_down(error))?;
        if let (Attempt::Busy(..), Some(siblings)) = (&attempt, &siblings) {
            // The holder may be another thread of the same owner.
            wait_for_siblings(core, siblings, &of_try);
            attempt =
                acquire.check_siblings(|| of_try).map_err(|error| core.or_shut_down(error))?;
        }
        return match attempt {
            Attempt::Granted(guard, _) => Ok(Some(guard)),
            Attempt::Busy(..) => core.not_granted(&name, began_at),
        };
    }

    // 3. Else the wait queue says when to try (DESIGN: waiting).
    let channel = acquire.id.wait_channel();
    let sibling = siblings.as_ref().map(SiblingAcquire::parker);
    let recipient = recipient(spec, lease, holder, core, &name);
    let mut waiter =
        core.waits.join(&core.store, (&name, &channel), acquire.mode, wait, sibling, recipient);
    loop {
        match waiter.next_action() {
            WaitAction::HandedOver(hold) => return acquire.take_over(&hold).map(Some),
            WaitAction::Close(hold) => {
                // If it was lost, that is reported.
                drop(RawGuard::new(Arc::clone(core), hold, true).defer_release());
            }
            WaitAction::AskServer => match acquire.next_attempt(core.now()) {
                Ok(Attempt::Granted(guard, hint)) => {
                    waiter.granted(hint);
                    return Ok(Some(guard));
                }
                Ok(Attempt::Busy(busy, hint)) => waiter.refused(busy, hint),
                Err(error) => return core.end_of_wait(waiter.failed(error), &name),
            },
            WaitAction::CheckSiblings => match acquire.check_siblings(policy) {
                Ok(Attempt::Granted(guard, _)) => return Ok(Some(guard)),
                Ok(Attempt::Busy(..)) => {}
                Err(error) => return core.end_of_wait(waiter.failed(error), &name),
            },
            WaitAction::End(end) => {
                // Before its own place in a queue is given up, which is a release too.
                return match core.end_of_wait(end, &name)? {
                    None => core.not_granted(&name, began_at),
                    granted => Ok(granted),
                };
            }
        }
    }
}

/// What makes the acquire one that another thread may give its hold to: it waits for a plain,
/// watched lock, and not for a named owner.
fn recipient<'a>(
    spec: &LockSpec,
    lease: LeasePolicy,
    holder: &LocalHolder,
    core: &'a ClientCore,
    name: &'a LockName,
) -> Option<Recipient<'a>> {
    let thread = match *holder {
        LocalHolder::Thread(thread) => Some(thread),
        LocalHolder::Guard => None,
        LocalHolder::Named(_) => return None,
    };
    let may_be_given = spec.hand_over && lease.watched;
    may_be_given.then_some(Recipient { name, thread, watchdog: &core.watchdog })
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

/// One acquire, over all its attempts. If it ends without a guard, it leaves the queue on the
/// server; and if a copy of an attempt may still arrive there, a release is queued.
struct LockAcquire<'a> {
    spec: &'a LockSpec,
    core: &'a Arc<ClientCore>,
    holder: &'a LocalHolder,
    /// Its place among the threads of its holder, if that is a named owner.
    siblings: Option<&'a SiblingAcquire<'a>>,
    wait: WaitSpec<'a>,
    lease: LeasePolicy,
    min_hold: Option<Lease>,
    id: HoldId,
    mode: WaitMode,
    /// If it is a missing member of a red lock: when that was acquired.
    held_since: Option<Instant>,
    /// The owner of the write hold under which it reads.
    enclosing_write_hold: Option<Owner>,
    /// What it is counted under.
    metrics_label: MetricsLabel,
    /// When it began, by the client's clock.
    began: Instant,
    was_refused: bool,
    /// How many polls were refused.
    refusals: u32,
    late_copy_deadline: Option<ServerTime>,
    queue: QueueState<'a>,
    /// By when the last attempt was to be answered, if there was one: not after the deadline of the
    /// caller.
    answer_due: Option<Instant>,
    /// Whether the last attempt was answered.
    answered: bool,
    /// Whether it was granted and must not be kept.
    must_roll_back: bool,
}

impl LockAcquire<'_> {
    /// The hold that this holder has.
    fn own_hold(&self) -> Option<Arc<Hold>> {
        self.core.holds.find(&self.id.name, self.holder, self.id.kind.layout())
    }

    /// One more guard of the holder's own hold. `None` if that turns out to be lost.
    fn reenter<'p>(
        &self,
        hold: &Arc<Hold>,
        policy: impl FnOnce() -> RetryPolicy<'p>,
    ) -> Result<Option<RawGuard>, Error> {
        let core = self.core;
        if !hold.is_held(core.now()) {
            core.watchdog.lose(hold, hold.reason_of_end());
            return Ok(None);
        }
        // It would wait for its own renewed hold without end.
        let forever = hold.watched_lease().is_some() && self.wait.is_unlimited();
        match self.spec.nesting {
            Nesting::Allowed => {}
            Nesting::Contends if !forever => return Ok(None),
            Nesting::Contends | Nesting::Refused => {
                return Err(Error::AlreadyHeld { name: hold.name.shown() });
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
        match self.send_reentry(hold, count, &policy()) {
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

    /// Tells the server of one more guard. False if the hold turns out to be lost.
    fn send_reentry(
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
        if self.id.kind != Kind::Fenced || hold.token().is_some() {
            return Ok(true);
        }
        // It was acquired as a lock without tokens. A late copy draws one more, which does no harm.
        let draw = DrawToken::new(hold.name.clone(), hold.owner.clone());
        let answer = map_failure(core.call_with_policy(&draw, policy), &draw, &hold.name)?;
        let Some(token) = answer.reply else {
            core.watchdog.lose(hold, LostReason::Deleted);
            return Ok(false);
        };
        hold.set_token(token);
        Ok(true)
    }

    /// The write hold of the same holder under which a reader gets in. The new hold has an owner of
    /// its own all the same: a late copy for an earlier read hold would end this one otherwise.
    fn find_write_hold(&self) -> Result<Option<Owner>, Error> {
        let name = &self.id.name;
        let held = |layout| {
            let hold = self.core.holds.find(name, self.holder, layout)?;
            hold.is_held(self.core.now()).then(|| hold.owner.clone())
        };
        enclosing_write_hold(self.id.kind, held)
            .map_err(|Upgrade| Error::Upgrade { name: name.shown() })
    }

    /// One more guard of a hold that another thread of the same named owner has been granted
    /// meanwhile; or a read hold under its write hold.
    fn check_siblings<'p>(
        &mut self,
        policy: impl Fn() -> RetryPolicy<'p>,
    ) -> Result<Attempt<RawGuard>, Error> {
        if let Some(hold) = self.own_hold()
            && let Some(guard) = self.reenter(&hold, &policy)?
        {
            return Ok(Attempt::Granted(guard, WakeHint::Wait));
        }
        let write_hold = self.find_write_hold()?;
        if write_hold.is_some() && write_hold != self.enclosing_write_hold {
            self.enclosing_write_hold = write_hold;
            return self.attempt(&policy(), self.core.now());
        }
        Ok(Attempt::Busy(None, WakeHint::Wait))
    }

    /// Asks the server once, `now`. After a refusal it asks for a new owner, whose number says when
    /// it asked, unless the owner is in a queue on the server or an earlier attempt may still be
    /// granted.
    fn next_attempt(&mut self, now: Instant) -> Result<Attempt<RawGuard>, Error> {
        let is_queued = self.mode == WaitMode::Queued;
        let is_free = may_draw_anew(self.answered, is_queued, self.late_copy_deadline);
        if is_free && !self.must_roll_back {
            self.id.owner = self.core.id.next_lock_owner(now, self.lease.watched);
        }
        self.attempt(&self.core.policy_at(now, self.wait, self.spec.retries), now)
    }

    /// Asks the server once, `now`.
    fn attempt(
        &mut self,
        policy: &RetryPolicy<'_>,
        now: Instant,
    ) -> Result<Attempt<RawGuard>, Error> {
        let core = self.core;
        // The policy of a last try may end a little after the wait. For the roll-back the wait's
        // end counts.
        let end = self.wait.deadline.unwrap_or(policy.deadline);
        self.answer_due = Some(end.min(policy.deadline));
        let _asking = self.siblings.map(SiblingAcquire::begin_request);
        self.check_watchdog()?;
        let LeasePolicy { lease, watched } = self.lease;

        // The request. It is in the queue on the server from when it is sent, although no answer
        // may come.
        let write_hold = self.enclosing_write_hold.as_ref();
        let request = self.id.acquire(lease, self.wait.waits, write_hold);
        let queues = self.wait.waits && self.mode == WaitMode::Queued;
        if queues && matches!(self.queue, QueueState::Outside) {
            self.queue = QueueState::Perhaps;
        }

        // The call. If a release of this client was under way when it was sent, a refusal may be
        // due to that hold and says nothing: the acquire is sent once more.
        let mark = core.watchdog.releases().ledger().mark();
        let mut answer = self.call(&request, policy, now)?;
        if matches!(answer.reply, Acquired::Busy(_))
            && core.wait_for_own_releases(&self.id.name, mark, self.wait, policy)
        {
            let now = core.now();
            answer = self.call(&request, &policy.of_last_try(now), now)?;
        }

        // The answer.
        let token = match answer.reply {
            Acquired::Busy(busy) => {
                self.was_refused = true;
                if matches!(self.queue, QueueState::Perhaps) {
                    let release = core.watchdog.begin_in_server_queue(self.release(None));
                    self.queue = QueueState::Inside { release };
                }
                return Ok(Attempt::Busy(self.pause_after_refusal(busy), WakeHint::Wait));
            }
            Acquired::Granted => None,
            Acquired::Fenced(token) => Some(token),
        };
        let hint = match self.mode {
            WaitMode::Shared => WakeHint::MayTry,
            _ if watched => WakeHint::Wait,
            _ => WakeHint::WaitFor(lease.duration()),
        };
        self.begin_hold(answer.sent_at, token).map(|guard| Attempt::Granted(guard, hint))
    }

    /// Sends the request until it is answered, and keeps the deadline of its late copies. After a
    /// grant that is the hold's; otherwise `Drop` rolls back what such a copy may do.
    fn call(
        &mut self,
        request: &SharedOperation<Acquired>,
        policy: &RetryPolicy<'_>,
        now: Instant,
    ) -> Result<Answer<Acquired>, Error> {
        self.answered = false;
        match self.core.call_with_policy_at(now, request, policy) {
            Ok(answer) => {
                self.answered = true;
                self.late_copy_deadline = self.late_copy_deadline.max(answer.late_copy_deadline);
                Ok(answer)
            }
            Err(error) => {
                self.late_copy_deadline = self.late_copy_deadline.max(error.late_copy_deadline);
                if error.failure.is_unsent() && matches!(self.queue, QueueState::Perhaps) {
                    // There is no queue to leave.
                    self.queue = QueueState::Outside;
                }
                self.must_roll_back = error.failure.needs_roll_back();
                self.answered = self.must_roll_back;
                Err(error.failure.into_error(request, &self.id.name))
            }
        }
    }

    /// What ends whatever the server may have of this owner. A server drops a waiter that has not
    /// asked for the default lease.
    fn release(&self, late_copy_deadline: Option<ServerTime>) -> Release {
        let lease = self.lease.lease.max(lease::DEFAULT);
        self.core.watchdog.releases().of_acquire(&self.id, lease, late_copy_deadline)
    }

    /// How long to sleep after a refusal.
    fn pause_after_refusal(&mut self, busy: Option<Duration>) -> Option<Duration> {
        if self.mode != WaitMode::Polled {
            return busy;
        }
        let pause = self.spec.backoff.pause(self.refusals);
        self.refusals = self.refusals.saturating_add(1);
        Some(busy.map_or(pause, |busy| busy.min(pause)))
    }

    /// Makes the hold, gives it to the registry and to the watchdog, and makes the guard.
    fn begin_hold(&mut self, sent_at: Instant, token: Option<u64>) -> Result<RawGuard, Error> {
        let core = self.core;
        let LeasePolicy { lease, watched } = self.lease;
        // From here on the hold answers for late copies, and a holder is in no queue.
        let late_copy_deadline = self.late_copy_deadline.take();
        self.queue = QueueState::Outside;
        let (id, holder) = (self.id.clone(), self.holder.clone());
        let hold = Hold::new(id, holder, lease, watched, sent_at, late_copy_deadline);
        let hold = Arc::new(match self.held_since {
            None => hold,
            Some(since) => hold.started_at(since),
        });
        if let Some(token) = token {
            hold.set_token(token);
        }
        // Before the clock is read: if that panics, the guard releases it.
        let guard = self.guard(Arc::clone(&hold));
        let now = core.now();
        let in_time = hold.is_held(now);
        if in_time {
            self.keep(&hold);
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
            self.count_acquired(&hold, now, self.was_refused);
            return Ok(guard);
        }
        // The lease was over before the answer arrived. The release says so, and cleans up.
        guard.release()?;
        Err(Error::Lost { name: self.id.name.shown(), reason: LostReason::Expired })
    }

    /// Has the hold stay for the minimum time if it is released earlier.
    fn keep(&self, hold: &Hold) {
        if let Some(min_hold) = self.min_hold {
            hold.keep_until(hold.since() + min_hold.duration());
        }
    }

    fn guard(&self, hold: Arc<Hold>) -> RawGuard {
        let guard = RawGuard::new(Arc::clone(self.core), hold, self.lease.watched);
        guard.handing_over(self.spec.hand_over && self.lease.watched)
    }

    /// The guard of a hold that another thread of this client has given to this one.
    fn take_over(&self, hold: &Arc<Hold>) -> Result<RawGuard, Error> {
        let guard = self.guard(Arc::clone(hold));
        // Dropping the guard releases what a shutdown has not released.
        if self.core.is_shut_down() {
            return Err(Error::Shutdown);
        }
        self.count_acquired(hold, self.core.now(), true);
        Ok(guard)
    }

    /// It has the lock at `now`.
    fn count_acquired(&self, hold: &Hold, now: Instant, was_refused: bool) {
        hold.set_metrics_label(self.metrics_label);
        let waited = now.saturating_duration_since(self.began);
        let counters = self.core.watchdog.counters().acquires();
        counters.acquired(self.id.kind.into(), self.metrics_label, || waited, was_refused);
        tracing::acquired(&self.id.name, self.id.kind, &self.id.owner, waited);
    }

    /// An error if the hold would be watched and nothing would renew it.
    fn check_watchdog(&self) -> Result<(), Error> {
        let gone = self.lease.watched && self.core.watchdog.is_dead(&self.id.name);
        if gone { Err(Error::WatchdogGone) } else { Ok(()) }
    }
}

impl Drop for LockAcquire<'_> {
    fn drop(&mut self) {
        let is_queued = !matches!(self.queue, QueueState::Outside);
        let is_there = is_queued || self.must_roll_back;
        let release = || self.release(self.late_copy_deadline);
        match Leftover::of(is_there, self.late_copy_deadline) {
            Leftover::Nothing => {}
            Leftover::LateCopy => roll_back(self.core, release(), None),
            Leftover::Owner => {
                // A server that did not answer just now is not waited for again.
                let answer_due = self.answer_due.filter(|_| self.answered);
                roll_back(self.core, release(), answer_due);
            }
        }
    }
}

/// Whether the next try of an acquire may be for a new owner: the last one was answered, the owner
/// is in no queue on the server, and no copy of a try may arrive.
pub(crate) fn may_draw_anew(
    is_answered: bool,
    is_queued: bool,
    late_copy_deadline: Option<ServerTime>,
) -> bool {
    is_answered && !is_queued && late_copy_deadline.is_none()
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

/// What an acquire that ended without a guard has left on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Nothing,
    /// Nothing yet: a copy of it may arrive and be granted.
    LateCopy,
    /// A hold, or a place in the queue.
    Owner,
}

impl Leftover {
    /// `is_there`: the owner holds the lock on the server, or is in its queue.
    pub(crate) fn of(is_there: bool, late_copy_deadline: Option<ServerTime>) -> Self {
        match late_copy_deadline {
            _ if is_there => Self::Owner,
            Some(_) => Self::LateCopy,
            None => Self::Nothing,
        }
    }
}

/// Waits until no other thread of the same owner asks the server, or until there is no more time.
fn wait_for_siblings(core: &ClientCore, siblings: &SiblingAcquire<'_>, policy: &RetryPolicy<'_>) {
    while siblings.siblings_have_request()
        && core.now() < policy.deadline
        && !is_cancelled(policy.cancel)
        && !core.is_shut_down()
    {
        park(&*core.clock, siblings.parker(), Some(policy.deadline), policy.cancel);
    }
}
