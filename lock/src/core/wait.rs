//! How a thread waits for a grant: all locks, semaphores and latches wait here. Red locks wait for
//! their servers elsewhere.
//!
//! A thread joins the queue of its channel and takes one [`WaitAction`] after another. The thread
//! tries, and subscribes after a refusal. When the subscription is confirmed, the thread tries
//! again, as a message may have been published before. Then the thread sleeps until a message, the
//! end of the other owner's lease, the poll bound, its deadline or a cancellation. [`WaitQueue`]
//! decides which waiter tries and when.
//!
//! A *lone* waiter, the only waiter of the client, tries first. A lone waiter joins the queue after
//! a refusal, or when another thread inspects the queues. So an acquire without competition makes
//! no channel, queue or map entry: together with fewer readings of the clock this cuts a lock and
//! unlock from 22,000 to 17,100 instructions. A lone waiter that stays outside of the queues would
//! be faster still, but two threads on one lock would meet at the server, and make a seventh of the
//! hand-overs.
//!
//! The states of a waiter:
//!
//! ```text
//! Lone ── refused, or the queues are inspected ──▶ Queued ── granted ──▶ Granted
//!   │                                                │
//!   └── granted, or the wait ends ──▶ Left ◀─────────┘  given a hold, or the wait ends
//! ```
//!
//! A queued waiter tries as the delegate of its queue; watches the delegate as the deputy; else
//! sleeps.
//!
//! A wait returns `None` only after an answer: since the wait began, the server has refused a try
//! of the queue, or this client held the lock. Otherwise the wait returns the delegate's error, or
//! an error that there was no answer.
//!
//! [`WaitQueue`]: crate::waits::queue::WaitQueue

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::core::traces::LONGEST_ROUND_TRIP;
use crate::core::tries::WaitParameters;
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
use crate::waits::registry::{Recipient, WaitRegistry, Waiters, WaitingThread, remove_unused};

/// The next action of a waiter.
#[derive(Debug)]
pub(crate) enum WaitAction {
    /// The thread tries at the server, and reports the result: [`Waiter::granted`],
    /// [`Waiter::refused`] or [`Waiter::failed`]. A named owner searches for its own hold first.
    AskServer,
    /// Another thread of this client gave its hold to this thread, which is the holder now and has
    /// left the queue.
    HandedOver(Arc<Hold>),
    /// This wait has lasted for long. Its thread searches for deadlocks.
    LookForDeadlocks,
    /// The wait is over.
    End(WaitEnd),
}

/// How a wait without a grant ended.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// Since the wait began, the server has reported another owner as the holder or ahead in the
    /// queue, or this client held the lock.
    TimedOut,
    /// The time is over, and the server has answered no waiter of the queue since the wait began.
    /// Has the last error of a waiter, if any.
    Unanswered(Option<Error>),
    Cancelled,
    /// The client was shut down.
    Closed,
    /// The error of the last try.
    Failed(Error),
}

impl WaitRegistry {
    /// Adds a waiter to the queue of its channel, until the waiter is dropped. The client's only
    /// waiter is lone, and in no queue yet. Sends nothing.
    pub(crate) fn join<'a>(
        &'a self,
        store: &'a Store,
        parameters: WaitParameters<'a>,
    ) -> Waiter<'a> {
        let WaitParameters { name, channel, mode, .. } = parameters;
        let has_braces = name.has_braces();
        let recipient = parameters.recipient.filter(|_| self.settings.hand_over != HandOver::Off);
        let now = self.clock.now();
        let mut channels = self.channels.lock();
        // With the channels locked: a hold in use now will find this waiter at its end.
        let knows_holder = recipient.is_some_and(|recipient| self.is_in_use(recipient.name, now));
        let parker = knows_holder.then(Parker::new);
        let is_lone = !knows_holder && parameters.named.is_none() && channels.is_empty();
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
                // The failure of an earlier wait.
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
            parameters,
            has_braces,
            recipient,
            ticket,
            parker,
            answer_by: None,
            trying: None,
            round_trip: None,
            listing: match parameters.need {
                Some(_)
                    if self.settings.looks_for_deadlocks
                        && LongWaits::can_list(parameters.name) =>
                {
                    Listing::At(now + LONG)
                }
                _ => Listing::Never,
            },
            since: now,
        }
    }
}

/// Whether a wait is listed among the long waits.
#[derive(Debug)]
enum Listing<'a> {
    Never,
    /// The wait is listed at this time.
    At(Instant),
    Listed(ListedUntilDropped<'a>),
}

