//! A lock of several locks: all or none, without a deadlock in any order.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::spec::LockSpec;
use crate::error::Error;
use crate::locks::any_lock::{AnyLock, MemberLock, shown};
use crate::locks::guard::{AnyThread, ThisThread};
use crate::locks::multi::acquire::{MultiAcquire, no_locks};
use crate::locks::multi::guard::MultiGuard;
use crate::model::backoff::Backoff;
use crate::model::kind::Kind;
use crate::model::owner::LocalHolder;
use crate::model::wait::Wait;

/// Several locks, acquired together: all or none. Cheap to clone and to share; only a guard holds
/// the locks.
///
/// Created by [`Client::multi_lock`](crate::Client::multi_lock) or
/// [`Client::lock_many`](crate::Client::lock_many).
///
/// The locks may be of any kind, of any client, and so on any server. A held member excludes
/// callers of the same lock alone, and vice versa. A thread that holds the multi-lock may acquire
/// all locks again, if the locks are of kinds that nest. A lock given twice is locked once.
///
/// **Order.** The locks are acquired in the order of the servers' addresses and the names, not in
/// the given order. So two threads with the same locks in opposite order do not deadlock. While the
/// acquire holds some of the locks, the acquire waits for the other locks for at most 100 ms in
/// total, and at most half of the shortest lease. If a lock is not acquired in this time, the
/// acquire releases all locks, waits for the missing lock with nothing held, and then acquires the
/// other locks. If the servers answer too slowly for 100 ms, the time doubles from round to round,
/// up to 3 s, and at most half of the shortest lease. Locks that the servers cannot grant one at a
/// time within this time are never acquired together: a wait without a limit then does not end.
/// With these rounds, callers in different orders do not deadlock either: a server may have two
/// addresses, and a Java `RedissonMultiLock` acquires locks in the given order.
///
/// **Leases.** The watchdog of each lock's client renews the lock, unless the lock has a
/// [lease](Self::with_lease). A lease counts from before the lock's request was sent. The guard [is
/// held](MultiGuard::is_held) while all locks are held; after the loss of a lock, the remaining
/// locks are released. If a lock is lost before the last lock is granted, all locks are released,
/// and the acquire fails with [`Error::Lost`]. A member's [minimum
/// hold](crate::Lock::with_min_hold) has no effect.
///
/// **Many.** Plain locks of a client, with the same lease and no named owner, are acquired and
/// released together: a request carries up to 1,000 locks, in a cluster locks of the same hash
/// slot. See [`Client::lock_many`](crate::Client::lock_many). If a lock is busy, the acquire at
/// once releases the locks acquired so far, and waits for the busy lock with nothing held. Then a
/// list of up to 64 locks is acquired one lock at a time, as above. Of a longer list, all other
/// locks have to be free at the same instant. Locks already held by the caller are acquired one at
/// a time.
///
/// The servers store only the locks of the list. Redisson's `RedissonMultiLock` is the same idea.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let (one, other) = (Client::in_memory(), Client::in_memory());
/// let (order, stock) = (one.lock("orders:42"), other.fenced_lock("stock:7"));
/// let both = one.multi_lock(&[&order, &stock]);
/// if let Some(guard) = both.try_lock_for(Duration::from_secs(5))? {
///     // No other owner has either of them.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct MultiLock<T = ThisThread> {
    members: Result<Arc<[MemberLock]>, Error>,
    backoff: Backoff,
    guards: PhantomData<fn() -> T>,
}

/// The maximum number of names of a `lock_many`.
const MAX_LOCKS: usize = 1_000_000;

/// The default of the longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl MultiLock {
    /// Returns the multi-lock of `locks`, which are [`Lock`](crate::Lock)s of any kind.
    pub(crate) fn new(locks: &[&dyn AnyLock]) -> Self {
        Self::of(ordered(locks.iter().map(|lock| lock.as_member()).collect()))
    }

    /// Returns the multi-lock of `names`; `spec` creates the lock of a name.
    pub(crate) fn of_names<N: AsRef<str>>(names: &[N], spec: impl Fn(&str) -> LockSpec) -> Self {
        if names.len() > MAX_LOCKS {
            let reason = format!("{} names are more than {MAX_LOCKS}", names.len());
            return Self::of(Err(Error::invalid_setting("lock_many", reason)));
        }
        let member = |name: &N| MemberLock::new(spec(name.as_ref()), None);
        Self::of(ordered(names.iter().map(member).collect()))
    }

    /// Returns the multi-lock of `members` with default pauses. If `members` is an error, every
    /// acquire returns the error.
    fn of(members: Result<Arc<[MemberLock]>, Error>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(1), LONGEST_PAUSE);
        Self { members, backoff, guards: PhantomData }
    }
}

