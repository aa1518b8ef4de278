//! The client: how it is built, what it makes, how it ends.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::clock::SuspendClock;
use crate::config::Settings;
use crate::error::Error;
use crate::lock::Lock;
use crate::process::{Process, Target};
use crate::statistics::Stats;
use crate::store::{Address, Memory};

/// A connection to one lock server, with an identity of its own. Cheap to clone and to share between threads; clones
/// are the same client.
///
/// A client has a ticker thread and a renewal thread, and a third for messages once somebody waits. It ends with its
/// last clone, lock and guard. Whoever drops that waits for what the renewal thread is doing, and for one more try at
/// the releases that are owed: seconds at worst, while the server hangs. [`shutdown`](Self::shutdown) ends it sooner and
/// says what could not be released.
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
        Lock::new(Arc::clone(&self.process), name)
    }

    /// This client's identity, the first part of every owner: a random UUID. In the child of a fork it is another.
    #[must_use]
    pub fn id(&self) -> String {
        match self.process.current() {
            Ok(process) => process.id.as_str().to_owned(),
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
            ..Stats::default()
        };
        process.watchdog.counters().fill(&mut stats);
        stats
    }

    /// Ends the client for all its clones: every waiter returns [`Error::Shutdown`], every hold is released, and its
    /// guards are told [`LostReason::Shutdown`](crate::LostReason::Shutdown). Waits for the server's answers for at
    /// most `timeout`.
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
    command_timeout: Option<Duration>,
    max_connections: Option<usize>,
    renewal_batch: Option<(usize, usize)>,
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

    /// How many holds one script renews: `keys` while all is well, and `keys_behind` when more than ten such scripts are
    /// due at once, as after an outage. 25 and 100 unless set; at least 1 and at most 1000.
    ///
    /// The server does nothing else while a script runs. A larger number costs it and the client less, and makes other
    /// callers wait longer.
    pub fn renewal_batch(mut self, keys: usize, keys_behind: usize) -> Self {
        self.renewal_batch = Some((keys, keys_behind));
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
    /// As [`Client::connect`], and [`Error::InvalidSetting`] or [`Error::InvalidLease`] for a setting out of its
    /// bounds.
    pub fn build(self) -> Result<Client, Error> {
        let mut settings = Settings::default();
        if let Some(lease) = self.watchdog_lease {
            settings.set_watchdog_lease(lease)?;
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
        let process = Process::start(target, clock, settings, true)?;
        Ok(Client { process: Arc::new(process) })
    }
}
