//! The client: how it is built, what it makes, how it ends.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::callbacks::Callbacks;
use crate::clock::SuspendClock;
use crate::config::Settings;
use crate::count_down_latch::CountDownLatch;
use crate::error::Error;
use crate::expirable_semaphore::ExpirableSemaphore;
use crate::kind::Kind;
use crate::lock::{FencedLock, Lock};
use crate::multi_lock::MultiLock;
use crate::part::AnyLock;
use crate::plan::{Nesting, Plan};
use crate::process::{Birth, Process, Target};
use crate::read_write_lock::ReadWriteLock;
use crate::report::{HeldLock, LostLock, Warning};
use crate::semaphore::Semaphore;
use crate::statistics::Stats;
use crate::store::{Address, Memory};

/// A connection to one lock server, with an identity of its own. Cheap to clone and to share between threads; clones
/// are the same client.
///
/// A client has a ticker thread and a renewal thread, a third for messages once somebody waits, and one more for
/// callbacks if it was given any. It ends with its last clone, lock and guard. Whoever drops that waits for what the
/// renewal thread is doing, for one more try at the releases that are owed, for 5 s at most in all, and for callbacks
/// that are still to be called: seconds at worst, while the server or a callback hangs. What could not be released by
/// then ends with its lease. [`shutdown`](Self::shutdown) ends it sooner and says what could not be released.
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
}

impl Client {
    /// Connects to a single server: `redis://[user][:password@]host[:port][/database]`, or `valkey://`.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidUrl`] - permanent.
    /// * [`Error::Unreachable`], [`Error::Authentication`], [`Error::Refused`] - within the command timeout of 3 s.
    /// * [`Error::Thread`] - transient.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// A client on a lock server inside this process, empty and its own. It excludes threads of this process only: for
    /// tests and first steps. To share one server between clients, build them on one [`Memory`].
    ///
    /// # Panics
    ///
    /// If the operating system refuses a thread. [`builder`](Self::builder) returns that as an error.
    #[must_use]
    pub fn in_memory() -> Self {
        match Self::builder().in_memory(&Memory::new()).build() {
            Ok(client) => client,
            #[expect(clippy::panic, reason = "documented; the builder is the way without a panic")]
            Err(error) => panic!("{error}"),
        }
    }

    /// Settings for a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The reentrant lock `name`. Any string is a name, of 1 to 65,536 bytes; a wrong one is an error when the lock is
    /// used. On the server it is the key, byte for byte.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.plan(Kind::Reentrant, name))
    }

    /// A lock that a thread takes once: asking for it again while holding it is an [`Error::AlreadyHeld`] instead of a
    /// nested guard. On the server it is a [`lock`](Self::lock) like any other. Redisson's
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
        let mut plan = self.plan(Kind::Reentrant, name);
        plan.nesting = Nesting::Refused;
        Lock::new(plan)
    }

    /// A lock whose guards carry a [fencing token](crate::FencedGuard::token): a number that is larger than that of every
    /// hold before. For resources that can refuse who comes with a smaller one. Redisson's `RFencedLock`.
    ///
    /// The counter of tokens is a key of its own, `redisson_lock_token:{name}`, and has no expiry: it must outlive every
    /// hold. A thread that holds the [`lock`](Self::lock) of the same name nests, and is then given a token.
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        Lock::new(self.plan(Kind::Fenced, name))
    }

    /// A lock whose waiters poll, in [pauses](Lock::with_back_off) that double with each refusal, and are not woken by
    /// messages. Of one client's waiters one polls for all. Redisson's `getSpinLock`.
    ///
    /// For servers or proxies on which publishing is dear or not possible. It excludes [`lock`](Self::lock)s of the same
    /// name, but does not wake their waiters: those then find out within a second.
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
    /// deadline, which would wait for its own renewed hold for ever, [`Error::AlreadyHeld`].
    ///
    /// It does not exclude locks of other kinds: a key of another kind's under its name is an [`Error::WrongType`].
    /// Redisson has none like it; it is the lock of Redis's own documentation (`SET`, Patterns).
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

    /// Several locks as one: all of them or none. Any kinds of locks, and of any clients, so that they may be on several
    /// servers; [`MultiLock::new`] is the same. Redisson's `getMultiLock`.
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
        Plan::new(Arc::clone(&self.process), kind, name)
    }

    /// The semaphore `name`, whose permits are a number. Names are as those of [`lock`](Self::lock); one name is one key,
    /// so a semaphore and a lock cannot have the same.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(Arc::clone(&self.process), name)
    }

    /// The semaphore `name`, whose permits have ids and leases. Names are as those of [`lock`](Self::lock).
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(Arc::clone(&self.process), name)
    }

    /// The latch `name`. Names are as those of [`lock`](Self::lock).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(Arc::clone(&self.process), name)
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
    /// [`Error::AlreadyHeld`].
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
        ReadWriteLock::new(Arc::clone(&self.process), name)
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

    /// What was found out about the server that endangers locks: each warning once, oldest first, the last 64 at most.
    /// Local: no round trip.
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

    /// Ends the client for all its clones: every waiter returns [`Error::Shutdown`], every hold is released, and its
    /// guards are told [`LostReason::Shutdown`](crate::LostReason::Shutdown). Waits for the server's answers for at
    /// most `timeout`, and in what is left of it for callbacks that are still to be called.
    ///
    /// A hold that is released here is not reported to [`on_lost`](ClientBuilder::on_lost). What was reported before is
    /// still delivered, for at most 5 s, on the callbacks' thread, which then ends. A callback may call this; it does
    /// not wait for itself.
    ///
    /// Calling it again does no harm. From a forked child it ends the child's client, not the parent's.
    pub fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        let Ok(process) = self.process.current() else {
            return ShutdownReport::default();
        };
        let (released, unreleased) = process.shut_down(timeout);
        let unreleased = unreleased.iter().map(crate::name::LockName::shown).collect();
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

