//! Who holds a lock and who waits for it, as the server and the clients' records say
//! (DESIGN: holders).

use std::collections::BTreeMap;
use std::fmt;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::core::tries::{Try, TryAnswer, WaitRequest, wait_for};
use crate::error::Error;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
#[cfg(feature = "serde")]
use crate::model::serialize::{finite_millis, known_millis};
use crate::model::wait::{Wait, WaitSpec};
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::ops::client_record::{ReadRecord, Record, record_key};
use crate::ops::inspect::{Inspect, Inspected};
use crate::ops::recognize::{Content, is_owner};
use crate::ops::{KEPT, WRITE};
use crate::store::retry::RetryPolicy;

/// How many records of clients are read for one status.
const MOST_RECORDS: usize = 100;

/// What is known of the holder of a lock: what [`Lock::holder`](crate::Lock::holder) returns.
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
    /// Its owner, as it is on the server: what [`LockGuard::owner`](crate::LockGuard::owner)
    /// returns there. A UUID of the client, and a number; Redisson's number is that of the thread.
    /// It ends in `:kept` if the lock was released before its [shortest
    /// time](crate::Lock::with_min_hold) was over.
    pub owner: String,
    /// Which library it uses.
    pub kind: HolderKind,
    /// The [label](crate::ClientBuilder::label) of its client. Unknown of Redisson's, of a client
    /// that has had the lock for less than about a second, and of one that may not write its
    /// record.
    pub label: Option<String>,
    /// The process id of its client, where the label is known.
    pub process: Option<u32>,
    /// For how long it has held the lock, where the label is known: since it asked the server that
    /// granted it, by the server's clock. For a fair lock, since its wait began. Threads that [hand
    /// the lock over](crate::ClientBuilder::hand_over_budget) to each other are one holder. Of
    /// another client, too short by the time that its record took to reach the server.
    #[cfg_attr(feature = "serde", serde(rename = "held_for_ms", serialize_with = "known_millis"))]
    pub held_for: Option<Duration>,
    /// How long the lock is held unless it is renewed; [`Duration::MAX`] if its key has no expiry.
    /// Readers of a read-write lock have one key, so this is the longest of them.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "remaining_ms", serialize_with = "finite_millis")
    )]
    pub remaining: Duration,
    /// Whether the hold was watched, that is, renewed until it is released, when it was granted.
    /// Unknown of Redisson's.
    pub watched: Option<bool>,
    /// Whether nobody may be inside: its client leaves locks [with
    /// itself](crate::Lock::with_cache) between two uses. Of the holds of this client, whether it is
    /// so now. False where the label is not known.
    pub may_be_cached: bool,
    /// How often it is nested. Of a hold whose release is under way it may be one too many.
    pub count: u32,
    /// Whether it shares the lock with others: a reader of a read-write lock.
    pub shared: bool,
}

/// The library that a holder uses, by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum HolderKind {
    /// This one.
    Wheellock,
    /// Redisson, or another program that speaks its protocol and has owners as Redisson writes
    /// them: a UUID and a number.
    Redisson,
    /// A program with owners of another form, such as a port of Redisson to another language. A
    /// hash with such owners is taken for a lock only if it has a time to live.
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

/// What waits for a lock: what [`Lock::waiters`](crate::Lock::waiters) returns.
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
    /// Threads of this client that wait.
    pub here: usize,
    /// Waiters elsewhere. In the queue of a fair lock each thread counts. Of other locks, each
    /// client counts once, however many of its threads wait: those that are subscribed to the
    /// lock's messages on this server, a moment longer than they wait. A `simple_lock` and a
    /// `spin_lock` have no messages, and nobody knows who polls. `None` if the server does not say:
    /// in memory, and if the user lacks the permission `pubsub|numsub`.
    pub elsewhere: Option<usize>,
    /// The queue of a fair lock, the next one first, up to 1,000. One that has died stays in it
    /// until its turn comes.
    pub queue: Vec<QueuedOwner>,
}

/// A place in the queue of a fair lock, in [`Waiters::queue`].
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
    /// The owner that the hold will have.
    pub owner: String,
    /// Which library it uses.
    pub kind: HolderKind,
    /// The label of its client, as in [`Holder::label`].
    pub label: Option<String>,
    /// For how long it has waited, where the label is known. Of another client, too short by the
    /// time that its record took to reach the server.
    #[cfg_attr(feature = "serde", serde(rename = "waits_for_ms", serialize_with = "known_millis"))]
    pub waits_for: Option<Duration>,
}

/// Of what kind a lock is, as its keys on the server show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum LockKind {
    /// A [`lock`](crate::Client::lock), or one of those with the same keys.
    Lock,
    /// A [`fair_lock`](crate::Client::fair_lock) that others wait for. Without waiters it looks
    /// like a `lock`.
    Fair,
    /// A [`fenced_lock`](crate::Client::fenced_lock), or a lock whose guard has
    /// [drawn a token](crate::LockGuard::draw_token): there is a counter of tokens.
    Fenced,
    /// A [`read_write_lock`](crate::Client::read_write_lock).
    ReadWrite,
    /// A [`simple_lock`](crate::Client::simple_lock).
    Simple,
    /// An [`expirable_semaphore`](crate::Client::expirable_semaphore) that has lent permits.
    ExpirableSemaphore,
    /// A number: a [`semaphore`](crate::Client::semaphore), a
    /// [`count_down_latch`](crate::Client::count_down_latch), or one of another program.
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

