//! The holders and waiters of a lock, from the server and the clients' records.
//!
//! The number in an owner contains the time since the client's start, and the client's record
//! contains the label, the process and the start. So the uncontended acquire and release pay
//! nothing for these queries. Waiters without a queue are counted by their subscriptions, of which
//! each client has one: an exact count would cost a write for each waiter.

use std::collections::BTreeMap;
use std::fmt;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::core::tries::{Try, TryAnswer, WaitParameters, wait_for};
use crate::error::Error;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
#[cfg(feature = "serde")]
use crate::model::serialize::{finite_millis, known_millis};
use crate::model::wait::{Wait, WaitSpec};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::ops::client_record::{ClientRecord, ReadClientRecord, client_record_key};
use crate::ops::inspect::{Inspect, Inspected};
use crate::ops::recognize::{Content, is_owner};
use crate::ops::{KEPT, WRITE};
use crate::store::retry::RetryPolicy;

/// The maximum number of clients' records read for a status.
const MOST_RECORDS: usize = 100;

/// A holder of a lock, as known from the server and from the record of the holder's client.
///
/// Returned by [`Lock::holder`](crate::Lock::holder) and [`Lock::holders`](crate::Lock::holders),
/// and in [`LockStatus::holders`].
///
/// ```
/// use wheellock::{Client, HolderKind, Memory};
///
/// let client = Client::builder().in_memory(&Memory::new()).label("billing on db3").build()?;
/// let lock = client.lock("orders:42");
/// let guard = lock.lock()?;
/// let holder = lock.holder()?.unwrap();
/// assert_eq!(holder.owner, guard.owner());
/// assert_eq!(holder.kind, HolderKind::Wheellock);
/// assert_eq!(holder.label.as_deref(), Some("billing on db3"));
/// assert_eq!(holder.watched, Some(true));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Holder {
    /// The owner, as returned by the holder's [`LockGuard::owner`](crate::LockGuard::owner): the
    /// UUID of the client, a colon, and a number. The number is new for each hold; Redisson's
    /// number is the thread's id. The owner ends in `:kept` if the lock was released, but its key
    /// stays until the [minimum hold](crate::Lock::with_min_hold) is over.
    pub owner: String,
    /// The library of the holder.
    pub kind: HolderKind,
    /// The [label](crate::ClientBuilder::label) of the holder's client. `None` if there is no
    /// readable client record: for Redisson, for a client that has had locks for less than about a
    /// second, for a client that may not write its record, and if this user may not read the
    /// record. Also `None` for all but the first 100 clients in a status.
    pub label: Option<String>,
    /// The process id of the holder's client. `None` if `label` is `None`.
    pub process: Option<u32>,
    /// How long the holder has held the lock, by the server's clock: since the granted request was
    /// sent, or, for a fair lock, since the wait began. `None` if `label` is `None`.
    ///
    /// Threads that [hand over the lock](crate::ClientBuilder::hand_over_budget) among themselves
    /// are a single holder. For a holder of another client, the time is too short by the time that
    /// the client record took to reach the server.
    #[cfg_attr(feature = "serde", serde(rename = "held_for_ms", serialize_with = "known_millis"))]
    pub held_for: Option<Duration>,
    /// How long the lock is held without a renewal: the time to live of the key, or
    /// [`Duration::MAX`] if the key has no expiry. The holders of a read-write lock share a key, so
    /// for each reader `remaining` is the longest time of all readers.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_ms", serialize_with = "finite_millis")
    )]
    pub remaining: Duration,
    /// Whether the hold was granted as watched, and so is renewed until the release. A later
    /// [`watch`](crate::LockGuard::watch) does not change the value. `None` for Redisson.
    pub watched: Option<bool>,
    /// Whether the lock may be idle in the cache of the holder's client, because the client
    /// [retains locks](crate::Lock::with_cache) between two uses. For a hold of the querying
    /// client: whether the hold is in the cache now. `false` if `label` is `None`.
    pub may_be_cached: bool,
    /// The nesting count: how many times the holder has acquired the lock without a release. For a
    /// hold whose release is in progress the count may be too large by one.
    pub count: u32,
    /// Whether the holder is a reader of a read-write lock. A writer that also reads is listed
    /// twice, once as a writer and once as a reader.
    pub shared: bool,
}

