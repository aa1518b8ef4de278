//! How a thread waits for a grant: all locks, semaphores and latches wait here. Red locks wait for
//! their servers elsewhere.
//!
//! A thread joins the queue of its channel and takes one [`WaitAction`] after the other. It tries;
//! if refused, it subscribes; when the subscription is confirmed it tries again, as a message may
//! have been published before; then it sleeps until a message, the end of the other owner's lease,
//! the poll bound, its deadline or a cancellation. [`WaitQueue`] decides which waiter tries and
//! when (DESIGN: waiting).
//!
//! A *lone* waiter, the only one of the client, tries first. It joins the queue when it is refused
//! or another thread begins to wait.
//!
//! [`WaitQueue`]: crate::waits::queue::WaitQueue

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::core::traces::LONGEST_ROUND_TRIP;
use crate::core::tries::WaitRequest;
use crate::error::Error;
use crate::hold::hold::Hold;
use crate::hold::long_waits::{LONG, ListedUntilDropped, LongWaits};
use crate::hold::named_acquires::NamedAcquire;
use crate::model::settings::HandOver;
use crate::model::sync::{Parker, is_cancelled, park};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::store::Store;
use crate::store::retry::SHORTEST_CALL;
use crate::waits::queue::{JoinMode, Step, Ticket, Wakes};
use crate::waits::registry::{ChannelQueue, Recipient, WaitRegistry, WaitingThread, remove_unused};

/// What a waiter does next.
#[derive(Debug)]
pub(crate) enum WaitAction {
    /// It asks the server, and reports the result: [`Waiter::granted`], [`Waiter::refused`] or
    /// [`Waiter::failed`]. A named owner looks for a hold of its own first.
    AskServer,
    /// It was given the hold of another thread of this client, and is its holder now. It has left
    /// the queue.
    HandedOver(Arc<Hold>),
    /// This wait has lasted for long. Its thread looks for deadlocks.
    LookForDeadlocks,
    /// It waits no longer.
    End(WaitEnd),
}

/// How a wait without a grant ended.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The server has said since the wait began that another owner holds it or is ahead in the
    /// queue; or this client held it.
    TimedOut,
    /// The time is over, and the server has answered no waiter of the queue since the wait began.
    /// The last error of one of them, if there was one.
    Unanswered(Option<Error>),
    Cancelled,
    /// The client was shut down.
    Closed,
    /// The error of the last try.
    Failed(Error),
}

impl WaitRegistry {
    /// Joins the queue of a name on its channel, until the waiter is dropped.
    pub(crate) fn join<'a>(&'a self, store: &'a Store, request: WaitRequest<'a>) -> Waiter<'a> {
        let WaitRequest { name, channel, mode, .. } = request;
        let has_braces = name.has_braces();
        let recipient = request.recipient.filter(|_| self.settings.hand_over != HandOver::Off);
        let now = self.clock.now();
        let mut channels = self.channels.lock();
        // With the channels locked: a hold that is in use now will find this waiter when it ends.
        let knows_holder = recipient.is_some_and(|recipient| self.is_in_use(recipient.name, now));
        let parker = knows_holder.then(Parker::new);
        let is_lone = !knows_holder && request.named.is_none() && channels.is_empty();
        let (state, ticket) = if is_lone {
            channels.add_lone((channel, has_braces), mode, self.settings.poll_bound(mode), now);
            (WaiterState::Lone, Ticket::FIRST)
        } else {
            channels.queue_lone();
            let join_mode = match mode {
                WaitMode::Exclusive if knows_holder => JoinMode::KnowsHolder,
                _ => JoinMode::of(mode),
            };
            let of_channel = channels.get_or_add(channel, self.settings.poll_bound(mode));
            let waiters = of_channel.of(has_braces).waiters(mode);
            if waiters.queue.is_empty() {
                // That of an earlier wait.
                waiters.failure = None;
            }
            let ticket = waiters.queue.join(join_mode, now);
            if let Some(parker) = &parker {
                waiters.threads.insert(ticket, WaitingThread::new(parker, recipient));
            }
            (WaiterState::Queued, ticket)
        };
        drop(channels);
        if parker.is_some() {
            self.sleepers.up(1);
        }
        Waiter {
            state,
            registry: self,
            store,
            request,
            has_braces,
            recipient,
            ticket,
            parker,
            answer_by: None,
            trying: None,
            round_trip: None,
            listing: match request.need {
                Some(_)
                    if self.settings.looks_for_deadlocks && LongWaits::can_list(request.name) =>
                {
                    Listing::At(now + LONG)
                }
                _ => Listing::Never,
            },
            since: now,
        }
    }
}

