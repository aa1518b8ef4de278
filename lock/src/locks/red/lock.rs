//! The red lock: a lock on several independent servers, held with a majority of the servers.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::locks::any_lock::{AnyLock, MemberLock};
use crate::locks::guard::{AnyThread, ThisThread};
use crate::locks::red::acquire::RedAcquire;
use crate::locks::red::guard::RedGuard;
use crate::locks::red::quorum::Quorum;
use crate::model::backoff::Backoff;
use crate::model::owner::LocalHolder;
use crate::model::wait::Wait;

/// A lock on several independent servers, held by the owner of the lock on a majority of the
/// servers.
///
/// The lock survives the failure of a minority: a crash, a hang, and, within the bounds below, the
/// loss of keys. Created by [`Client::red_lock`](crate::Client::red_lock), or by [`new`](Self::new)
/// from locks of any kind.
///
/// **Acquire.** An acquire makes attempts. An attempt asks all servers at the same time. As soon as
/// a majority has granted the lock, the red lock is held; locks granted later join the hold. If
/// there is no majority, or none within the [server timeout](Self::with_server_timeout), the
/// attempt releases all granted locks, and the next attempt follows after a pause with jitter. An
/// attempt never waits for a lock to become free while holding the lock on another server, so there
/// is no deadlock. Each server's lease counts from before the request to the server was sent, less
/// one hundredth and 2 ms. If a lease has ended before the majority is complete, the acquire fails
/// with [`Error::Lost`].
///
/// **Hold.** Each client's watchdog renews the lock on the client's server, and the red lock is
/// held while a majority of the locks is held. A lock is missing if the server did not answer,
/// another owner held the lock, or the lock was lost. While a majority is held for certain, missing
/// locks are requested again in the background, about once in a third of the lease. A missing lock
/// is requested only after the release of the earlier hold is acknowledged, and within
/// [`max_hold`](crate::ClientBuilder::max_hold), which counts from the acquire. When the majority
/// is lost, the remaining locks are released at once, even if no method of the guard is called.
/// With [`with_lease`](Self::with_lease) the hold ends with the lease, and missing locks are not
/// requested again. The same thread may acquire the lock again: the servers' locks nest, and
/// missing locks are requested at once.
///
/// **Threads.** Each `RedLock` has two threads for each server, for acquires and for releases, and
/// a thread for missing locks. The threads start when first needed. Clones, and locks made by
/// [`with_name`](Self::with_name), share the threads, so create a `RedLock` once and reuse the
/// value. Where many callers queue for a server, the server gets up to eight threads. Beyond 256
/// queued acquires a caller is refused, as if another owner had the lock. A hanging server blocks
/// the server's threads for one command timeout, counts as not granting meanwhile, and delays no
/// other server.
///
/// **Load.** No message announces a majority, so each waiting thread polls. Each attempt sends an
/// acquire to every server, and a release to each granting server. With the default
/// [pauses](Self::with_backoff) each waiter makes about ten attempts a second in the long run.
///
/// **Servers.** A server is identified by host and port, whatever the database. A server under two
/// names is recognized, on the first request, by the run id from `INFO`: the server has a single
/// vote, for the name asked first, and a [`Warning::SharedServer`](crate::Warning::SharedServer) is
/// reported. With too few distinct servers for a majority an acquire returns
/// [`Error::InvalidSetting`]. Where `INFO` is refused, such a server has two votes.
///
/// On each server a red lock is an ordinary lock. A red lock excludes Redisson's `RedissonRedLock`.
/// The idea is from Redis's documentation (Distributed Locks with Redis). A red lock does not
/// fence: see [the limits of the crate](crate#what-it-does-not-do).
///
/// **Servers that lose their keys.** A server restarted without the keys may grant a lock a second
/// time. So the granting majority has to retain the keys. The number of servers that may lose the
/// keys is the number on which the lock is [held](RedGuard::held_on) beyond a majority. The number
/// is zero if the other servers were away during the acquire and have not granted the lock since.
/// After a loss of keys, keep the server away until the longest lease has passed. Otherwise two
/// owners may both see `is_held()` true until the first owner finds a lock missing, for up to a
/// third of the lease.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, RedLock};
///
/// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
/// let lock = Client::red_lock(&clients, "orders:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     guard.check()?;
///     // No other owner has the lock.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct RedLock<T = ThisThread> {
    quorum: Result<Quorum, Error>,
    server_timeout: Option<Duration>,
    backoff: Backoff,
    guards: PhantomData<fn() -> T>,
}

