//! The client: how it is built, what it makes, how it ends.

use std::sync::Arc;
use std::time::Duration;

use crate::caller::Named;
use crate::count_down_latch::CountDownLatch;
use crate::expirable_semaphore::ExpirableSemaphore;
use crate::kind::Kind;
use crate::lock::{FencedLock, Lock};
use crate::multi_lock::MultiLock;
use crate::name::{LockName, Prefix};
use crate::part::AnyLock;
use crate::plan::{Nesting, Plan};
use crate::process::Process;
use crate::read_write_lock::ReadWriteLock;
use crate::report::Warning;
use crate::semaphore::Semaphore;
use crate::statistics::Stats;

/// A connection to one lock server, with an identity of its own. Cheap to clone and to share between threads; clones
/// are the same client.
///
/// A client has a ticker thread and a renewal thread, a third for messages once somebody waits, one more for callbacks
/// if it was given any, and one that follows the master if there are sentinels. In a cluster each master that has
/// something to renew has a renewal thread, each that is listened to one for messages, and one more thread finds out
/// who serves what. It ends with its last clone, lock and guard. Whoever drops that waits for what the renewal threads
/// are doing, for one more try at the releases that are owed, for 5 s at most in all, and for callbacks that are still
/// to be called: seconds at worst, while the server or a callback hangs. What could not be released by then ends with
/// its lease. [`shutdown`](Self::shutdown) ends it sooner and says what could not be released.
///
/// After a `fork` the child's clones work too: with connections, threads and an identity of the child's own. Guards
/// that the child inherited are inert there.
///
/// ```no_run
/// use wheellock::Client;
///
/// let client = Client::connect("redis://127.0.0.1/")?;
/// let _guard = client.lock("orders:42").lock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    process: Arc<Process>,
    prefix: Prefix,
}

impl Client {
    pub(crate) fn new(process: Arc<Process>, prefix: Prefix) -> Self {
        Self { process, prefix }
    }

