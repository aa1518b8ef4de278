//! The store in memory: a keyspace shared by the clients of one process, on a clock of their
//! choice.
//!
//! Serves as the default of the quickstart, as a test double for users and as the test bench of the
//! watchdog. Never stands in for Redis silently. Each operation defines its effect on the keyspace
//! in its own file, next to its script. A property test compares both stores: replies, messages and
//! final contents.
//!
//! A fault that a test switches on lasts until the test ends the fault, so failed commands are not
//! retried: on a manual clock the test would wait for itself.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::clock::SuspendClock;
use crate::model::fork::HomeProcess;
use crate::model::sync::{Mutex, Parker, pass_until};
use crate::ops::keyspace::{Keyspace, Publication};
use crate::ops::value::{ServerTime, Value};
use crate::ops::{AnyOperation, RENEW};
use crate::store::failure::Failure;
use crate::store::faults::{Fault, Faults, MAX_LOST_WRITES, Origin};
use crate::store::listener::Listener;

/// A lock server inside the process, for a program's own tests.
///
/// Created by [`new`](Self::new) or [`with_clock`](Self::with_clock).
///
/// The locks of a `Memory` exclude only the threads of one process. A `Memory` runs the same
/// operations as a real server, on a [`Clock`] that a test can advance. To check the program's
/// reaction to a lost lock, a test can inject faults: until the test ends the fault, or for [single
/// commands](Self::set_faults). See the [page on testing](crate::guide::testing).
///
/// Clones share the keys and the faults. The methods below act at once, send no command, and meet
/// no fault. The child of a fork has to create a new `Memory`: with the parent's `Memory`, the
/// build of a client and each call of a client return
/// [`Error::Forked`](crate::Error::Forked).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use wheellock::{Client, ManualClock, Memory};
///
/// let clock = ManualClock::new();
/// let memory = Memory::with_clock(Arc::new(clock.clone()));
/// let client = Client::builder().in_memory(&memory).build()?;
///
/// let guard = client.lock("orders:42").with_lease(Duration::from_secs(10)).lock()?;
/// assert!(guard.is_held());
/// clock.advance(Duration::from_secs(10));
/// assert!(!guard.is_held());
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone)]
pub struct Memory {
    server: Arc<MemoryServer>,
}

/// The server that all clones of a [`Memory`] share.
struct MemoryServer {
    home: HomeProcess,
    clock: Arc<dyn Clock>,
    created: Instant,
    /// The server's clock minus the underlying clock, in milliseconds.
    clock_offset: AtomicI64,
    state: Mutex<MemoryState>,
}

/// The keys, the subscribers and the faults of a [`Memory`].
#[derive(Default)]
struct MemoryState {
    keyspace: Keyspace,
    subscribers: Vec<MemorySubscriber>,
    next_subscriber: u64,
    unreachable: bool,
    drops_replies: bool,
    drops_messages: bool,
    faults: Faults,
    /// The number of commands since the faults were set.
    commands: Commands,
    /// The keys before each of the last write commands, while there are faults. Whole copies: a log
    /// of changes would describe the effect of each operation a second time.
    before_writes: VecDeque<Keyspace>,
    /// The number of takeovers by a replica.
    moves: u64,
}

/// Counts of commands by source.
#[derive(Default)]
struct Commands {
    program: u64,
    renewals: u64,
    background: u64,
}

/// One client of a [`Memory`], with the channels that the client has subscribed.
struct MemorySubscriber {
    id: u64,
    listener: Weak<dyn Listener>,
    channels: HashSet<Arc<str>>,
    /// Subscribed channels that are not yet reported as live.
    unconfirmed: Vec<Arc<str>>,
    /// Unparked when a replica takes over.
    move_listeners: Vec<Parker>,
}

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Sent by a call that waits for the reply.
    Call,
    /// Sent by a guard without waiting for the reply.
    Unread,
    /// Sent by a thread of the client.
    Background,
}

/// The server's time at the start, in milliseconds: a realistic number, of the year 2001.
const EPOCH: i64 = 1_000_000_000_000;