impl RedLock {
    /// Combines locks of any kind and name, as in Redisson. At least three locks are required, each
    /// on a different server.
    ///
    /// [`Client::red_lock`](crate::Client::red_lock) creates a red lock from clients. For an
    /// invalid list, every acquire returns [`Error::InvalidSetting`]. If no client of the list
    /// runs, every acquire returns [`Error::Shutdown`] or [`Error::Forked`].
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let [a, b, c] = [(); 3].map(|()| Client::in_memory().fenced_lock("orders:42"));
    /// let _guard = RedLock::new(&[&a, &b, &c]).lock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn new(locks: &[&dyn AnyLock]) -> Self {
        let quorum = Quorum::new(locks.iter().map(|lock| lock.as_member()).collect());
        Self { quorum, server_timeout: None, backoff: Backoff::default(), guards: PhantomData }
    }
}

impl<T> RedLock<T> {
    /// The same lock, with guards which can be sent to other threads.
    ///
    /// The lock never nests: while a guard exists, every further acquire waits or returns `None`,
    /// also on the same thread. The setting is [`Lock::sendable`](crate::Lock::sendable) on each
    /// server.
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let lock = Client::red_lock(&clients, "orders:42").sendable();
    /// let guard = lock.lock()?;
    /// assert!(lock.try_lock()?.is_none());
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn sendable(self) -> RedLock<AnyThread> {
        self.owned_by(&LocalHolder::Guard)
    }

    /// The same lock for an owner named `owner` instead of the calling thread. The guards can be
    /// sent to other threads, and an acquire for the same owner nests on any thread.
    ///
    /// The setting is [`Lock::with_owner`](crate::Lock::with_owner) on each server: two tasks using
    /// the same owner name at the same time both acquire the lock.
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let guard = Client::red_lock(&clients, "orders:42").with_owner("request 7").lock()?;
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_owner(self, owner: &str) -> RedLock<AnyThread> {
        self.owned_by(&LocalHolder::named(owner))
    }

    /// Returns the lock with `owner` as the owner of each member, and with sendable guards.
    fn owned_by(mut self, owner: &LocalHolder) -> RedLock<AnyThread> {
        self.change(|member| member.owner = Some(owner.clone()));
        let Self { quorum, server_timeout, backoff, .. } = self;
        RedLock { quorum, server_timeout, backoff, guards: PhantomData }
    }