/// The library of a holder or of a waiter, recognized by the form of the owner.
///
/// In [`Holder::kind`] and [`QueuedOwner::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum HolderKind {
    /// This library, on any client.
    Wheellock,
    /// Redisson, or another program with Redisson's protocol and Redisson's owners: a UUID and a
    /// number.
    Redisson,
    /// A program with owners of another form, such as a port of Redisson to another language. A key
    /// with such owners counts as a lock only if the key has a time to live.
    Unknown,
}

impl fmt::Display for HolderKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Wheellock => "wheellock",
            Self::Redisson => "redisson",
            Self::Unknown => "unknown",
        })
    }
}

/// The waiters for a lock, in the querying client and elsewhere.
///
/// Returned by [`Lock::waiters`](crate::Lock::waiters), and in [`LockStatus::waiters`].
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let waiters = client.lock("orders:42").waiters()?;
/// assert_eq!(waiters.here, 0);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Waiters {
    /// The number of waiting threads of the querying client.
    pub here: usize,
    /// The number of waiters of other clients, Redisson's among them.
    ///
    /// In the queue of a fair lock each thread counts. For other locks each client counts once,
    /// with any number of waiting threads, while the client is subscribed to the lock's messages on
    /// the answering server: until a moment after the last wait. A client that [watches for
    /// changes](crate::Client::next_change) is subscribed too. A waiter for a `simple_lock` or a
    /// `spin_lock` does not subscribe, and does not count.
    ///
    /// `None` if the number is unknown: in memory, and if the server's user has neither the
    /// permission `pubsub|numsub` nor `pubsub|shardnumsub`. With only one of the two permissions,
    /// the number may be too small.
    pub elsewhere: Option<usize>,
    /// The queue of a fair lock, the next waiter first, up to 1,000 waiters. Empty for any other
    /// lock. A dead waiter stays in the queue until its turn.
    pub queue: Vec<QueuedOwner>,
}

/// A waiting thread in the queue of a fair lock.
///
/// In [`Waiters::queue`].
///
/// ```
/// use wheellock::Client;
///
/// let lock = Client::in_memory().fair_lock("orders:42");
/// for waiter in lock.waiters()?.queue {
///     println!("{} ({})", waiter.owner, waiter.label.unwrap_or_default());
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QueuedOwner {
    /// The owner of the hold that the waiter will get, in the form of [`Holder::owner`].
    pub owner: String,
    /// The library of the waiter.
    pub kind: HolderKind,
    /// The label of the waiter's client. `None` if there is no readable client record, as for
    /// [`Holder::label`].
    pub label: Option<String>,
    /// How long the thread has waited, by the server's clock. `None` if `label` is `None`. For a
    /// thread of another client, the time is too short by the time that the client record took to
    /// reach the server.
    #[cfg_attr(feature = "serde", serde(rename = "waits_for_ms", serialize_with = "known_millis"))]
    pub waits_for: Option<Duration>,
}

/// The kind of a lock, as far as visible from the keys on the server.
///
/// In [`LockStatus::kind`]. Locks of different kinds may have the same keys: the kind is no proof
/// of the method by which a program has acquired the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum LockKind {
    /// A [`lock`](crate::Client::lock), or a lock of another kind with the same keys, such as a
    /// [`spin_lock`](crate::Client::spin_lock) or a fair lock without waiters.
    Lock,
    /// A [`fair_lock`](crate::Client::fair_lock) with waiters in the queue. Without waiters a fair
    /// lock is a [`Lock`](Self::Lock), or [`Fenced`](Self::Fenced).
    Fair,
    /// A lock whose name has a counter of tokens, which never expires: a
    /// [`fenced_lock`](crate::Client::fenced_lock), or a lock of which any guard has ever [drawn a
    /// token](crate::LockGuard::draw_token).
    Fenced,
    /// A [`read_write_lock`](crate::Client::read_write_lock).
    ReadWrite,
    /// A [`simple_lock`](crate::Client::simple_lock).
    Simple,
    /// An [`expirable_semaphore`](crate::Client::expirable_semaphore) with acquired permits.
    /// Without acquired permits an expirable semaphore is a [`Number`](Self::Number).
    ExpirableSemaphore,
    /// A number: a [`semaphore`](crate::Client::semaphore), a closed
    /// [`count_down_latch`](crate::Client::count_down_latch), or a number of another program.
    Number,
}

impl fmt::Display for LockKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::Fenced => "fenced",
            Self::ReadWrite => "read-write",
            Self::Simple => "simple",
            Self::ExpirableSemaphore => "expirable-semaphore",
            Self::Number => "number",
        })
    }
}