/// Whether a wait is among those that have lasted for long.
#[derive(Debug)]
enum Listing<'a> {
    Never,
    /// This wait is listed at that time.
    At(Instant),
    Listed(ListedUntilDropped<'a>),
}

/// What a waiter finds when it looks at its queue.
enum QueueLook {
    Step(Step),
    HandedOver(Arc<Hold>),
}

/// By when a waiter with a deadline needs an answer of the server, its own or another waiter's.
#[derive(Clone, Copy, Debug)]
struct AnswerBy {
    /// When to ask for one, if there was none by then: after a quarter of the time.
    ask_at: Option<Instant>,
    /// How long to wait for it. A little beyond the deadline of a very short wait, as with a call.
    end: Option<Instant>,
}

impl AnswerBy {
    fn new(now: Instant, deadline: Option<Instant>) -> Self {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        Self {
            ask_at: left.map(|left| now + left / 4),
            end: deadline.map(|deadline| deadline.max(now + SHORTEST_CALL)),
        }
    }
}

/// How far a waiter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    /// Nobody else waited when it came. It tries, and is in no queue unless a thread has looked at
    /// the queues since.
    Lone,
    /// It is in its queue.
    Queued,
    /// It was granted and is in the queue no longer. The channel may have been removed and made
    /// anew since, with its ticket given to another waiter.
    Granted,
    /// It has nothing more to do with its channel.
    Left,
}

/// A thread's place in a channel's queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    registry: &'a WaitRegistry,
    store: &'a Store,
    request: WaitRequest<'a>,
    has_braces: bool,
    /// Set if the waiter may be given a hold.
    recipient: Option<Recipient<'a>>,
    state: WaiterState,
    ticket: Ticket,
    /// Once it sleeps; from the start if it knows the holder.
    parker: Option<Parker>,
    answer_by: Option<AnswerBy>,
    /// The try that is under way: what it was woken by, and when it began.
    trying: Option<(Wakes, Instant)>,
    /// The shortest so far, once there was one.
    round_trip: Option<Duration>,
    /// Whether others see that this one waits.
    listing: Listing<'a>,
    since: Instant,
}

