//! The wait registry: which threads of this client wait for which channel, in which queue, with
//! which parker. Passes messages to the queues.

use std::collections::hash_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::error::Error;
use crate::events::dispatcher::EventDispatcher;
use crate::events::report::Warning;
use crate::events::stats::Gauge;
use crate::hold::hold::Hold;
use crate::hold::registry::HoldRegistry;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::ClientId;
use crate::model::panics::catch_panic;
use crate::model::settings::{HandOver, QUEUE_POLL_BOUND};
use crate::model::sync::thread::ThreadId;
use crate::model::sync::{Mutex, MutexGuard, Parker};
use crate::model::wait_mode::WaitMode;
use crate::ops::client_record::client_record_key;
use crate::ops::revoke::{NAME_WAITS, RevocationRequest};
use crate::store::shutdown::ShutdownState;
use crate::store::{Listener, Store};
use crate::waits::queue::{JoinMode, Ticket, WaitQueue};
use crate::watchdog::Watchdog;

/// The settings of waits for grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSettings {
    pub(crate) poll_bound: Duration,
    pub(crate) hand_over: HandOver,
    /// The lease of holds after a hand-over.
    pub(crate) lease: Lease,
    /// Whether threads with long waits search for deadlocks.
    pub(crate) looks_for_deadlocks: bool,
    /// Whether a wait may end with [`Error::Deadlock`].
    pub(crate) waits_may_fail: bool,
}

impl WaitSettings {
    /// Returns the longest sleep of a waiter without messages.
    pub(crate) fn poll_bound(&self, mode: WaitMode) -> Duration {
        match mode {
            WaitMode::Queued => QUEUE_POLL_BOUND,
            _ => self.poll_bound,
        }
    }
}

/// The channels on which threads of this client wait.
#[derive(Debug)]
pub(crate) struct WaitRegistry {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<EventDispatcher>,
    pub(crate) holds: Arc<HoldRegistry>,
    pub(crate) settings: WaitSettings,
    pub(crate) shutdown: ShutdownState,
    /// Only waiters lock the mutex directly: other code uses [`channels`](Self::channels).
    pub(crate) channels: Mutex<Channels>,
    /// The number of threads asleep here, or about to try again after a sleep.
    pub(crate) sleepers: Gauge,
    /// How often a hold was handed over.
    pub(crate) hand_overs: AtomicU64,
    /// The channel for requests for this client's locks.
    revocation_channel: Arc<str>,
    /// Whether this client has subscribed to the request channel.
    wants_revocations: AtomicBool,
    /// Whether the server has confirmed this subscription.
    is_subscribed_to_revocations: AtomicBool,
    /// Ends cached holds. Weak, as the watchdog has a listener that refers to the registry. Set
    /// when the client has started: before, no hold is cached.
    pub(crate) watchdog: OnceLock<Weak<Watchdog>>,
}

