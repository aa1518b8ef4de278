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
    /// Connects to the server at `url`, and returns a client with default settings.
    ///
    /// [`ClientBuilder::url`] describes the URL. The server may be a single server, the master of
    /// [sentinels](ClientBuilder::sentinels), or a [cluster](ClientBuilder::cluster).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidUrl`] - the URL is wrong, or does not fit the server. Permanent.
    /// * [`Error::Unreachable`] - no connection could be made within the command timeout of 3 s, or
    ///   the server is a replica. Transient.
    /// * [`Error::Authentication`] or [`Error::Tls`] - the server or the client refused the
    ///   connection. Permanent until a user, a password or a certificate is changed.
    /// * [`Error::Refused`] - the server replied with an error. The [code](Error::Refused) says
    ///   whether the error is transient.
    /// * [`Error::InvalidSetting`] - the URL is for TLS, and the system has no root certificates.
    ///   Permanent.
    /// * [`Error::Thread`] or [`Error::Random`] - the operating system refused a thread or random
    ///   bytes. Transient.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// Returns a client of a new, empty lock server inside this process, for tests and first steps.
    ///
    /// The locks exclude only threads of this process. To share a server between clients, build
    /// the clients with the same [`Memory`].
    ///
    /// # Panics
    ///
    /// Panics if the operating system refuses a thread or random bytes. The
    /// [builder](ClientBuilder::in_memory) returns an error instead.
    #[must_use]
    pub fn in_memory() -> Self {
        match Self::builder().in_memory(&Memory::new()).build() {
            Ok(client) => client,
            #[expect(clippy::panic, reason = "documented; the builder is the way without a panic")]
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns a builder with default settings and without a server.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }
}

