//! The wait registry: every primitive that blocks, blocks here.
//!
//! A thread joins the queue of its channel and asks for one [`Turn`] after the other. It tries; if
//! refused, it subscribes; when the subscription is confirmed it tries again, as a message may have
//! been published before; then it sleeps until a message, the end of the other owner's lease, the
//! poll bound, its deadline or a cancellation. [`WaitQueue`] decides which waiter tries and when.
//! This file parks the threads and takes the messages to them (DESIGN: waiting).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, Parker};

use crate::error::Error;
use crate::events::dispatcher::EventDispatcher;
use crate::events::report::Warning;
use crate::events::stats::Gauge;
use crate::model::settings::QUEUE_POLL_BOUND;
use crate::model::sync::Mutex;
use crate::model::wait::WaitSpec;
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::runtime::wait_queue::{Newcomer, Step, Ticket, WaitQueue, Wakes};
use crate::store::retry::{is_cancelled, park};
use crate::store::shutdown::ShutdownState;
use crate::store::{Listener, Store};

/// A round trip that takes longer comes from a server that stalled. The next one is not expected
/// to.
pub(crate) const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(250);

/// A call that begins just before a deadline may take this long, so that a short wait is not an
/// error.
pub(crate) const SHORTEST_CALL: Duration = Duration::from_millis(10);

/// The result of one try.
#[derive(Debug)]
pub(crate) enum Attempt<G> {
    Granted(G, WakeHint),
    /// Refused, for that long unless something changes; `None` if that is unknown.
    Busy(Option<Duration>, WakeHint),
}

/// What a waiter does next.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It asks the server, and reports the result: [`Waiter::granted`], [`Waiter::refused`] or
    /// [`Waiter::failed`].
    AskServer,
    /// It looks whether another thread of its owner has been granted the lock. Nothing is reported.
    CheckSiblings,
    /// It waits no longer.
    End(WaitEnd),
}

/// How a wait ended that was granted nothing.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The server has said since the wait began that another owner holds it or is ahead in the
    /// queue.
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

/// The channels that threads of this client wait on.
#[derive(Debug)]
pub(crate) struct WaitRegistry {
    clock: Arc<dyn Clock>,
    events: Arc<EventDispatcher>,
    poll_bound: Duration,
    shutdown: ShutdownState,
    by_name: Mutex<HashMap<Arc<str>, Channel>>,
    /// Threads that sleep here, or have slept and are about to try again.
    sleepers: Gauge,
}

/// The waiters for one channel's messages. Readers and writers of one lock share the channel and
/// have a queue each.
#[derive(Debug)]
struct Channel {
    exclusive: ChannelQueue,
    shared: ChannelQueue,
}

#[derive(Debug)]
struct ChannelQueue {
    queue: WaitQueue,
    parkers: BTreeMap<Ticket, Parker>,
    subscribed: bool,
    /// The error of the last try, if it was one.
    failure: Option<Error>,
}

impl WaitRegistry {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        events: Arc<EventDispatcher>,
        poll_bound: Duration,
    ) -> Self {
        Self {
            clock,
            events,
            poll_bound,
            shutdown: ShutdownState::default(),
            by_name: Mutex::new(HashMap::new()),
            sleepers: Gauge::default(),
        }
    }

    /// Joins the queue of `channel`, until the waiter is dropped. Whatever unparks `sibling` gives
    /// the waiter a [`Turn::CheckSiblings`].
    pub(crate) fn join<'a>(
        &'a self,
        store: &'a Store,
        channel: &'a Arc<str>,
        mode: WaitMode,
        wait: WaitSpec<'a>,
        sibling: Option<&'a Parker>,
    ) -> Waiter<'a> {
        let newcomer = match mode {
            WaitMode::Exclusive | WaitMode::Polled | WaitMode::Queued => Newcomer::Queues,
            WaitMode::Shared => Newcomer::TriesOnce,
        };
        let poll_bound = match mode {
            WaitMode::Queued => QUEUE_POLL_BOUND,
            WaitMode::Exclusive | WaitMode::Shared | WaitMode::Polled => self.poll_bound,
        };
        let mut by_name = self.by_name.lock();
        let entry = by_name.entry(Arc::clone(channel));
        let queues = entry.or_insert_with(|| Channel::new(poll_bound));
        let ticket = queues.of(mode).queue.join(newcomer);
        drop(by_name);
        Waiter {
            registry: self,
            store,
            channel,
            mode,
            wait,
            sibling,
            ticket,
            parker: None,
            siblings_checked: false,
            answer_by: None,
            trying: None,
            round_trip: None,
            has_left: false,
        }
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.shutdown.begin();
        for queue in self.by_name.lock().values().flat_map(Channel::queues) {
            queue.parkers.values().for_each(Parker::unpark);
        }
    }

    /// It begins with [`close`](Self::close).
    pub(crate) fn shutdown(&self) -> &ShutdownState {
        &self.shutdown
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Threads that sleep here, or have slept and are about to try again.
    pub(crate) fn waiters(&self) -> usize {
        self.sleepers.now()
    }

    fn wake(&self, channel: &str) {
        let now = self.clock.now();
        if let Some(channel) = self.by_name.lock().get_mut(channel) {
            for queue in [&mut channel.exclusive, &mut channel.shared] {
                queue.queue.wake();
                queue.unpark(queue.queue.leader(now));
            }
        }
    }
}