/// The status of a lock: the kind, the holders and the waiters.
///
/// Returned by [`Client::status`](crate::Client::status) and
/// [`Client::next_change`](crate::Client::next_change), by the iterator [`Locks`](crate::Locks),
/// and in [`WaitGraph::locks`](crate::WaitGraph::locks).
///
/// ```
/// use wheellock::{Client, LockKind};
///
/// let client = Client::in_memory();
/// let _reading = client.read_write_lock("prices").read_lock().lock()?;
/// let status = client.status("prices")?;
/// assert_eq!(status.kind, Some(LockKind::ReadWrite));
/// assert_eq!(status.holders.len(), 1);
/// assert!(status.holders[0].shared);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LockStatus {
    /// The full name, with the client's [prefix](crate::Client::with_prefix).
    pub name: String,
    /// The kind; `None` if the name has no key: no holder, no waiter in a fair lock's queue, and no
    /// number.
    pub kind: Option<LockKind>,
    /// The holders, up to 1,000, in no order. A read-write lock may have several holders, any other
    /// lock has one. Empty for a semaphore or a latch: the holders of permits are not reported.
    pub holders: Vec<Holder>,
    /// The number of all holders, also of holders beyond the first 1,000.
    pub holder_count: usize,
    /// The number of a semaphore, an expirable semaphore or a latch: the free permits, or the count
    /// of the latch. `None` for any other kind. Expired permits of an expirable semaphore do not
    /// count as free before the next request of a client of the semaphore.
    pub number: Option<i64>,
    /// The waiters of the lock, the semaphore or the latch.
    pub waiters: Waiters,
}

impl LockStatus {
    /// Returns the channel whose messages report changes of the lock `name`, by the lock's kind.
    fn channel(&self, name: &LockName) -> Arc<str> {
        match self.kind {
            Some(LockKind::ReadWrite) => name.read_write_channel(),
            Some(LockKind::ExpirableSemaphore | LockKind::Number) => name.semaphore_channel(),
            _ => name.channel(),
        }
    }

    /// Returns whether this status differs from `before` in the kind, a holder, a count, a number,
    /// the queue or the waiters here. Times and the number of waiters elsewhere are not compared.
    fn differs(&self, before: &Self) -> bool {
        let owners = |status: &Self| {
            let mut owners: Vec<_> = status
                .holders
                .iter()
                .map(|holder| (holder.owner.clone(), holder.count, holder.shared))
                .collect();
            owners.sort();
            owners
        };
        let queue = |status: &Self| {
            status.waiters.queue.iter().map(|waiter| waiter.owner.clone()).collect::<Vec<_>>()
        };
        let numbers =
            |status: &Self| (status.kind, status.holder_count, status.number, status.waiters.here);
        numbers(self) != numbers(before)
            || owners(self) != owners(before)
            || queue(self) != queue(before)
    }
}

/// Waits until the status of `name` differs from `before`, and returns the new status. Returns
/// `None` if the wait ends without a change.
pub(crate) fn next_change(
    core: &Arc<ClientCore>,
    name: &LockName,
    before: &LockStatus,
    wait: Wait<'_>,
) -> Result<Option<LockStatus>, Error> {
    let (channel, wait) = (before.channel(name), wait.begin(&*core.clock));
    let mut look = ChangeTry { core, before, wait, last: before.waiters.elsewhere, name };
    let parameters = WaitParameters::new(name, &channel, WaitMode::Watching, wait);
    Ok(wait_for(core, parameters, &mut look)?.granted)
}

/// Queries the status of a lock, and is granted the status once different from `before`.
struct ChangeTry<'a> {
    core: &'a Arc<ClientCore>,
    name: &'a LockName,
    before: &'a LockStatus,
    wait: WaitSpec<'a>,
    /// Number of waiters elsewhere at the last inspection. While this client's own subscription
    /// begins or ends, the number may include this client. So a new number has to be seen twice.
    last: Option<usize>,
}

impl Try for ChangeTry<'_> {
    type Grant = LockStatus;

    fn ask(&mut self, _: &RetryPolicy<'_>, _: Instant) -> Result<TryAnswer<LockStatus>, Error> {
        let status = status_within(self.core, self.name, self.wait)?;
        let (elsewhere, before) = (status.waiters.elsewhere, self.before);
        let is_new = elsewhere != before.waiters.elsewhere && elsewhere == self.last;
        if is_new || status.differs(before) {
            return Ok(TryAnswer::Granted(status, WakeHint::MayTry));
        }
        self.last = elsewhere;
        Ok(TryAnswer::Busy(None, WakeHint::MayTry))
    }
}