impl WaitRegistry {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        events: Arc<EventDispatcher>,
        holds: Arc<HoldRegistry>,
        settings: WaitSettings,
        client: &ClientId,
    ) -> Self {
        Self {
            clock,
            events,
            holds,
            settings,
            shutdown: ShutdownState::default(),
            channels: Mutex::default(),
            sleepers: Gauge::default(),
            hand_overs: AtomicU64::new(0),
            revocation_channel: client_record_key(client),
            wants_revocations: AtomicBool::new(false),
            is_subscribed_to_revocations: AtomicBool::new(false),
            watchdog: OnceLock::new(),
        }
    }

    /// Whether a thread of this client holds the plain lock `name`, and will notify the waiters of
    /// the end.
    pub(crate) fn is_in_use(&self, name: &LockName, now: Instant) -> bool {
        self.holds.any(name, |hold| hold.kind == Kind::Reentrant && hold.is_in_use(now))
    }

    /// Locks the channels, and puts a lone waiter into its queue.
    pub(crate) fn channels(&self) -> MutexGuard<'_, Channels> {
        let mut channels = self.channels.lock();
        channels.queue_lone();
        channels
    }

    /// Calls `tell` for each queue of a channel, and wakes the returned waiter with nothing locked,
    /// as the waiter visits its queue at once.
    fn tell(&self, channel: &str, tell: impl Fn(&mut Waiters) -> Option<Ticket>) {
        let woken: Vec<Parker> = {
            let mut channels = self.channels();
            let queues =
                channels.by_name.get_mut(channel).into_iter().flat_map(Channel::queues_mut);
            let wake = |waiters: &mut Waiters| {
                let ticket = tell(waiters)?;
                waiters.threads.get(&ticket).map(|thread| thread.parker.clone())
            };
            queues.filter_map(wake).collect()
        };
        woken.iter().for_each(Parker::unpark);
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.shutdown.begin();
        for waiters in self.channels().by_name.values().flat_map(Channel::queues) {
            waiters.threads.values().for_each(|thread| thread.parker.unpark());
        }
    }

    /// Returns the shutdown state. A shutdown begins with [`close`](Self::close).
    pub(crate) fn shutdown(&self) -> &ShutdownState {
        &self.shutdown
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Returns how many threads are asleep here, or about to try again after a sleep.
    pub(crate) fn waiters(&self) -> usize {
        self.sleepers.now()
    }

    /// Returns how many threads of this client have slept in a wait for a name on its channel,
    /// without watching threads, and whether the channel has a confirmed subscription.
    pub(crate) fn waiting_on(&self, name: &LockName, channel: &str) -> ChannelWaiters {
        let mut channels = self.channels();
        channels.by_name.get_mut(channel).map_or_else(ChannelWaiters::default, |channel| {
            let is_subscribed = channel.live && channel.is_subscribed();
            let queues = channel.of(name.has_braces());
            let threads = queues.exclusive.threads.len() + queues.shared.threads.len();
            ChannelWaiters { threads, is_subscribed }
        })
    }

    /// Whether a thread of this client has slept in a wait for the lock of `hold`.
    pub(crate) fn waits_for(&self, hold: &Hold) -> bool {
        self.waiting_on(&hold.name, &hold.name.channel()).threads > 0
    }

    /// Subscribes to the channel for requests for this client's locks. Only the first call has an
    /// effect; no call waits.
    pub(crate) fn subscribe_to_revocations(&self, store: &Store) {
        // Read first: usually the flag is set, and the threads share the cache line.
        if !self.wants_revocations.load(Ordering::Relaxed)
            && !self.wants_revocations.swap(true, Ordering::Relaxed)
        {
            store.subscribe(&self.revocation_channel);
            store.flush();
        }
    }

    /// Whether the server has confirmed the subscription to requests for this client's locks. No
    /// hold is cached before.
    pub(crate) fn is_subscribed_to_revocations(&self) -> bool {
        self.is_subscribed_to_revocations.load(Ordering::Relaxed)
    }

    /// Has the client's record written again, after which a waiter searches for deadlocks. The
    /// waits in the record have changed, or another client has seen a cycle with a wait of this
    /// client.
    pub(crate) fn name_waits(&self) {
        if let Some(watchdog) = self.watchdog.get().and_then(Weak::upgrade) {
            watchdog.record.name_waits();
        }
    }

    /// Returns how often a hold was handed over.
    pub(crate) fn hand_overs(&self) -> u64 {
        // Relaxed: a plain sum.
        self.hand_overs.load(Ordering::Relaxed)
    }
}

impl Listener for WaitRegistry {
    fn live(&self, channel: &str) {
        if *channel == *self.revocation_channel {
            self.is_subscribed_to_revocations.store(true, Ordering::Relaxed);
            return;
        }
        let now = self.clock.now();
        if let Some(channel) = self.channels().by_name.get_mut(channel) {
            channel.live = true;
        }
        self.tell(channel, |waiters| {
            waiters.queue.confirmed();
            waiters.queue.delegate(now)
        });
    }

    fn message(&self, channel: &str, payload: &str) {
        // In memory, this is the releasing thread. If the clock panics, no waiter yields.
        let now = catch_panic(|| self.clock.now());
        if *channel == *self.revocation_channel {
            if payload == NAME_WAITS {
                if !self.holds.long_waits.is_empty() {
                    self.name_waits();
                }
                return;
            }
            // A malformed message is no request.
            if let (Some(now), Some(request)) = (now, RevocationRequest::parse(payload)) {
                self.wanted(&request, now);
            }
            return;
        }
        let budget = self.settings.hand_over.budget();
        self.tell(channel, |waiters| {
            let Some(now) = now else {
                waiters.queue.hold_ended();
                return waiters.queue.first_asleep();
            };
            let is_reason = waiters.queue.message(now, budget);
            is_reason.then(|| waiters.queue.delegate(now)).flatten()
        });
    }

