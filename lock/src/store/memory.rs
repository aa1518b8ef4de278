//! The store in memory: a keyspace shared by the clients of one process, on a clock of your choice.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;
use parking_lot::Mutex;

use super::failure::Failure;
use super::listener::Listener;
use crate::clock::SuspendClock;
use crate::keyspace::{Keyspace, Publication};
use crate::op::Operation;
use crate::value::{ServerTime, Value};

/// A lock server inside the process. It excludes the threads of one process only: it is not a distributed lock.
///
/// It is what a program's own tests run on. It speaks the same operations as a real server, on a [`Clock`] that a test
/// can move, and it can be told to fail, so that a test can see what the program does when a lock is lost. Clones share
/// the keys.
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
    world: Arc<World>,
}

struct World {
    clock: Arc<dyn Clock>,
    created: Instant,
    /// How far its clock was set from the one that it runs on, in milliseconds.
    set_by: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keyspace: Keyspace,
    subscribers: Vec<Subscriber>,
    next_subscriber: u64,
    unreachable: bool,
    loses_replies: bool,
    loses_messages: bool,
}

struct Subscriber {
    id: u64,
    listener: Weak<dyn Listener>,
    channels: HashSet<Arc<str>>,
    /// Channels that were wished for and not yet confirmed.
    unconfirmed: Vec<Arc<str>>,
}

/// The server's clock starts here, in the year 2001: a number that looks like one of a server's.
const EPOCH: i64 = 1_000_000_000_000;

impl Memory {
    /// An empty server on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SuspendClock::new()))
    }

    /// An empty server on `clock`. Clients built on it use the same clock unless they are given another.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let created = clock.now();
        let (set_by, state) = (AtomicI64::new(0), Mutex::new(State::default()));
        Self { world: Arc::new(World { clock, created, set_by, state }) }
    }

    /// From now on no operation reaches it (`true`), or they do again (`false`). What it holds stays and expires.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.world.state.lock().unreachable = unreachable;
    }

    /// From now on operations run and their replies are lost (`true`), or not (`false`).
    pub fn lose_replies(&self, lose: bool) {
        self.world.state.lock().loses_replies = lose;
    }

    /// From now on messages are lost (`true`), or not (`false`). Waiters then find out by asking.
    pub fn lose_messages(&self, lose: bool) {
        self.world.state.lock().loses_messages = lose;
    }

    /// Sets the server's clock forward, as an operator would: every lock ends sooner by as much.
    pub fn set_clock_forward(&self, by: Duration) {
        self.world.set_clock(i64::try_from(by.as_millis()).unwrap_or(i64::MAX));
    }

    /// Sets the server's clock back: every lock ends later by as much.
    pub fn set_clock_back(&self, by: Duration) {
        self.world.set_clock(i64::try_from(by.as_millis()).map_or(i64::MIN, |by| -by));
    }

    /// Deletes a key, as an operator or an eviction would. Nobody is told.
    pub fn delete(&self, key: &str) {
        self.world.with_keyspace(|keyspace| keyspace.delete(key));
    }

    /// Deletes every key. Nobody is told.
    pub fn flush_all(&self) {
        self.world.with_keyspace(Keyspace::clear);
    }

    /// Puts a value that is not a lock under `key`.
    pub fn put_text(&self, key: &str) {
        self.world.with_keyspace(|keyspace| keyspace.text_set(key, "data"));
    }

    /// What is stored under a lock's name: its owners with their counts. Empty if nobody holds it.
    #[must_use]
    pub fn fields(&self, key: &str) -> Vec<(String, String)> {
        self.world.with_keyspace(|keyspace| keyspace.fields(key))
    }

    /// What stands under a key that is a text: the owner of a simple lock, or a number.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.world.with_keyspace(|keyspace| keyspace.text_get(key)).ok().flatten()
    }

    /// How long a key has to live: `None` if it is not there, or has no expiry.
    #[must_use]
    pub fn time_to_live(&self, key: &str) -> Option<Duration> {
        let millis = self.world.with_keyspace(|keyspace| keyspace.time_to_live(key));
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.world.clock)
    }

    /// Where the keys are.
    pub(crate) fn place(&self) -> String {
        format!("memory at {:p}", Arc::as_ptr(&self.world))
    }

    /// The same server for a process that was forked: empty, as nothing is shared with the parent.
    pub(crate) fn forked(&self) -> Self {
        Self::with_clock(Arc::clone(&self.world.clock))
    }

    pub(super) fn session(&self, listener: Weak<dyn Listener>) -> Session {
        let mut state = self.world.state.lock();
        let id = state.next_subscriber;
        state.next_subscriber += 1;
        state.subscribers.push(Subscriber {
            id,
            listener,
            channels: HashSet::new(),
            unconfirmed: Vec::new(),
        });
        Session { world: Arc::clone(&self.world), id }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Memory").field("clock", &self.world.clock).finish_non_exhaustive()
    }
}

impl World {
    fn now(&self) -> ServerTime {
        let since = self.clock.now().saturating_duration_since(self.created).as_millis();
        // Relaxed: it is written and read with the keyspace locked.
        let set_by = self.set_by.load(Ordering::Relaxed);
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        ServerTime(EPOCH.saturating_add(since).saturating_add(set_by))
    }

    fn set_clock(&self, by: i64) {
        let _state = self.state.lock();
        let set_by = self.set_by.load(Ordering::Relaxed).saturating_add(by);
        self.set_by.store(set_by, Ordering::Relaxed);
    }

    fn with_keyspace<R>(&self, change: impl FnOnce(&mut Keyspace) -> R) -> R {
        let mut state = self.state.lock();
        state.keyspace.set_now(self.now());
        change(&mut state.keyspace)
    }
}

/// One client's connection to a [`Memory`].
pub(crate) struct Session {
    world: Arc<World>,
    id: u64,
}

impl Session {
    pub(super) fn execute<O: Operation + ?Sized>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let (value, deliveries) = {
            let mut state = self.world.state.lock();
            if state.unreachable {
                return Err(Failure::NotSent {
                    server: "memory".to_owned(),
                    reason: "set unreachable".to_owned(),
                });
            }
            let now = self.world.now();
            let not_after = ServerTime(now.0.saturating_add(timeout));
            state.keyspace.set_now(now);
            let value = operation.apply(&mut state.keyspace, not_after);
            let published = state.keyspace.take_published();
            let deliveries =
                if state.loses_messages { Vec::new() } else { state.deliveries(&published) };
            if state.loses_replies {
                let reason = "its reply was lost".to_owned();
                (Err(Failure::Unknown { not_after, reason, broken: false }), deliveries)
            } else {
                (Ok(value), deliveries)
            }
        };
        // With the keyspace unlocked: a listener may want to look at it.
        for (listener, publication) in deliveries {
            listener.message(&publication.channel, &publication.payload);
        }
        match value? {
            Value::Refusal { code, message } => Err(Failure::Refused { code, message }),
            value => Ok(value),
        }
    }

    pub(super) fn subscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.insert(Arc::clone(channel));
            subscriber.unconfirmed.push(Arc::clone(channel));
        });
    }

    pub(super) fn unsubscribe(&self, channel: &Arc<str>) {
        self.with_subscriber(|subscriber| {
            subscriber.channels.remove(channel);
            subscriber.unconfirmed.retain(|unconfirmed| unconfirmed != channel);
        });
    }

    pub(super) fn flush(&self) {
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
        let mut state = self.world.state.lock();
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
        self.world.state.lock().subscribers.retain(|subscriber| subscriber.id != self.id);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