impl Memory {
    /// Creates an empty server on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SuspendClock::new()))
    }

    /// Creates an empty server on `clock`, such as a [`ManualClock`](crate::ManualClock).
    ///
    /// A client of the server uses the same clock, unless the client's builder sets another
    /// [clock](crate::ClientBuilder::clock).
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let created = clock.now();
        let (clock_offset, state) = (AtomicI64::new(0), Mutex::new(MemoryState::default()));
        let home = HomeProcess::new();
        Self { server: Arc::new(MemoryServer { home, clock, created, clock_offset, state }) }
    }

    /// Sets the faults of single commands in place of all earlier faults, and counts commands from
    /// zero again.
    ///
    /// [`Faults::new`] removes all faults. The method changes neither
    /// [`set_unreachable`](Self::set_unreachable), [`lose_replies`](Self::lose_replies) nor
    /// [`lose_messages`](Self::lose_messages).
    ///
    /// After a transient fault of a single command, a client sends the command again, as on a
    /// network. While `set_unreachable` or `lose_replies` is switched on, a client does not send a
    /// command again.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.server.state.lock();
        state.faults = faults;
        state.commands = Commands::default();
        state.before_writes.clear();
    }

    /// Assigns `fault` to the next command of the program's calls and guards, through any client of
    /// this server.
    ///
    /// The fault replaces a fault that was assigned to this command. Other faults are unchanged.
    ///
    /// ```
    /// use wheellock::{Client, Fault, Memory};
    ///
    /// let memory = Memory::new();
    /// let client = Client::builder().in_memory(&memory).build()?;
    /// let guard = client.lock("orders:42").lock()?;
    /// memory.fail_next(Fault::LoseKey);
    /// assert!(guard.check().is_ok(), "this is local: it does not look");
    /// assert!(guard.unlock().is_err(), "the server has no such hold");
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn fail_next(&self, fault: Fault) {
        let mut state = self.server.state.lock();
        let next = state.commands.program;
        state.faults = std::mem::take(&mut state.faults).on_command(next, fault);
    }

    /// Returns the number of commands sent by the program's calls and guards since the last
    /// [`set_faults`](Self::set_faults), or since the server was created.
    ///
    /// As commands are numbered from zero, this is also the number of the next command. Each
    /// attempt of a call counts, also an attempt that meets a fault. Renewals, other commands of
    /// client threads, and commands sent while the server is
    /// [unreachable](Self::set_unreachable) do not count.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.server.state.lock().commands.program
    }

    /// Makes the server unreachable for all clients (`true`), or reachable again (`false`).
    ///
    /// While the server is unreachable, no command runs, and calls return
    /// [`Error::Unreachable`](crate::Error::Unreachable) without a retry. The keys stay until they
    /// expire.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.server.state.lock().unreachable = unreachable;
    }

    /// Loses the replies to all commands from now on (`true`), or delivers replies again (`false`).
    ///
    /// The commands run in both cases. While replies are lost, calls return
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown) without a retry.
    pub fn lose_replies(&self, lose: bool) {
        self.server.state.lock().drops_replies = lose;
    }

    /// Loses all messages to waiters from now on (`true`), or delivers messages again (`false`).
    ///
    /// While messages are lost, waiters poll: once a second, or every five seconds behind other
    /// waiters in the queue of a fair lock.
    pub fn lose_messages(&self, lose: bool) {
        self.server.state.lock().drops_messages = lose;
    }

    /// Deletes `key`, as an operator or an eviction would, without a message to waiters. No effect
    /// if the key does not exist.
    pub fn delete(&self, key: &str) {
        self.server.with_keyspace(|keyspace| keyspace.delete(key));
    }

    /// Deletes every key, without a message to waiters.
    pub fn flush_all(&self) {
        self.server.with_keyspace(Keyspace::clear);
    }

    /// Stores a text without expiry under `key`, in place of any earlier value.
    ///
    /// The key then holds foreign data: an acquire of the [`lock`](crate::Client::lock) of this
    /// name returns [`Error::WrongType`](crate::Error::WrongType).
    pub fn put_text(&self, key: &str) {
        self.server.with_keyspace(|keyspace| keyspace.text_set(key, "data"));
    }

    /// Returns the fields and values of the hash under `key`, in the order of the fields.
    ///
    /// The hash under a lock's name has the owners with their nesting counts; for a read-write lock
    /// also the field `mode`. The result is empty if the key does not exist, as for a free lock, or
    /// is no hash, as for a simple lock.
    #[must_use]
    pub fn fields(&self, key: &str) -> Vec<(String, String)> {
        self.server.with_keyspace(|keyspace| keyspace.fields(key))
    }

    /// Returns the string under `key`: the owner of a simple lock, or the number of a semaphore or
    /// a latch. `None` if the key does not exist or is no string.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.server.with_keyspace(|keyspace| keyspace.text_get(key)).ok().flatten()
    }

    /// Returns the remaining time to live of `key`, in whole milliseconds. `None` if the key does
    /// not exist or has no expiry.
    #[must_use]
    pub fn time_to_live(&self, key: &str) -> Option<Duration> {
        let millis = self.server.with_keyspace(|keyspace| keyspace.time_to_live(key));
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.server.clock)
    }

    /// Returns a text identifying this server: equal for clones, different for other servers.
    pub(crate) fn identity(&self) -> String {
        format!("memory at {:p}", Arc::as_ptr(&self.server))
    }

    /// Returns whether the server was created in the current process rather than in a parent.
    pub(crate) fn is_current(&self) -> bool {
        self.server.home.is_current()
    }

    /// Connects a client, whose messages go to `listener`. Dropping the session ends the client's
    /// subscriptions.
    pub(crate) fn session(&self, listener: Weak<dyn Listener>) -> Session {
        let mut state = self.server.state.lock();
        let id = state.next_subscriber;
        state.next_subscriber += 1;
        state.subscribers.push(MemorySubscriber {
            id,
            listener,
            channels: HashSet::new(),
            unconfirmed: Vec::new(),
            move_listeners: Vec::new(),
        });
        Session { server: Arc::clone(&self.server), id }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Memory").field("clock", &self.server.clock).finish_non_exhaustive()
    }
}