    /// The same client for a family of locks, whose names get `prefix` before them, behind the
    /// [prefix](crate::ClientBuilder::key_prefix) that this one puts there. It shares everything with this one:
    /// identity, connections, watchdog, holds, and its end.
    ///
    /// The prefix is a part of the name in every respect. Key and channels are those of the full name, so two clients
    /// that come to the same full name in different ways have the same lock. [`Lock::name`], guards, errors, reports
    /// and events show the full name. The bounds of a name are those of the full name, and a name must not be empty; an
    /// empty prefix is none.
    ///
    /// On a cluster, braces decide which keys lie together. A prefix without braces leaves that to the name: `orders:`
    /// and `{7}:a` are the key `orders:{7}:a`, in the slot of `7`; a name without braces has a slot of its own, for all
    /// its keys and channels. A prefix with a tag, `{orders}:`, puts the whole family into the one slot of `orders`,
    /// and so on one server. A latch's channel is the exception, as [Redisson](crate::redisson) has it. A `{` without
    /// a `}` keeps nothing together.
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
        Self { process: Arc::clone(&self.process), prefix: self.prefix.then(prefix) }
    }

    /// The reentrant lock `name`. Any string is a name, of 1 to 65,536 bytes with the client's
    /// [prefix](Self::with_prefix); a wrong one is an error when the lock is used. On the server the whole is the key,
    /// byte for byte.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.plan(Kind::Reentrant, name))
    }

    /// A lock that a thread takes once: asking for it again while holding it is an
    /// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) instead of a nested guard. On the server it is a
    /// [`lock`](Self::lock) like any other. Redisson's `getNonReentrantLock`.
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
        let mut plan = self.plan(Kind::Reentrant, name);
        plan.nesting = Nesting::Refused;
        Lock::new(plan)
    }

    /// A lock whose guards carry a [fencing token](crate::FencedGuard::token): a number that is larger than that of
    /// every hold before. For resources that can refuse who comes with a smaller one. Redisson's `RFencedLock`.
    ///
    /// The counter of tokens is a key of its own, `redisson_lock_token:{name}`, and has no expiry: it must outlive
    /// every hold. A thread that holds the [`lock`](Self::lock) of the same name nests, and is then given a token.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        Lock::new(self.plan(Kind::Fenced, name))
    }

    /// A lock whose waiters poll, in [pauses](Lock::with_back_off) that double with each refusal, and are not woken by
    /// messages. Of one client's waiters one polls for all. Redisson's `getSpinLock`.
    ///
    /// For servers or proxies on which publishing is dear or not possible. It excludes [`lock`](Self::lock)s of the
    /// same name, but does not wake their waiters: those then find out within a second.
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
        Lock::new(self.plan(Kind::Spin, name))
    }

    /// The simplest lock: its key is a text, the owner, as in `SET name owner NX PX lease`. It is not nested, and its
    /// waiters poll as those of [`spin_lock`](Self::spin_lock) do. It is renewed like every other, or
    /// [leased](Lock::with_lease); released only by its owner.
    ///
    /// Who holds it and asks again is refused like everybody else: `None` from a `try_lock`; and from a wait without a
    /// deadline, which would wait for its own renewed hold for ever, [`Error::AlreadyHeld`](crate::Error::AlreadyHeld).
    ///
    /// It does not exclude locks of other kinds: a key of another kind's under its name is an
    /// [`Error::WrongType`](crate::Error::WrongType). Redisson has none like it; it is the lock of Redis's own
    /// documentation (`SET`, Patterns).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let nightly = client.simple_lock("nightly report").with_lease(Duration::from_secs(3600));
    /// if let Some(guard) = nightly.try_lock()? {
    ///     // Only one of all processes comes here.
    ///     guard.unlock()?;
    /// }
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn simple_lock(&self, name: &str) -> Lock {
        let mut plan = self.plan(Kind::Simple, name);
        plan.nesting = Nesting::Contends;
        Lock::new(plan)
    }

    /// Several locks as one: all of them or none. Any kinds of locks, and of any clients, so that they may be on
    /// several servers; [`MultiLock::new`] is the same. Redisson's `getMultiLock`.
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

    fn plan(&self, kind: Kind, name: &str) -> Plan {
        Plan::new(Arc::clone(&self.process), kind, self.prefix.clone(), name)
    }

    fn named(&self, name: &str) -> Named {
        Named::new(Arc::clone(&self.process), &self.prefix, name)
    }

    /// The semaphore `name`, whose permits are a number. Names are as those of [`lock`](Self::lock); one name is one
    /// key, so a semaphore and a lock cannot have the same.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.named(name))
    }

    /// The semaphore `name`, whose permits have ids and leases. Names are as those of [`lock`](Self::lock).
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(self.named(name))
    }

    /// The latch `name`. Names are as those of [`lock`](Self::lock).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(self.named(name))
    }

    /// The fair lock `name`: who waits gets it in the order in which the server heard of them, whatever their process,
    /// Redisson's `RFairLock` included.
    ///
    /// It is the same lock as [`lock`](Self::lock)'s of that name, and a thread that holds the one may nest the other.
    /// But who takes it with `lock` does not look at the line; so a name should be taken in one way only.
    ///
    /// [`Lock::try_lock`] does not stand in line, and gets the lock only if nobody does. A waiter that dies keeps the
    /// line for at most 30 s after it asked last, or after the first one alive behind it asked, if a thread of
    /// Redisson's was before it; however many died together. A process that is stopped for longer than 30 s may lose
    /// its place, and stands at the end when it goes on. Whoever gives up leaves the line before the call returns, or
    /// in the background if the server does not answer. A message that is lost costs a second at most for the first two
    /// in line, 5 s for those behind them.
    ///
    /// It costs more than `lock`: each waiting thread has a channel of its own, and a place on the server. The keys of
    /// the line have no time to live, as Redisson reads them: if every client dies while some wait, they stay until
    /// somebody asks for that lock again. What Redisson's threads in the line can do to ours, and ours to them, is on
    /// the page of [`redisson`](crate::redisson#what-cannot-be-mended-from-one-side).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let guard = client.fair_lock("orders:42").lock()?;
    /// // Those who wait now get it in their order.
    /// guard.unlock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> Lock {
        Lock::new(self.plan(Kind::Fair, name))
    }

    /// The [`fair_lock`](Self::fair_lock) `name`, which a thread that holds it cannot take again: that is an
    /// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld).
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
        let mut plan = self.plan(Kind::Fair, name);
        plan.nesting = Nesting::Refused;
        Lock::new(plan)
    }

    /// The read-write lock `name`: many readers, or one writer. Names as for [`lock`](Self::lock); a name must not be
    /// used for both.
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
        ReadWriteLock::new(self.plan(Kind::Read, name), self.plan(Kind::Write, name))
    }

    /// This client's identity, the first part of every owner: a random UUID. In the child of a fork it is another.
    #[must_use]
    pub fn id(&self) -> String {
        match self.process.current() {
            Ok(process) => process.id.to_string(),
            // A child without threads has no client.
            Err(_) => String::new(),
        }
    }

    /// What the client has and has done. Cheap.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Ok(process) = self.process.current() else {
            return Stats::default();
        };
        let mut stats = Stats {
            held: process.holds.len(),
            waiters: process.channels.waiters(),
            owed_releases: process.watchdog.owed_releases(),
            abandoned_releases: process.watchdog.abandoned_releases(),
            connections_made: process.store.connections_made(),
            unreported: process.teller.unreported(),
            callback_panics: process.teller.panics(),
            ..Stats::default()
        };
        process.watchdog.counters().fill(&mut stats);
        stats
    }

    /// What was found out about the server that endangers locks or delays waiters: each warning once, oldest first, the
    /// last 64 at most. Local: no round trip.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// assert!(Client::in_memory().warnings().is_empty());
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.process.current().map(|process| process.teller.warnings()).unwrap_or_default()
    }

    /// Ends the client for all its clones: every waiter returns [`Error::Shutdown`](crate::Error::Shutdown), every hold
    /// is released, and its guards are told [`LostReason::Shutdown`](crate::LostReason::Shutdown). Waits for the
    /// server's answers for at most `timeout`, and in what is left of it for callbacks that are still to be called.
    ///
    /// A hold that is released here is not reported to [`on_lost`](crate::ClientBuilder::on_lost). What was reported
    /// before is still delivered, for at most 5 s, on the callbacks' thread, which then ends. A callback may call this;
    /// it does not wait for itself.
    ///
    /// Calling it again does no harm. From a forked child it ends the child's client, not the parent's.
    pub fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        let Ok(process) = self.process.current() else {
            return ShutdownReport::default();
        };
        let (released, unreleased) = process.shut_down(timeout);
        let unreleased = unreleased.iter().map(LockName::shown).collect();
        ShutdownReport { released, unreleased }
    }
}

/// What a shutdown did.
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
    /// Holds that were released.
    pub released: usize,
    /// The names of locks whose release no server has acknowledged. Their leases end by themselves.
    pub unreleased: Vec<String>,
}