impl<T> MultiLock<T> {
    /// The same locks, with guards to send to another thread. The locks never nest: while a guard
    /// exists, every further acquire of a lock waits or returns `None`, also on the same thread.
    /// Only read locks are shared.
    ///
    /// The setting is [`Lock::sendable`](crate::Lock::sendable) for each lock. If the list has
    /// different locks of the same name, such as a read and a write lock, every acquire returns
    /// [`Error::InvalidSetting`]: the locks would exclude each other. Read locks are an exception.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let both = client.multi_lock(&[&client.lock("orders:42"), &client.lock("stock:7")]);
    /// let both = both.sendable();
    /// let guard = both.lock()?;
    /// assert!(both.try_lock()?.is_none());
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn sendable(self) -> MultiLock<AnyThread> {
        let members = changed(self.members, |member| member.owner = Some(LocalHolder::Guard));
        let members = members.and_then(|members| ordered(members.to_vec()));
        MultiLock { members, backoff: self.backoff, guards: PhantomData }
    }

    /// The same locks for the named `owner`, in place of each lock's owner. The guards can be sent
    /// to another thread, and an acquire for the same owner nests on any thread.
    ///
    /// The setting is [`Lock::with_owner`](crate::Lock::with_owner) for each lock: two tasks with
    /// the same owner name at the same time are both let in.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let both = client.multi_lock(&[&client.lock("orders:42"), &client.lock("stock:7")]);
    /// let guard = both.with_owner("request 7").lock()?;
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_owner(self, owner: &str) -> MultiLock<AnyThread> {
        let owner = LocalHolder::named(owner);
        let members = changed(self.members, |member| member.owner = Some(owner.clone()));
        MultiLock { members, backoff: self.backoff, guards: PhantomData }
    }