/// Returns the status of `name`, or [`Error::WrongType`] if the key contains no lock.
pub(crate) fn status_of(core: &Arc<ClientCore>, name: &LockName) -> Result<LockStatus, Error> {
    status_within(core, name, WaitSpec::ONE_TRY)
}

/// Returns the status of `name` as [`status_of`] does, within the limit of `wait`.
pub(crate) fn status_within(
    core: &Arc<ClientCore>,
    name: &LockName,
    wait: WaitSpec<'_>,
) -> Result<LockStatus, Error> {
    let inspected = core.ask_within(&Inspect::new(name), name, wait)?;
    let remaining = inspected.lives.unwrap_or_default();
    let Some((kind, number)) = kind_of(&inspected) else {
        return Err(Error::WrongType { key: name.shown(), found: inspected.content.described() });
    };
    let (owners, holder_count) = match inspected.content {
        Content::Owners { owners, count, .. } => (owners, count),
        Content::Simple(owner) => (vec![(owner, 1)], 1),
        _ => (Vec::new(), 0),
    };
    let mut clients = Clients { core, name, wait, known: BTreeMap::new() };
    let is_read_write = kind == Some(LockKind::ReadWrite);
    let mut holders = Vec::with_capacity(owners.len());
    for (field, count) in owners {
        let (owner, kept) = match field.strip_suffix(KEPT) {
            Some(owner) => (owner, KEPT),
            None => (field.as_str(), ""),
        };
        let shared = is_read_write && !owner.ends_with(WRITE);
        let owner = owner.strip_suffix(WRITE).unwrap_or(owner);
        holders.push(clients.holder(owner, kept, count, remaining, shared)?);
    }
    let mut queue = Vec::with_capacity(inspected.queue.len());
    for owner in inspected.queue {
        queue.push(clients.queued(owner)?);
    }
    let waiters = waiters(core, name, queue, inspected.subscribers);
    let name = name.as_str().to_owned();
    Ok(LockStatus { name, kind, holders, holder_count, number, waiters })
}

/// Returns the kind of the lock, `None` for a free lock, and the value of a number. Returns `None`
/// if the key contains foreign data.
fn kind_of(inspected: &Inspected) -> Option<(Option<LockKind>, Option<i64>)> {
    let is_queued = !inspected.queue.is_empty();
    match &inspected.content {
        Content::Nothing => Some((is_queued.then_some(LockKind::Fair), None)),
        Content::Owners { mode: Some(_), .. } => Some((Some(LockKind::ReadWrite), None)),
        Content::Owners { .. } if is_queued => Some((Some(LockKind::Fair), None)),
        Content::Owners { .. } if inspected.has_token => Some((Some(LockKind::Fenced), None)),
        Content::Owners { .. } => Some((Some(LockKind::Lock), None)),
        Content::Simple(_) => Some((Some(LockKind::Simple), None)),
        Content::Number(text) => {
            let kind = if inspected.has_permit_leases {
                LockKind::ExpirableSemaphore
            } else {
                LockKind::Number
            };
            text.parse().ok().map(|number| (Some(kind), Some(number)))
        }
        Content::Other(_) => None,
    }
}

/// Counts the waiters for `name`: threads of this client, and waiters elsewhere by `queue` and by
/// the `subscribers` of the lock's three channels.
fn waiters(
    core: &ClientCore,
    name: &LockName,
    queue: Vec<QueuedOwner>,
    subscribers: [Option<u64>; 3],
) -> Waiters {
    let own = core.id.to_string();
    let queued_here = queue.iter().filter(|waiter| waiter.owner.starts_with(&own)).count();
    let mut here = core.waits.waiting_on(name, &name.polled()).threads;
    let mut elsewhere: Option<usize> = Some(0);
    let channels = [name.channel(), name.read_write_channel(), name.semaphore_channel()];
    for (channel, subscribers) in channels.iter().zip(subscribers) {
        let waiting = core.waits.waiting_on(name, channel);
        here += waiting.threads;
        let others = subscribers.map(|all| all.saturating_sub(u64::from(waiting.is_subscribed)));
        let others = others.map(|others| usize::try_from(others).unwrap_or(usize::MAX));
        elsewhere = elsewhere.zip(others).map(|(before, others)| before.saturating_add(others));
    }
    let queued_elsewhere = queue.len() - queued_here;
    Waiters {
        here: here + queued_here,
        elsewhere: elsewhere.map(|others| others.saturating_add(queued_elsewhere)),
        queue,
    }
}