/// The result of a waiter's visit to its queue.
enum QueueVisit {
    Step(Step),
    HandedOver(Arc<Hold>),
}

/// By when a waiter with a deadline needs an answer of the server, to this or another waiter's try.
#[derive(Clone, Copy, Debug)]
struct AnswerBy {
    /// When to request an answer, if none has arrived: after a quarter of the time. Many short
    /// waits behind a sleeping delegate so cost one attempt.
    ask_at: Option<Instant>,
    /// Until when to wait for the answer. A little beyond the deadline of a very short wait, as
    /// with a call. `None` without a deadline.
    end: Option<Instant>,
}

impl AnswerBy {
    /// Makes the times of a waiter that begins to wait at `now`.
    fn new(now: Instant, deadline: Option<Instant>) -> Self {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        Self {
            ask_at: left.map(|left| now + left / 4),
            end: deadline.map(|deadline| deadline.max(now + SHORTEST_CALL)),
        }
    }
}

/// The progress of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    /// No thread waited before. The waiter tries, and is in no queue unless a thread has inspected
    /// the queues since.
    Lone,
    /// The waiter is in its queue.
    Queued,
    /// The waiter was granted, and has left the queue. The channel may have been removed and made
    /// again since, with the ticket given to another waiter.
    Granted,
    /// The waiter has left its channel.
    Left,
}

/// A thread's place in a channel's queue. Dropping the waiter leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    registry: &'a WaitRegistry,
    store: &'a Store,
    parameters: WaitParameters<'a>,
    has_braces: bool,
    /// Set if another thread may give its hold to the waiter.
    recipient: Option<Recipient<'a>>,
    state: WaiterState,
    ticket: Ticket,
    /// Set for the first sleep; from the start if the waiter knows the holder.
    parker: Option<Parker>,
    answer_by: Option<AnswerBy>,
    /// The try under way: its wakes, and its beginning.
    trying: Option<(Wakes, Instant)>,
    /// The shortest round trip so far; `None` before the first.
    round_trip: Option<Duration>,
    /// Whether this wait is visible to deadlock detection.
    listing: Listing<'a>,
    since: Instant,
}

