//! How a client is built: every setting, with what it trades.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::callbacks::Callbacks;
use crate::client::Client;
use crate::clock::SuspendClock;
use crate::config::Settings;
use crate::credentials::{Credentials, CredentialsSource};
use crate::error::Error;
use crate::name::Prefix;
use crate::process::{Birth, Process, Target};
use crate::report::{HeldLock, LostLock, Warning};
use crate::store::{Access, Location, Memory};
#[cfg(feature = "tls")]
use crate::tls_settings::TlsSettings;

impl Client {
    /// Connects to a server, to the master that [sentinels](ClientBuilder::sentinels) know, or to a
    /// [cluster](ClientBuilder::cluster). The URL is as [`ClientBuilder::url`] explains.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidUrl`] - permanent.
    /// * [`Error::Unreachable`], [`Error::Authentication`], [`Error::Tls`], [`Error::Refused`] - within the command
    ///   timeout of 3 s.
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
    credentials: Option<CredentialsSource>,
    #[cfg(feature = "tls")]
    tls: Option<TlsSettings>,
    clock: Option<Arc<dyn Clock>>,
    watchdog_lease: Option<Duration>,
    foreign_watchdog: Option<Duration>,
    command_timeout: Option<Duration>,
    max_connections: Option<usize>,
    renewal_batch: Option<(usize, usize)>,
    max_hold: Option<Duration>,
    long_hold: Option<Duration>,
    refuse_eviction: bool,
    replica_acks: Option<(u32, Duration)>,
    sentinel_access: Option<Access>,
    callbacks: Callbacks,
    prefix: String,
}

/// Where the locks are.
#[derive(Clone, Debug)]
enum Locks {
    Memory(Memory),
    /// Parsed already, so that no password stands in a `Debug`.
    Url(Box<Result<Location, Error>>),
}

impl ClientBuilder {
    /// Where the server is:
    ///
    /// * `redis://[user][:password@]host[:port][/database]`, or `valkey://`. The port is 6379 and the database 0
    ///   unless named.
    /// * `redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database]`, or `valkey-sentinel://`:
    ///   the master that [sentinels](Self::sentinels) know. User and password are the master's.
    /// * `redis-cluster://[user][:password@]host:port[,host:port..]`, or `valkey-cluster://`: a [cluster](Self::cluster),
    ///   of which some nodes are named.
    /// * `rediss://` or `valkeys://`, also with `-sentinel` or `-cluster`, and the same: over TLS. Needs the cargo feature `tls`, and
    ///   the builder's `tls` says whom the client believes.
    /// * `unix:///path/of/socket[?db=database&user=user&pass=password]`, or `redis+unix://`: on this host, where there
    ///   are unix sockets.
    ///
    /// In a user, a password or a path, what means something in a URL is written as `%` and its number: `/` as `%2F`,
    /// `#` as `%23`. A password is better kept out of it: [`credentials`](Self::credentials).
    pub fn url(mut self, url: &str) -> Self {
        self.target = Some(Locks::Url(Box::new(Location::parse(url))));
        self
    }