/// The records of the clients in a status. Each record is read once.
struct Clients<'a> {
    core: &'a ClientCore,
    name: &'a LockName,
    wait: WaitSpec<'a>,
    /// The records read so far, by client; `None` for a client without a readable record.
    known: BTreeMap<String, Option<ClientRecord>>,
}

impl Clients<'_> {
    /// Returns the holder `owner` with the details of the client's record. `kept` is the suffix of
    /// a kept hold, or empty.
    fn holder(
        &mut self,
        owner: &str,
        kept: &str,
        count: u32,
        remaining: Duration,
        shared: bool,
    ) -> Result<Holder, Error> {
        let parsed = OwnerText::parse(owner);
        let record = self.record_of(parsed)?;
        Ok(Holder {
            owner: format!("{owner}{kept}"),
            kind: kind_of_holder(owner, parsed),
            label: record.as_ref().map(|record| record.label.clone()),
            process: record.as_ref().map(|record| record.process),
            held_for: since(parsed, record.as_ref()),
            remaining,
            watched: parsed.and_then(|owner| owner.drawn).map(|(_, watched)| watched),
            may_be_cached: record.is_some_and(|record| record.caches) && self.may_be_cached(owner),
            count,
            shared,
        })
    }

    /// Returns whether a hold of a client with a cache may be idle in the cache. For this client's
    /// own holds the answer is exact.
    fn may_be_cached(&self, owner: &str) -> bool {
        let own = self.core.holds.of_name(self.name);
        let own = own.iter().find(|hold| hold.owner.to_string() == owner);
        own.is_none_or(|hold| hold.is_cached())
    }

    /// Returns the place of `owner` in the queue, with the details of the client's record.
    fn queued(&mut self, owner: String) -> Result<QueuedOwner, Error> {
        let parsed = OwnerText::parse(&owner);
        let record = self.record_of(parsed)?;
        let (kind, waits_for) = (kind_of_holder(&owner, parsed), since(parsed, record.as_ref()));
        Ok(QueuedOwner { kind, label: record.map(|record| record.label), waits_for, owner })
    }

    /// Returns the record of the client of `owner`, read from the server at the first call for the
    /// client. Returns `None` for an owner of another library, without a readable record, and after
    /// [`MOST_RECORDS`] clients.
    fn record_of(&mut self, owner: Option<OwnerText<'_>>) -> Result<Option<ClientRecord>, Error> {
        let Some(owner) = owner else { return Ok(None) };
        if let Some(record) = self.known.get(owner.client) {
            return Ok(record.clone());
        }
        let record = if owner.client == self.core.id.to_string() {
            Some(self.own_record())
        } else if self.known.len() < MOST_RECORDS {
            let read = ReadClientRecord(client_record_key(owner.client));
            match self.core.ask_within(&read, self.name, self.wait) {
                // Another program's key, or a key that this user may not read: only the label is
                // unknown.
                Err(Error::WrongType { .. }) => None,
                Err(error) if error.is_unreadable_key() => None,
                record => record?,
            }
        } else {
            None
        };
        self.known.insert(owner.client.to_owned(), record.clone());
        Ok(record)
    }

    /// Returns the record of this client, built without the server, as the client need not have
    /// written the record yet.
    fn own_record(&self) -> ClientRecord {
        let age = self.core.now().saturating_duration_since(self.core.id.started());
        ClientRecord {
            label: self.core.watchdog.context.client.label.to_string(),
            process: process::id(),
            age,
            caches: self.core.holds.cache.is_used(),
            waits: String::new(),
            written: 0,
        }
    }
}

/// Returns the library of `owner`, by the form of the text. `parsed` is the owner as an owner of
/// this library.
fn kind_of_holder(owner: &str, parsed: Option<OwnerText<'_>>) -> HolderKind {
    match parsed {
        Some(_) => HolderKind::Wheellock,
        None if is_owner(owner) => HolderKind::Redisson,
        None => HolderKind::Unknown,
    }
}

/// Returns the time since the number of `owner` was drawn, according to the client's `record`.
/// Returns `None` without a record or the time of the draw.
fn since(owner: Option<OwnerText<'_>>, record: Option<&ClientRecord>) -> Option<Duration> {
    let (drawn, _) = owner?.drawn?;
    Some(record?.age.saturating_sub(drawn))
}
