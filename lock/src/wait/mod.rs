//! The one blocking loop: every primitive that waits, waits here.
//!
//! Try; if refused, subscribe; when the subscription is confirmed, try again, for a message may have been published
//! before; then sleep until a message, the end of the rival's lease, the poll bound, the deadline or a cancellation.
//! [`queue`] says who may try and when. This file parks the threads and carries the messages to them.

mod queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{Clock, Parker};
use parking_lot::Mutex;

use crate::call::{is_cancelled, park};
use crate::config::LINE_POLL_BOUND;
use crate::report::Warning;
use crate::statistics::Level;
use crate::store::{Listener, Store};
use crate::teller::Teller;
pub(crate) use queue::Others;
use queue::{Newcomer, Queue, Step, Ticket, Wakes};

/// A round trip longer than this is a server that stalled, and not one to plan with.
pub(crate) const LONGEST_TRIP: Duration = Duration::from_millis(250);

/// What one try came to.
#[derive(Debug)]
pub(crate) enum Attempt<G> {
    Granted(G, Others),
    /// Refused, for that long unless something changes; `None` if nothing is known.
    Busy(Option<Duration>, Others),
}

/// What a line of waiters waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One is let in at a time, and a message tells of the end.
    Exclusive,
    /// Several may be let in, and a message tells of a change.
    Shared,
    /// One is let in at a time, and no message tells of anything: each refusal says how long to sleep.
    Polled,
    /// The line stands on the server, and here is one waiter of it. A message tells of the turn, and each refusal says
    /// how long to sleep, which may be longer than elsewhere.
    Queued,
}

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited<G> {
    Granted(G),
    TimedOut,
    Cancelled,
    Closed,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until<'a> {
    /// `None`: wait for ever.
    pub(crate) deadline: Option<Instant>,
    /// A message, or the end of its senders, cancels.
    pub(crate) cancel: Option<&'a Receiver<()>>,
}

/// The channels that threads of this client wait on.
#[derive(Debug)]
pub(crate) struct Channels {
    clock: Arc<dyn Clock>,
    teller: Arc<Teller>,
    poll_bound: Duration,
    closed: AtomicBool,
    by_name: Mutex<HashMap<Arc<str>, Channel>>,
    /// Threads that sleep here, or have slept and are about to try again.
    sleepers: Level,
}

/// Those who wait for one channel's messages. Readers and writers of one lock do, and neither stands in the other's way.
#[derive(Debug)]
struct Channel {
    exclusive: Line,
    shared: Line,
}

#[derive(Debug)]
struct Line {
    queue: Queue,
    parkers: BTreeMap<Ticket, Parker>,
    subscribed: bool,
}

impl Channels {
    pub(crate) fn new(clock: Arc<dyn Clock>, teller: Arc<Teller>, poll_bound: Duration) -> Self {
        Self {
            clock,
            teller,
            poll_bound,
            closed: AtomicBool::new(false),
            by_name: Mutex::new(HashMap::new()),
            sleepers: Level::new("wheellock_waiters"),
        }
    }