/// Settings for a [`Client`]. Each has a default, except where the locks are.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, Memory};
///
/// let client = Client::builder()
///     .in_memory(&Memory::new())
///     .watchdog_lease(Duration::from_secs(60))
///     .build()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct ClientBuilder {
    target: Option<Locks>,
    clock: Option<Arc<dyn Clock>>,
    watchdog_lease: Option<Duration>,
    foreign_watchdog: Option<Duration>,
    command_timeout: Option<Duration>,
    max_connections: Option<usize>,
    renewal_batch: Option<(usize, usize)>,
    max_hold: Option<Duration>,
    long_hold: Option<Duration>,
    refuse_eviction: bool,
    callbacks: Callbacks,
}

/// Where the locks are.
#[derive(Clone, Debug)]
enum Locks {
    Memory(Memory),
    /// Parsed already, so that no password stands in a `Debug`.
    Url(Result<Address, Error>),
}

impl ClientBuilder {
    /// A single server: `redis://[user][:password@]host[:port][/database]`, or `valkey://`.
    pub fn url(mut self, url: &str) -> Self {
        self.target = Some(Locks::Url(Address::parse(url)));
        self
    }

    /// A server inside this process. Unless [`clock`](Self::clock) is set too, its clock is the client's.
    pub fn in_memory(mut self, memory: &Memory) -> Self {
        self.target = Some(Locks::Memory(memory.clone()));
        self
    }