    /// The same locks, with `backoff` for the pauses between two rounds of an acquire, with nothing
    /// held. The default is 1 to 64 ms.
    ///
    /// No pause precedes the second round, which waits for the missing lock. The pauses of a lock
    /// whose waiters poll are a setting of [the lock](crate::Lock::with_backoff).
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The same locks, each held for `lease` and not renewed.
    ///
    /// `lease` is between 10 ms and a hundred years; otherwise each acquire fails with
    /// [`Error::InvalidLease`]. See [`Lock::with_lease`](crate::Lock::with_lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.members = changed(self.members, |member| member.spec.set_lease(lease));
        self
    }

    /// Acquires all locks, and waits without a limit.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] - the list is empty or has more than 1,000,000 names, two locks
    ///   cannot be held together, such as a lock by two addresses of a server, or a lock has a
    ///   [cache](crate::Lock::with_cache). Permanent; nothing is held.
    /// * The errors of [`Lock::lock`](crate::Lock::lock), for any of the locks. Nothing is held;
    ///   locks possibly granted are released in the background.
    pub fn lock(&self) -> Result<MultiGuard<T>, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: shown(self.members()?) }),
        }
    }

    /// Acquires all locks if free, with a single try for each lock and no wait. Returns `None` if
    /// another owner holds any of the locks; nothing is held then.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock). Also [`Error::OutcomeUnknown`] if the server has not
    /// [acknowledged](crate::guide::dropping) an earlier release of a lock by the lock's client:
    /// possibly no owner holds the lock. Transient.
    pub fn try_lock(&self) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Acquires all locks, and waits for [at most](Wait::at_most) `limit` in total. Returns `None`
    /// if the wait ends without all locks, because another owner held a lock; nothing is held then.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), at the end of the wait at the latest. A server without
    /// an answer by then is an error too.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(limit)
    }

    /// Acquires all locks, and waits [until](Wait::until) `deadline`. Returns `None` if the wait
    /// ends without all locks, because another owner held a lock; nothing is held then.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), at the end of the wait at the latest. A server without
    /// an answer by then is an error too.
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(deadline)
    }

    /// Acquires all locks, and waits as long as [`wait`](Wait) says. Returns `None` if the wait
    /// ends without all locks, and a server has reported another owner of any of the locks; nothing
    /// is held then.
    ///
    /// # Errors
    ///
    /// * The errors of [`lock`](Self::lock), at the end of the wait at the latest. A server without
    ///   an answer by then is an error too.
    /// * [`Error::Cancelled`] - the caller [cancelled](Wait::or_cancelled) the wait. Nothing is
    ///   held.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_lock_with<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<MultiGuard<T>>, Error> {
        let members = self.members()?;
        let clock = members.first().ok_or_else(no_locks)?.clock()?;
        // Invalid settings are an error before anything is sent.
        members.iter().try_for_each(MemberLock::check)?;
        let wait = wait.into().begin(&*clock);
        let acquire = MultiAcquire { members, clock, backoff: self.backoff };
        acquire.acquire(wait)?.map(MultiGuard::new).transpose()
    }

    /// Acquires the free locks of the list, with a single try for each lock and no wait. Returns
    /// `None` if no lock is free.
    ///
    /// The guard holds the acquired locks, and [`names`](MultiGuard::names) lists only these locks.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let busy = client.lock("job:2").sendable().lock()?;
    /// let jobs = client.lock_many(&["job:1", "job:2", "job:3"]);
    /// assert!(jobs.try_lock()?.is_none());
    /// let guard = jobs.available()?.ok_or("all are busy")?;
    /// assert_eq!(guard.names(), ["job:1", "job:3"]);
    /// # drop(busy);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`try_lock`](Self::try_lock), even if other locks are free. Nothing is held
    /// then.
    pub fn available(&self) -> Result<Option<MultiGuard<T>>, Error> {
        let members = self.members()?;
        let clock = members.first().ok_or_else(no_locks)?.clock()?;
        members.iter().try_for_each(MemberLock::check)?;
        let acquire = MultiAcquire { members, clock, backoff: self.backoff };
        acquire.acquire_available()?.map(MultiGuard::new).transpose()
    }

    /// Whether the calling thread, or each lock's owner, holds all locks for certain. Local: no
    /// round trip.
    ///
    /// Always `false` for [sendable](Self::sendable) locks: call the guard's `is_held` instead.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.members.as_ref().is_ok_and(|members| members.iter().all(MemberLock::is_held))
    }

    /// Returns the members, or the error of an invalid list of locks.
    fn members(&self) -> Result<&[MemberLock], Error> {
        self.members.as_deref().map_err(Clone::clone)
    }
}

/// Returns `members` in the same order, after `change` of each member.
fn changed(
    members: Result<Arc<[MemberLock]>, Error>,
    change: impl FnMut(&mut MemberLock),
) -> Result<Arc<[MemberLock]>, Error> {
    let mut members = members?.to_vec();
    members.iter_mut().for_each(change);
    Ok(members.into())
}

/// Sorts `members` into the acquire order of all clients, and removes duplicates. Returns an error
/// for an empty list, and for locks that exclude each other.
fn ordered(mut members: Vec<MemberLock>) -> Result<Arc<[MemberLock]>, Error> {
    if members.is_empty() {
        return Err(no_locks());
    }
    // On the same key the write lock precedes, as a reader cannot become a writer.
    members.sort_by_cached_key(|member| {
        (member.server.clone(), member.key(), member.spec.kind == Kind::Read)
    });
    let mut different: Vec<MemberLock> = Vec::with_capacity(members.len());
    for member in members {
        // The list is sorted: locks with the same key are neighbours.
        let of_key = || different.iter().rev().take_while(|other| other.same_key(&member));
        if of_key().any(|other| other.same_lock(&member)) {
            continue;
        }
        if let Some(other) = of_key().find(|other| other.conflicts_with(&member)) {
            let name = other.shown();
            let reason = format!("two locks of {name:?} exclude each other; give one of them");
            return Err(Error::invalid_setting("multi_lock", reason));
        }
        different.push(member);
    }
    Ok(different.into())
}

impl<T> Clone for MultiLock<T> {
    fn clone(&self) -> Self {
        Self { members: self.members.clone(), backoff: self.backoff, guards: PhantomData }
    }
}

impl<T> fmt::Debug for MultiLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.members.as_ref().map(|members| shown(members));
        formatter.debug_struct("MultiLock").field("names", &names).finish_non_exhaustive()
    }
}