impl Waiter<'_> {
    /// Sleeps until the waiter has an action, perhaps not at all, and returns the action.
    pub(crate) fn next_action(&mut self) -> WaitAction {
        let registry = self.registry;
        let deadline = self.parameters.wait.deadline;
        loop {
            // 1. A shutdown or a cancellation ends every wait.
            if let Some(end) = self.early_end() {
                return WaitAction::End(end);
            }
            // Another thread waits for this thread, and holds the lock.
            if let Listing::Listed(listed) = &self.listing
                && let Some(cycle) = listed.failed()
            {
                let name = self.parameters.name.shown();
                return WaitAction::End(WaitEnd::Failed(Error::Deadlock { name, cycle }));
            }
            // 2. Another thread of the same named owner was granted a hold, which this thread may
            //    nest.
            if self.parameters.named.is_some_and(NamedAcquire::take_new_hold) {
                return WaitAction::AskServer;
            }
            // 3. The remaining time, and whether the server has answered any waiter of the queue
            //    since this waiter joined.
            let now = registry.clock.now();
            let AnswerBy { ask_at, end: answer_end } =
                *self.answer_by.get_or_insert_with(|| AnswerBy::new(now, deadline));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let heard = deadline.is_none() || self.round_trip.is_some() || self.has_answer();
            let wait_until = if heard { deadline } else { answer_end };
            // The first try is made in any case. Later tries are made only if their answer can
            // arrive in time: a try cut off by the deadline would be an error, although another
            // owner holds the lock.
            let in_time = left.zip(self.round_trip).is_none_or(|(left, trip)| left > trip);
            let step = match self.visit_queue(now) {
                QueueVisit::Step(step) => step,
                QueueVisit::HandedOver(hold) => return WaitAction::HandedOver(hold),
            };
            // A hold of this client may have been cached since this waiter joined.
            if matches!(step, Step::Sleep(_))
                && self.parker.is_some()
                && let Some(hold) = self.take_cached(now)
            {
                return WaitAction::HandedOver(hold);
            }
            let list_if_long = match step {
                Step::Sleep(_) => self.list_if_long(now),
                Step::Try(_) => None,
            };
            if matches!(step, Step::Sleep(_)) && self.takes_search(now) {
                return WaitAction::LookForDeadlocks;
            }
            match step {
                // 4. This waiter is the delegate, and has a reason to try.
                Step::Try(wakes) if in_time => {
                    self.trying = Some((wakes, now));
                    return WaitAction::AskServer;
                }
                // 5. No answer after a quarter of the time: the delegate tries now, for all.
                //    Without an answer `None` would not be true.
                Step::Sleep(_) if !heard && ask_at.is_some_and(|at| at <= now) => {
                    self.answer_by = Some(AnswerBy { ask_at: None, end: answer_end });
                    self.ask(now);
                }
                // 6. Sleep until woken, or until the time of the queue, the deadline, step 5 or a
                //    search for deadlocks.
                Step::Sleep(wake_at) if wait_until.is_none_or(|until| now < until) => {
                    match &self.parker {
                        Some(parker) => {
                            let ask_at = ask_at.filter(|_| !heard);
                            let wake_at = wake_at
                                .into_iter()
                                .chain(wait_until)
                                .chain(ask_at)
                                .chain(list_if_long);
                            let wake_at = wake_at.min();
                            park(&*registry.clock, parker, wake_at, self.parameters.wait.cancel);
                        }
                        // Most waiters never sleep. Before the first sleep a waiter visits the
                        // queue again: a message may have arrived before the parker was set.
                        None => self.set_parker(),
                    }
                }
                // 7. The time is over.
                Step::Sleep(_) if !heard => {
                    return WaitAction::End(WaitEnd::Unanswered(self.failure()));
                }
                Step::Try(_) | Step::Sleep(_) => {
                    // Other waiters may try meanwhile.
                    self.leave();
                    return WaitAction::End(self.wait_out());
                }
            }
        }
    }

    /// Reports a grant of the try to the queue, which the waiter leaves. `hint` says what the grant
    /// means for the other waiters.
    pub(crate) fn granted(&mut self, hint: WakeHint) {
        if !self.end_lone_state(false) {
            return;
        }
        let Some((wakes, now)) = self.answered() else { return };
        self.state = WaiterState::Granted;
        self.with_queue((), |waiters| {
            waiters.queue.granted(self.ticket, wakes, hint, now);
            waiters.threads.remove(&self.ticket);
            waiters.answered();
            // With the queues locked: if the hold has ended already, the wake by its end is
            // counted.
            let waits = |recipient: Recipient<'_>| {
                waiters.gives_next(recipient.name) && self.registry.is_in_use(recipient.name, now)
            };
            if self.recipient.is_some_and(waits) {
                // The next waiter waits for this thread.
                waiters.queue.cover();
            } else if !waiters.subscribed {
                // No try was refused so far, so no message will arrive. The next waiter of the
                // queue tries, is refused and subscribes.
                waiters.queue.wake();
            }
        });
    }

    /// Reports a refusal of the try to the queue, for `busy` if the time is known. Wakes the next
    /// waiter with a reason to try, and subscribes to the channel unless the lock has no messages.
    pub(crate) fn refused(&mut self, busy: Option<Duration>, hint: WakeHint) {
        self.end_lone_state(true);
        let Some((wakes, now)) = self.answered() else { return };
        self.with_queue((), |waiters| {
            waiters.queue.refused(self.ticket, wakes, busy, hint, now);
            waiters.answered();
            // The next waiter may have a reason to try, and have been asleep since before this
            // call.
            waiters.unpark(waiters.queue.delegate(now).filter(|delegate| *delegate != self.ticket));
        });
        if self.parameters.mode != WaitMode::Polled {
            self.subscribe();
        }
    }

    /// Reports `error`, of a try without an answer or for all waiters, to the queue. Returns the
    /// end of this wait: the error, or the shutdown or cancellation that cut the try off.
    pub(crate) fn failed(&self, error: Error) -> WaitEnd {
        // If the try was cut off, the server is not to blame. The attempt rolls back its traces.
        if let Some(end) = self.early_end() {
            return end;
        }
        self.with_queue((), |waiters| waiters.failure = Some(error.clone()));
        WaitEnd::Failed(error)
    }

    /// Ends the lone state, and does nothing in any other state. A lone waiter joins its queue if
    /// the waiter `stays`, or if a thread has inspected the queues, and leaves otherwise. Returns
    /// `false` if the waiter has left, now or before.
    fn end_lone_state(&mut self, stays: bool) -> bool {
        if self.state == WaiterState::Lone {
            let is_queued = self.registry.channels.lock().end_lone(stays);
            self.state = if is_queued { WaiterState::Queued } else { WaiterState::Left };
        }
        self.state != WaiterState::Left
    }

    /// Whether this waiter, during a search for deadlocks, would not go on sleeping: the waiter was
    /// given a hold, has a reason to try, or is ended by a shutdown or a cancellation.
    pub(crate) fn has_work(&self) -> bool {
        let now = self.registry.clock.now();
        self.early_end().is_some()
            || self.with_queue(false, |waiters| {
                let thread = waiters.threads.get(&self.ticket);
                let is_given = thread.is_some_and(|thread| thread.given.is_some());
                is_given || waiters.queue.is_called(self.ticket, now)
            })
    }

    /// Lists this wait among the long waits, if the wait is long by `now`. Returns when an unlisted
    /// wait counts as long, or when a waiter is to search for deadlocks. Returns `None` before the
    /// first sleep, or if neither is planned.
    fn list_if_long(&mut self, now: Instant) -> Option<Instant> {
        let parker = self.parker.as_ref()?;
        if let (Listing::At(at), Some(need)) = (&self.listing, self.parameters.need)
            && *at <= now
        {
            let (registry, name) = (self.registry, self.parameters.name);
            let may_fail = registry.settings.waits_may_fail;
            let (holds, waits) = (&registry.holds, &registry.holds.long_waits);
            let listed = waits.list(holds, (name, need), (self.since, now), may_fail, parker);
            // If the list is full, later.
            self.listing = listed.map_or(Listing::At(now + LONG), Listing::Listed);
            registry.name_waits();
        }
        match &self.listing {
            Listing::Never => None,
            Listing::At(at) => Some(*at),
            Listing::Listed(listed) => listed.next_look(),
        }
    }

    /// Takes over the planned search for deadlocks, if due. Returns `true` to one waiter for each
    /// search.
    fn takes_search(&self, now: Instant) -> bool {
        matches!(&self.listing, Listing::Listed(listed) if listed.takes_search(now))
    }

    /// Returns the end of the wait by a shutdown of the client or a cancellation, if either has
    /// happened.
    fn early_end(&self) -> Option<WaitEnd> {
        if self.registry.is_closed() {
            return Some(WaitEnd::Closed);
        }
        is_cancelled(self.parameters.wait.cancel).then_some(WaitEnd::Cancelled)
    }

    /// Ends the try under way, and notes its round trip. Returns the wakes of the try and the
    /// present time; `None` without a try.
    fn answered(&mut self) -> Option<(Wakes, Instant)> {
        let (wakes, began) = self.trying.take()?;
        let now = self.registry.clock.now();
        let took = now.saturating_duration_since(began);
        // The shortest so far: a round trip that was held up says nothing about the next.
        let shortest = self.round_trip.map_or(took, |shortest| shortest.min(took));
        self.round_trip = Some(shortest.min(LONGEST_ROUND_TRIP));
        Some((wakes, now))
    }

    /// Sleeps for the rest of a wait in which no answer can arrive any more: less than one round
    /// trip. Returns the end of the wait: by its deadline, a shutdown or a cancellation.
    fn wait_out(&self) -> WaitEnd {
        let (clock, wait) = (&*self.registry.clock, self.parameters.wait);
        loop {
            if let Some(end) = self.early_end() {
                return end;
            }
            if wait.deadline.is_none_or(|deadline| deadline <= clock.now()) {
                return WaitEnd::TimedOut;
            }
            park(clock, &Parker::new(), wait.deadline, wait.cancel);
        }
    }

    /// Gives the waiter its parker, and enters the thread into the queue's list of sleeping
    /// threads.
    fn set_parker(&mut self) {
        let parker = self.parameters.named.map_or_else(Parker::new, |named| named.parker().clone());
        let thread = WaitingThread::new(&parker, self.recipient);
        self.with_queue((), |waiters| drop(waiters.threads.insert(self.ticket, thread)));
        self.registry.sleepers.up(1);
        self.parker = Some(parker);
    }

    /// Returns the step of this waiter by the queue, or takes a hold given to the waiter and leaves
    /// the queue. Releases a given hold that is not fresh any more. Wakes a deputy without a
    /// delegate to watch.
    fn visit_queue(&mut self, now: Instant) -> QueueVisit {
        if self.state == WaiterState::Lone {
            return QueueVisit::Step(Step::Try(Wakes::FIRST));
        }
        let (registry, ticket) = (self.registry, self.ticket);
        let mut channels = registry.channels();
        let Some(channel) = channels.by_name.get_mut(self.parameters.channel) else {
            return QueueVisit::Step(Step::Sleep(None));
        };
        let waiters = channel.of(self.has_braces).waiters(self.parameters.mode);
        if let Some(hold) = waiters.threads.get_mut(&ticket).and_then(|thread| thread.given.take())
        {
            // Checked on this thread: the process may have been stopped since the hold was given.
            if !hold.is_fresh(now, registry.settings.lease) {
                waiters.queue.decline(ticket);
                drop(channels);
                self.end_given(&hold);
                return self.visit_queue(now);
            }
            waiters.queue.take(ticket);
            waiters.threads.remove(&ticket);
            drop(channels);
            self.state = WaiterState::Left;
            registry.sleepers.down(1);
            return QueueVisit::HandedOver(hold);
        }
        let step = waiters.queue.step(ticket, now);
        if matches!(step, Step::Try(_)) {
            // This waiter is the delegate although waiters ahead are stuck, or after waiters have
            // left without waking another. A deputy behind has to watch this waiter now.
            let unwatched = waiters.queue.take_unwatched();
            if unwatched || waiters.queue.tickets().next() != Some(ticket) {
                waiters.queue.to_wake(now).for_each(|ticket| waiters.unpark(Some(ticket)));
            }
        }
        QueueVisit::Step(step)
    }

    /// Takes the cached hold of the name, and leaves the queue. Returns `None` without a cached
    /// hold. Also returns `None` to a watching waiter, and if this waiter may not have the hold,
    /// which is then released.
    fn take_cached(&mut self, now: Instant) -> Option<Arc<Hold>> {
        let (registry, parameters) = (self.registry, self.parameters);
        // This waiter was counted before: the thread that caches the hold sees the waiter, or the
        // waiter sees the hold.
        fence(Ordering::SeqCst);
        let hold = registry.holds.find_cached(parameters.name)?;
        if parameters.mode == WaitMode::Watching
            || !registry.take_cached(&hold, parameters.recipient, now)
        {
            return None;
        }
        self.leave();
        Some(hold)
    }

    /// Whether the server has answered a waiter of the queue since this waiter joined.
    fn has_answer(&self) -> bool {
        self.state != WaiterState::Lone
            && self.with_queue(false, |waiters| waiters.queue.has_answer(self.ticket))
    }

    /// Requests an answer of the server for this waiter, and wakes the delegate.
    fn ask(&self, now: Instant) {
        self.with_queue((), |waiters| {
            waiters.queue.ask(self.ticket, now);
            waiters.unpark(waiters.queue.delegate(now));
        });
    }

    /// Returns the error of the last try in the queue; `None` if the try was answered.
    fn failure(&self) -> Option<Error> {
        self.with_queue(None, |waiters| waiters.failure.clone())
    }

    /// Subscribes to the channel, unless a waiter of the queue has subscribed.
    fn subscribe(&self) {
        let first = self.with_queue(false, |waiters| {
            let first = !std::mem::replace(&mut waiters.subscribed, true);
            if first {
                self.store.subscribe(self.parameters.channel);
            }
            first
        });
        // With the queues unlocked: a message for the queues may be arriving.
        if first {
            self.store.flush();
        }
    }

    /// Calls `act` for the waiters of the name and mode, locked. Returns `otherwise` without a
    /// channel.
    fn with_queue<R>(&self, otherwise: R, act: impl FnOnce(&mut Waiters) -> R) -> R {
        let mut channels = self.registry.channels();
        let channel = channels.by_name.get_mut(self.parameters.channel);
        let mode = self.parameters.mode;
        channel.map_or(otherwise, |channel| act(channel.of(self.has_braces).waiters(mode)))
    }

    /// Leaves the queue, and wakes the delegate and the deputy of the remaining waiters. Releases a
    /// given, unused hold. A second call does nothing.
    fn leave(&mut self) {
        if !self.end_lone_state(false) {
            return;
        }
        let state = std::mem::replace(&mut self.state, WaiterState::Left);
        if self.parker.is_some() {
            self.registry.sleepers.down(1);
        }
        let (leaves_others, given) = self.remove_from_queue(state);
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

    /// Leaves the release of a given, unused hold to a renewal thread.
    fn end_given(&self, hold: &Arc<Hold>) {
        if let Some(recipient) = self.recipient {
            hold.remove_guard(true);
            recipient.watchdog.end_in_background(hold, None);
        }
    }

    /// Removes this waiter from the queue, if queued by `state`. Without other waiters, the
    /// subscription and the channel end. Returns whether other waiters remain, and the unused hold
    /// that was given to this waiter.
    fn remove_from_queue(&self, state: WaiterState) -> (bool, Option<Arc<Hold>>) {
        let mut channels = self.registry.channels();
        let Entry::Occupied(mut entry) =
            channels.by_name.entry(Arc::clone(self.parameters.channel))
        else {
            return (false, None);
        };
        let waiters = entry.get_mut().of(self.has_braces).waiters(self.parameters.mode);
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