impl Waiter<'_> {
    /// Sleeps until there is something to do, which may be at once.
    pub(crate) fn next_action(&mut self) -> WaitAction {
        let registry = self.registry;
        let deadline = self.request.wait.deadline;
        loop {
            // 1. A shutdown or a cancellation ends every wait.
            if let Some(end) = self.end() {
                return WaitAction::End(end);
            }
            // Another thread waits for this one, and holds the lock.
            if let Listing::Listed(listed) = &self.listing
                && let Some(cycle) = listed.failed()
            {
                let name = self.request.name.shown();
                return WaitAction::End(WaitEnd::Failed(Error::Deadlock { name, cycle }));
            }
            // 2. Another thread of the same named owner was granted a hold, which is this owner's.
            if self.request.named.is_some_and(NamedAcquire::take_new_hold) {
                return WaitAction::AskServer;
            }
            // 3. What is left of the time, and whether the server has answered anyone in the queue
            //    since this one came.
            let now = registry.clock.now();
            let AnswerBy { ask_at, end: answer_end } =
                *self.answer_by.get_or_insert_with(|| AnswerBy::new(now, deadline));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let heard = deadline.is_none() || self.round_trip.is_some() || self.has_answer();
            let end = if heard { deadline } else { answer_end };
            // The first try is made in any case. Later ones only if their answer can arrive in
            // time: one that the deadline cuts off would be an error, although another owner holds
            // the lock.
            let in_time = left.zip(self.round_trip).is_none_or(|(left, trip)| left > trip);
            let step = match self.look(now) {
                QueueLook::Step(step) => step,
                QueueLook::HandedOver(hold) => return WaitAction::HandedOver(hold),
            };
            // A hold of this client may have been cached since this one came.
            if matches!(step, Step::Sleep(_))
                && self.parker.is_some()
                && let Some(hold) = self.take_cached(now)
            {
                return WaitAction::HandedOver(hold);
            }
            let look_at = match step {
                Step::Sleep(_) => self.look_at(now),
                Step::Try(_) => None,
            };
            if matches!(step, Step::Sleep(_)) && self.takes_look(now) {
                return WaitAction::LookForDeadlocks;
            }
            match step {
                // 4. This one leads the queue, and there is something to try for.
                Step::Try(wakes) if in_time => {
                    self.trying = Some((wakes, now));
                    return WaitAction::AskServer;
                }
                // 5. No answer after a quarter of the time: the leader tries now, for all. Without
                //    an answer `None` would not be true.
                Step::Sleep(_) if !heard && ask_at.is_some_and(|at| at <= now) => {
                    self.answer_by = Some(AnswerBy { ask_at: None, end: answer_end });
                    self.ask(now);
                }
                // 6. Sleep until woken, or until the queue, the deadline or step 5 needs a look.
                Step::Sleep(wake_at) if end.is_none_or(|end| now < end) => match &self.parker {
                    Some(parker) => {
                        let ask_at = ask_at.filter(|_| !heard);
                        let wake_at = wake_at.into_iter().chain(end).chain(ask_at).chain(look_at);
                        let wake_at = wake_at.min();
                        park(&*registry.clock, parker, wake_at, self.request.wait.cancel);
                    }
                    // Most waiters never sleep. One that does looks again first: a message may have
                    // come before it had a parker.
                    None => self.set_parker(),
                },
                // 7. The time is over.
                Step::Sleep(_) if !heard => {
                    return WaitAction::End(WaitEnd::Unanswered(self.failure()));
                }
                Step::Try(_) | Step::Sleep(_) => {
                    // Others may try meanwhile.
                    self.leave();
                    return WaitAction::End(self.wait_out());
                }
            }
        }
    }

    /// The try was granted.
    pub(crate) fn granted(&mut self, hint: WakeHint) {
        if !self.enter_queue(false) {
            return;
        }
        let Some((wakes, now)) = self.answered() else { return };
        self.state = WaiterState::Granted;
        self.with_queue((), |waiters| {
            waiters.queue.granted(self.ticket, wakes, hint, now);
            waiters.threads.remove(&self.ticket);
            waiters.answered();
            // With the queues locked: if the hold has ended already, the wake for that is counted.
            let waits = |recipient: Recipient<'_>| {
                waiters.gives_next(recipient.name) && self.registry.is_in_use(recipient.name, now)
            };
            if self.recipient.is_some_and(waits) {
                // The next one waits for this thread.
                waiters.queue.cover();
            } else if !waiters.subscribed {
                // Nothing was refused so far, so no message will come. The next in the queue tries,
                // is refused and subscribes.
                waiters.queue.wake();
            }
        });
    }

    /// The try was refused, for `busy` if that is known.
    pub(crate) fn refused(&mut self, busy: Option<Duration>, hint: WakeHint) {
        self.enter_queue(true);
        let Some((wakes, now)) = self.answered() else { return };
        self.with_queue((), |waiters| {
            waiters.queue.refused(self.ticket, wakes, busy, hint, now);
            waiters.answered();
            // The next may have something to try for, and have been asleep since before this call.
            waiters.unpark(waiters.queue.leader(now).filter(|leader| *leader != self.ticket));
        });
        if self.request.mode != WaitMode::Polled {
            self.subscribe();
        }
    }

    /// The try got no answer, or an error that others would get too. It ends this wait.
    pub(crate) fn failed(&self, error: Error) -> WaitEnd {
        // If it was cut off, the server is not to blame. The attempt cleans up what it left behind.
        if let Some(end) = self.end() {
            return end;
        }
        self.with_queue((), |waiters| waiters.failure = Some(error.clone()));
        WaitEnd::Failed(error)
    }

    /// A lone waiter is in its queue from now on if it `stays`, or if a thread has looked at
    /// the queues. Otherwise it has left. Returns whether it has not left.
    fn enter_queue(&mut self, stays: bool) -> bool {
        if self.state == WaiterState::Lone {
            let is_queued = self.registry.channels.lock().end_lone(stays);
            self.state = if is_queued { WaiterState::Queued } else { WaiterState::Left };
        }
        self.state != WaiterState::Left
    }

    /// Whether this waiter, which looks for deadlocks, would not go on sleeping: it was given a hold, has
    /// something to try for, or waits no longer.
    pub(crate) fn has_work(&self) -> bool {
        let now = self.registry.clock.now();
        self.end().is_some()
            || self.with_queue(false, |waiters| {
                let thread = waiters.threads.get(&self.ticket);
                let is_given = thread.is_some_and(|thread| thread.given.is_some());
                is_given || waiters.queue.is_called(self.ticket, now)
            })
    }

    /// When this wait has lasted for long, or a waiter is to look for deadlocks. Lists the wait in time.
    fn look_at(&mut self, now: Instant) -> Option<Instant> {
        let parker = self.parker.as_ref()?;
        if let (Listing::At(at), Some(need)) = (&self.listing, self.request.need)
            && *at <= now
        {
            let (registry, name) = (self.registry, self.request.name);
            let may_fail = registry.settings.waits_may_fail;
            let (holds, waits) = (&registry.holds, &registry.holds.long_waits);
            let listed = waits.list(holds, (name, need), (self.since, now), may_fail, parker);
            // If there are too many, later.
            self.listing = listed.map_or(Listing::At(now + LONG), Listing::Listed);
            registry.name_waits();
        }
        match &self.listing {
            Listing::Never => None,
            Listing::At(at) => Some(*at),
            Listing::Listed(listed) => listed.next_look(),
        }
    }

    /// Whether it is time to look for deadlocks, and this waiter is the one to do so.
    fn takes_look(&self, now: Instant) -> bool {
        matches!(&self.listing, Listing::Listed(listed) if listed.takes_look(now))
    }

    fn end(&self) -> Option<WaitEnd> {
        if self.registry.is_closed() {
            return Some(WaitEnd::Closed);
        }
        is_cancelled(self.request.wait.cancel).then_some(WaitEnd::Cancelled)
    }

    /// The try that was under way has an answer.
    fn answered(&mut self) -> Option<(Wakes, Instant)> {
        let (wakes, began) = self.trying.take()?;
        let now = self.registry.clock.now();
        let took = now.saturating_duration_since(began);
        // The shortest so far: one that was held up says nothing about the next.
        let shortest = self.round_trip.map_or(took, |shortest| shortest.min(took));
        self.round_trip = Some(shortest.min(LONGEST_ROUND_TRIP));
        Some((wakes, now))
    }

    /// The rest of a wait in which no answer can arrive any more: less than one round trip.
    fn wait_out(&self) -> WaitEnd {
        let (clock, wait) = (&*self.registry.clock, self.request.wait);
        loop {
            if let Some(end) = self.end() {
                return end;
            }
            if wait.deadline.is_none_or(|deadline| deadline <= clock.now()) {
                return WaitEnd::TimedOut;
            }
            park(clock, &Parker::new(), wait.deadline, wait.cancel);
        }
    }

    fn set_parker(&mut self) {
        let parker = self.request.named.map_or_else(Parker::new, |named| named.parker().clone());
        let thread = WaitingThread::new(&parker, self.recipient);
        self.with_queue((), |waiters| drop(waiters.threads.insert(self.ticket, thread)));
        self.registry.sleepers.up(1);
        self.parker = Some(parker);
    }

    /// What to do next: by the queue, or with the hold that it was given.
    fn look(&mut self, now: Instant) -> QueueLook {
        if self.state == WaiterState::Lone {
            return QueueLook::Step(Step::Try(Wakes::FIRST));
        }
        let (registry, ticket) = (self.registry, self.ticket);
        let mut channels = registry.channels();
        let Some(channel) = channels.by_name.get_mut(self.request.channel) else {
            return QueueLook::Step(Step::Sleep(None));
        };
        let waiters = channel.of(self.has_braces).waiters(self.request.mode);
        if let Some(hold) = waiters.threads.get_mut(&ticket).and_then(|thread| thread.given.take())
        {
            // Looked at on this thread: it may have been stopped since the hold was given to it.
            if !hold.is_fresh(now, registry.settings.lease) {
                waiters.queue.decline(ticket);
                drop(channels);
                self.end_given(&hold);
                return self.look(now);
            }
            waiters.queue.take(ticket);
            waiters.threads.remove(&ticket);
            drop(channels);
            self.state = WaiterState::Left;
            registry.sleepers.down(1);
            return QueueLook::HandedOver(hold);
        }
        let step = waiters.queue.step(ticket, now);
        if matches!(step, Step::Try(_)) {
            // It leads although others ahead of it are stuck, or after some have left that woke
            // nobody. A deputy behind it has to watch it now.
            let unwatched = waiters.queue.take_unwatched();
            if unwatched || waiters.queue.tickets().next() != Some(ticket) {
                waiters.queue.to_wake(now).for_each(|ticket| waiters.unpark(Some(ticket)));
            }
        }
        QueueLook::Step(step)
    }

    /// Takes the cached hold of the name, and leaves the queue. If this waiter may not have the hold,
    /// the hold is released.
    fn take_cached(&mut self, now: Instant) -> Option<Arc<Hold>> {
        let (registry, request) = (self.registry, self.request);
        // This waiter was counted before: the thread that caches the hold sees the waiter, or the
        // waiter sees the hold.
        fence(Ordering::SeqCst);
        let hold = registry.holds.find_cached(request.name)?;
        if request.mode == WaitMode::Watching
            || !registry.take_cached(&hold, request.recipient, now)
        {
            return None;
        }
        self.leave();
        Some(hold)
    }

    fn has_answer(&self) -> bool {
        self.state != WaiterState::Lone
            && self.with_queue(false, |waiters| waiters.queue.has_answer(self.ticket))
    }

    fn ask(&self, now: Instant) {
        self.with_queue((), |waiters| {
            waiters.queue.ask(self.ticket, now);
            waiters.unpark(waiters.queue.leader(now));
        });
    }

    fn failure(&self) -> Option<Error> {
        self.with_queue(None, |waiters| waiters.failure.clone())
    }

    fn subscribe(&self) {
        let first = self.with_queue(false, |waiters| {
            let first = !std::mem::replace(&mut waiters.subscribed, true);
            if first {
                self.store.subscribe(self.request.channel);
            }
            first
        });
        // With the queues unlocked: a message may be on its way to them.
        if first {
            self.store.flush();
        }
    }

    fn with_queue<R>(&self, otherwise: R, act: impl FnOnce(&mut ChannelQueue) -> R) -> R {
        let mut channels = self.registry.channels();
        let channel = channels.by_name.get_mut(self.request.channel);
        let mode = self.request.mode;
        channel.map_or(otherwise, |channel| act(channel.of(self.has_braces).waiters(mode)))
    }

    /// Leaves the queue.
    fn leave(&mut self) {
        if !self.enter_queue(false) {
            return;
        }
        let state = std::mem::replace(&mut self.state, WaiterState::Left);
        if self.parker.is_some() {
            self.registry.sleepers.down(1);
        }
        let (leaves_others, given) = self.leave_others(state);
        if let Some(hold) = given {
            self.end_given(&hold);
        }
        if leaves_others {
            // Not with the queues locked: the clock may be foreign code.
            let now = self.registry.clock.now();
            self.with_queue((), |waiters| {
                waiters.queue.to_wake(now).for_each(|ticket| waiters.unpark(Some(ticket)));
            });
        }
    }

    /// The waiter was given a hold that nobody uses. A renewal thread releases the hold.
    fn end_given(&self, hold: &Arc<Hold>) {
        if let Some(recipient) = self.recipient {
            hold.remove_guard(true);
            recipient.watchdog.end_in_background(hold, None);
        }
    }

    /// Whether it leaves others behind, and the hold that it was given. Without others, the
    /// subscription and the channel go with it.
    fn leave_others(&self, state: WaiterState) -> (bool, Option<Arc<Hold>>) {
        let mut channels = self.registry.channels();
        let Entry::Occupied(mut entry) = channels.by_name.entry(Arc::clone(self.request.channel))
        else {
            return (false, None);
        };
        let waiters = entry.get_mut().of(self.has_braces).waiters(self.request.mode);
        let mut given = None;
        if state == WaiterState::Queued {
            waiters.queue.leave(self.ticket);
            given = waiters.threads.remove(&self.ticket).and_then(|thread| thread.given);
        }
        let leaves_others = !waiters.queue.is_empty();
        remove_unused(entry, self.store);
        (leaves_others, given)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
        if let Listing::Listed(listed) = std::mem::replace(&mut self.listing, Listing::Never) {
            drop(listed);
            self.registry.name_waits();
        }
    }
}

#[cfg(test)]
#[path = "interleavings.rs"]
mod interleavings;