// The state changes under locks without poisoning, and no foreign code but the clock is called.
impl RefUnwindSafe for MemoryServer {}

impl MemoryServer {
    /// Returns the server's time: the underlying clock, shifted by the faults of a test.
    fn now(&self) -> ServerTime {
        let since = self.clock.now().saturating_duration_since(self.created).as_millis();
        // Relaxed: the keyspace is locked for reads and writes of the offset.
        let offset = self.clock_offset.load(Ordering::Relaxed);
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        ServerTime(EPOCH.saturating_add(since).saturating_add(offset))
    }

    /// Moves the server's clock by `by` milliseconds, forward or back.
    fn shift_clock(&self, by: i64) {
        let _state = self.state.lock();
        let offset = self.clock_offset.load(Ordering::Relaxed).saturating_add(by);
        self.clock_offset.store(offset, Ordering::Relaxed);
    }

    /// Waits for `time` on the underlying clock, and advances a clock that stands still. Call with
    /// nothing locked.
    fn pass(&self, time: Duration) {
        let (parker, deadline) = (Parker::new(), self.clock.now() + time);
        loop {
            pass_until(&*self.clock, &parker, deadline, None);
            if self.clock.now() >= deadline {
                return;
            }
        }
    }

    /// Promotes a replica without the last `lost_writes` writes, and notifies the clients. On a
    /// clock moved by a test, the clients have noticed the takeover on return.
    fn fail_over(&self, lost_writes: usize) {
        let listeners: Vec<Parker> = {
            let mut state = self.state.lock();
            state.lose_writes(lost_writes);
            state.moves += 1;
            let of = state.subscribers.iter();
            of.flat_map(|subscriber| subscriber.move_listeners.iter().cloned()).collect()
        };
        listeners.iter().for_each(Parker::unpark);
        self.pass(Duration::ZERO);
    }

    /// Sets the keyspace's time to the server's time, and returns the result of `change` on the
    /// locked keyspace.
    fn with_keyspace<R>(&self, change: impl FnOnce(&mut Keyspace) -> R) -> R {
        let mut state = self.state.lock();
        state.keyspace.set_now(self.now());
        change(&mut state.keyspace)
    }
}

