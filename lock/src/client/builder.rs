//! The builder of a client, with every setting.

use std::error::Error as StdError;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::core::client_core::{ClientCore, StartMode, Target};
use crate::error::Error;
use crate::events::callbacks::Callbacks;
use crate::events::report::{HeldLock, LostLock, Warning};
use crate::model::clock::SuspendClock;
use crate::model::label::default_label;
use crate::model::name::Prefix;
use crate::model::settings::{HandOver, OnDeadlock, ReplicaAcks, Replicas, Settings};
use crate::store::redis::address::credentials::{Credentials, CredentialsSource};
#[cfg(feature = "tls")]
use crate::store::redis::address::tls_settings::TlsSettings;
use crate::store::{Access, Location, Memory};

impl Client {
    /// Connects to a server, to the master of [sentinels](ClientBuilder::sentinels), or to a
    /// [cluster](ClientBuilder::cluster), with default settings. [`ClientBuilder::url`] describes
    /// the URL.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidUrl`] - permanent.
    /// * [`Error::Unreachable`], [`Error::Authentication`], [`Error::Tls`], [`Error::Refused`]:
    ///   within the command timeout of 3 s.
    /// * [`Error::Thread`] or [`Error::Random`] - the operating system refused a thread or random
    ///   bytes. Transient.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// A client of a new, empty lock server inside this process, for tests and first steps. The
    /// locks exclude only threads of this process. To share a server between clients, build them
    /// with the same [`Memory`].
    ///
    /// # Panics
    ///
    /// If the operating system refuses a thread. [`builder`](Self::builder) returns an error
    /// instead.
    #[must_use]
    pub fn in_memory() -> Self {
        match Self::builder().in_memory(&Memory::new()).build() {
            Ok(client) => client,
            #[expect(clippy::panic, reason = "documented; the builder is the way without a panic")]
            Err(error) => panic!("{error}"),
        }
    }

    /// A builder with default settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

/// The settings of a [`Client`]. Each has a default, except the address of the server: call
/// [`url`](Self::url), [`sentinels`](Self::sentinels), [`cluster`](Self::cluster) or
/// [`in_memory`](Self::in_memory).
///
/// Created by [`Client::builder`].
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
    server: Option<Server>,
    credentials: Option<CredentialsSource>,
    #[cfg(feature = "tls")]
    tls: Option<TlsSettings>,
    clock: Option<Arc<dyn Clock>>,
    settings: Settings,
    /// Validated when the client is built, as not every duration is a lease.
    watchdog_lease: Option<Duration>,
    foreign_watchdog: Option<Duration>,
    connects_lazily: bool,
    sentinel_access: Option<Access>,
    callbacks: Callbacks,
    prefix: String,
}

/// The server set last: memory, or the location of servers.
#[derive(Clone, Debug)]
enum Server {
    Memory(Memory),
    /// Parsed, lest `Debug` show a password.
    Url(Box<Result<Location, Error>>),
}

// A panic cannot leave a half-changed builder: the methods take and return the builder by value.
impl UnwindSafe for ClientBuilder {}
impl RefUnwindSafe for ClientBuilder {}

impl ClientBuilder {
    /// The URL of the server:
    ///
    /// * `redis://[user][:password@]host[:port][/database]`, or `valkey://`. The default port is
    ///   6379, the default database 0.
    /// * `redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database]`, or
    ///   `valkey-sentinel://`: the master of these [sentinels](Self::sentinels). User and password
    ///   are the master's.
    /// * `redis-cluster://[user][:password@]host:port[,host:port..]`, or `valkey-cluster://`: a
    ///   [cluster](Self::cluster), of which some nodes are given.
    /// * `rediss://` or `valkeys://`, also with `-sentinel` or `-cluster`: the same over TLS. TLS
    ///   needs the cargo feature `tls`; the builder's `tls` sets the trusted certificates.
    /// * `unix:///path/of/socket[?db=database&user=user&pass=password]`, or `redis+unix://`: a Unix
    ///   socket, where the platform has them.
    ///
    /// Only the URL of a Unix socket has parameters: `db`, `user` and `pass`. For any further
    /// parameter [`build`](Self::build) returns an [`Error::InvalidUrl`] with the parameter's name;
    /// also for a wrong scheme, host, port or database. No error contains the password.
    ///
    /// In a user, a password or a path, a character with a meaning in URLs is percent-encoded: `/`
    /// as `%2F`, `#` as `%23`, `?` as `%3F`. A password should not be part of the URL: use
    /// [`credentials`](Self::credentials). A user with neither a password nor credentials is an
    /// error.
    pub fn url(mut self, url: &str) -> Self {
        self.server = Some(Server::Url(Box::new(Location::parse(url))));
        self
    }