    /// A further lock on the same servers, with the same settings and the same threads.
    ///
    /// Each client puts the client's [prefix](crate::Client::with_prefix) before `name`. If `name`
    /// is invalid, every acquire of the result returns [`Error::InvalidName`].
    ///
    /// ```
    /// use wheellock::{Client, RedLock};
    ///
    /// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
    /// let first = Client::red_lock(&clients, "orders:42");
    /// let _both = (first.lock()?, first.with_name("orders:43").lock()?);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_name(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.change(|member| member.spec.set_name(name));
        other
    }

    /// The same lock, whose holds last for `lease` and are not renewed.
    ///
    /// `lease` is between 10 ms and a hundred years; otherwise each acquire fails with
    /// [`Error::InvalidLease`]. Missing locks are not requested again. See
    /// [`Lock::with_lease`](crate::Lock::with_lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.change(|member| member.spec.set_lease(lease));
        self
    }

    /// The same lock, whose attempts and releases wait for the servers' answers for `timeout`,
    /// counted from the start and including time in queues.
    ///
    /// `timeout` is more than zero and at most a third of the shortest lease, because the duration
    /// of an attempt is missing from the lease; otherwise every acquire returns
    /// [`Error::InvalidSetting`]. The default is a twentieth of the lease, but at least 50 ms, at
    /// most 250 ms, and at most a third of the lease.
    #[must_use]
    pub fn with_server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = Some(timeout);
        self
    }

    /// The same lock, with `backoff` for the pauses between the attempts of a waiter. The pauses
    /// double from attempt to attempt.
    ///
    /// Waiters poll, because no message announces a majority. The default is 1 to 128 ms.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Acquires the lock, and waits without a limit.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] - there are fewer than three locks, two locks have the same
    ///   address, too few servers are distinct for a majority, a lock has a
    ///   [cache](crate::Lock::with_cache), or the server timeout does not fit the lease. Permanent;
    ///   nothing is held.
    /// * The errors of [`Lock::lock`](crate::Lock::lock), such as [`Error::Unreachable`] or
    ///   [`Error::OutcomeUnknown`], if too many servers have failed for a majority. A permanent
    ///   error is returned at once, a transient error when the failure has lasted for twice the
    ///   command timeout. Nothing is held; locks possibly granted are released in the background.
    /// * [`Error::Lost`] - a lease was over before the majority was complete. Nothing is held;
    ///   another call may succeed.
    /// * [`Error::Thread`] - the operating system refused a thread. Transient; nothing is held.
    /// * [`Error::Forked`] - this process is a fork of the process in which the lock was created.
    ///   Permanent.
    pub fn lock(&self) -> Result<RedGuard<T>, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(self.quorum()?.cancelled_error()),
        }
    }

    /// Acquires the lock in one attempt: each server is asked once. Returns `None` if other owners
    /// hold the lock on too many servers for a majority, even if no owner has a majority.
    ///
    /// The call takes at most one [server timeout](Self::with_server_timeout) for the attempt, and
    /// without a majority at most one more for the release of the granted locks.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), all returned after the one attempt.
    pub fn try_lock(&self) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Acquires the lock, and waits for [at most](Wait::at_most) `limit`. Returns `None` if the
    /// wait ends without a majority, and the servers have answered: other owners have the lock on
    /// too many servers.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), at the end of the wait at the latest.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(limit)
    }

    /// Acquires the lock, and waits [until](Wait::until) `deadline`. Returns `None` if the wait
    /// ends without a majority, and the servers have answered: other owners have the lock on too
    /// many servers.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), at the end of the wait at the latest.
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(deadline)
    }

    /// Acquires the lock, and waits as long as [`wait`](Wait) says. Returns `None` if the wait ends
    /// without a majority, and the servers have answered: other owners have the lock on too many
    /// servers, or are ahead in the queue of a fair lock.
    ///
    /// # Errors
    ///
    /// * The errors of [`lock`](Self::lock), at the end of the wait at the latest.
    /// * [`Error::Cancelled`] - the caller [cancelled](Wait::or_cancelled) the wait. Nothing is
    ///   held.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_lock_with<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<RedGuard<T>>, Error> {
        let quorum = self.quorum()?.clone();
        if !quorum.shared.is_current() {
            return Err(Error::Forked);
        }
        let wait = wait.into().begin(quorum.shared.clock());
        let server_timeout = quorum.server_timeout(self.server_timeout)?;
        RedAcquire { quorum, server_timeout, backoff: self.backoff, wait }.acquire()
    }

    /// Whether the calling thread, or the locks' [owner](Self::with_owner), holds the lock on a
    /// majority for certain. Local: no round trip.
    ///
    /// Always `false` for a [sendable](Self::sendable) lock: call the guard's `is_held` instead.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.quorum.as_ref().is_ok_and(|quorum| {
            quorum.members.iter().filter(|member| member.is_held()).count() >= quorum.size
        })
    }

    /// Returns the quorum, or the error of an invalid list of locks.
    fn quorum(&self) -> Result<&Quorum, Error> {
        self.quorum.as_ref().map_err(Clone::clone)
    }

    /// Applies `change` to each member of a valid list of locks.
    fn change(&mut self, change: impl FnMut(&mut MemberLock)) {
        if let Ok(quorum) = &mut self.quorum {
            quorum.change(change);
        }
    }
}

impl<T> Clone for RedLock<T> {
    fn clone(&self) -> Self {
        Self {
            quorum: self.quorum.clone(),
            server_timeout: self.server_timeout,
            backoff: self.backoff,
            guards: PhantomData,
        }
    }
}

impl<T> fmt::Debug for RedLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.quorum.as_ref().map(Quorum::name);
        formatter.debug_struct("RedLock").field("name", &name).finish_non_exhaustive()
    }
}