    /// Who connects, asked anew at each connect, so that a password may change while the client lives. It stands
    /// instead of what the URL says; if it names no user, the URL's is taken. A second call replaces the first.
    ///
    /// `ask` runs on a thread `lock-credentials` of its own, one at a time for each server, with no lock of the client
    /// held; those who need a connection meanwhile share its answer. They wait for it no longer than for the
    /// connection itself, so it may block; if it never returns, nobody connects. An error or a panic in it is an
    /// attempt that failed, [`Error::Unreachable`], and passes: it is asked again by the next. The error's text
    /// becomes part of that one's. It must not use this client, as that may wait for a connection.
    ///
    /// Connections that were made before keep the user they have. One on which the server answers that it knows him no
    /// more is closed, and another is made with what `ask` says then.
    ///
    /// ```no_run
    /// use wheellock::{Client, Credentials};
    ///
    /// let client = Client::builder()
    ///     .url("redis://redis.internal/")
    ///     .credentials(|| {
    ///         let password = std::fs::read_to_string("/run/secrets/locks")?;
    ///         Ok(Credentials::new("locks", password.trim()))
    ///     })
    ///     .build()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(CredentialsSource::new(ask));
        self
    }

    /// The master that these sentinels know under the name `master`. Each is `host` or `host:port`, the port 26379
    /// unless said otherwise. For a user, a password or a database of the master's use [`url`](Self::url).
    ///
    /// One sentinel that answers is enough, and the others are learnt from it. They are asked where the master is when
    /// the client is built and whenever it cannot be reached; one of them is listened to, and each of the others is asked
    /// every few seconds. The master itself is asked for its role at each connect and every 2 s. Once a switch has been
    /// seen, every connection to the old master is shut, and nothing is written to it any more: calls go on at the new
    /// master, waiters ask there, and every hold is asked for there within seconds. One that the new master does not know
    /// is lost, and told so. See [the crate's page](crate#sentinel) for what a failover can do.
    ///
    /// The client has one thread more, `lock-sentinel`, one more connection to the master, and one to each sentinel.
    /// Settings that are wrong are an [`Error::InvalidUrl`] of [`build`](Self::build). The user on the master needs
    /// `ROLE`, the one on the sentinels `SENTINEL` and `SUBSCRIBE`.
    ///
    /// ```no_run
    /// use wheellock::Client;
    ///
    /// let client = Client::builder()
    ///     .sentinels("mymaster", &["10.0.0.1", "10.0.0.2", "10.0.0.3:26380"])
    ///     .sentinel_credentials(None, "a password of the sentinels")
    ///     .build()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn sentinels(mut self, master: &str, sentinels: &[&str]) -> Self {
        self.target = Some(Locks::Url(Box::new(Location::of_master(master, sentinels))));
        self
    }

    /// The user, if not the default one, and the password for the sentinels, which are not the master's.
    pub fn sentinel_credentials(mut self, username: Option<&str>, password: &str) -> Self {
        self.sentinel_access = Some(Access::new(username, password));
        self
    }

    /// A cluster: `redis://` URLs of some of its nodes, as for [`url`](Self::url). The first that answers names the
    /// others, so one would do while it is up. User and password are those of the first URL; database 0 is the only one
    /// that a cluster has. See [the crate's page](crate#in-a-cluster).
    ///
    /// ```no_run
    /// use wheellock::Client;
    ///
    /// let client = Client::builder().cluster(["redis://a:7000", "redis://b:7000"]).build()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn cluster(mut self, nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.target = Some(Locks::Url(Box::new(Location::of_cluster(nodes))));
        self
    }

    /// Whom the client believes over TLS, and as whom it shows itself. Unless set, it believes the machine's
    /// authorities and shows nothing. It is an error of [`build`](Self::build) if the URL does not ask for TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, settings: TlsSettings) -> Self {
        self.tls = Some(settings);
        self
    }

    /// A server inside this process. Unless [`clock`](Self::clock) is set too, its clock is the client's.
    pub fn in_memory(mut self, memory: &Memory) -> Self {
        self.target = Some(Locks::Memory(memory.clone()));
        self
    }

    /// What stands before every name of this client: `orders-service:` and the name `42` are the lock
    /// `orders-service:42`. Nothing unless set. Redisson's `NameMapper`.
    ///
    /// So services that share a server do not meet by accident, and a user of the server can be confined to his
    /// service's keys. [`Client::with_prefix`] puts one more behind it, and says what a prefix is and what braces in
    /// it do.
    ///
    /// ```
    /// use wheellock::{Client, Memory};
    ///
    /// let client = Client::builder().in_memory(&Memory::new()).key_prefix("orders-service:").build()?;
    /// assert_eq!(client.lock("42").name(), "orders-service:42");
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
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
    /// [`ReadWriteLock`](crate::ReadWriteLock).
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
    /// They are opened when they are needed. A caller that finds all in use waits for one. Of a cluster, to each node:
    /// callers of one that hangs must not use up what the others need.
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
    /// then ends with its lease, as lost with [`LostReason::Expired`](crate::LostReason::Expired), between `longest`
    /// and a third of the lease earlier. Unset, a hold is renewed for as long as it has a guard. At least the
    /// watchdog's lease.
    ///
    /// It frees a lock whose holder hangs but lives. Holds with a lease of their own are not touched by it.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Calls `callback` once for each hold that is lost, whoever finds it out: the watchdog, a renewal, a guard's
    /// `check` or `unlock`, or a `lock` whose grant came too late. A hold that [`shutdown`](Client::shutdown) releases
    /// is not lost. A second call replaces the first.
    ///
    /// It runs on the thread `lock-callbacks`, one report after the other, with no lock of the client held. It may
    /// block, call the client and drop its last handle; meanwhile up to 65,536 reports wait, and those beyond are
    /// counted ([`Stats::unreported`](crate::Stats::unreported)). A panic in it is caught and counted
    /// ([`Stats::callback_panics`](crate::Stats::callback_panics)). It must not wait for a
    /// [`ManualClock`](crate::ManualClock) to be moved, as whoever moves that waits for the callback. A callback that
    /// owns a handle of its client keeps the client alive.
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

    /// Calls `callback` when something about the server endangers locks or delays waiters. What was found while the
    /// client was built is told too. A second call replaces the first.
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

    /// Has `replicas` of the server's replicas acknowledge whatever is granted, within `timeout`: each acquire of a
    /// lock or of permits, and each drain of a semaphore, has the server `WAIT` for them. If fewer do, what was granted
    /// is given back, and the acquire is an [`Error::NotReplicated`], which may pass. Unset, nobody waits for replicas.
    ///
    /// **This narrows the window in which a failover loses a lock, and does not close it.** A replica that did not
    /// acknowledge may be the one that is promoted. One that did may have lost it again, or may not have heard of the
    /// renewals since. Where two holders must not be, use a [`fenced_lock`](Client::fenced_lock) and have the resource
    /// refuse those that are over, or a [`RedLock`](crate::RedLock) on independent servers.
    ///
    /// It costs one round trip between server and replica for each acquire, whose connection is busy meanwhile. While
    /// replicas are missing, each try takes `timeout`, also one that finds the lock taken, whose answer is not changed
    /// by it. A server looks at such a limit about ten times a second, so it may be somewhat longer; but the wait is
    /// within the time that the caller gives, and a lease counts from before all of it. What is not waited for:
    /// renewals, releases, a nested guard of a hold, and what is set rather than acquired, as a semaphore's number.
    ///
    /// `replicas` is a fixed number, and at least one. More than the server has make every acquire fail. `timeout` is
    /// at least 1 ms, and at most half of the [command timeout](Self::command_timeout). A server or a user without
    /// `WAIT` makes every acquire an [`Error::Refused`], with nothing held. A server in memory has no replicas.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let settings = Client::builder().url("redis://127.0.0.1/").replica_acks(1, Duration::from_millis(500));
    /// # drop(settings);
    /// ```
    pub fn replica_acks(mut self, replicas: u32, timeout: Duration) -> Self {
        self.replica_acks = Some((replicas, timeout));
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
    /// As [`Client::connect`], [`Error::InvalidSetting`] or [`Error::InvalidLease`] for a setting out of its bounds,
    /// and [`Error::Eviction`] if the server may evict locks and [`refuse_eviction`](Self::refuse_eviction) was said.
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
        if let Some((wanted, timeout)) = self.replica_acks {
            settings.set_replica_acks(wanted, timeout)?;
        }
        settings.refuse_eviction = self.refuse_eviction;
        settings.callbacks = self.callbacks;
        let (target, default_clock): (Target, Arc<dyn Clock>) = match self.target {
            Some(Locks::Url(location)) => {
                let mut location = (*location)?;
                if let Some(access) = self.sentinel_access
                    && !location.set_sentinel_access(access)
                {
                    return Err(no_sentinels());
                }
                #[cfg(feature = "tls")]
                location.secure(self.tls.as_ref())?;
                if let Some(source) = self.credentials {
                    location.ask_for_credentials(source);
                }
                if let Some(acks) = settings.replica_acks {
                    location.ask_replicas(acks);
                }
                (Target::Redis(Box::new(location)), Arc::new(SuspendClock::new()))
            }
            Some(Locks::Memory(_)) if settings.replica_acks.is_some() => {
                return Err(Error::InvalidSetting {
                    setting: "replica_acks",
                    reason: "a server in memory has no replicas".to_owned(),
                });
            }
            Some(Locks::Memory(_)) if self.sentinel_access.is_some() => return Err(no_sentinels()),
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
        Ok(Client::new(Arc::new(process), Prefix::new(&self.prefix)))
    }
}

fn no_sentinels() -> Error {
    let reason = "the locks are not where sentinels say".to_owned();
    Error::InvalidSetting { setting: "sentinel_credentials", reason }
}