/// All that is known of the lock of one name: what [`Client::status`](crate::Client::status)
/// returns.
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
    /// The full name.
    pub name: String,
    /// `None` if nobody holds it, and nobody waits in its queue.
    pub kind: Option<LockKind>,
    /// Its holders, up to 1,000 of them. Several are readers. Of a semaphore they are not known.
    pub holders: Vec<Holder>,
    /// How many there are.
    pub holder_count: usize,
    /// The value, if it is a [`LockKind::Number`] or an expirable semaphore: free permits, or a
    /// latch's count.
    pub number: Option<i64>,
    /// Who waits.
    pub waiters: Waiters,
}

impl LockStatus {
    /// The channel whose messages report changes of it.
    fn channel(&self, name: &LockName) -> Arc<str> {
        match self.kind {
            Some(LockKind::ReadWrite) => name.read_write_channel(),
            Some(LockKind::ExpirableSemaphore | LockKind::Number) => name.semaphore_channel(),
            _ => name.channel(),
        }
    }

    /// Whether something else has come about, and not only time has passed. The number of waiters
    /// elsewhere is left out.
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

/// Waits until the status of `name` differs from `before`. `None` if it did not in that time.
pub(crate) fn next_change(
    core: &Arc<ClientCore>,
    name: &LockName,
    before: &LockStatus,
    wait: Wait<'_>,
) -> Result<Option<LockStatus>, Error> {
    let (channel, wait) = (before.channel(name), wait.begin(&*core.clock));
    let mut look = ChangeTry { core, before, wait, last: before.waiters.elsewhere, name };
    let request = WaitRequest::new(name, &channel, WaitMode::Watching, wait);
    Ok(wait_for(core, request, &mut look)?.granted)
}

/// Whether the status differs from an earlier one.
struct ChangeTry<'a> {
    core: &'a Arc<ClientCore>,
    name: &'a LockName,
    before: &'a LockStatus,
    wait: WaitSpec<'a>,
    /// How many waited elsewhere at the last look. While this client's own subscription begins or
    /// ends, it may count among them. So a new number has to be seen twice.
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

/// Asks the server about `name`. An error if its key has something else.
pub(crate) fn status_of(core: &Arc<ClientCore>, name: &LockName) -> Result<LockStatus, Error> {
    status_within(core, name, WaitSpec::ONE_TRY)
}

/// As [`status_of`], within the wait.
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

/// The kind, and the number that it may be. `None` if it is neither a lock nor free.
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

/// Who waits, here and elsewhere.
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

/// The clients of one status, each of whose records is read once.
struct Clients<'a> {
    core: &'a ClientCore,
    name: &'a LockName,
    wait: WaitSpec<'a>,
    known: BTreeMap<String, Option<Record>>,
}

impl Clients<'_> {
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

    /// Whether nobody may be inside, of a holder whose client caches locks. Of the own holds this is
    /// known.
    fn may_be_cached(&self, owner: &str) -> bool {
        let own = self.core.holds.of_name(self.name);
        let own = own.iter().find(|hold| hold.owner.to_string() == owner);
        own.is_none_or(|hold| hold.is_cached())
    }

    fn queued(&mut self, owner: String) -> Result<QueuedOwner, Error> {
        let parsed = OwnerText::parse(&owner);
        let record = self.record_of(parsed)?;
        let (kind, waits_for) = (kind_of_holder(&owner, parsed), since(parsed, record.as_ref()));
        Ok(QueuedOwner { kind, label: record.map(|record| record.label), waits_for, owner })
    }

    fn record_of(&mut self, owner: Option<OwnerText<'_>>) -> Result<Option<Record>, Error> {
        let Some(owner) = owner else { return Ok(None) };
        if let Some(record) = self.known.get(owner.client) {
            return Ok(record.clone());
        }
        let record = if owner.client == self.core.id.to_string() {
            Some(self.own_record())
        } else if self.known.len() < MOST_RECORDS {
            let read = ReadRecord(record_key(owner.client));
            match self.core.ask_within(&read, self.name, self.wait) {
                // Another program's key, or one that this user may not read: only the label is
                // not known.
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

    /// The record of this client, which need not have written it.
    fn own_record(&self) -> Record {
        let age = self.core.now().saturating_duration_since(self.core.id.started());
        Record {
            label: self.core.watchdog.context.client.label.to_string(),
            process: process::id(),
            age,
            caches: self.core.holds.cache.is_used(),
            waits: String::new(),
            written: 0,
        }
    }
}

fn kind_of_holder(owner: &str, parsed: Option<OwnerText<'_>>) -> HolderKind {
    match parsed {
        Some(_) => HolderKind::Wheellock,
        None if is_owner(owner) => HolderKind::Redisson,
        None => HolderKind::Unknown,
    }
}

/// How long ago the owner was drawn.
fn since(owner: Option<OwnerText<'_>>, record: Option<&Record>) -> Option<Duration> {
    let (drawn, _) = owner?.drawn?;
    Some(record?.age.saturating_sub(drawn))
}