/// Converts to milliseconds, at most `i64::MAX`.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the failure of a command that may have run. `broken` says that the connection ended.
fn unanswered(not_after: ServerTime, reason: &str, broken: bool) -> Failure {
    Failure::Unknown { not_after, reason: reason.into(), broken }
}

/// Returns the failure of a command that did not run.
fn not_sent(reason: &str) -> Failure {
    Failure::NotSent { server: "memory".to_owned(), reason: reason.into() }
}

/// One client's connection to a [`Memory`].
pub(crate) struct Session {
    server: Arc<MemoryServer>,
    id: u64,
}

impl Session {
    /// Returns a failure while a test has switched on that the server is unreachable or loses
    /// replies.
    pub(crate) fn ping(&self) -> Result<(), Failure> {
        let state = self.server.state.lock();
        match (state.unreachable, state.drops_replies) {
            (true, _) => Err(not_sent("set unreachable")),
            (false, true) => Err(not_sent("the reply was lost")),
            (false, false) => Ok(()),
        }
    }

    /// Runs `operation` on the keyspace, delivers the published messages, and returns the reply.
    /// The command's fault, if any, may lose, refuse or delay the command. `sending` decides which
    /// faults apply, and a guard's [`Unread`](Sending::Unread) command waits for no delay.
    pub(crate) fn execute(
        &self,
        operation: &AnyOperation<'_>,
        timeout: Duration,
        sending: Sending,
    ) -> Result<Value, Failure> {
        // 1. Draw the fault of the command. Faults of the keys or the clock take effect first.
        let fault = {
            let mut state = self.server.state.lock();
            if state.unreachable {
                return Err(not_sent("set unreachable"));
            }
            // Without faults the number of a renewal is never read.
            let is_renewal = || !state.faults.is_empty() && operation.request().name == RENEW;
            let origin = match sending {
                Sending::Call | Sending::Unread => Origin::Program,
                Sending::Background if is_renewal() => Origin::Renewal,
                Sending::Background => Origin::Background,
            };
            state.next_fault(origin)
        };
        match fault {
            Some(Fault::Unreachable) => return Err(not_sent("a fault of the test")),
            Some(Fault::Refuse(reply)) => {
                let (code, message) = reply.split_once(' ').unwrap_or((reply, ""));
                return Err(Failure::refused(code, message));
            }
            Some(Fault::LoseKey) => {
                let key = operation.request().keys.first().copied();
                self.server.with_keyspace(|keyspace| key.map(|key| keyspace.delete(key)));
            }
            Some(Fault::FailOver { lost_writes }) => self.server.fail_over(lost_writes),
            Some(Fault::ClockForward(by)) => self.server.shift_clock(millis(by)),
            Some(Fault::ClockBack(by)) => self.server.shift_clock(-millis(by)),
            _ => {}
        }
        // 2. Run the command, unless the request is lost. A lost reply is reported with nothing
        //    locked.
        let (not_after, value, deliveries) = {
            let mut state = self.server.state.lock();
            let now = self.server.now();
            let not_after = ServerTime(now.0.saturating_add(millis(timeout)));
            if fault == Some(Fault::LoseRequest) {
                return Err(unanswered(not_after, "the connection broke", true));
            }
            state.keyspace.set_now(now);
            let before = (!state.faults.is_empty()).then(|| state.keyspace.clone());
            let value = operation.run(&mut state.keyspace, not_after);
            let published = state.keyspace.take_published();
            state.remember_write(before);
            let is_lost = state.drops_messages || fault == Some(Fault::LoseMessages);
            let deliveries = if is_lost { Vec::new() } else { state.deliveries(&published) };
            let value = if state.drops_replies {
                Err(unanswered(not_after, "the reply was lost", false))
            } else {
                Ok(value)
            };
            (not_after, value, deliveries)
        };
        // With the keyspace unlocked: a listener may read the keyspace.
        for (listener, publication) in deliveries {
            listener.message(&publication.channel, &publication.payload);
        }
        // 3. Deliver, lose or delay the reply.
        match fault {
            Some(Fault::LoseReply) => {
                return Err(unanswered(not_after, "the connection broke", true));
            }
            Some(Fault::Delay(delay)) => {
                // A guard that does not wait for the reply does not wait for a late one.
                if sending != Sending::Unread {
                    self.server.pass(delay.min(timeout));
                }
                if delay >= timeout {
                    return Err(unanswered(not_after, "no reply in time", false));
                }
            }
            Some(Fault::Pause(pause)) => self.server.pass(pause),
            _ => {}
        }
        match value? {
            Value::Refusal { code, message } => Err(Failure::Refused { code, message }),
            value => Ok(value),
        }
    }