impl Listener for WaitRegistry {
    fn live(&self, channel: &str) {
        self.wake(channel);
    }

    fn message(&self, channel: &str, _payload: &str) {
        self.wake(channel);
    }

    fn refused(&self, refusal: &str) {
        // The server refuses each channel anew. One warning is enough.
        self.events.warn_once(Warning::ChannelsRefused { refusal: refusal.to_owned() });
    }
}

impl Channel {
    fn new(poll_bound: Duration) -> Self {
        Self { exclusive: ChannelQueue::new(poll_bound), shared: ChannelQueue::new(poll_bound) }
    }

    fn queues(&self) -> [&ChannelQueue; 2] {
        [&self.exclusive, &self.shared]
    }

    fn of(&mut self, mode: WaitMode) -> &mut ChannelQueue {
        match mode {
            WaitMode::Exclusive | WaitMode::Polled | WaitMode::Queued => &mut self.exclusive,
            WaitMode::Shared => &mut self.shared,
        }
    }
}

impl ChannelQueue {
    fn new(poll_bound: Duration) -> Self {
        Self {
            queue: WaitQueue::new(poll_bound),
            parkers: BTreeMap::new(),
            subscribed: false,
            failure: None,
        }
    }

    /// The server has answered one of them. Those that asked for an answer have it.
    fn answered(&mut self) {
        self.failure = None;
        self.queue.asking().for_each(|ticket| self.unpark(Some(ticket)));
    }

    fn unpark(&self, ticket: Option<Ticket>) {
        if let Some(parker) = ticket.and_then(|ticket| self.parkers.get(&ticket)) {
            parker.unpark();
        }
    }
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

/// A thread's place in a channel's queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    registry: &'a WaitRegistry,
    store: &'a Store,
    channel: &'a Arc<str>,
    mode: WaitMode,
    wait: WaitSpec<'a>,
    sibling: Option<&'a Parker>,
    ticket: Ticket,
    /// Once it sleeps.
    parker: Option<Parker>,
    /// Whether it has checked its siblings since it slept last.
    siblings_checked: bool,
    answer_by: Option<AnswerBy>,
    /// The try that is under way: what it was woken by, and when it began.
    trying: Option<(Wakes, Instant)>,
    /// The shortest so far, once there was one.
    round_trip: Option<Duration>,
    has_left: bool,
}