/// The settings of a [`Client`].
///
/// Created by [`Client::builder`].
///
/// Each setting has a default, except the server: call [`url`](Self::url),
/// [`sentinels`](Self::sentinels), [`cluster`](Self::cluster) or [`in_memory`](Self::in_memory).
/// The last of these calls counts. A second call of any other method replaces the first.
/// [`build`](Self::build) checks the settings, and returns an error for a value outside of its
/// limits.
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
    /// Sets the URL of the server, in one of these forms:
    ///
    /// * `redis://[user][:password@]host[:port][/database]`, or `valkey://`. The default port is
    ///   6379, the default database 0.
    /// * `redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database]`, or
    ///   `valkey-sentinel://`: the master of these [sentinels](Self::sentinels). User and password
    ///   are the master's.
    /// * `redis-cluster://[user][:password@]host[:port][,host[:port]..]`, or `valkey-cluster://`:
    ///   the [cluster](Self::cluster) to which these nodes belong. The default port is 6379.
    /// * `rediss://` or `valkeys://`, also with `-sentinel` or `-cluster`: the same over TLS. TLS
    ///   needs the cargo feature `tls`; the builder's `tls` sets the trusted certificates.
    /// * `unix:///path/of/socket[?db=database&user=user&pass=password]`, or `redis+unix://`: a Unix
    ///   socket, on platforms with Unix sockets.
    ///
    /// Only the URL of a Unix socket has parameters: `db`, `user` and `pass`. For any further
    /// parameter, and for a wrong scheme, host, port or database, [`build`](Self::build) returns an
    /// [`Error::InvalidUrl`]. No error contains the password.
    ///
    /// In a user, a password or a path, a character with a meaning in URLs is percent-encoded: `/`
    /// as `%2F`, `#` as `%23`, `?` as `%3F`; in a parameter of a Unix socket also `&` as `%26` and
    /// `+` as `%2B`. A password should not be part of the URL: use
    /// [`credentials`](Self::credentials). A user with neither a password nor credentials is an
    /// [`Error::InvalidUrl`] too.
    pub fn url(mut self, url: &str) -> Self {
        self.server = Some(Server::Url(Box::new(Location::parse(url))));
        self
    }

    /// Sets a function that returns the user and the password, and that the client calls at each
    /// connect.
    ///
    /// The result replaces the URL's user and password. If the result has no user, the URL's user
    /// remains. With this function a password may change while the client runs. The function is not
    /// called for [sentinels](Self::sentinel_credentials), and not for a server in memory. A second
    /// call replaces the first.
    ///
    /// `ask` runs on a separate thread, `lock-connect`, with no lock of the client held: one call
    /// at a time for each server. Callers that connect meanwhile share the result. `ask` may block:
    /// a caller waits for the result only as long as for the connection. If `ask` never returns, no
    /// connection is made. If `ask` fails or panics, the caller gets an [`Error::Unreachable`] with
    /// the text of the failure, which is transient: the next connect calls `ask` again. `ask` must
    /// not use this client, because such a call may wait for a connection.
    ///
    /// The user of an open connection does not change: the client sends no second `AUTH` on a
    /// connection. When the server closes the connection, as services do when a token expires, or
    /// replies `NOAUTH` or `WRONGPASS`, the client makes a new connection with a new call of `ask`,
    /// and sends the commands in flight once more. A token must be valid when `ask` returns.
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

    /// Sets the server to the master with the name `master`, which these sentinels report.
    ///
    /// Each sentinel is `host` or `host:port`; the default port is 26379. For a user, a password or
    /// a database of the master use a `redis-sentinel://` [`url`](Self::url). For an empty list or
    /// a wrong name or host, [`build`](Self::build) returns an [`Error::InvalidUrl`].
    ///
    /// A single sentinel that answers is enough: the client learns the other sentinels from the
    /// answer. The client asks the sentinels for the master's address when the client is built, and
    /// whenever the master cannot be reached. The client subscribes to a single sentinel, and polls
    /// each other sentinel every few seconds. The client asks the master for its role at each
    /// connect and every 2 s.
    ///
    /// After a failover the client closes every connection to the old master, and writes nothing
    /// there any more. Calls and waits continue at the new master, and the client verifies every
    /// hold there within seconds. A hold unknown to the new master is lost, and reported. See [the
    /// guide](crate::guide::sentinel) for the effects of a failover.
    ///
    /// The client has an additional thread, `lock-topology`, an additional connection to the
    /// master, and a connection to each sentinel. The master's user needs the command `ROLE`, and
    /// the sentinels' user needs `SENTINEL` and `SUBSCRIBE`.
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

    /// Sets the user and the password for the sentinels, which are independent of the master's user
    /// and password.
    ///
    /// Without a `username` the sentinels' default user is used. By default the client does not
    /// authenticate to sentinels. [`build`](Self::build) returns an [`Error::InvalidSetting`] if
    /// the server is not behind sentinels.
    pub fn sentinel_credentials(mut self, username: Option<&str>, password: &str) -> Self {
        self.sentinel_access = Some(Access::new(username, password));
        self
    }

    /// Sets the server to the cluster to which these `nodes` belong, each a `redis://` or
    /// `rediss://` URL as for [`url`](Self::url).
    ///
    /// The first node that answers lists all nodes of the cluster. A single URL is enough as long
    /// as its node is up. The user and the password of the first URL are used for all nodes. See
    /// [the guide](crate::guide::cluster).
    ///
    /// [`build`](Self::build) returns an [`Error::InvalidUrl`] for an empty list, for a database
    /// other than 0, for a later URL with another user or password, and for a list in which only
    /// some URLs are for TLS.
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

    /// Sets the server from a connection description of the [`redis`] crate: a
    /// [`redis::ConnectionInfo`], a [`redis::ConnectionAddr`], or a URL.
    ///
    /// The method is for programs that also use the `redis` crate, or read settings in its form.
    /// The client uses the host and the port, or the path of the Unix socket; whether the
    /// connection is encrypted; the database, the user and the password. The client ignores the
    /// protocol and the socket settings. The builder's `tls` sets certificates.
    ///
    /// [`build`](Self::build) returns an [`Error::InvalidUrl`] for a description that the `redis`
    /// crate refuses, for a connection with certificates, for a connection that does not verify the
    /// server, and for TLS without the cargo feature `tls`.
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

    /// Sets the certificates that the client trusts over TLS, and the client's own certificate.
    ///
    /// By default the client trusts the system's root certificates and has no certificate. TLS
    /// itself is requested by the URL. For [`sentinels`](Self::sentinels), which have no URL, this
    /// method requests TLS for the master and the sentinels. For a server in memory the settings
    /// have no effect.
    ///
    /// [`build`](Self::build) returns an [`Error::InvalidSetting`] if the URL is not for TLS, or if
    /// a certificate or the key cannot be read.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, settings: TlsSettings) -> Self {
        self.tls = Some(settings);
        self
    }

    /// Sets the server to `memory`, a server inside this process.
    ///
    /// The server's clock is also the client's clock, unless [`clock`](Self::clock) is set.
    pub fn in_memory(mut self, memory: &Memory) -> Self {
        self.server = Some(Server::Memory(memory.clone()));
        self
    }

    /// Sets a prefix for every name of this client: with `orders-service:` the name `42` is the
    /// lock `orders-service:42`.
    ///
    /// By default the prefix is empty. With a prefix, services that share a server do not collide,
    /// and a user of the server can be restricted to the keys of a service.
    /// [`Client::with_prefix`] appends a further prefix, and describes the effect of braces in a
    /// prefix. The idea is Redisson's (`NameMapper`).
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

    /// Sets the lease of watched holds, which the client renews every third of the lease.
    ///
    /// The default is 30 s. The lease is between 100 ms and a hundred years, else
    /// [`build`](Self::build) returns an [`Error::InvalidLease`].
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

    /// Sets the watchdog lease of other programs that share this server's read-write locks, such as
    /// Redisson's `lockWatchdogTimeout`.
    ///
    /// The default is 30 s, as in Redisson. The lease is between 100 ms and a hundred years, else
    /// [`build`](Self::build) returns an [`Error::InvalidLease`].
    ///
    /// When such a program renews a read lock, the time to live of the key may shrink to this
    /// lease. The client therefore renews each of its readers at least every third of this lease.
    /// See [`ReadWriteLock`](crate::ReadWriteLock).
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

    /// Sets the timeout of a single attempt at a command.
    ///
    /// The default is 3 s. The timeout is between 10 ms and 10 minutes, else [`build`](Self::build)
    /// returns an [`Error::InvalidSetting`].
    ///
    /// A call without a limit of its own retries a command for twice this timeout. If the server
    /// does not answer, the call returns at most 100 ms later, as [every
    /// call](crate#what-a-holder-may-rely-on) does.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// Sets the maximum number of connections for calls to the server, or to each node of a
    /// cluster.
    ///
    /// The default is 6 for a near server, and 16 for a server with a round trip of more than 150
    /// µs. The number is between 1 and 64, else [`build`](Self::build) returns an
    /// [`Error::InvalidSetting`].
    ///
    /// The client opens a connection when a call finds all connections in use, and closes a
    /// connection after a minute without need. While all connections are in use, calls wait. The
    /// next call that gets a connection also sends up to 15 waiting calls: a higher maximum hardly
    /// makes a program faster.
    ///
    /// The renewals and the messages to waiting threads each have a separate connection, which does
    /// not count. With [`replica_acks`](Self::replica_acks), each acquire that waits for replicas
    /// uses a further connection alone: at most as many connections again.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.connections = Some(connections);
        self
    }

    /// Sets the maximum number of holds per renewal script: normally `keys`, and `keys_behind` when
    /// more than forty scripts of `keys` holds are due at the same time, as after an outage.
    ///
    /// The defaults are 25 and 100. Both numbers are between 1 and 1,000, and `keys_behind` is at
    /// least `keys`, else [`build`](Self::build) returns an [`Error::InvalidSetting`].
    ///
    /// The server does nothing else while a script runs. A larger number costs server and client
    /// less in total, but delays the commands of other callers for longer.
    pub fn renewal_batch(mut self, keys: usize, keys_behind: usize) -> Self {
        self.settings.renewal_keys = keys;
        self.settings.renewal_keys_behind = keys_behind;
        self
    }

    /// Limits the renewal of watched holds: no renewal makes a hold valid beyond `longest` after
    /// its grant, or after its [hand-over](Self::hand_over_budget) to the present holder.
    ///
    /// By default there is no limit. `longest` is at least the watchdog lease, else
    /// [`build`](Self::build) returns an [`Error::InvalidSetting`]. A hold at the limit ends with
    /// its lease, at most a third of the lease before `longest` is over. The hold is then lost with
    /// [`LostReason::Expired`](crate::LostReason::Expired).
    ///
    /// The limit frees the lock of a thread that hangs while its process lives, and the lock of a
    /// guard that is leaked, by [`mem::forget`](std::mem::forget) or in a cycle of references.
    /// Without a limit such a hold is renewed for ever. The limit affects neither holds with a
    /// [lease](crate::Lock::with_lease) of their own, nor an
    /// [extension](crate::LockGuard::extend) by the holder.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings.max_hold = Some(longest);
        self
    }

    /// Sets a callback that the client calls once for each lost hold.
    ///
    /// The loss may be found by the watchdog, by a guard's `check` or `unlock`, or by a `lock`
    /// whose grant came too late. A hold released by [`shutdown`](Client::shutdown) is not
    /// reported, nor is the loss of a [cached](crate::Lock::with_cache) hold. A second call
    /// replaces the first.
    ///
    /// The callback runs on the thread `lock-callbacks`, for a single report at a time, with no
    /// lock of the client held. The callback may block, call the client, and drop the client's last
    /// handle. While a callback runs, up to 65,536 reports are queued. Further reports are dropped
    /// and counted ([`Stats::unreported`](crate::Stats::unreported)). A panic is caught and counted
    /// ([`Stats::callback_panics`](crate::Stats::callback_panics)). A callback that owns a handle
    /// of its client keeps the client alive.
    ///
    /// On a [`ManualClock`](crate::ManualClock) the callback has run when `advance` returns, unless
    /// the callback waits for a time of this clock, as a timed wait for a lock does. Such a
    /// callback continues when the clock reaches the time. The callback must not move the clock,
    /// and must not wait for anything that happens only after `advance` has returned: `advance`
    /// panics after 30 seconds of waiting for a callback.
    pub fn on_lost(mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) -> Self {
        self.callbacks.lost = Some(Arc::new(callback));
        self
    }

    /// Sets a callback that the client calls once for each hold that lasts for `long`.
    ///
    /// The time counts from before the acquire was sent, or from the
    /// [hand-over](Self::hand_over_budget) to the present holder. The report of a watched hold is
    /// late by at most a third of the lease, any other report by at most 10 ms. A hold that is
    /// released or lost before the report, or is idle in the [cache](crate::Lock::with_cache), is
    /// not reported. If `long` is zero, [`build`](Self::build) returns an
    /// [`Error::InvalidSetting`]. A second call replaces the first.
    ///
    /// The callback runs on the thread `lock-callbacks`, with the rules described at
    /// [`on_lost`](Self::on_lost).
    pub fn on_long_hold(
        mut self,
        long: Duration,
        callback: impl Fn(&HeldLock) + Send + Sync + 'static,
    ) -> Self {
        self.settings.long_hold = Some(long);
        self.callbacks.long_hold = Some(Arc::new(callback));
        self
    }

    /// Sets a callback that the client calls for each [`Warning`]: a problem that endangers locks
    /// or delays waiters, or a deadlock.
    ///
    /// The client also reports problems found while the client is built. An equal warning is
    /// usually reported once; [`Client::warnings`] returns the warnings so far. A second call
    /// replaces the first.
    ///
    /// The callback runs on the thread `lock-callbacks`, with the rules described at
    /// [`on_lost`](Self::on_lost).
    pub fn on_warning(mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.callbacks.warning = Some(Arc::new(callback));
        self
    }

    /// Makes [`build`](Self::build) return an [`Error::Eviction`] for a server that may evict
    /// locks: a server whose `maxmemory-policy` is not `noeviction`.
    ///
    /// By default the client reports a [`Warning::Eviction`] instead. If the server refuses or does
    /// not answer `INFO`, the policy is unknown, and `build` reports neither. If the policy changes
    /// later, the client reports the warning.
    pub fn refuse_eviction(mut self) -> Self {
        self.settings.refuse_eviction = true;
        self
    }

    /// Makes each acquire wait, for at most `timeout`, until `replicas` of the server's replicas
    /// have acknowledged the grant.
    ///
    /// The client sends `WAIT` after each acquire of a lock or of permits, after each draw of a
    /// fencing token, and after each drain of a semaphore. If too few replicas acknowledge, the
    /// client gives the grant back, and the call returns an [`Error::NotReplicated`], which is
    /// transient. By default the client waits for no replicas.
    ///
    /// `replicas` is a number of at least 1, or [`Replicas::AllConnected`], which also sends
    /// `ROLE`. `timeout` is at least 1 ms, and at most half of the [command
    /// timeout](Self::command_timeout). For other values, and for a server in memory,
    /// [`build`](Self::build) returns an [`Error::InvalidSetting`]. If the server has no `WAIT`, or
    /// the user may not use `WAIT`, every acquire returns an [`Error::Refused`], with nothing held.
    ///
    /// **This setting makes the loss of a lock by a failover less likely, but not impossible.** A
    /// replica that did not acknowledge may be promoted. A replica that did acknowledge may have
    /// lost the lock since, or may have missed its renewals. Where there must never be two holders,
    /// use a [`fenced_lock`](Client::fenced_lock) and a resource that checks the tokens, or a
    /// [`RedLock`](crate::RedLock) on independent servers.
    ///
    /// Each acquire costs a round trip between server and replica, during which the connection is
    /// busy. While replicas are missing, each attempt takes `timeout`, even an attempt that finds
    /// the lock taken. A server checks the limit about ten times a second: a `WAIT` may take
    /// somewhat longer than `timeout`, but never longer than the caller's time. A lease counts from
    /// before the whole exchange. Renewals, releases, nested guards, and values that are set rather
    /// than acquired, such as the number of permits, do not wait for replicas.
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

    /// Makes each acquire wait, for at most `timeout`, until `replicas` of the server's replicas
    /// have written the grant to their append-only files.
    ///
    /// Such a grant survives a failover to a replica that was restarted meanwhile. The arguments,
    /// the errors and the limits are the same as for [`replica_acks`](Self::replica_acks). The last
    /// call of the two methods counts.
    ///
    /// The server needs `WAITAOF`, of Redis 7.2 and later, and each counted replica needs
    /// `appendonly yes`. If the server has no `WAITAOF`, or the user may not use `WAITAOF`, every
    /// acquire returns an [`Error::Refused`], with nothing held. With `appendfsync everysec` a
    /// replica acknowledges about once a second, and each acquire takes up to a second.
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

    /// Sets whether dropping a guard waits for the server's reply, for at most the [command
    /// timeout](Self::command_timeout); for a multi lock's guard, for at most two.
    ///
    /// The default is `false`. Without the wait, dropping a guard ends the hold in this process,
    /// sends the release, and returns when the operating system has accepted the bytes. The server
    /// usually runs the release half a round trip later. [The guide](crate::guide::dropping)
    /// describes the effect on the next acquire, on other processes and on the exit of the process.
    /// To know the result of a release, use [`unlock`](crate::LockGuard::unlock), which waits in
    /// any case.
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

    /// Makes [`build`](Self::build) return a client without connecting, also while the server is
    /// down.
    ///
    /// `build` sends nothing, and the first call connects, within its own time limit: a program can
    /// start before its server. A wrong URL, setting or certificate is still an error of `build`.
    ///
    /// The other errors of `build` are returned by the calls: [`Error::Unreachable`] until the
    /// server is up, and [`Error::Authentication`] for a wrong password. [`Client::ping`] tests the
    /// connection without a lock. [`Stats::connections_made`](crate::Stats::connections_made) is
    /// zero until the first connection. Warnings about the server arrive within seconds after the
    /// first grant.
    ///
    /// With [`refuse_eviction`](Self::refuse_eviction), `build` returns an
    /// [`Error::InvalidSetting`], because the eviction policy is known only after a connect.
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

    /// Sets the reaction to a deadlock of threads, in one process or in several.
    ///
    /// The default is [`OnDeadlock::Warn`]. A thread that has waited for a second adds its wait and
    /// its locks to the client's record on the server, and reads the records of the lock's holders.
    /// A cycle is reported within 3 s after the last wait has begun, after several readings have
    /// shown the cycle. Shorter waits cost nothing.
    ///
    /// The client examines only renewed holds of threads. The client does not examine locks with a
    /// [lease](crate::Lock::with_lease) that is not renewed, because these locks end by themselves.
    /// Also not examined are locks of a [sendable](crate::Lock::sendable) guard or a [named
    /// owner](crate::Lock::with_owner), permits, locks of Redisson, and [red
    /// locks](crate::RedLock).
    pub fn on_deadlock(mut self, on_deadlock: OnDeadlock) -> Self {
        self.settings.on_deadlock = on_deadlock;
        self
    }

    /// Sets how long after a grant of the server the threads of this client hand a lock over to
    /// each other without the server.
    ///
    /// The default is 5 ms. Zero disables hand-overs. For more than 1 s [`build`](Self::build)
    /// returns an [`Error::InvalidSetting`].
    ///
    /// When a thread releases a watched [`lock`](Client::lock) or
    /// [`non_reentrant_lock`](Client::non_reentrant_lock), and the first waiter of this client
    /// waits for a watched hold of the same lock, this waiter gets the lock at once. When the
    /// budget is used up, the client releases the lock on the server, and the waiters of this
    /// client let the waiters of other clients try first. The [guide](crate::guide::hand_over)
    /// describes the delays of each kind of waiter.
    ///
    /// In memory, and with a custom [`clock`](Self::clock), any budget except zero stands for 100
    /// hand-overs.
    pub fn hand_over_budget(mut self, budget: Duration) -> Self {
        self.settings.hand_over = HandOver::within(budget);
        self
    }

    /// Sets the maximum number of locks that the client [caches](crate::Lock::with_cache) between
    /// two uses.
    ///
    /// The default is 1,024. Above the maximum, the client releases the cached lock with the
    /// longest idle time.
    pub fn max_cached_locks(mut self, max: usize) -> Self {
        self.settings.max_cached = max;
        self
    }

    /// Sets the client's label, which names the client in reports about [the holder of a
    /// lock](crate::Lock::holder).
    ///
    /// The label has 1 to 256 bytes, else [`build`](Self::build) returns an
    /// [`Error::InvalidSetting`]. The default is `PROGRAM, HOST:PROCESS`, such as
    /// `backup, db3:4711`.
    ///
    /// Once the client has had a lock for about a second, a renewal thread writes the client's
    /// record: the label, the process id and the age of the client, under the key
    /// `wheellock_client:ID`. The key expires a minute after the last write, and is removed when
    /// the client ends. Anybody who may read the server's keys can read the label.
    ///
    /// Each connection to a server has the name `wheellock:LABEL` in `CLIENT LIST`, with `_` for
    /// each character that a server refuses in such a name: `wheellock:billing_on_db3`. If the
    /// server or its user has no `CLIENT SETNAME`, the connections have no names, without any other
    /// effect.
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

    /// Sets the clock of leases and waits.
    ///
    /// The default clock continues while the machine is suspended (`CLOCK_BOOTTIME` on Linux,
    /// `CLOCK_MONOTONIC` on macOS, otherwise [`SystemClock`](crate::SystemClock)). The default
    /// clock of a client [in memory](Self::in_memory) is the clock of the [`Memory`].
    ///
    /// Every thread of the client reads the clock, also the renewal threads, sometimes with a lock
    /// of the client held. The clock must return at once, and must not call the client. If the
    /// clock panics on a renewal thread, watched holds may be lost, and an acquire may return
    /// [`Error::WatchdogGone`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Starts the client and connects to the server, or starts the client [without
    /// connecting](Self::connect_lazily).
    ///
    /// The call makes one attempt to connect, within the [command timeout](Self::command_timeout).
    /// Then the call asks the server for its state (`INFO`), for at most two further command
    /// timeouts.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] or [`Error::InvalidLease`] - no server is set, a setting is
    ///   outside of its limits, two settings exclude each other, or a certificate cannot be read.
    ///   Permanent, nothing was sent.
    /// * [`Error::InvalidUrl`] - the URL is wrong, or does not fit the server. Permanent.
    /// * [`Error::Unreachable`] - no connection could be made, or the server is a replica.
    ///   Transient.
    /// * [`Error::Authentication`] or [`Error::Tls`] - the server or the client refused the
    ///   connection. Permanent until a user, a password or a certificate is changed.
    /// * [`Error::Refused`] - the server replied with an error. The [code](Error::Refused) says
    ///   whether the error is transient.
    /// * [`Error::Eviction`] - the server may evict locks, and eviction is
    ///   [refused](Self::refuse_eviction). Permanent until the server's policy is changed.
    /// * [`Error::Thread`] or [`Error::Random`] - the operating system refused a thread or random
    ///   bytes. Transient.
    /// * [`Error::Forked`] - the [`Memory`] was created in a parent of this process. Permanent.
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