    /// A function with the user and the password as result, called at each connect, so a password
    /// may change while the client runs. The result replaces the URL's user and password; without a
    /// user in the result, the URL's user remains. A second call replaces the first.
    ///
    /// `ask` runs on a separate thread, `lock-connect`, one call at a time for each server, with no
    /// lock of the client held. Callers that connect meanwhile share the result. They wait no
    /// longer for the result than for the connection, so `ask` may block; if `ask` never returns,
    /// no connection is made. An error or a panic of `ask` is an [`Error::Unreachable`] with the
    /// error's text, which is transient: the next connect calls `ask` again. `ask` must not use
    /// this client: such a call may wait for a connection.
    ///
    /// Earlier connections keep their user: the client sends no second `AUTH` on a connection. When
    /// the server closes such a connection, as services do when a token expires, or answers
    /// `NOAUTH` or `WRONGPASS`, a new connection calls `ask` again, and commands in flight are sent
    /// once more. A token must be valid when `ask` returns.
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

    /// The master with the name `master`, found through these sentinels. Each sentinel is `host` or
    /// `host:port`; the default port is 26379. For a user, a password or a database of the master
    /// use [`url`](Self::url).
    ///
    /// A single sentinel that answers is enough, and lists the remaining sentinels. The sentinels
    /// are asked for the master's address when the client is built and whenever the master cannot
    /// be reached. The client subscribes to a single sentinel, and polls each remaining sentinel
    /// every few seconds. The client asks the master for the role at each connect and every 2 s.
    /// After a failover the client closes every connection to the old master, and writes nothing
    /// there any more. Calls continue at the new master, waiters retry there, and every hold is
    /// verified there within seconds. A hold unknown to the new master is lost, and reported. See
    /// [the guide](crate::guide::sentinel) for the effects of a failover.
    ///
    /// The client has an additional thread, `lock-topology`, an additional connection to the
    /// master, and a connection to each sentinel. Wrong values are an [`Error::InvalidUrl`] of
    /// [`build`](Self::build). The master's user needs `ROLE`, the sentinels' user `SENTINEL` and
    /// `SUBSCRIBE`.
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
        self.server = Some(Server::Url(Box::new(Location::of_master(master, sentinels))));
        self
    }

    /// The user, unless the default user is meant, and the password for the sentinels. They are
    /// independent of the master's.
    pub fn sentinel_credentials(mut self, username: Option<&str>, password: &str) -> Self {
        self.sentinel_access = Some(Access::new(username, password));
        self
    }

    /// A cluster: `redis://` URLs of some nodes, as for [`url`](Self::url). The first node that
    /// answers lists the rest, so a single URL is enough while the node is up. User and password
    /// are taken from the first URL. A cluster has only database 0. See [the
    /// guide](crate::guide::cluster).
    ///
    /// ```no_run
    /// use wheellock::Client;
    ///
    /// let client = Client::builder().cluster(["redis://a:7000", "redis://b:7000"]).build()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn cluster(mut self, nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.server = Some(Server::Url(Box::new(Location::of_cluster(nodes))));
        self
    }

    /// The server, as a connection description of the [`redis`] crate: a [`redis::ConnectionInfo`],
    /// a [`redis::ConnectionAddr`], or a URL. For programs that also use the `redis` crate, or read
    /// its settings.
    ///
    /// The client takes the host and the port, or the path of the Unix socket; whether the
    /// connection is encrypted; the database, the user and the password. The protocol and the
    /// socket settings are this client's own. The builder's `tls` sets certificates.
    ///
    /// [`build`](Self::build) returns an [`Error::InvalidUrl`] for a connection with certificates,
    /// for a connection that does not verify the server, and for TLS without the cargo feature
    /// `tls`.
    ///
    /// ```no_run
    /// use wheellock::Client;
    /// use wheellock::redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let address = ConnectionAddr::Tcp("redis.internal".to_owned(), 6379);
    /// let user = RedisConnectionInfo::default().set_username("locks").set_password("s3cret");
    /// let connection = address.into_connection_info()?.set_redis_settings(user);
    /// let client = Client::builder().connection(connection).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn connection(mut self, connection: impl redis::IntoConnectionInfo) -> Self {
        self.server = Some(Server::Url(Box::new(Location::of_connection(connection))));
        self
    }

    /// The certificates trusted over TLS, and the client's own certificate. By default the client
    /// trusts the system's root certificates and has no certificate. [`build`](Self::build) returns
    /// an error if the URL is not for TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, settings: TlsSettings) -> Self {
        self.tls = Some(settings);
        self
    }

    /// A server inside this process. The server's clock is also the client's, unless
    /// [`clock`](Self::clock) is set.
    pub fn in_memory(mut self, memory: &Memory) -> Self {
        self.server = Some(Server::Memory(memory.clone()));
        self
    }

    /// A prefix for every name of this client: with `orders-service:` the name `42` is the lock
    /// `orders-service:42`. Empty by default. Redisson's `NameMapper`.
    ///
    /// With a prefix, services that share a server do not collide, and a user of the server can be
    /// restricted to the keys of a service. [`Client::with_prefix`] appends a further prefix, and
    /// describes prefixes and braces in them.
    ///
    /// ```
    /// use wheellock::{Client, Memory};
    ///
    /// let builder = Client::builder().in_memory(&Memory::new());
    /// let client = builder.key_prefix("orders-service:").build()?;
    /// assert_eq!(client.lock("42").name(), "orders-service:42");
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The lease of watched holds, renewed every third of the lease. 30 s by default; at least 100
    /// ms.
    ///
    /// A longer lease survives longer pauses of the process and outages of the server. A shorter
    /// lease frees the locks of a dead process sooner. Behind sentinels and in a cluster the lease
    /// should be at least three times as long as a failover: two minutes with Sentinel's default
    /// `down-after-milliseconds` of 30 s, one minute with a cluster's default
    /// `cluster-node-timeout` of 15 s.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.watchdog_lease = Some(lease);
        self
    }

    /// The watchdog lease of foreign programs that share this server's read-write locks: Redisson's
    /// `lockWatchdogTimeout`. 30 s by default, as in Redisson; at least 100 ms. When such a program
    /// renews a read lock, the key's time to live may shrink to this lease, so every reader of this
    /// client is renewed every third of this lease. See [`ReadWriteLock`](crate::ReadWriteLock).
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

    /// The timeout of a single attempt at a command. 3 s by default; between 10 ms and 10 minutes.
    /// A call retries for at most twice as long. If the server does not answer, the call returns at
    /// most 100 ms later, as [every call](crate#what-a-holder-may-rely-on) does.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// The maximum number of connections for calls to the server, or to each node of a cluster: 1
    /// to 64. By default 6 to a near server, and 16 to a server with a round trip of more than 150
    /// µs.
    ///
    /// A connection is opened when a call finds all in use, and closed after a minute without need.
    /// While all are in use, calls wait, and the next call to get a connection also sends up to 15
    /// waiting calls. So a higher maximum hardly makes a program faster.
    ///
    /// The renewals and the messages to waiting threads each have a separate connection. With
    /// [`replica_acks`](Self::replica_acks), each acquire that waits for replicas has an exclusive
    /// connection: up to as many again.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.connections = Some(connections);
        self
    }

    /// The maximum number of holds per renewal script: normally `keys`, and `keys_behind` when more
    /// than forty such scripts are due at the same time, as after an outage. 25 and 100 by default;
    /// at least 1 and at most 1000, and `keys_behind` not less than `keys`.
    ///
    /// The server does nothing else while a script runs. A larger number costs server and client
    /// less in total, but delays other callers for longer.
    pub fn renewal_batch(mut self, keys: usize, keys_behind: usize) -> Self {
        self.settings.renewal_keys = keys;
        self.settings.renewal_keys_behind = keys_behind;
        self
    }

    /// The maximum time for which a watched hold is renewed: no renewal makes a hold valid beyond
    /// `longest` after its grant. The hold ends with its lease, as lost with
    /// [`LostReason::Expired`](crate::LostReason::Expired), at most a third of the
    /// lease before `longest` is over. No limit by default; at least the watchdog lease.
    ///
    /// The limit frees the lock of a thread that hangs while its process lives, and the lock of a
    /// leaked guard, by [`mem::forget`](std::mem::forget) or in a cycle of references: without a
    /// limit such a hold is renewed for ever. The limit affects neither holds with an explicit
    /// lease, nor an [extension](crate::LockGuard::extend) by the holder.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings.max_hold = Some(longest);
        self
    }

    /// Calls `callback` once for each lost hold, however the loss is detected: by the watchdog, by
    /// a guard's `check` or `unlock`, or by a `lock` whose grant came too late. A hold released by
    /// [`shutdown`](Client::shutdown) is not lost. A second call replaces the first.
    ///
    /// The callback runs on the thread `lock-callbacks`, for a single report at a time, with no
    /// lock of the client held. A callback may block, call the client and drop its last handle.
    /// Meanwhile up to 65,536 reports are queued; further reports are counted
    /// ([`Stats::unreported`](crate::Stats::unreported)). A panic is caught and counted
    /// ([`Stats::callback_panics`](crate::Stats::callback_panics)). A callback that owns a handle
    /// of its client keeps the client alive.
    ///
    /// On a [`ManualClock`](crate::ManualClock) the callback has run when `advance` returns, unless
    /// the callback waits for a time of this clock, as a timed wait for a lock does; then the
    /// callback continues when the clock reaches the time. The callback must not move the clock,
    /// and must not wait for anything that happens only after `advance` has returned: `advance`
    /// panics when it has waited 30 seconds for a callback.
    pub fn on_lost(mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Self {
        self.callbacks.lost = Some(Arc::new(callback));
        self
    }

    /// Calls `callback` once for each hold after a duration of `long`, counted from before the
    /// acquire was sent. The call is at most a third of the lease late for a watched hold, and at
    /// most a tick late otherwise. A hold released or lost before is not reported. `long` must be
    /// more than zero. A second call replaces the first.
    ///
    /// The callback runs as described at [`on_lost`](Self::on_lost).
    pub fn on_long_hold(
        mut self,
        long: Duration,
        callback: impl Fn(&HeldLock) + Send + Sync + 'static,
    ) -> Self {
        self.settings.long_hold = Some(long);
        self.callbacks.long_hold = Some(Arc::new(callback));
        self
    }

    /// Calls `callback` when something about the server endangers locks or delays waiters, also for
    /// problems found while the client was built. A second call replaces the first.
    ///
    /// The callback runs as described at [`on_lost`](Self::on_lost).
    pub fn on_warning(mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.callbacks.warning = Some(Arc::new(callback));
        self
    }

    /// Makes possible eviction of locks by the server an [`Error::Eviction`] of
    /// [`build`](Self::build), instead of a [`Warning::Eviction`]. If the server refuses `INFO`, so
    /// that the policy is unknown, `build` reports neither.
    pub fn refuse_eviction(mut self) -> Self {
        self.settings.refuse_eviction = true;
        self
    }

    /// Requires acknowledgement of each grant by `replicas` of the server's replicas within
    /// `timeout`: after each acquire of a lock or of permits, and each drain of a semaphore, the
    /// server has to `WAIT` for them. If fewer acknowledge, the grant is given back, and the
    /// acquire is an [`Error::NotReplicated`], which is transient. By default no replicas are
    /// awaited.
    ///
    /// **This narrows the window in which a failover loses a lock, and does not close it.** A
    /// replica that did not acknowledge may be promoted. A replica that did may have lost the lock
    /// since, or may have missed its renewals. Where there must never be two holders, use a
    /// [`fenced_lock`](Client::fenced_lock) and a resource that checks the tokens, or a
    /// [`RedLock`](crate::RedLock) on independent servers.
    ///
    /// The cost is a round trip between server and replica for each acquire, during which the
    /// connection is busy. While replicas are missing, each attempt takes `timeout`, even an
    /// attempt that finds the lock taken, whose result does not change. A server checks the limit
    /// about ten times a second, so a `WAIT` may take somewhat longer; but the wait is within the
    /// caller's time, and a lease counts from before the whole exchange. Renewals, releases, nested
    /// guards, and values which are set rather than acquired, such as the number of permits, do not
    /// wait for replicas.
    ///
    /// `replicas` is a number of at least 1, or [`Replicas::AllConnected`], which also sends
    /// `ROLE`. `timeout` is at least 1 ms, and at most half of the [command
    /// timeout](Self::command_timeout). Without `WAIT` on the server or for its user, every acquire
    /// is an [`Error::Refused`], with nothing held. A server in memory has no replicas.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let builder = Client::builder().url("redis://127.0.0.1/");
    /// let builder = builder.replica_acks(1, Duration::from_millis(500));
    /// # drop(builder);
    /// ```
    pub fn replica_acks(mut self, replicas: impl Into<Replicas>, timeout: Duration) -> Self {
        let wanted = replicas.into();
        self.settings.replica_acks = Some(ReplicaAcks { wanted, timeout, on_disk: false });
        self
    }

    /// As [`replica_acks`](Self::replica_acks), but a replica acknowledges only writes in the
    /// append-only file: a grant survives a failover to a replica that was restarted meanwhile.
    ///
    /// The server needs `WAITAOF`, of Redis 7.2 and later, and each counted replica `appendonly
    /// yes`. Without `WAITAOF` on the server or for its user, every acquire is an
    /// [`Error::Refused`], with nothing held. With `appendfsync everysec` a replica acknowledges
    /// about once a second, and each acquire takes as long.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let builder = Client::builder().url("redis://127.0.0.1/");
    /// let builder = builder.replica_acks_on_disk(1, Duration::from_millis(1500));
    /// # drop(builder);
    /// ```
    pub fn replica_acks_on_disk(
        mut self,
        replicas: impl Into<Replicas>,
        timeout: Duration,
    ) -> Self {
        let wanted = replicas.into();
        self.settings.replica_acks = Some(ReplicaAcks { wanted, timeout, on_disk: true });
        self
    }

    /// Whether dropping a guard waits for the server's reply, for at most the [command
    /// timeout](Self::command_timeout). `false` by default.
    ///
    /// Without the wait, dropping a guard ends the hold in this process, sends the release and
    /// returns when the operating system has accepted the bytes. The server runs the release about
    /// half a round trip later, and before any later acquire of this client. [The
    /// guide](crate::guide::dropping) describes the view of concurrent processes, and the effect of
    /// a process exit. To know that a release was done, use [`unlock`](crate::LockGuard::unlock),
    /// which waits in any case.
    ///
    /// ```
    /// use wheellock::{Client, Memory};
    ///
    /// let client = Client::builder().in_memory(&Memory::new()).wait_on_drop(true).build()?;
    /// # drop(client);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn wait_on_drop(mut self, wait: bool) -> Self {
        self.settings.wait_on_drop = wait;
        self
    }

    /// Makes [`build`](Self::build) succeed while the server is down: `build` sends nothing, and
    /// the first call connects, within its own time limit. So a program can start before its
    /// server. A wrong URL, setting or certificate is still an error of `build`.
    ///
    /// The remaining errors of `build` are returned by the calls: [`Error::Unreachable`] until the
    /// server is up, [`Error::Authentication`] for a wrong password. [`Client::ping`] tests the
    /// connection without a lock. [`Stats::connections_made`](crate::Stats::connections_made) is
    /// zero until the first connection. Warnings about the server arrive with the first hold,
    /// within seconds.
    ///
    /// With [`refuse_eviction`](Self::refuse_eviction), `build` returns an
    /// [`Error::InvalidSetting`], as the eviction policy is known only after a connect.
    ///
    /// ```
    /// use wheellock::{Client, Error};
    ///
    /// // Nothing listens there.
    /// let client = Client::builder().url("redis://127.0.0.1:1/").connect_lazily().build()?;
    /// assert!(matches!(client.ping(), Err(Error::Unreachable { .. })));
    /// assert_eq!(client.stats().connections_made, 0);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn connect_lazily(mut self) -> Self {
        self.connects_lazily = true;
        self
    }

    /// The reaction to a deadlock of threads, in this process or in several: [`OnDeadlock::Warn`]
    /// by default.
    ///
    /// A thread that has waited for a second adds its wait and its locks to the client's record on
    /// the server, and reads the records of the lock's holders. A cycle is reported within 3 s,
    /// after several readings have shown the cycle. Shorter waits cost nothing. A lock with an
    /// explicit lease, which nobody renews, ends by itself and is not examined. Locks that belong
    /// to no thread are not examined either: of a [sendable](crate::Lock::sendable) guard or a
    /// [named owner](crate::Lock::with_owner), permits, and locks of Redisson; nor are [red
    /// locks](crate::RedLock).
    pub fn on_deadlock(mut self, on_deadlock: OnDeadlock) -> Self {
        self.settings.on_deadlock = on_deadlock;
        self
    }

    /// How long after a grant of the server a lock is handed over between threads of this client
    /// without the server: 5 ms by default, at most 1 s; zero disables hand-overs.
    ///
    /// When a thread releases a watched [`lock`](Client::lock) or
    /// [`non_reentrant_lock`](Client::non_reentrant_lock), and another thread of this client is its
    /// first waiter, the waiter gets the lock at once. When the budget is used up, the lock is
    /// released on the server, and this client's waiters let those of other clients try first. The
    /// [guide](crate::guide::hand_over) describes the delays of each kind of waiter.
    ///
    /// In memory, and with a custom [`clock`](Self::clock), the budget is a number of hand-overs
    /// instead: 100.
    pub fn hand_over_budget(mut self, budget: Duration) -> Self {
        self.settings.hand_over = HandOver::within(budget);
        self
    }

    /// The maximum number of cached locks, [retained between two uses](crate::Lock::with_cache):
    /// 1,024 by default. Above the maximum, the client releases the lock with the longest idle
    /// time.
    pub fn max_cached_locks(mut self, max: usize) -> Self {
        self.settings.max_cached = max;
        self
    }

    /// The client's name in reports about [who holds a lock](crate::Lock::holder): 1 to 256 bytes.
    /// The default is `PROGRAM, HOST:PROCESS`, such as `backup, db3:4711`.
    ///
    /// The renewal thread writes the label to the key `wheellock_client:ID`, with the process id
    /// and the start time of the client, once the client has had a lock for about a second. The key
    /// expires within a minute, and is removed when the client ends. Anybody who may read the
    /// server's keys can read the label.
    ///
    /// Each connection to a server has the name `wheellock:LABEL` in `CLIENT LIST`, with `_` for
    /// each character that a server refuses there: `wheellock:billing_on_db3`. A server or a user
    /// without `CLIENT SETNAME` costs the names, and nothing else.
    ///
    /// ```
    /// use wheellock::{Client, Memory};
    ///
    /// let client = Client::builder().in_memory(&Memory::new()).label("billing on db3").build()?;
    /// # drop(client);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn label(mut self, label: &str) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// The clock of leases and waits. The default clock continues while the machine is suspended
    /// (`CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on macOS, otherwise
    /// [`SystemClock`](crate::SystemClock)).
    ///
    /// Every thread of the client reads the clock, also the renewal threads, sometimes with a lock
    /// of the client held. So the clock must return at once, and must not call the client.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Starts the client, and connects to the server, unless [lazily](Self::connect_lazily).
    ///
    /// # Errors
    ///
    /// As [`Client::connect`]; [`Error::InvalidSetting`] or [`Error::InvalidLease`] for a setting
    /// out of its bounds; and [`Error::Eviction`] if the server may evict locks and eviction is
    /// [refused](Self::refuse_eviction).
    pub fn build(self) -> Result<Client, Error> {
        let mut settings = self.settings;
        if let Some(lease) = self.watchdog_lease {
            settings.watchdog_lease = settings.renewable(lease)?;
        }
        if let Some(lease) = self.foreign_watchdog {
            settings.foreign_watchdog = settings.renewable(lease)?;
        }
        settings.check()?;
        if self.connects_lazily && settings.refuse_eviction {
            let reason = "refuse_eviction asks the server at once";
            return Err(Error::invalid_setting("connect_lazily", reason));
        }
        if self.clock.is_some() || matches!(self.server, Some(Server::Memory(_))) {
            settings.hand_over = settings.hand_over.counted();
        }
        let (target, default_clock): (Target, Arc<dyn Clock>) = match self.server {
            Some(Server::Url(location)) => {
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
                location.access.check_user()?;
                if let Some(acks) = settings.replica_acks {
                    location.ask_replicas(acks);
                }
                let label = settings.label.clone().unwrap_or_else(default_label);
                location.name_connections(&label);
                (Target::Redis(Box::new(location)), Arc::new(SuspendClock::new()))
            }
            Some(Server::Memory(_)) if settings.replica_acks.is_some() => {
                let reason = "a server in memory has no replicas";
                return Err(Error::invalid_setting("replica_acks", reason));
            }
            Some(Server::Memory(_)) if self.sentinel_access.is_some() => {
                return Err(no_sentinels());
            }
            Some(Server::Memory(memory)) => {
                let clock = memory.clock();
                (Target::Memory(memory), clock)
            }
            None => {
                let reason = "no server was set; call url(..) or in_memory(..)";
                return Err(Error::invalid_setting("url", reason));
            }
        };
        let clock = self.clock.unwrap_or(default_clock);
        let mode = if self.connects_lazily { StartMode::Unconnected } else { StartMode::Connected };
        let core = ClientCore::start(target, clock, settings, self.callbacks, mode)?;
        Ok(Client::new(Arc::new(core), Prefix::new(&self.prefix)))
    }
}

/// Returns the error for credentials of sentinels without sentinels.
fn no_sentinels() -> Error {
    Error::invalid_setting("sentinel_credentials", "there are no sentinels; call sentinels(..)")
}