    fn refused(&self, refusal: &str) {
        // The server refuses each channel separately. One warning is enough.
        self.events.warn_once(Warning::ChannelsRefused { refusal: refusal.to_owned() });
    }
}

/// A waiter to which another thread may give its hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipient<'a> {
    pub(crate) name: &'a LockName,
    /// The waiter's thread, which would be the holder. `None`: the thread with the guard.
    pub(crate) thread: Option<ThreadId>,
    /// Ends a given hold, unless taken by the waiter.
    pub(crate) watchdog: &'a Watchdog,
}

/// The waiters of a client for a name on its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChannelWaiters {
    pub(crate) threads: usize,
    pub(crate) is_subscribed: bool,
}

/// The channels with waiting threads, by name.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(crate) by_name: HashMap<Arc<str>, Channel>,
    lone: Option<LoneWaiter>,
}

/// The only waiter of the client on arrival, without an answer yet. Usually the waiter is granted
/// before another thread arrives. So the waiter is in no queue until a thread inspects the queues,
/// by [`WaitRegistry::channels`]: the queue is new, so the ticket and the wakes of the try are
/// known beforehand.
#[derive(Debug)]
struct LoneWaiter {
    channel: Arc<str>,
    has_braces: bool,
    mode: WaitMode,
    poll_bound: Duration,
    /// When the waiter arrived, and began to try.
    since: Instant,
    /// Whether the waiter is in its queue by now.
    is_queued: bool,
}

impl Channels {
    /// Whether there is no channel and no lone waiter.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.lone.is_none()
    }

    /// Returns the channel `name`, which is added without waiters if missing.
    pub(crate) fn get_or_add(&mut self, name: &Arc<str>, poll_bound: Duration) -> &mut Channel {
        self.by_name.entry(Arc::clone(name)).or_insert_with(|| Channel::new(poll_bound))
    }

    /// Makes a waiter the lone waiter, which has arrived at `since`. There is no other waiter.
    pub(crate) fn add_lone(
        &mut self,
        (channel, has_braces): (&Arc<str>, bool),
        mode: WaitMode,
        poll_bound: Duration,
        since: Instant,
    ) {
        let (channel, is_queued) = (Arc::clone(channel), false);
        self.lone = Some(LoneWaiter { channel, has_braces, mode, poll_bound, since, is_queued });
    }

    /// Puts the lone waiter into its queue, as if queued since its arrival.
    pub(crate) fn queue_lone(&mut self) {
        let Some(lone) = self.lone.as_mut().filter(|lone| !lone.is_queued) else { return };
        lone.is_queued = true;
        let (name, mode, poll_bound) = (Arc::clone(&lone.channel), lone.mode, lone.poll_bound);
        let (since, has_braces) = (lone.since, lone.has_braces);
        let waiters = self.get_or_add(&name, poll_bound).of(has_braces).waiters(mode);
        waiters.queue.join_trying(JoinMode::of(mode), since);
    }

    /// Ends the first try of the lone waiter. A waiter that `stays` is put into its queue. Returns
    /// whether the waiter is queued.
    pub(crate) fn end_lone(&mut self, stays: bool) -> bool {
        if stays {
            self.queue_lone();
        }
        self.lone.take().is_some_and(|lone| lone.is_queued)
    }
}

/// The waiters for one channel's messages. Two names may have one channel, `x` and `{x}`.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The waiters for the name without braces.
    plain: NameQueues,
    /// The waiters for the name with braces.
    braced: NameQueues,
    /// Whether the subscription was confirmed.
    pub(crate) live: bool,
}

/// The waiters for one name. Readers, writers and watchers of a lock have a queue each.
#[derive(Debug)]
pub(crate) struct NameQueues {
    pub(crate) exclusive: Waiters,
    shared: Waiters,
    watching: Waiters,
}

/// The waiters of a channel in one mode: their queue, and their threads.
#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) queue: WaitQueue,
    pub(crate) threads: BTreeMap<Ticket, WaitingThread>,
    pub(crate) subscribed: bool,
    /// The error of the last try, if the try failed.
    pub(crate) failure: Option<Error>,
}

/// A waiter asleep, now or earlier.
#[derive(Debug)]
pub(crate) struct WaitingThread {
    pub(crate) parker: Parker,
    /// The name of the lock and [the thread](Recipient::thread), if the waiter may be given a hold.
    pub(crate) recipient: Option<(LockName, Option<ThreadId>)>,
    /// The given hold, until the waiter visits the queue.
    pub(crate) given: Option<Arc<Hold>>,
}

