//! The client: constructors of locks, reports and the shutdown.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::graph::{WaitGraph, wait_graph, wait_graph_of};
use crate::admin::locks::Locks;
use crate::admin::status::{LockStatus, next_change, status_of};
use crate::core::client_core::ClientCore;
use crate::core::named::NamedObject;
use crate::core::spec::{LockSpec, Nesting};
use crate::error::Error;
use crate::events::report::{OwnHold, Warning};
use crate::events::stats::Stats;
use crate::locks::any_lock::AnyLock;
use crate::locks::lock::{FencedLock, Lock};
use crate::locks::multi::lock::MultiLock;
use crate::locks::read_write::ReadWriteLock;
use crate::locks::red::lock::RedLock;
use crate::locks::semaphore::expirable::ExpirableSemaphore;
use crate::locks::semaphore::latch::CountDownLatch;
use crate::locks::semaphore::semaphore::Semaphore;
use crate::model::kind::Kind;
use crate::model::name::{LockName, Prefix};
use crate::model::wait::Wait;
use crate::recipes::election::election::LeaderElection;
use crate::recipes::jobs::job::Job;

/// A client of a lock server, with a unique identity. Cheap to clone and to share between threads;
/// clones are the same client.
///
/// Created by [`connect`](Self::connect), [`in_memory`](Self::in_memory) or
/// [`ClientBuilder::build`](crate::ClientBuilder::build).
///
/// **Threads.** A client has a ticker thread and a renewal thread. A third thread receives messages
/// after the first wait, and a fourth wakes tasks after the first task [awaits a
/// loss](crate::LockGuard::lost_future). There is one more thread for callbacks if there are any,
/// one for the cargo feature `metrics`, and one to follow the master behind sentinels. In a cluster
/// each master with holds to renew, or with the client's [record](crate::ClientBuilder::label), has
/// a renewal thread, each subscribed master has a thread for messages, and one thread follows the
/// topology. Host names are resolved on threads which end with their answer, at most eight at a
/// time for each server and each sentinel, as the resolver may hang. The credentials callback runs
/// on a separate thread.
///
/// **End.** A client ends with its last clone, lock and guard. Their drop waits for the replies to
/// the releases of dropped guards, for 100 ms at most; for the renewal threads' current work and
/// one more attempt at the queued releases, at most 5 s in total; for the removal of the client's
/// record, if any, at most 250 ms; and for the remaining callbacks. A lock not released by then
/// ends with its lease. [`shutdown`](Self::shutdown) ends the client earlier and returns the
/// unreleased locks.
///
/// **Fork.** A client, with its clones, locks and guards, belongs to the process that built the
/// client. In the child of a `fork` each call is [`Error::Forked`], an inherited guard holds
/// nothing, and a drop does nothing: the parent still holds its locks. The child builds a new
/// client. Two cases are excluded:
///
/// * A fork while a thread of the program starts or ends. Rust's standard library holds an internal
///   lock then, which stays locked in the child. There no thread can start, so no client can be
///   built, and `exit` hangs. Such a child should only `exec`.
/// * A child with the process id of the parent, as the first process of a new PID namespace may
///   have, or a later descendant with the id of an ended process. The child is not recognized, and
///   must not use anything inherited.
///
/// ```no_run
/// use wheellock::Client;
///
/// let client = Client::connect("redis://127.0.0.1/")?;
/// let _guard = client.lock("orders:42").lock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<ClientCore>,
    pub(crate) prefix: Prefix,
}

impl Client {
    /// Returns a handle of the client `core`, which puts `prefix` in front of each name.
    pub(crate) fn new(core: Arc<ClientCore>, prefix: Prefix) -> Self {
        Self { core, prefix }
    }