    /// Returns whether a failed command may succeed in a moment. Faults of single commands pass;
    /// faults that a test switches on last.
    pub(crate) fn may_answer_later(&self) -> bool {
        let state = self.server.state.lock();
        !state.faults.is_empty() && !state.unreachable && !state.drops_replies
    }

    /// Returns the number of takeovers by a replica.
    pub(crate) fn moves(&self) -> u64 {
        self.server.state.lock().moves
    }

    /// Unparks `parker` at each later takeover by a replica.
    pub(crate) fn wake_on_move(&self, parker: &Parker) {
        self.with_subscriber(|subscriber| subscriber.move_listeners.push(parker.clone()));
    }

    /// Subscribes `channel`. The next [`flush`](Self::flush) reports the channel as live.
    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.insert(Arc::clone(channel));
            subscriber.unconfirmed.push(Arc::clone(channel));
        });
    }

    /// Ends the subscription of `channel`. No later message of the channel is delivered.
    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.remove(channel);
            subscriber.unconfirmed.retain(|unconfirmed| unconfirmed != channel);
        });
    }

    /// Reports the channels that were subscribed since the last flush as live.
    pub(crate) fn flush(&self) {
        let mut confirmed = None;
        self.with_subscriber(|subscriber| {
            let channels = std::mem::take(&mut subscriber.unconfirmed);
            confirmed = subscriber.listener.upgrade().map(|listener| (listener, channels));
        });
        if let Some((listener, channels)) = confirmed {
            for channel in channels {
                listener.live(&channel);
            }
        }
    }

    /// Calls `change` with this client's entry in the locked list of subscribers.
    fn with_subscriber(&self, change: impl FnOnce(&mut MemorySubscriber)) {
        let mut state = self.server.state.lock();
        if let Some(own) = state.subscribers.iter_mut().find(|other| other.id == self.id) {
            change(own);
        }
    }
}

impl MemoryState {
    /// Counts a command of `origin`, and returns the command's fault, if any.
    fn next_fault(&mut self, origin: Origin) -> Option<Fault> {
        let count = match origin {
            Origin::Program => &mut self.commands.program,
            Origin::Renewal => &mut self.commands.renewals,
            Origin::Background => &mut self.commands.background,
        };
        let number = *count;
        *count += 1;
        self.faults.get(origin, number)
    }

    /// Stores `before`, the keyspace before the last command, if the command has changed the
    /// keyspace. At most [`MAX_LOST_WRITES`] copies are retained.
    fn remember_write(&mut self, before: Option<Keyspace>) {
        let Some(before) = before.filter(|before| *before != self.keyspace) else { return };
        if self.before_writes.len() == MAX_LOST_WRITES {
            self.before_writes.pop_front();
        }
        self.before_writes.push_back(before);
    }

    /// Restores the keyspace before the last `lost` write commands.
    fn lose_writes(&mut self, lost: usize) {
        let left = self.before_writes.len().saturating_sub(lost);
        if let Some(before) = self.before_writes.drain(left..).next() {
            self.keyspace = before;
        }
    }

    /// Returns each published message once for each client that has subscribed its channel, with
    /// the client's listener.
    fn deliveries(&self, published: &[Publication]) -> Vec<(Arc<dyn Listener>, Publication)> {
        published
            .iter()
            .flat_map(|publication| {
                self.subscribers
                    .iter()
                    .filter(|subscriber| subscriber.channels.contains(publication.channel.as_str()))
                    .filter_map(|subscriber| subscriber.listener.upgrade())
                    .map(|listener| (listener, publication.clone()))
            })
            .collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.state.lock().subscribers.retain(|subscriber| subscriber.id != self.id);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
