//! A lock on several independent servers, held by the owner that has it on a majority of them.

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

/// A lock on several servers that are independent of each other. The owner that has it on a
/// majority of them holds it. So it survives the failure of a minority: a crash, a hang, and,
/// within the bounds below, the loss of keys.
///
/// **Acquire.** All servers are asked at the same time. As soon as a majority has granted the lock,
/// it is held; servers that grant it later join. If there is no majority, or none within the
/// [server timeout](Self::with_server_timeout), everything is released everywhere, and the next
/// attempt follows after a pause with jitter. A server is never waited for while another's lock is
/// held, so there is no deadlock. Each lease counts from before its own request was sent, less one
/// hundredth and 2 ms. If a majority has expired by the time it is complete, it was not granted.
///
/// **Hold.** Each server's lock is renewed by its own client's watchdog, and the red lock is held
/// while a majority of them is. One is missing if its server did not answer, if another owner had
/// it, or if it was lost. While a majority is held for certain, missing locks are asked for again
/// in the background, about once in a third of the lease: each only when the release of what was
/// held there before is acknowledged, and within [`max_hold`](crate::ClientBuilder::max_hold),
/// which counts from the acquire. When the majority is lost, the remaining locks are released at
/// once, even if no method of the guard is called. With [`with_lease`](Self::with_lease) it ends by
/// itself, and missing locks are not asked for again. The same thread may lock it again: the
/// servers' locks nest, and missing ones are asked for at once.
///
/// **Threads.** Each `RedLock` has two threads for each server, one for acquires and one for
/// releases, and one that asks for missing locks. They start with the first acquire, and are shared
/// by its clones and by [`with_name`](Self::with_name), so make one and keep it. Where many callers
/// queue for a server, it gets up to eight threads. Beyond 256 queued acquires a caller is refused,
/// as if another owner had the lock. A server that hangs blocks its own threads for one command
/// timeout, counts as not granting meanwhile, and delays no other server.
///
/// **Load.** No message announces a majority, so waiters poll, each waiting thread for itself. Each
/// attempt sends every server an acquire, and a release if it has granted. With the default
/// [pauses](Self::with_backoff) that is about ten attempts a second for each waiter in the long
/// run.
///
/// **Servers.** What counts as one server is its host and port, whatever the database. One server
/// under two names is recognized by its run id, which `INFO` tells, when it is asked: it has one
/// vote, that of the name that was asked first. With too few servers for a majority an acquire is
/// an [`Error::InvalidSetting`], else a [`Warning::SharedServer`](crate::Warning::SharedServer) is
/// reported. Where `INFO` is refused such a server has two votes.
///
/// On each server it is an ordinary lock. It excludes Redisson's `RedissonRedLock`. The idea is
/// from Redis's documentation (Distributed Locks with Redis). It does not fence: see [what the
/// crate does not do](crate#what-it-does-not-do).
///
/// **Servers that lose their keys.** A server that restarts without its keys may grant what it
/// granted before. So the majority that granted the lock has to keep its keys. As many servers may
/// lose theirs as the lock is [held on](RedGuard::held_on) beyond a majority: none, if the other
/// servers were away during the acquire and have not granted it since. Keep a server that has lost
/// its keys away until the longest lease has passed. Otherwise two owners may both see `is_held()`
/// true until the first finds a lock missing, for up to a third of the lease.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, RedLock};
///
/// let clients = [Client::in_memory(), Client::in_memory(), Client::in_memory()];
/// let lock = Client::red_lock(&clients, "orders:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     guard.check()?;
///     // No other owner has it.
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
    /// Combines these locks, which may be of any kind and name, as in Redisson. There must be at
    /// least three, each on another server. [`Client::red_lock`](crate::Client::red_lock) makes one
    /// of clients.
    ///
    /// A wrong list is an error when the red lock is locked.
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
    /// The same lock with guards that may be sent to other threads, and that never nest. As
    /// [`Lock::sendable`](crate::Lock::sendable) on each server.
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

    /// The same lock for an owner of that name instead of the calling thread. The guards can be
    /// sent to other threads. As [`Lock::with_owner`](crate::Lock::with_owner) on each server, so
    /// two tasks that use one name are both let in.
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

    fn owned_by(mut self, owner: &LocalHolder) -> RedLock<AnyThread> {
        self.change(|member| member.owner = Some(owner.clone()));
        let Self { quorum, server_timeout, backoff, .. } = self;
        RedLock { quorum, server_timeout, backoff, guards: PhantomData }
    }

    /// Another lock on the same servers, with the same settings and the same threads. Each client
    /// puts its [prefix](crate::Client::with_prefix) before `name`.
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

    /// The same lock, held for `lease` and not renewed. As
    /// [`Lock::with_lease`](crate::Lock::with_lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.change(|member| member.spec.set_lease(lease));
        self
    }

    /// How long an attempt, or a release, waits for the servers' answers, from its begin: also while
    /// other callers' requests are sent first. A twentieth of the lease unless set, but at least
    /// 50 ms and at most 250 ms. More than zero, and at most a third of the lease: the time that an
    /// attempt takes is missing from the lease.
    #[must_use]
    pub fn with_server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = Some(timeout);
        self
    }

    /// The pauses between attempts, which double while another owner holds the lock. Waiters poll,
    /// as no message announces a majority.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Locks it, and waits as long as it takes.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] - there are fewer than three locks, two have one address, too
    ///   few servers are distinct for a majority, or the server timeout does not fit the lease.
    ///   Permanent, nothing is held.
    /// * What [`Lock::lock`](crate::Lock::lock) may return, if so many servers have failed that
    ///   there cannot be a majority: at once if it is permanent, otherwise when that has lasted for
    ///   twice the command timeout. Nothing is held; what may have been granted is released in the
    ///   background.
    pub fn lock(&self) -> Result<RedGuard<T>, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(self.quorum()?.cancelled_error()),
        }
    }

    /// Locks it if it is free: each server is asked once. `None` if other owners have it on so many
    /// servers that there is no majority, even if none of them has one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), at once.
    pub fn try_lock(&self) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Locks it, and waits for [at most](Wait::at_most) `limit`. `None` if that was not enough.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(limit)
    }

    /// Locks it, and waits [until](Wait::until) `deadline`. `None` if that was not enough.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<RedGuard<T>>, Error> {
        self.try_lock_with(deadline)
    }

    /// Locks it, and waits as long as [`wait`](Wait) says. `None` if that was not enough, and the
    /// servers have answered that other owners have it or are ahead in the queue.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), at the end of the wait at the latest, and [`Error::Cancelled`].
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

    /// Whether the calling thread, or the locks' owner, holds it on a majority for certain. Local:
    /// no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.quorum.as_ref().is_ok_and(|quorum| {
            quorum.members.iter().filter(|member| member.is_held()).count() >= quorum.size
        })
    }

    fn quorum(&self) -> Result<&Quorum, Error> {
        self.quorum.as_ref().map_err(Clone::clone)
    }

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