impl Waiter<'_> {
    /// Sleeps until there is something to do.
    pub(crate) fn turn(&mut self) -> Turn {
        let registry = self.registry;
        let deadline = self.wait.deadline;
        loop {
            // 1. A shutdown or a cancellation ends every wait.
            if let Some(end) = self.is_ended() {
                return Turn::End(end);
            }
            // 2. After each sleep another thread of the same owner may have the lock.
            if self.sibling.is_some() && !std::mem::replace(&mut self.siblings_checked, true) {
                return Turn::CheckSiblings;
            }
            self.siblings_checked = false;
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
            match self.step(now) {
                // 4. This one leads the queue, and there is something to try for.
                Step::Try(wakes) if in_time => {
                    self.trying = Some((wakes, now));
                    return Turn::AskServer;
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
                        let wake_at = wake_at.into_iter().chain(end).chain(ask_at).min();
                        park(&*registry.clock, parker, wake_at, self.wait.cancel);
                    }
                    // Most waiters never sleep. One that does looks again first: a message may have
                    // come before it had a parker.
                    None => self.set_parker(),
                },
                // 7. The time is over.
                Step::Sleep(_) if !heard => return Turn::End(WaitEnd::Unanswered(self.failure())),
                Step::Try(_) | Step::Sleep(_) => {
                    // Others may try meanwhile.
                    self.leave();
                    return Turn::End(self.wait_out());
                }
            }
        }
    }

    /// The try was granted.
    pub(crate) fn granted(&mut self, hint: WakeHint) {
        let Some((wakes, now)) = self.answered() else { return };
        self.with_queue((), |of| {
            of.queue.granted(self.ticket, wakes, hint, now);
            of.answered();
            if !of.subscribed {
                // Nothing was refused so far, so no message will come. The next in the queue tries,
                // is refused and subscribes.
                of.queue.wake();
            }
        });
    }

    /// The try was refused, for `busy` if that is known.
    pub(crate) fn refused(&mut self, busy: Option<Duration>, hint: WakeHint) {
        let Some((wakes, now)) = self.answered() else { return };
        self.with_queue((), |of| {
            of.queue.refused(self.ticket, wakes, busy, hint, now);
            of.answered();
            // The next may have something to try for, and have been asleep since before this call.
            of.unpark(of.queue.leader(now).filter(|leader| *leader != self.ticket));
        });
        if self.mode != WaitMode::Polled {
            self.subscribe();
        }
    }

    /// The try got no answer, or an error that others would get too. It ends this wait.
    pub(crate) fn failed(&self, error: Error) -> WaitEnd {
        // If it was cut off, the server is not to blame. The attempt cleans up what it left behind.
        if let Some(end) = self.is_ended() {
            return end;
        }
        self.with_queue((), |of| of.failure = Some(error.clone()));
        WaitEnd::Failed(error)
    }

    fn is_ended(&self) -> Option<WaitEnd> {
        if self.registry.is_closed() {
            return Some(WaitEnd::Closed);
        }
        is_cancelled(self.wait.cancel).then_some(WaitEnd::Cancelled)
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
        let clock = &*self.registry.clock;
        loop {
            if let Some(end) = self.is_ended() {
                return end;
            }
            if self.wait.deadline.is_none_or(|deadline| deadline <= clock.now()) {
                return WaitEnd::TimedOut;
            }
            park(clock, &Parker::new(), self.wait.deadline, self.wait.cancel);
        }
    }

    fn set_parker(&mut self) {
        let parker = self.sibling.cloned().unwrap_or_default();
        self.with_queue((), |of| {
            of.parkers.insert(self.ticket, parker.clone());
        });
        self.registry.sleepers.up(1);
        self.parker = Some(parker);
    }

    fn step(&self, now: Instant) -> Step {
        self.with_queue(Step::Sleep(None), |of| {
            let step = of.queue.step(self.ticket, now);
            // It leads although others ahead of it are stuck. A deputy behind it has to
            // watch it now.
            let takes_over = of.queue.tickets().next() != Some(self.ticket);
            if takes_over && matches!(step, Step::Try(_)) {
                of.queue.to_wake(now).for_each(|ticket| of.unpark(Some(ticket)));
            }
            step
        })
    }

    fn has_answer(&self) -> bool {
        self.with_queue(false, |of| of.queue.has_answer(self.ticket))
    }

    fn ask(&self, now: Instant) {
        self.with_queue((), |of| {
            of.queue.ask(self.ticket, now);
            of.unpark(of.queue.leader(now));
        });
    }

    fn failure(&self) -> Option<Error> {
        self.with_queue(None, |of| of.failure.clone())
    }

    fn subscribe(&self) {
        let first = self.with_queue(false, |of| {
            let first = !std::mem::replace(&mut of.subscribed, true);
            if first {
                self.store.subscribe(self.channel);
            }
            first
        });
        // With the queues unlocked: a message may be on its way to them.
        if first {
            self.store.flush();
        }
    }

    fn with_queue<R>(&self, otherwise: R, act: impl FnOnce(&mut ChannelQueue) -> R) -> R {
        let mut by_name = self.registry.by_name.lock();
        by_name.get_mut(self.channel).map_or(otherwise, |channel| act(channel.of(self.mode)))
    }

    /// Leaves the queue.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        if self.parker.is_some() {
            self.registry.sleepers.down(1);
        }
        if self.leave_others() {
            // Not with the queues locked: the clock may be foreign code.
            let now = self.registry.clock.now();
            self.with_queue((), |of| {
                of.queue.to_wake(now).for_each(|ticket| of.unpark(Some(ticket)));
            });
        }
    }

    /// Whether it leaves others behind. If not, the subscription and the channel go with it.
    fn leave_others(&self) -> bool {
        let mut by_name = self.registry.by_name.lock();
        let Some(channel) = by_name.get_mut(self.channel) else {
            return false;
        };
        let of = channel.of(self.mode);
        of.queue.leave(self.ticket);
        of.parkers.remove(&self.ticket);
        if !of.queue.is_empty() {
            return true;
        }
        let subscribed = std::mem::take(&mut of.subscribed);
        let [one, other] = channel.queues();
        if subscribed && !one.subscribed && !other.subscribed {
            self.store.unsubscribe(self.channel);
        }
        if one.queue.is_empty() && other.queue.is_empty() {
            by_name.remove(self.channel);
        }
        false
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