    /// Waits until `attempt` is granted something, or `until` says to stop.
    ///
    /// `attempt` runs on the calling thread, with no lock held. Its error ends the wait at once.
    pub(crate) fn wait<G, E>(
        &self,
        store: &Store,
        channel: &Arc<str>,
        kind: Kind,
        until: Until<'_>,
        mut attempt: impl FnMut() -> Result<Attempt<G>, E>,
    ) -> Result<Waited<G>, E> {
        let mut waiter = Waiter::join(self, store, channel, kind);
        // How long the last try took, once there was one.
        let mut trip: Option<Duration> = None;
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Ok(Waited::Closed);
            }
            if is_cancelled(until.cancel) {
                return Ok(Waited::Cancelled);
            }
            let now = self.clock.now();
            let left = until.deadline.map(|deadline| deadline.saturating_duration_since(now));
            // The first try is made in any case. Later ones only if their answer can be here in time: what is cut off
            // by the deadline would be an error, where the truth is that somebody else holds the lock.
            let worth_it = left.zip(trip).is_none_or(|(left, trip)| left > trip);
            let in_time = left.is_none_or(|left| !left.is_zero());
            match waiter.step(now) {
                Step::Try(seen) if worth_it && (in_time || trip.is_none()) => {
                    let attempted = match attempt() {
                        // What ended it was not the server. What it left behind is cleaned up by whoever sent it.
                        Err(_) if self.is_closed() => return Ok(Waited::Closed),
                        Err(_) if is_cancelled(until.cancel) => return Ok(Waited::Cancelled),
                        attempted => attempted?,
                    };
                    let answered = self.clock.now();
                    let took = answered.saturating_duration_since(now);
                    // The quickest so far: one that was held up says nothing about the next.
                    trip = Some(trip.map_or(took, |trip| trip.min(took)).min(LONGEST_TRIP));
                    match attempted {
                        Attempt::Granted(granted, others) => {
                            waiter.granted(seen, others, answered);
                            return Ok(Waited::Granted(granted));
                        }
                        Attempt::Busy(busy, others) => {
                            waiter.refused(seen, busy, others, answered);
                            if kind != Kind::Polled {
                                waiter.subscribe();
                            }
                        }
                    }
                }
                Step::Sleep(wake_at) if in_time => match &waiter.parker {
                    Some(parker) => {
                        let wake_at = wake_at.into_iter().chain(until.deadline).min();
                        park(&*self.clock, parker, wake_at, until.cancel);
                    }
                    // Most never sleep. Who does looks again first: a message may have come before it could be woken.
                    None => waiter.can_be_woken(),
                },
                Step::Try(_) | Step::Sleep(_) => {
                    // Others may try meanwhile.
                    drop(waiter);
                    return Ok(self.wait_out(until));
                }
            }
        }
    }

    /// The rest of a wait in which no answer can come any more: less than one round trip.
    fn wait_out<G>(&self, until: Until<'_>) -> Waited<G> {
        loop {
            if self.is_closed() {
                return Waited::Closed;
            }
            if is_cancelled(until.cancel) {
                return Waited::Cancelled;
            }
            if until.deadline.is_none_or(|deadline| deadline <= self.clock.now()) {
                return Waited::TimedOut;
            }
            park(&*self.clock, &Parker::new(), until.deadline, until.cancel);
        }
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for line in self.by_name.lock().values().flat_map(Channel::lines) {
            line.parkers.values().for_each(Parker::unpark);
        }
    }

    /// True from [`close`](Self::close) on.
    pub(crate) fn closed(&self) -> &AtomicBool {
        &self.closed
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Threads that sleep here, or have slept and are about to try again.
    pub(crate) fn waiters(&self) -> usize {
        self.sleepers.now()
    }

    fn wake(&self, channel: &str) {
        let now = self.clock.now();
        if let Some(channel) = self.by_name.lock().get_mut(channel) {
            for line in [&mut channel.exclusive, &mut channel.shared] {
                line.queue.wake();
                if let Some(acting) = line.queue.acting_ticket(now) {
                    line.unpark(acting);
                }
            }
        }
    }
}

impl Listener for Channels {
    fn live(&self, channel: &str) {
        self.wake(channel);
    }

    fn message(&self, channel: &str, _payload: &str) {
        self.wake(channel);
    }

    fn refused(&self, refusal: &str) {
        // Each wish for a channel is refused anew.
        self.teller.warn_once(Warning::ChannelsRefused { refusal: refusal.to_owned() });
    }
}

impl Channel {
    fn new(poll_bound: Duration) -> Self {
        Self { exclusive: Line::new(poll_bound), shared: Line::new(poll_bound) }
    }

    fn lines(&self) -> [&Line; 2] {
        [&self.exclusive, &self.shared]
    }

    fn line(&mut self, kind: Kind) -> &mut Line {
        match kind {
            Kind::Exclusive | Kind::Polled | Kind::Queued => &mut self.exclusive,
            Kind::Shared => &mut self.shared,
        }
    }
}

impl Line {
    fn new(poll_bound: Duration) -> Self {
        Self { queue: Queue::new(poll_bound), parkers: BTreeMap::new(), subscribed: false }
    }

    fn unpark(&self, ticket: Ticket) {
        if let Some(parker) = self.parkers.get(&ticket) {
            parker.unpark();
        }
    }
}

