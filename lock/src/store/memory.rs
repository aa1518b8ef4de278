//! The store in memory: a keyspace that the clients of one process share, on a clock of their
//! choice (DESIGN: memory store).

use std::collections::HashSet;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::model::clock::SuspendClock;
use crate::model::sync::Mutex;
use crate::ops::Operation;
use crate::ops::keyspace::{Keyspace, Publication};
use crate::ops::value::{ServerTime, Value};
use crate::store::failure::Failure;
use crate::store::listener::Listener;

/// A lock server inside the process. It excludes only the threads of one process: it is not a
/// distributed lock.
///
/// It is meant for a program's own tests. It runs the same operations as a real server, on a
/// [`Clock`] that a test can move, and a test can make it fail to see what the program does when a
/// lock is lost. Clones share the keys.
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
    server: Arc<Server>,
}

struct Server {
    clock: Arc<dyn Clock>,
    created: Instant,
    /// By how much its clock differs from the one that it runs on, in milliseconds.
    clock_offset: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keyspace: Keyspace,
    subscribers: Vec<Subscriber>,
    next_subscriber: u64,
    unreachable: bool,
    drops_replies: bool,
    drops_messages: bool,
}

struct Subscriber {
    id: u64,
    listener: Weak<dyn Listener>,
    channels: HashSet<Arc<str>>,
    /// Channels that were subscribed and not yet reported as live.
    unconfirmed: Vec<Arc<str>>,
}

/// Where the server's clock starts, in the year 2001: a realistic number.
const EPOCH: i64 = 1_000_000_000_000;

impl Memory {
    /// An empty server on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SuspendClock::new()))
    }

    /// An empty server on `clock`. Its clients use the same clock unless they are given another.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let created = clock.now();
        let (clock_offset, state) = (AtomicI64::new(0), Mutex::new(State::default()));
        Self { server: Arc::new(Server { clock, created, clock_offset, state }) }
    }

    /// From now on no operation reaches it (`true`), or operations do again (`false`). Its keys
    /// stay, and expire.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.server.state.lock().unreachable = unreachable;
    }

    /// From now on operations run and their replies are lost (`true`), or no longer (`false`).
    pub fn lose_replies(&self, lose: bool) {
        self.server.state.lock().drops_replies = lose;
    }

    /// From now on messages are lost (`true`), or no longer (`false`). Waiters then poll.
    pub fn lose_messages(&self, lose: bool) {
        self.server.state.lock().drops_messages = lose;
    }

    /// Sets the server's clock forward, as an operator would: every lease ends earlier by that
    /// much.
    pub fn set_clock_forward(&self, by: Duration) {
        self.server.shift_clock(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
    }

    /// Sets the server's clock back: every lease ends later by that much.
    pub fn set_clock_back(&self, by: Duration) {
        self.server.shift_clock(i64::try_from(by.as_millis()).map_or(i64::MIN, |by| -by));
    }

    /// Deletes a key, as an operator or an eviction would. No message is sent.
    pub fn delete(&self, key: &str) {
        self.server.with_keyspace(|keyspace| keyspace.delete(key));
    }

    /// Deletes every key. No message is sent.
    pub fn flush_all(&self) {
        self.server.with_keyspace(Keyspace::clear);
    }

    /// Stores a value that is not a lock under `key`.
    pub fn put_text(&self, key: &str) {
        self.server.with_keyspace(|keyspace| keyspace.text_set(key, "data"));
    }

    /// The hash under a lock's name: its owners with their counts. Empty if the lock is free.
    #[must_use]
    pub fn fields(&self, key: &str) -> Vec<(String, String)> {
        self.server.with_keyspace(|keyspace| keyspace.fields(key))
    }

    /// The value of a key that is a string: the owner of a simple lock, or a number.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.server.with_keyspace(|keyspace| keyspace.text_get(key)).ok().flatten()
    }

    /// The time to live of a key: `None` if it does not exist or has no expiry.
    #[must_use]
    pub fn time_to_live(&self, key: &str) -> Option<Duration> {
        let millis = self.server.with_keyspace(|keyspace| keyspace.time_to_live(key));
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.server.clock)
    }

    /// A text that is the same for clones and different for other servers.
    pub(crate) fn identity(&self) -> String {
        format!("memory at {:p}", Arc::as_ptr(&self.server))
    }

    /// The server of a forked process: empty, as it shares nothing with the parent.
    pub(crate) fn forked(&self) -> Self {
        Self::with_clock(Arc::clone(&self.server.clock))
    }

    pub(crate) fn session(&self, listener: Weak<dyn Listener>) -> Session {
        let mut state = self.server.state.lock();
        let id = state.next_subscriber;
        state.next_subscriber += 1;
        state.subscribers.push(Subscriber {
            id,
            listener,
            channels: HashSet::new(),
            unconfirmed: Vec::new(),
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

// Its state changes under locks that do not poison, and it calls no foreign code but the clock.
impl RefUnwindSafe for Server {}

impl Server {
    fn now(&self) -> ServerTime {
        let since = self.clock.now().saturating_duration_since(self.created).as_millis();
        // Relaxed: the keyspace is locked when it is written or read.
        let offset = self.clock_offset.load(Ordering::Relaxed);
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        ServerTime(EPOCH.saturating_add(since).saturating_add(offset))
    }

    fn shift_clock(&self, by: i64) {
        let _state = self.state.lock();
        let offset = self.clock_offset.load(Ordering::Relaxed).saturating_add(by);
        self.clock_offset.store(offset, Ordering::Relaxed);
    }

    fn with_keyspace<R>(&self, change: impl FnOnce(&mut Keyspace) -> R) -> R {
        let mut state = self.state.lock();
        state.keyspace.set_now(self.now());
        change(&mut state.keyspace)
    }
}

/// One client's connection to a [`Memory`].
pub(crate) struct Session {
    server: Arc<Server>,
    id: u64,
}

impl Session {
    pub(crate) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let (value, deliveries) = {
            let mut state = self.server.state.lock();
            if state.unreachable {
                return Err(Failure::NotSent {
                    server: "memory".to_owned(),
                    reason: "set unreachable".into(),
                });
            }
            let now = self.server.now();
            let not_after = ServerTime(now.0.saturating_add(timeout));
            state.keyspace.set_now(now);
            let value = operation.run(&mut state.keyspace, not_after);
            let published = state.keyspace.take_published();
            let deliveries =
                if state.drops_messages { Vec::new() } else { state.deliveries(&published) };
            if state.drops_replies {
                let reason = "the reply was lost".into();
                (Err(Failure::Unknown { not_after, reason, broken: false }), deliveries)
            } else {
                (Ok(value), deliveries)
            }
        };
        // With the keyspace unlocked: a listener may read it.
        for (listener, publication) in deliveries {
            listener.message(&publication.channel, &publication.payload);
        }
        match value? {
            Value::Refusal { code, message } => Err(Failure::Refused { code, message }),
            value => Ok(value),
        }
    }

    pub(crate) fn subscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.insert(Arc::clone(channel));
            subscriber.unconfirmed.push(Arc::clone(channel));
        });
    }

    pub(crate) fn unsubscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.remove(channel);
            subscriber.unconfirmed.retain(|unconfirmed| unconfirmed != channel);
        });
    }

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

    fn with_subscriber(&self, change: impl FnOnce(&mut Subscriber)) {
        let mut state = self.server.state.lock();
        if let Some(own) = state.subscribers.iter_mut().find(|other| other.id == self.id) {
            change(own);
        }
    }
}

impl State {
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