    /// The same client for a family of locks: `prefix` is put in front of their names, after this
    /// client's [prefix](crate::ClientBuilder::key_prefix). Both share everything: identity,
    /// connections, watchdog, holds, and their end.
    ///
    /// The prefix is part of the name in every respect. Key and channels belong to the full name,
    /// so two clients that form the same full name in different ways have the same lock.
    /// [`Lock::name`], guards, errors, reports and events show the full name, and the limit of
    /// length applies to the full name. The name after the prefix must not be empty. An empty
    /// prefix changes nothing.
    ///
    /// On a cluster, braces decide which keys share a hash slot. Without braces in the prefix the
    /// name decides: `orders:` and `{7}:a` form the key `orders:{7}:a`, in the hash slot of `7`; a
    /// name without braces has the same hash slot for all its keys and channels. A prefix with
    /// braces, `{orders}:`, puts the whole family into the hash slot of `orders`, and so on one
    /// server. The channel of a latch is an exception, as in [Redisson](crate::redisson). A `{`
    /// without a `}` has no effect.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let orders = client.with_prefix("orders:");
    /// let guard = orders.lock("42").lock()?;
    /// assert_eq!(guard.name(), "orders:42");
    /// assert!(client.lock("orders:42").is_locked()?);
    /// # drop(guard);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Self {
        Self { core: Arc::clone(&self.core), prefix: self.prefix.then(prefix) }
    }

    /// The reentrant lock `name`. Any string of 1 to 65,536 bytes, with the client's
    /// [prefix](Self::with_prefix), is a name; a wrong name is an error when the lock is used. The
    /// full name is the key on the server, byte for byte.
    ///
    /// A release wakes a waiter. The release of a [`spin_lock`](Self::spin_lock) of the same name
    /// does not: then a waiter sleeps for up to a second more.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        let mut spec = self.spec(Kind::Reentrant, name);
        spec.hand_over = true;
        Lock::new(spec)
    }

    /// A lock without nesting: a thread which locks again while holding the lock gets
    /// [`Error::AlreadyHeld`]. On the server the lock is like a [`lock`](Self::lock). Redisson's
    /// `getNonReentrantLock`.
    ///
    /// ```
    /// use wheellock::{Client, Error};
    ///
    /// let client = Client::in_memory();
    /// let lock = client.non_reentrant_lock("orders:42");
    /// let guard = lock.lock()?;
    /// assert!(matches!(lock.lock(), Err(Error::AlreadyHeld { .. })));
    /// # drop(guard);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn non_reentrant_lock(&self, name: &str) -> Lock {
        let mut spec = self.spec(Kind::Reentrant, name);
        spec.nesting = Nesting::Refused;
        spec.hand_over = true;
        Lock::new(spec)
    }

    /// A lock whose guards have a [fencing token](crate::FencedGuard::token): a number larger than
    /// the token of every earlier hold. For resources that can refuse a request with a smaller
    /// token. Redisson's `RFencedLock`.
    ///
    /// The counter is a separate key, `redisson_lock_token:{name}`, without expiry: the counter
    /// must outlive every hold. In Redisson's layout the names `x` and `{x}` have the same counter:
    /// their tokens grow together, and [`last_token`](FencedLock::last_token) of `x` may be a token
    /// of `{x}`. A client that uses either name refuses the second as an [`Error::InvalidName`]. A
    /// thread that holds the [`lock`](Self::lock) of the same name nests, and gets a token then.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        Lock::new(self.spec(Kind::Fenced, name))
    }

    /// A lock whose waiters poll, with [pauses](Lock::with_backoff) doubled by each refusal,
    /// instead of being woken by messages. A single waiter of a client polls for all. Redisson's
    /// `getSpinLock`.
    ///
    /// For servers or proxies where publishing is expensive or impossible, so a release publishes
    /// nothing, as in Redisson. The lock excludes [`lock`](Self::lock)s of the same name, but a
    /// release does not wake their waiters: waiters of this library notice within a second, and
    /// waiters of Redisson, which do not poll, at the end of the lease reported to them. So use a
    /// name in one way only.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let _guard = client.spin_lock("orders:42").lock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn spin_lock(&self, name: &str) -> Lock {
        Lock::new(self.spec(Kind::Spin, name))
    }

    /// The simplest lock: the key holds the owner as a string, as in `SET name owner NX PX lease`.
    /// The lock does not nest, and waiters poll as for [`spin_lock`](Self::spin_lock). The lock is
    /// renewed like every other lock, or [leased](Lock::with_lease), and released only by its
    /// owner.
    ///
    /// An owner that locks again is refused: a `try_lock` returns `None`. A wait without a limit
    /// would wait for the owner's own renewed hold forever, so such a wait returns
    /// [`Error::AlreadyHeld`].
    ///
    /// The lock does not exclude locks of other kinds: a key of another kind under the name is an
    /// [`Error::WrongType`]. Redisson has no such lock; Redis's documentation describes the lock
    /// (`SET`, Patterns).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let reindex = client.simple_lock("reindex").with_lease(Duration::from_secs(3600));
    /// if let Some(guard) = reindex.try_lock()? {
    ///     // One process at a time runs this.
    ///     assert!(reindex.try_lock()?.is_none());
    ///     guard.unlock()?;
    /// }
    /// // After the unlock another process can take it: its work may run more than once.
    /// assert!(reindex.try_lock()?.is_some());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn simple_lock(&self, name: &str) -> Lock {
        let mut spec = self.spec(Kind::Simple, name);
        spec.nesting = Nesting::Contends;
        Lock::new(spec)
    }

    /// Several locks as a unit: all of them or none. The locks may be of any kind and of any
    /// clients, and so on several servers. Redisson's `getMultiLock`.
    ///
    /// An acquire of an empty list is an error. So is a list in which an acquire would deadlock:
    /// two locks with the same key, of different clients or owners, or of mutually exclusive kinds,
    /// such as [`lock`](Self::lock) and a read lock.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
    /// let _guard = client.multi_lock(&[&order, &stock]).lock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn multi_lock(&self, locks: &[&dyn AnyLock]) -> MultiLock {
        MultiLock::new(locks)
    }

    /// The reentrant locks of these names as a unit, each name once: all of them or none, or as
    /// many as are [free](MultiLock::available). At most 1,000,000.
    ///
    /// A request acquires or releases up to 1,000 locks; in a cluster, locks of the same hash slot.
    /// On the server these are plain locks, for [`lock`](Self::lock) and for Redisson too. If a
    /// lock is busy, the acquire at once releases the locks acquired so far, and waits for the busy
    /// lock with nothing held.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let names: Vec<String> = (0..5000).map(|shard| format!("shard:{shard}")).collect();
    /// let guard = client.lock_many(&names).lock()?;
    /// assert!(guard.is_held() && client.lock("shard:4999").is_locked()?);
    /// guard.unlock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn lock_many<N: AsRef<str>>(&self, names: &[N]) -> MultiLock {
        MultiLock::of_names(names, |name| self.spec(Kind::Reentrant, name))
    }

    /// The reentrant lock `name` on the servers of these clients. There must be at least three
    /// clients, each with a different server. Five survive the loss of two; an even number survives
    /// no more than the odd number below.
    ///
    /// A wrong list or name is an error when the lock is locked.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let guard = Client::red_lock(&clients, "orders:42").lock()?;
    /// guard.unlock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn red_lock(clients: &[Self], name: &str) -> RedLock {
        let locks: Vec<Lock> = clients.iter().map(|client| client.lock(name)).collect();
        let locks: Vec<&dyn AnyLock> = locks.iter().map(|lock| lock as &dyn AnyLock).collect();
        RedLock::new(&locks)
    }

    /// Returns the spec of the lock `name` of this `kind`, with default settings and this client's
    /// prefix.
    fn spec(&self, kind: Kind, name: &str) -> LockSpec {
        LockSpec::new(Arc::clone(&self.core), kind, self.prefix.clone(), name)
    }

    /// Returns the semaphore or latch `name`, with this client's prefix.
    fn named(&self, name: &str) -> NamedObject {
        NamedObject::new(Arc::clone(&self.core), &self.prefix, name)
    }

    /// The semaphore `name`, whose permits are a number. Names are as for [`lock`](Self::lock). A
    /// name is one key, so a semaphore and a lock cannot have the same name.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.named(name))
    }

    /// The semaphore `name`, whose permits have ids and leases. Names are as for
    /// [`lock`](Self::lock), but `x` and `{x}` [must not both be used](ExpirableSemaphore).
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(self.named(name).sharing(LockName::permit_leases))
    }

    /// The latch `name`. Names are as for [`lock`](Self::lock).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(self.named(name))
    }

    /// The fair lock `name`: waiters are granted the lock in the order in which the server received
    /// their requests, in whatever process they are, Redisson's `RFairLock` included.
    ///
    /// In Redisson's layout the names `x` and `{x}` have the same queue: the waiters of both wait
    /// in line. Use only one of these names; a client that uses either name refuses the second as
    /// an [`Error::InvalidName`].
    ///
    /// The lock is the same as the [`lock`](Self::lock) of `name`, and a thread that holds either
    /// may nest the other. But an acquire with `lock` ignores the queue, so use a name in one way
    /// only.
    ///
    /// [`Lock::try_lock`] does not queue, and gets the lock only if the queue is empty. A dead
    /// waiter delays the queue for at most 30 s after its last request, or, if a thread of
    /// Redisson's was before the dead waiter, after the first request of a live waiter behind; this
    /// holds however many die together. A process stopped for longer than 30 s may lose its place,
    /// and is last when it resumes. A waiter that gives up leaves the queue before the call
    /// returns, or in the background if the server does not answer. A lost message delays the first
    /// two waiters in the queue by at most 1 s, and the waiters behind by 5 s.
    ///
    /// A fair lock costs more than a `lock`: each waiting thread has a channel and a queue entry on
    /// the server. The keys of the queue have no time to live, as Redisson expects: if every client
    /// dies while some wait, the keys stay until a client next asks for the lock. The guide
    /// describes the effects of [Redisson's waiters](crate::redisson#what-this-crate-cannot-change)
    /// on the waiters of this library, and the reverse.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let guard = client.fair_lock("orders:42").lock()?;
    /// // Waiters get it in their order.
    /// guard.unlock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> Lock {
        Lock::new(self.spec(Kind::Fair, name))
    }

    /// The [`fair_lock`](Self::fair_lock) `name`, without nesting: a thread which locks again while
    /// holding the lock gets [`Error::AlreadyHeld`].
    ///
    /// ```
    /// use wheellock::{Client, Error};
    ///
    /// let lock = Client::in_memory().non_reentrant_fair_lock("orders:42");
    /// let _guard = lock.lock()?;
    /// assert!(matches!(lock.lock(), Err(Error::AlreadyHeld { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn non_reentrant_fair_lock(&self, name: &str) -> Lock {
        let mut spec = self.spec(Kind::Fair, name);
        spec.nesting = Nesting::Refused;
        Lock::new(spec)
    }

    /// The read-write lock `name`: many readers, or a single writer. Names are as for
    /// [`lock`](Self::lock); a name must not be used for both.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let _reading = client.read_write_lock("prices").read_lock().lock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(self.spec(Kind::Read, name), self.spec(Kind::Write, name))
    }

    /// The job `name`, which runs once for each slot, on a single process. Names are as for
    /// [`lock`](Self::lock); a job has separate keys, so a lock may have the same name.
    #[must_use]
    pub fn job(&self, name: &str) -> Job {
        Job::new(Arc::clone(&self.core), &self.prefix, name)
    }

    /// The election `name`, whose candidates are processes, with a single leader. Names are as for
    /// [`lock`](Self::lock): the leader holds the [`fenced_lock`](Self::fenced_lock) `name`.
    #[must_use]
    pub fn leader_election(&self, name: &str) -> LeaderElection {
        LeaderElection::new(self.spec(Kind::Fenced, name))
    }

    /// The status of the lock `name`, of any kind: the holders and the waiters. A round trip, and
    /// one more for each client among the holders and in the queue.
    ///
    /// A lock is a hash of owners with their counts, or a string with an owner; an owner is a UUID
    /// and a number. A hash whose fields have another form, with counts as values, is a lock of an
    /// [unknown kind of client](crate::HolderKind::Unknown) if the key has a time to live. A number
    /// is a semaphore's, a latch's, or a foreign program's. The values of foreign data are not
    /// read, however large they are.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`]. [`Error::WrongType`]: the key holds no lock; the error describes the
    /// content.
    pub fn status(&self, name: &str) -> Result<LockStatus, Error> {
        status_of(&self.core.running()?, &self.prefix.name(name)?)
    }

    /// Waits as long as [`wait`](crate::Wait) says until the status of a lock differs from
    /// `before`: in a holder, a count, a place in the queue, or the number of waiters. Returns
    /// `None` if nothing has changed in this time, or on the first inspection if the wait has no
    /// time. A renewed lease is no change.
    ///
    /// A release wakes this wait, as any waiter. Changes without a message, such as a grant, are
    /// found by an inspection once a second. A change which is undone between two inspections is
    /// not seen. A client that watches counts among the [waiters
    /// elsewhere](crate::Waiters::elsewhere) of other clients.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let before = client.status("orders:42")?;
    /// let _guard = client.lock("orders:42").lock()?;
    /// let after = client.next_change(&before, Duration::from_secs(5))?.unwrap();
    /// assert_eq!(after.holders.len(), 1);
    /// assert!(client.next_change(&after, Duration::from_millis(10))?.is_none());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`status`](Self::status), and [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn next_change<'a>(
        &self,
        before: &LockStatus,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<LockStatus>, Error> {
        next_change(&self.core.running()?, &LockName::parse(&before.name)?, before, wait.into())
    }

    /// An iterator over the locks on the server whose names match `pattern`, of all kinds. The
    /// iterator queries the server on demand.
    ///
    /// The pattern is a Redis pattern: `*` stands for any text, `?` for any character, `[a-c]` for
    /// a character of a set, `\` before a character for the character itself. The client's
    /// [prefix](Self::with_prefix) is put before the pattern, and the returned names include the
    /// prefix.
    ///
    /// No request blocks the server for long: a request scans about 250 keys (`SCAN`), fewer if the
    /// keys are long, and each key that may be a lock costs one more round trip, without a large
    /// value. The time grows with the number of all keys of the server. A lock acquired or released
    /// meanwhile may be missing, and a lock may be returned twice.
    ///
    /// Left out are keys that [`status`](Self::status) does not recognize, and keys whose names no
    /// lock can have. A plain number is returned, because the number may be a semaphore. Keys that
    /// the server's user may not read are left out and [counted](Locks::unreadable). In a cluster
    /// all masters are queried, in turn; behind the [single address](crate::guide::managed) of a
    /// cluster, the server that answers.
    ///
    /// Each item can fail as [`Lock::lock`] can. After the error of one lock the iteration
    /// continues. After an error of a scan the remaining keys of the same server are left out.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let _guard = client.lock("orders:42").lock()?;
    /// for status in client.locks("orders:*") {
    ///     assert_eq!(status?.name, "orders:42");
    /// }
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn locks(&self, pattern: &str) -> Locks {
        Locks::new(Arc::clone(&self.core), self.prefix.pattern(pattern))
    }

    /// The wait graph of the locks whose names match `pattern`, across all processes: the locks,
    /// the threads that have waited for more than a second, and the deadlocks among these threads.
    ///
    /// The threads belong to this library's clients, unless they
    /// [ignore](crate::OnDeadlock::Ignore) deadlocks. Holders and waiters of Redisson are in the
    /// [status](LockStatus) of each lock. The keys of the server are scanned twice, as
    /// [`locks`](Self::locks) does, and each record of a client is one more round trip. If there
    /// seems to be a cycle, the records are read again for up to a second: a cycle counts only if
    /// both readings show the cycle.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let graph = Client::in_memory().wait_graph("orders:*")?;
    /// for cycle in &graph.cycles {
    ///     eprintln!("{}", cycle.description);
    /// }
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`](crate::Lock::holder).
    pub fn wait_graph(&self, pattern: &str) -> Result<WaitGraph, Error> {
        wait_graph(&self.core, &self.prefix.pattern(pattern))
    }

    /// The wait graph of locks whose status is known, as [`wait_graph`](Self::wait_graph), without
    /// a scan of the server: among the holders' clients, and the clients for which these wait. So
    /// each deadlock with any of the locks is found. A client that only waits is not found, and is
    /// counted in the status of the lock.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let graph = client.wait_graph_of(vec![client.status("orders:42")?])?;
    /// assert!(graph.cycles.is_empty());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::holder`](crate::Lock::holder).
    pub fn wait_graph_of(&self, locks: Vec<LockStatus>) -> Result<WaitGraph, Error> {
        wait_graph_of(&self.core, locks, BTreeSet::new())
    }

    /// This client's identity, the first part of every owner: a random UUID.
    #[must_use]
    pub fn id(&self) -> String {
        self.core.id.to_string()
    }

    /// Tests the connection to the server, and connects if there is no connection: for the health
    /// check of a service, or after [`connect_lazily`](crate::ClientBuilder::connect_lazily). In a
    /// cluster the call tests every master. One attempt, within one [command
    /// timeout](crate::ClientBuilder::command_timeout), and another at once if the connection or
    /// its [authentication](crate::ClientBuilder::credentials) has ended.
    ///
    /// `Ok` means: the server answers this user now. The next call may fail.
    ///
    /// ```
    /// use wheellock::{Client, Error, Memory};
    ///
    /// let memory = Memory::new();
    /// let client = Client::builder().in_memory(&memory).build()?;
    /// client.ping()?;
    /// memory.set_unreachable(true);
    /// assert!(matches!(client.ping(), Err(Error::Unreachable { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Unreachable`] - the server cannot be reached, or has not answered in time.
    ///   Transient.
    /// * [`Error::Authentication`], [`Error::Tls`], [`Error::Refused`] - as [`Client::connect`].
    /// * [`Error::Shutdown`] - the client was shut down.
    /// * [`Error::Forked`] - this process is a fork of the client's.
    pub fn ping(&self) -> Result<(), Error> {
        self.core.running()?.ping()
    }

    /// The client's statistics now; all zero in the child of a fork. Local: no round trip.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        if !core.is_current() {
            return Stats::default();
        }
        let (unread, queued, abandoned) = {
            let ledger = core.watchdog.releases.ledger();
            (ledger.unread(), ledger.queued(), ledger.abandoned)
        };
        let connections = core.store.connections();
        let mut stats = Stats {
            held: core.holds.len(),
            waiters: core.waits.waiters(),
            queued_releases: queued,
            unread_releases: unread,
            abandoned_releases: abandoned,
            connections_made: connections.made,
            connections_open: connections.open,
            connections_in_use: connections.in_use,
            unreported: core.events.unreported(),
            callback_panics: core.foreign_panics(),
            hand_overs: core.waits.hand_overs(),
            cache: core.holds.cache.stats(),
            ..Stats::default()
        };
        core.watchdog.context.counters.fill(&mut stats);
        stats
    }

    /// The holds of this client, without lost holds, in no order, for a debug page. Empty in the
    /// child of a fork. Local: no round trip.
    ///
    /// The holds are copied in parts, without delaying a renewal: a hundred thousand holds take
    /// some ten milliseconds of this thread, and 30 MB. A hold that begins or ends meanwhile may be
    /// missing.
    #[must_use]
    pub fn holds(&self) -> Vec<OwnHold> {
        if !self.core.is_current() {
            return Vec::new();
        }
        let now = self.core.now();
        self.core.holds.all().iter().filter_map(|hold| hold.snapshot(now)).collect()
    }

    /// The warnings about the server so far: problems which endanger locks or delay waiters. Each
    /// warning once, oldest first, at most the last 64. Empty in the child of a fork. Local: no
    /// round trip.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// assert!(Client::in_memory().warnings().is_empty());
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        if self.core.is_current() { self.core.events.warnings() } else { Vec::new() }
    }

    /// Ends the client for all clones: every waiter returns [`Error::Shutdown`], every hold is
    /// released, and its guards report [`LostReason::Shutdown`](crate::LostReason::Shutdown). Waits
    /// at most `timeout`, in total: for the server's answers, then for the remaining callbacks, and
    /// for the recorder of `metrics`.
    ///
    /// Calls in progress may go on for the same `timeout`. A call that still waits for an answer
    /// then returns at once: an acquire with [`Error::Shutdown`], any other call with
    /// [`Error::OutcomeUnknown`]. Locks which the call may have acquired or was to release are
    /// released in the background. A call that is still connecting cannot be interrupted while a
    /// name is resolved, credentials or sentinels are queried, or the connection or the TLS
    /// handshake is not answered. Such a call ends with the [command
    /// timeout](crate::ClientBuilder::command_timeout) at the latest; this method waits no longer
    /// than `timeout`.
    ///
    /// A hold released here is not reported to [`on_lost`](crate::ClientBuilder::on_lost). Earlier
    /// reports are still delivered, for at most 5 s, on the thread `lock-callbacks`, which then
    /// ends. A callback may call this method, which does not wait for the callback.
    ///
    /// A second call waits until the first has its answers, or the second's `timeout` is over, and
    /// then for the releases still not acknowledged. The report of the second call lists the locks
    /// unreleased by then. In the child of a fork the call has no effect: the client is the
    /// parent's.
    pub fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        if !self.core.is_current() {
            return ShutdownReport::default();
        }
        let (released, kept, unreleased) = self.core.shut_down(timeout);
        let unreleased = unreleased.iter().map(LockName::shown).collect();
        ShutdownReport { released, kept, unreleased }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("server", &self.core.server())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// The result of a [shutdown](Client::shutdown).
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").lock()?;
/// let report = client.shutdown(Duration::from_secs(1));
/// assert_eq!(report.released, 1);
/// assert!(report.unreleased.is_empty());
/// assert!(!guard.is_held());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Number of released holds.
    pub released: usize,
    /// Number of holds which stay on the server until their [shortest
    /// time](crate::Lock::with_min_hold) is over, and end there by themselves: holds released
    /// before, and holds found by the shutdown. At most 65,536 are counted.
    pub kept: usize,
    /// The names of locks whose release the server has not acknowledged. They end with their
    /// leases.
    pub unreleased: Vec<String>,
}