impl Channel {
    /// Makes a channel without waiters and without a subscription.
    pub(crate) fn new(poll_bound: Duration) -> Self {
        let queues = || NameQueues {
            exclusive: Waiters::new(poll_bound),
            shared: Waiters::new(poll_bound),
            watching: Waiters::new(poll_bound),
        };
        Self { plain: queues(), braced: queues(), live: false }
    }

    /// Returns the queues of the name with braces, or of the name without.
    pub(crate) fn of(&mut self, has_braces: bool) -> &mut NameQueues {
        if has_braces { &mut self.braced } else { &mut self.plain }
    }

    /// Returns all queues of the channel: of both names and each mode.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Waiters> {
        let names = [&self.plain, &self.braced].into_iter();
        names.flat_map(|queues| [&queues.exclusive, &queues.shared, &queues.watching])
    }

    /// Whether this client has subscribed to the channel for any of its queues.
    fn is_subscribed(&self) -> bool {
        self.queues().any(|waiters| waiters.subscribed)
    }

    /// Returns all queues of the channel, to be changed.
    pub(crate) fn queues_mut(&mut self) -> impl Iterator<Item = &mut Waiters> {
        let names = [&mut self.plain, &mut self.braced].into_iter();
        names.flat_map(|queues| [&mut queues.exclusive, &mut queues.shared, &mut queues.watching])
    }
}

impl NameQueues {
    /// Returns the queue in which waiters of `mode` wait.
    pub(crate) fn waiters(&mut self, mode: WaitMode) -> &mut Waiters {
        match mode {
            WaitMode::Exclusive | WaitMode::Polled | WaitMode::Queued => &mut self.exclusive,
            WaitMode::Shared => &mut self.shared,
            WaitMode::Watching => &mut self.watching,
        }
    }
}

impl Waiters {
    fn new(poll_bound: Duration) -> Self {
        Self {
            queue: WaitQueue::new(poll_bound),
            threads: BTreeMap::new(),
            subscribed: false,
            failure: None,
        }
    }

    /// Notes that the server has answered a waiter. Forgets an earlier failure, and wakes the
    /// waiters that have requested an answer.
    pub(crate) fn answered(&mut self) {
        self.failure = None;
        self.queue.asking().for_each(|ticket| self.unpark(Some(ticket)));
    }

    /// Whether the next recipient of a hold waits for the lock `name`, and may be given a hold.
    pub(crate) fn gives_next(&self, name: &LockName) -> bool {
        let next = self.queue.next_recipient().and_then(|ticket| self.threads.get(&ticket));
        next.and_then(|thread| thread.recipient.as_ref()).is_some_and(|(wanted, _)| wanted == name)
    }

    /// Wakes the thread of the waiter `ticket`. A waiter that has never slept needs no wake.
    pub(crate) fn unpark(&self, ticket: Option<Ticket>) {
        if let Some(thread) = ticket.and_then(|ticket| self.threads.get(&ticket)) {
            thread.parker.unpark();
        }
    }
}

impl WaitingThread {
    /// Makes the entry of a waiter that sleeps on `parker`. `recipient` is set if the waiter may be
    /// given a hold.
    pub(crate) fn new(parker: &Parker, recipient: Option<Recipient<'_>>) -> Self {
        let recipient = recipient.map(|recipient| (recipient.name.clone(), recipient.thread));
        Self { parker: parker.clone(), recipient, given: None }
    }
}

/// Removes a channel without waiters. Ends the subscription of a channel without subscribed
/// waiters, and lets the next waiter of an empty queue try at once.
pub(crate) fn remove_unused(mut entry: OccupiedEntry<'_, Arc<str>, Channel>, store: &Store) {
    let was_subscribed = entry.get().is_subscribed();
    let is_unused = entry.get().queues().all(|waiters| waiters.queue.is_empty());
    for waiters in entry.get_mut().queues_mut().filter(|waiters| waiters.queue.is_empty()) {
        waiters.subscribed = false;
        // The channel may stay for another queue's waiters, perhaps without a subscription. The
        // next waiter tries at once.
        waiters.queue.wake();
    }
    if was_subscribed && !entry.get().is_subscribed() {
        entry.get_mut().live = false;
        store.unsubscribe(entry.key());
    }
    if is_unused {
        entry.remove();
    }
}
