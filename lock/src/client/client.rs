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

/// A client of a lock server, with a unique identity.
///
/// A client is cheap to clone and to share between threads. A clone is a handle of the same client.
///
/// Created by [`connect`](Self::connect), [`in_memory`](Self::in_memory) or
/// [`ClientBuilder::build`](crate::ClientBuilder::build).
///
/// **Threads.** A client has a ticker thread and a renewal thread. A third thread receives messages
/// after the first wait, and a fourth thread wakes tasks after the first task [awaits a
/// loss](crate::LockGuard::lost_future) or a request to release. A client with callbacks, or with
/// the cargo feature `tracing`, has a thread that calls the callbacks. The cargo feature `metrics`
/// adds a thread. Behind sentinels a thread follows the master. In a cluster each master with holds
/// to renew, or with the client's [record](crate::ClientBuilder::label), has a renewal thread, each
/// subscribed master has a thread for messages, and one thread follows the topology.
///
/// Connections are opened on short-lived threads. Host names are resolved on further threads,
/// because the resolver may hang: at most eight at a time for each server and each sentinel, each
/// of which ends when the resolver returns. The credentials callback runs on a separate thread.
///
/// **End.** A client ends when its last clone, lock and guard are dropped. The last drop waits:
///
/// * for the replies to the releases of dropped guards, at most 100 ms;
/// * for the current work of the renewal threads, and for further attempts at the queued releases,
///   at most 5 s in total;
/// * for the removal of the client's record, if any, at most 250 ms;
/// * for the remaining callbacks, at most one command timeout, and at most 5 s.
///
/// A lock that is not released by then ends with its lease. [`shutdown`](Self::shutdown) ends the
/// client earlier, and returns the names of the unreleased locks.
///
/// **Fork.** A client, with its clones, locks and guards, belongs to the process that built the
/// client. In the child of a `fork` each call that needs the server returns [`Error::Forked`], an
/// inherited guard holds nothing, and a drop does nothing: the parent still holds its locks. The
/// child builds a new client. Two cases are excluded:
///
/// * The program forks while a thread of the program starts or ends. At that moment Rust's standard
///   library holds an internal lock, which stays locked in the child. No thread can start in the
///   child, no client can be built, and `exit` hangs. Such a child should only `exec`.
/// * The child has the process id of the parent, as the first process of a new PID namespace may,
///   or a later descendant has the id of an ended process. The client does not recognize such a
///   child. The child must not use anything inherited.
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

    /// Returns a handle of the same client that puts `prefix` in front of every name.
    ///
    /// `prefix` follows this handle's own [prefix](crate::ClientBuilder::key_prefix). Both handles
    /// share everything: identity, connections, watchdog and holds. A shutdown ends both.
    ///
    /// The full name is the prefix and the name. Key and channels belong to the full name: two
    /// clients that form the same full name in different ways have the same lock. [`Lock::name`],
    /// guards, errors, reports and events show the full name, and the limit of length applies to
    /// the full name. The name after the prefix must not be empty. An empty prefix changes nothing.
    ///
    /// On a cluster, braces decide which keys share a hash slot. Without braces in the prefix the
    /// name decides: `orders:` and `{7}:a` form the key `orders:{7}:a`, in the hash slot of `7`. If
    /// neither prefix nor name has braces, all keys and channels of the full name share a hash
    /// slot. A prefix with braces, such as `{orders}:`, puts the whole family into the hash slot of
    /// `orders`, and therefore on one server. The channel of a latch is an exception, as in
    /// [Redisson](crate::redisson). A `{` without a `}` does not select a hash slot.
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

    /// Returns the reentrant lock `name`, without a round trip and without acquiring the lock.
    ///
    /// A name is any string of 1 to 65,536 bytes, including the client's
    /// [prefix](Self::with_prefix). For any other name, each call of the lock that needs the server
    /// returns [`Error::InvalidName`]. The full name is the key on the server, byte for byte.
    ///
    /// The release of the lock wakes a waiter. The release of a [`spin_lock`](Self::spin_lock) of
    /// the same name wakes no waiter: a waiter then tries again within a second.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        let mut spec = self.spec(Kind::Reentrant, name);
        spec.hand_over = true;
        Lock::new(spec)
    }

    /// Returns the lock `name` without nesting: a thread that holds the lock and locks again gets
    /// [`Error::AlreadyHeld`].
    ///
    /// Names are as for [`lock`](Self::lock), and on the server the lock is the `lock` of the same
    /// name. A thread that holds the lock by `lock` gets the same error. The idea is Redisson's
    /// (`getNonReentrantLock`).
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

    /// Returns the lock `name` whose guards have a [fencing token](crate::FencedGuard::token): a
    /// number larger than the token of every earlier hold.
    ///
    /// A resource that remembers the largest token can refuse a request of an earlier holder. Names
    /// are as for [`lock`](Self::lock). The idea is Redisson's (`RFencedLock`).
    ///
    /// The counter of tokens is a separate key, `redisson_lock_token:{name}`, without expiry: the
    /// counter must outlive every hold. In Redisson's layout the names `x` and `{x}` share a
    /// counter: their tokens grow together, and [`last_token`](FencedLock::last_token) of `x` may
    /// be a token of `{x}`. Use only one of these names: once a client has used either name, the
    /// client refuses the second name with [`Error::InvalidName`].
    ///
    /// A thread that holds the [`lock`](Self::lock) of the same name nests, and the fenced guard
    /// draws a token.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        Lock::new(self.spec(Kind::Fenced, name))
    }

    /// Returns the lock `name` whose waiters poll instead of waiting for messages.
    ///
    /// Each refusal doubles the [pause](Lock::with_backoff) until the next try: from 1 to 128 ms
    /// unless set. Of all waiting threads of a client, one thread polls. Names are as for
    /// [`lock`](Self::lock). The idea is Redisson's (`getSpinLock`).
    ///
    /// A release publishes no message. This kind of lock is for servers or proxies where publishing
    /// is expensive or impossible. The lock and the [`lock`](Self::lock) of the same name exclude
    /// each other, but the release of a spin lock does not wake the waiters of a `lock`: waiters of
    /// this library try again within a second, and waiters of Redisson, which do not poll, at the
    /// end of the lease that the server reported to them. Use a name for one kind of lock only.
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

    /// Returns the lock `name` in its simplest form: the key holds the owner as a string, as after
    /// `SET name owner NX PX lease`.
    ///
    /// Names are as for [`lock`](Self::lock). The lock does not nest, and waiters poll as for a
    /// [`spin_lock`](Self::spin_lock). The hold is renewed, or has a [lease](Lock::with_lease), as
    /// with every other kind. Only the owner can release the lock.
    ///
    /// A holder that locks again is refused like any other owner: `try_lock` returns `None`, and a
    /// wait with a limit ends with `None`. A wait without a limit for the holder's own renewed hold
    /// would never end, and returns [`Error::AlreadyHeld`] at once.
    ///
    /// A name must not be used for a simple lock and for another kind: if the key holds a lock of
    /// another kind, an acquire returns [`Error::WrongType`]. Redisson has no such lock. Redis's
    /// documentation describes the idea (`SET`, Patterns).
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

    /// Returns a lock that acquires all of `locks` or none.
    ///
    /// The locks may be of any kind and of any clients, on one or several servers. A lock that is
    /// given twice is acquired once. The idea is Redisson's (`getMultiLock`).
    ///
    /// For an invalid list every acquire returns [`Error::InvalidSetting`]. A list is invalid if
    /// the list is empty, or if two of the locks have the same key and exclude each other: locks of
    /// different clients or owners, except two read locks, or kinds that do not nest in each other,
    /// such as a [`lock`](Self::lock) and a read lock.
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

    /// Returns a lock that acquires the reentrant [`lock`](Self::lock)s of all `names` or none, or
    /// as many as are [free](MultiLock::available).
    ///
    /// A name that is given twice is locked once. With no name, or with more than 1,000,000 names,
    /// every acquire returns [`Error::InvalidSetting`].
    ///
    /// A request acquires or releases up to 1,000 locks; in a cluster, locks of the same hash slot.
    /// On the server each lock is the [`lock`](Self::lock) of its name, also for Redisson. If a
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

    /// Returns a lock that is held with the reentrant lock `name` on a majority of the servers of
    /// `clients`.
    ///
    /// `clients` has at least three clients, each of a different server. With three servers the
    /// lock survives the loss of one server, with five of two. An even number survives no more
    /// losses than the odd number below.
    ///
    /// For an invalid list every acquire returns [`Error::InvalidSetting`], and for a wrong name
    /// [`Error::InvalidName`].
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

    /// Returns the semaphore `name`, whose permits are a number without owners and leases.
    ///
    /// The call sends nothing. A new semaphore has no permits until
    /// [`try_set_permits`](Semaphore::try_set_permits) or another call adds permits. Names are as
    /// for [`lock`](Self::lock). The name is the key: a semaphore and a lock must not have the same
    /// name.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.named(name))
    }

    /// Returns the semaphore `name`, whose permits have ids and leases.
    ///
    /// The call sends nothing. A new semaphore has no permits until
    /// [`try_set_permits`](ExpirableSemaphore::try_set_permits) or another call adds permits. Names
    /// are as for [`lock`](Self::lock), except that the names `x` and `{x}` [share a
    /// key](ExpirableSemaphore): once a client has used either name, the client refuses the second
    /// name with [`Error::InvalidName`]. A semaphore and a lock must not have the same name.
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(self.named(name).sharing(LockName::permit_leases))
    }

    /// Returns the latch `name`, whose waiters wait until a count is zero.
    ///
    /// The call sends nothing. Names are as for [`lock`](Self::lock). The name is the key: a latch
    /// and a lock must not have the same name.
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(self.named(name))
    }

    /// Returns the fair lock `name`: the server grants the lock to waiters in the order in which
    /// the server received their requests.
    ///
    /// The order covers the waiters of all processes, also of Redisson (`RFairLock`). Names are as
    /// for [`lock`](Self::lock). In Redisson's layout the names `x` and `{x}` share a queue. Use
    /// only one of these names: once a client has used either name, the client refuses the second
    /// name with [`Error::InvalidName`].
    ///
    /// On the server the lock is the [`lock`](Self::lock) of `name`. A thread that holds either
    /// lock may nest the second. But an acquire with `lock` ignores the queue: use a name for one
    /// kind of lock only.
    ///
    /// [`Lock::try_lock`] does not join the queue, and acquires the lock only if the queue is
    /// empty. A dead waiter delays the queue for at most 30 s after its last request. If a thread
    /// of Redisson was ahead of the dead waiter, the 30 s count from the first request of a live
    /// waiter behind. The delay does not grow with the number of waiters that die together. A
    /// process that is stopped for longer than 30 s may lose its place, and is last when the
    /// process resumes. A waiter that gives up leaves the queue before the call returns, or in the
    /// background if the server does not answer. A lost message delays the first two waiters in the
    /// queue by at most 1 s, and the waiters behind by at most 5 s.
    ///
    /// A fair lock costs more than a `lock`: each waiting thread has a channel and a queue entry on
    /// the server. The keys of the queue have no time to live, as Redisson expects. If all clients
    /// die while some of them wait, the keys stay until a client next asks for the lock. The guide
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

    /// Returns the [`fair_lock`](Self::fair_lock) `name` without nesting: a thread that holds the
    /// lock and locks again gets [`Error::AlreadyHeld`].
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

    /// Returns the read-write lock `name`: many readers or a single writer hold the lock.
    ///
    /// Names are as for [`lock`](Self::lock). A name must not be used for a read-write lock and for
    /// another kind: an acquire of the second kind returns [`Error::WrongType`].
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

    /// Returns the job `name`, which runs once for each slot among all processes.
    ///
    /// A slot is a text, such as a date. Names are as for [`lock`](Self::lock). A job has separate
    /// keys: a lock may have the same name.
    #[must_use]
    pub fn job(&self, name: &str) -> Job {
        Job::new(Arc::clone(&self.core), &self.prefix, name)
    }

    /// Returns the election `name`, which makes one process the leader.
    ///
    /// Names are as for [`fenced_lock`](Self::fenced_lock): the leader holds the fenced lock
    /// `name`.
    #[must_use]
    pub fn leader_election(&self, name: &str) -> LeaderElection {
        LeaderElection::new(self.spec(Kind::Fenced, name))
    }

    /// Returns the status of the lock `name`, of any kind: the holders and the waiters.
    ///
    /// A free lock has a status without holders, whose [`kind`](LockStatus::kind) is `None` unless
    /// threads wait in a fair queue. The call costs a round trip, and one more for each further
    /// client among the holders and in the queue, for at most 100 clients.
    ///
    /// The key may hold a hash of owners with their counts, a string with an owner, or a number. An
    /// owner is a UUID and a number. A hash with counts whose fields have another form is a lock of
    /// an [unknown kind of client](crate::HolderKind::Unknown) if the key has a time to live. A
    /// number belongs to a semaphore, to a latch, or to another program. All other content is
    /// foreign. The values of foreign data are not read.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the content of the key is foreign. The error describes the content.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`], [`Error::Refused`],
    ///   [`Error::Authentication`] - the server did not answer, or refused the query, for twice the
    ///   command timeout. The query changes nothing.
    /// * [`Error::Shutdown`] or [`Error::Forked`] - permanent, nothing was sent.
    pub fn status(&self, name: &str) -> Result<LockStatus, Error> {
        status_of(&self.core.running()?, &self.prefix.name(name)?)
    }

    /// Waits until the status of a lock differs from `before`, and returns the new status.
    ///
    /// `before` is a status returned by [`status`](Self::status) or by this method. [`wait`](Wait)
    /// limits the wait. Returns `None` if the status is still the same at the end of the wait. With
    /// a [single try](Wait::none) the method inspects the lock and does not wait.
    ///
    /// The statuses differ if the kind, a holder, a nesting count, the number of a semaphore or
    /// latch, the queue, or the number of waiters has changed. A renewed lease is no change. The
    /// number of waiters elsewhere counts as changed only after two inspections with the same
    /// number.
    ///
    /// A release that publishes a message wakes this wait. Other changes, such as a grant, are
    /// found by an inspection once a second; so are all changes of spin locks, simple locks and
    /// latches. A change that is undone between two inspections is not seen. A client that watches
    /// a lock counts among the [waiters elsewhere](crate::Waiters::elsewhere) of other clients.
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
    /// * The errors listed at [`status`](Self::status), by the end of the wait at the latest.
    /// * [`Error::Cancelled`] - the caller cancelled the wait.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn next_change<'a>(
        &self,
        before: &LockStatus,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<LockStatus>, Error> {
        next_change(&self.core.running()?, &LockName::parse(&before.name)?, before, wait.into())
    }

    /// Returns an iterator over the status of each lock on the server whose name matches `pattern`,
    /// of all kinds.
    ///
    /// The iterator queries the server on demand, on the thread that calls `next`. The pattern is a
    /// Redis pattern: `*` stands for any text, `?` for any character, `[a-c]` for a character of a
    /// set, `\` before a character for the character itself. The client's
    /// [prefix](Self::with_prefix) is put before the pattern, and the returned names include the
    /// prefix.
    ///
    /// No request blocks the server for long. A request scans about 250 keys (`SCAN`), fewer if the
    /// names are long. Each key that may be a lock costs the round trips of a
    /// [`status`](Self::status). The time grows with the number of all keys of the server. A lock
    /// that is acquired or released during the iteration may be missing, and a lock may be returned
    /// twice.
    ///
    /// The iterator leaves out free locks, keys with foreign content, and the keys that belong to
    /// another lock, a job or a client, such as `redisson_lock_queue:{name}`. A plain number is
    /// returned, because the number may be a semaphore. Keys that the server's user may not read
    /// are left out and [counted](Locks::unreadable). In a cluster all masters are queried in turn.
    /// Behind the [single address](crate::guide::managed) of a cluster, only the server that
    /// answers is queried.
    ///
    /// Each item can be an error, as listed at [`status`](Self::status). After the error of one
    /// lock the iteration continues. After an error of a scan the remaining keys of the same server
    /// are left out. After [`Error::Shutdown`] or [`Error::Forked`] the iteration ends.
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

    /// Returns the wait graph of the locks whose names match `pattern`, across all processes: the
    /// locks, the threads that have waited for more than a second, and the deadlocks among these
    /// threads.
    ///
    /// `pattern` is a pattern as for [`locks`](Self::locks). The threads are threads of this
    /// library's clients, except clients that [ignore](crate::OnDeadlock::Ignore) deadlocks.
    /// Holders and waiters of Redisson are in the [status](LockStatus) of each lock.
    ///
    /// The call scans the keys of the server twice, with the round trips of `locks`, and reads the
    /// record of each client with one more round trip: at most 10,000 locks and 1,000 clients. If
    /// there seems to be a cycle, the call reads the records again for up to a second: a cycle
    /// counts only if both readings show the cycle.
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
    /// The errors listed at [`status`](Self::status), for any of the queries. The call then returns
    /// no part of the graph.
    pub fn wait_graph(&self, pattern: &str) -> Result<WaitGraph, Error> {
        wait_graph(&self.core, &self.prefix.pattern(pattern))
    }

    /// Returns the wait graph of `locks`, whose status is known, without a scan of the server.
    ///
    /// The call reads the records of the clients that hold any of the locks, of the clients for
    /// whose locks these clients wait, and so on, one round trip for each record and each awaited
    /// lock. The graph has each deadlock in which any of the locks takes part. A client that holds
    /// nothing and only waits is not in the graph; the status of the lock counts the client.
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
    /// The errors listed at [`status`](Self::status), for any of the queries. The call then returns
    /// no part of the graph.
    pub fn wait_graph_of(&self, locks: Vec<LockStatus>) -> Result<WaitGraph, Error> {
        wait_graph_of(&self.core, locks, BTreeSet::new())
    }

    /// Returns this client's identity: a random UUID, which is the first part of every
    /// [owner](crate::LockGuard::owner) of this client.
    #[must_use]
    pub fn id(&self) -> String {
        self.core.id.to_string()
    }

    /// Tests the connection to the server, and connects if there is no connection.
    ///
    /// `Ok` means that the server has answered this user, in a cluster every master. The next call
    /// may fail all the same. The method is for the health check of a service, or for a client that
    /// [connects lazily](crate::ClientBuilder::connect_lazily).
    ///
    /// The call makes one attempt. If the connection or its
    /// [authentication](crate::ClientBuilder::credentials) has ended, a second attempt follows at
    /// once. Both attempts together end within one [command
    /// timeout](crate::ClientBuilder::command_timeout).
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
    /// * [`Error::InvalidUrl`] - the server does not fit the URL, such as a node of a cluster.
    ///   Permanent.
    /// * [`Error::Authentication`] or [`Error::Tls`] - the server or the client refused the
    ///   connection. Permanent until a user, a password or a certificate is changed.
    /// * [`Error::Refused`] - the server replied with an error, such as `LOADING`. The
    ///   [code](Error::Refused) says whether the error is transient.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    pub fn ping(&self) -> Result<(), Error> {
        self.core.running()?.ping()
    }

    /// Returns the client's present holds and waits as numbers, and its counts since the start.
    ///
    /// In the child of a fork all numbers are zero. Local: no round trip.
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

    /// Returns the holds of this client, without lost holds, in no particular order.
    ///
    /// The result is meant for a debug page. In the child of a fork the result is empty. Local: no
    /// round trip.
    ///
    /// The holds are copied in parts, without delaying a renewal. The copy of a hundred thousand
    /// holds takes some ten milliseconds, and 30 MB. A hold that begins or ends during the copy may
    /// be missing.
    #[must_use]
    pub fn holds(&self) -> Vec<OwnHold> {
        if !self.core.is_current() {
            return Vec::new();
        }
        let now = self.core.now();
        self.core.holds.all().iter().filter_map(|hold| hold.snapshot(now)).collect()
    }

    /// Returns the warnings of this client so far: problems that endanger locks or delay waiters,
    /// and deadlocks.
    ///
    /// Equal warnings are returned once. The oldest warning is first, and at most the last 64
    /// different warnings are retained. In the child of a fork the result is empty. Local: no round
    /// trip.
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

    /// Releases all holds and ends the client for all clones, and returns which locks the server
    /// has released.
    ///
    /// From now on each acquire and each query returns [`Error::Shutdown`], also an acquire that
    /// waits. The guards of the released holds report
    /// [`LostReason::Shutdown`](crate::LostReason::Shutdown). The method waits at most `timeout` in
    /// total: for the server's answers, then for the remaining callbacks, and for the recorder of
    /// `metrics`.
    ///
    /// Other calls in progress may continue for the same `timeout`. A call that still waits for an
    /// answer then returns at once: an acquire with [`Error::Shutdown`], any other call with
    /// [`Error::OutcomeUnknown`]. A lock that such a call may have acquired, or was to release, is
    /// released in the background. A call that is connecting cannot be interrupted while the client
    /// resolves a name, queries credentials or sentinels, or waits for the answer to the connection
    /// or the TLS handshake. Such a call ends within the [command
    /// timeout](crate::ClientBuilder::command_timeout), even if `timeout` is shorter.
    ///
    /// A hold that this method releases is not reported to
    /// [`on_lost`](crate::ClientBuilder::on_lost). The thread `lock-callbacks` still delivers the
    /// earlier reports, for at most 5 s, and then ends. A callback may call this method; the method
    /// does not wait for this callback.
    ///
    /// A second call waits until the first call has its answers, and then for the releases that are
    /// not acknowledged yet, within its own `timeout`. The report of the second call lists the
    /// locks that are unreleased by then, and no released holds. In the child of a fork the call
    /// has no effect, because the client belongs to the parent, and returns an empty report.
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

/// The result of a [shutdown](Client::shutdown): which holds the server has released.
///
/// Returned by [`Client::shutdown`].
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
    /// The number of holds that the shutdown has released, with the server's acknowledgement. Holds
    /// that were released or lost earlier do not count, nor do holds whose keys stay on the server.
    pub released: usize,
    /// The number of ended holds whose keys are to stay on the server until their [minimum
    /// hold](crate::Lock::with_min_hold) is over, and then expire: holds released before the
    /// shutdown, and holds ended by the shutdown. At most 65,536 are counted.
    pub kept: usize,
    /// The names of locks and semaphores with a release that the server has not acknowledged, one
    /// name for each release. The client sends these releases in the background until the client
    /// ends. At the latest a lock ends with its lease. Permits without a lease may stay taken.
    pub unreleased: Vec<String>,
}