/// A thread's place in a channel's line. Dropping it leaves the line, on every way out.
struct Waiter<'a> {
    channels: &'a Channels,
    store: &'a Store,
    channel: &'a Arc<str>,
    kind: Kind,
    ticket: Ticket,
    parker: Option<Parker>,
}

impl<'a> Waiter<'a> {
    fn join(channels: &'a Channels, store: &'a Store, channel: &'a Arc<str>, kind: Kind) -> Self {
        let newcomer = match kind {
            Kind::Exclusive | Kind::Polled | Kind::Queued => Newcomer::Queues,
            Kind::Shared => Newcomer::TriesOnce,
        };
        let poll_bound = match kind {
            Kind::Queued => LINE_POLL_BOUND,
            Kind::Exclusive | Kind::Shared | Kind::Polled => channels.poll_bound,
        };
        let mut by_name = channels.by_name.lock();
        let entry = by_name.entry(Arc::clone(channel));
        let lines = entry.or_insert_with(|| Channel::new(poll_bound));
        let ticket = lines.line(kind).queue.join(newcomer);
        drop(by_name);
        Self { channels, store, channel, kind, ticket, parker: None }
    }

    fn can_be_woken(&mut self) {
        let parker = Parker::new();
        self.with_line((), |line| {
            line.parkers.insert(self.ticket, parker.clone());
        });
        self.channels.sleepers.up(1);
        self.parker = Some(parker);
    }

    fn step(&self, now: Instant) -> Step {
        self.with_line(Step::Sleep(None), |line| {
            let step = line.queue.step(self.ticket, now);
            // It acts although others stand before it, who are stuck. Whoever stands behind it has to watch it now.
            let takes_over = line.queue.tickets().next() != Some(self.ticket);
            if takes_over && matches!(step, Step::Try(_)) {
                line.queue.attentive(now).for_each(|ticket| line.unpark(ticket));
            }
            step
        })
    }

    fn refused(&self, seen: Wakes, busy: Option<Duration>, others: Others, now: Instant) {
        self.with_line((), |line| {
            line.queue.refused(self.ticket, seen, busy, others, now);
            // The next may have something to try for, and be asleep since before this call.
            if let Some(acting) =
                line.queue.acting_ticket(now).filter(|acting| *acting != self.ticket)
            {
                line.unpark(acting);
            }
        });
    }

    fn granted(&self, seen: Wakes, others: Others, now: Instant) {
        self.with_line((), |line| {
            line.queue.granted(self.ticket, seen, others, now);
            if !line.subscribed {
                // Nobody was refused so far, so no message will come. The next in line tries, is refused and subscribes.
                line.queue.wake();
            }
        });
    }

    fn subscribe(&self) {
        let first = self.with_line(false, |line| {
            let first = !line.subscribed;
            line.subscribed = true;
            if first {
                self.store.subscribe(self.channel);
            }
            first
        });
        // With the lines unlocked: a message may be on its way to them.
        if first {
            self.store.flush();
        }
    }

    fn with_line<R>(&self, otherwise: R, act: impl FnOnce(&mut Line) -> R) -> R {
        let mut by_name = self.channels.by_name.lock();
        by_name.get_mut(self.channel).map_or(otherwise, |channel| act(channel.line(self.kind)))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.parker.is_some() {
            self.channels.sleepers.down(1);
        }
        let mut by_name = self.channels.by_name.lock();
        let Some(channel) = by_name.get_mut(self.channel) else {
            return;
        };
        let line = channel.line(self.kind);
        line.queue.leave(self.ticket);
        line.parkers.remove(&self.ticket);
        if !line.queue.is_empty() {
            let now = self.channels.clock.now();
            line.queue.attentive(now).for_each(|ticket| line.unpark(ticket));
            return;
        }
        let subscribed = std::mem::take(&mut line.subscribed);
        let [one, other] = channel.lines();
        if subscribed && !one.subscribed && !other.subscribed {
            self.store.unsubscribe(self.channel);
        }
        if one.queue.is_empty() && other.queue.is_empty() {
            by_name.remove(self.channel);
        }
    }
}