    /// The lease of watched holds, renewed every third of it. 30 s unless set; at least 100 ms.
    ///
    /// A longer one survives longer pauses of the process and outages of the server. A shorter one frees a dead
    /// process's locks sooner.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = Some(lease);
        self
    }

    /// The watchdog's lease of other programs that share this server's read-write locks: Redisson's
    /// `lockWatchdogTimeout`. 30 s unless set, as it is there; at least 100 ms. Their renewals of a read lock may cut
    /// the lock's time to live to it, so every reader of this client asks for his again every third of it. See
    /// [`ReadWriteLock`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::{Client, Memory};
    ///
    /// let client = Client::builder()
    ///     .in_memory(&Memory::new())
    ///     .foreign_watchdog(Duration::from_secs(10))
    ///     .build()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn foreign_watchdog(mut self, lease: Duration) -> Self {
        self.foreign_watchdog = Some(lease);
        self
    }

    /// How long one attempt at one command may take. 3 s unless set; between 10 ms and 10 minutes. A call tries for at
    /// most twice as long.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout);
        self
    }

    /// Connections to the server at most, the renewals' and the subscription's included. 64 unless set; at least 3.
    /// They are opened when they are needed. A caller that finds all in use waits for one.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// How many holds one script renews at most: `keys` while all is well, and `keys_behind` when more than forty such
    /// scripts are due at once, as after an outage. 25 and 100 unless set; at least 1 and at most 1000.
    ///
    /// The server does nothing else while a script runs. A larger number costs it and the client less, and makes other
    /// callers wait longer.
    pub fn renewal_batch(mut self, keys: usize, keys_behind: usize) -> Self {
        self.renewal_batch = Some((keys, keys_behind));
        self
    }

    /// The longest that a watched hold is renewed: no renewal makes it valid beyond `longest` after it was granted. It
    /// then ends with its lease, as lost with [`LostReason::Expired`](crate::LostReason::Expired), between `longest` and
    /// a third of the lease earlier. Unset, a hold is renewed for as long as it has a guard. At least the watchdog's
    /// lease.
    ///
    /// It frees a lock whose holder hangs but lives. Holds with a lease of their own are not touched by it.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Calls `callback` once for each hold that is lost, whoever finds it out: the watchdog, a renewal, a guard's
    /// `check` or `unlock`, or a `lock` whose grant came too late. A hold that [`shutdown`](Client::shutdown) releases is not lost. A second
    /// call replaces the first.
    ///
    /// It runs on the thread `lock-callbacks`, one report after the other, with no lock of the client held. It may
    /// block, call the client and drop its last handle; meanwhile up to 65,536 reports wait, and those beyond are
    /// counted ([`Stats::unreported`]). A panic in it is caught and counted ([`Stats::callback_panics`]). It must not
    /// wait for a [`ManualClock`](crate::ManualClock) to be moved, as whoever moves that waits for the callback. A
    /// callback that owns a handle of its client keeps the client alive.
    ///
    /// The child of a fork has its own thread once it uses the client; the parent's holds are not reported there.
    pub fn on_lost(mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Self {
        self.callbacks.set_lost(callback);
        self
    }

    /// Calls `callback` once for each hold that has lasted for `long`, counted from when its acquire was sent. It is
    /// noticed when the watchdog next looks at the hold: at most a third of the lease late if the hold is watched, at
    /// most a tick late if not. A hold that is released or lost before is not reported. More than zero. A second call
    /// replaces the first.
    ///
    /// It runs as [`on_lost`](Self::on_lost)'s does.
    pub fn on_long_hold(
        mut self,
        long: Duration,
        callback: impl Fn(&HeldLock) + Send + Sync + 'static,
    ) -> Self {
        self.long_hold = Some(long);
        self.callbacks.set_long_hold(callback);
        self
    }

    /// Calls `callback` when something about the server endangers locks. What was found while the client was built is
    /// told too. A second call replaces the first.
    ///
    /// It runs as [`on_lost`](Self::on_lost)'s does.
    pub fn on_warning(mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.callbacks.set_warning(callback);
        self
    }

    /// Makes a server that may evict locks an [`Error::Eviction`] of [`build`](Self::build). Without it, it is a
    /// [`Warning::Eviction`]. A server that does not say what it does, because `INFO` is refused, is neither.
    pub fn refuse_eviction(mut self) -> Self {
        self.refuse_eviction = true;
        self
    }

    /// The clock that leases and waits are measured on. Unless set, it is one that runs on while the machine is
    /// suspended (`CLOCK_BOOTTIME` on Linux, else [`SystemClock`](crate::SystemClock)).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Starts the client; on a server, connects first.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], [`Error::InvalidSetting`] or [`Error::InvalidLease`] for a setting out of its bounds, and
    /// [`Error::Eviction`] if the server may evict locks and [`refuse_eviction`](Self::refuse_eviction) was said.
    pub fn build(self) -> Result<Client, Error> {
        let mut settings = Settings::default();
        if let Some(lease) = self.watchdog_lease {
            settings.set_watchdog_lease(lease)?;
        }
        if let Some(lease) = self.foreign_watchdog {
            settings.set_foreign_watchdog(lease)?;
        }
        if let Some(timeout) = self.command_timeout {
            settings.set_command_timeout(timeout)?;
        }
        if let Some(connections) = self.max_connections {
            settings.set_connections(connections)?;
        }
        if let Some((keys, behind)) = self.renewal_batch {
            settings.set_renewal_batch(keys, behind)?;
        }
        if let Some(longest) = self.max_hold {
            settings.set_max_hold(longest)?;
        }
        if let Some(long) = self.long_hold {
            settings.set_long_hold(long)?;
        }
        settings.refuse_eviction = self.refuse_eviction;
        settings.callbacks = self.callbacks;
        let (target, default_clock): (Target, Arc<dyn Clock>) = match self.target {
            Some(Locks::Url(address)) => (Target::Redis(address?), Arc::new(SuspendClock::new())),
            Some(Locks::Memory(memory)) => {
                let clock = memory.clock();
                (Target::Memory(memory), clock)
            }
            None => {
                return Err(Error::InvalidSetting {
                    setting: "url",
                    reason: "say where the locks are: url(..) or in_memory(..)".to_owned(),
                });
            }
        };
        let clock = self.clock.unwrap_or(default_clock);
        let process = Process::start(target, clock, settings, Birth::Built)?;
        Ok(Client { process: Arc::new(process) })
    }
}
