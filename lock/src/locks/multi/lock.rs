//! A lock of several locks: all of them or none, without a deadlock whatever their order.

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

/// Several locks that are acquired together: all of them, or none. Cheap to clone and to share; it
/// holds nothing by itself.
///
/// The locks may be of any kind, of any client, and so on any server. Each excludes callers that
/// lock it alone, and is excluded by them. A thread that holds the multi-lock may lock it again:
/// its locks nest, if they are of a kind that nests. A lock that is given twice is locked once.
///
/// **Order.** The locks are acquired in the order of their servers' addresses and their names, not
/// in the order in which they are given. So two threads that give the same locks in opposite order
/// do not deadlock. While some locks are held, another is waited for at most 100 ms, and at most
/// half of the shortest lease. A lock that could not be had in that time is then waited for with
/// nothing held, and the others are acquired after it. Only if the servers' answers take longer,
/// the bound doubles from round to round, up to 3 s. So there is no deadlock either between callers
/// that cannot agree on an order: one server may have two addresses, and a Java
/// `RedissonMultiLock` acquires its locks as they are given.
///
/// **Leases.** Each lock is renewed by its own client's watchdog, unless it has a
/// [lease](Self::with_lease). A lease counts from before its lock's request was sent. The guard
/// [is held](MultiGuard::is_held) while all locks are; when one is lost, the others are released.
/// If the first is lost before the last is granted, all are released, and the acquire is an
/// [`Error::Lost`].
///
/// **Many.** Plain locks of one client, with one lease, no named owner and no shortest hold, are
/// acquired and released together: a request carries up to 1,000 locks, in a cluster locks of one
/// slot. See [`Client::lock_many`](crate::Client::lock_many). If a lock is busy, the acquire releases
/// the others at once, and waits for the busy lock with nothing held. Then up to 64 locks are acquired
/// one by one, as above. More than that have to be free at one instant. Locks that the caller holds
/// already are acquired one by one.
///
/// On the servers there is nothing but the locks themselves. Redisson's `RedissonMultiLock` is the
/// same idea.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, MultiLock};
///
/// let (one, other) = (Client::in_memory(), Client::in_memory());
/// let (order, stock) = (one.lock("orders:42"), other.fenced_lock("stock:7"));
/// let both = MultiLock::new(&[&order, &stock]);
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

/// The most names of one `lock_many`.
const MAX_LOCKS: usize = 1_000_000;

/// The longest pause between two rounds, unless set.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl MultiLock {
    /// Combines these locks: references to [`Lock`](crate::Lock)s of any kind.
    ///
    /// An empty list is an error when the multi-lock is locked. So is a list in which one lock
    /// would wait for another: two on one key that are of different clients or owners, or of kinds
    /// that exclude each other, as [`Client::lock`](crate::Client::lock) and a read lock do.
    #[must_use]
    pub fn new(locks: &[&dyn AnyLock]) -> Self {
        Self::of(ordered(locks.iter().map(|lock| lock.as_member()).collect()))
    }

    /// The locks of these names, which `spec` makes.
    pub(crate) fn of_names<N: AsRef<str>>(names: &[N], spec: impl Fn(&str) -> LockSpec) -> Self {
        if names.len() > MAX_LOCKS {
            let reason = format!("{} names are more than {MAX_LOCKS}", names.len());
            return Self::of(Err(Error::invalid_setting("lock_many", reason)));
        }
        let member = |name: &N| MemberLock::new(spec(name.as_ref()), None);
        Self::of(ordered(names.iter().map(member).collect()))
    }

    fn of(members: Result<Arc<[MemberLock]>, Error>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(1), LONGEST_PAUSE);
        Self { members, backoff, guards: PhantomData }
    }
}

impl<T> MultiLock<T> {
    /// The same locks with guards that may be sent to other threads, and that never nest. As
    /// [`Lock::sendable`](crate::Lock::sendable) for each of them. A read and a write lock of one
    /// name are an error then, when the multi-lock is locked: they would wait for each other.
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

    /// The same locks for an owner of that name, in place of the owner that each has. The guards
    /// can be sent to other threads. As [`Lock::with_owner`](crate::Lock::with_owner) for each of
    /// them, so two tasks that use one name are both let in.
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

    /// The pauses between rounds, in which nothing is held: 1 to 64 ms unless set. There is none
    /// before the second round, which waits for the lock that was missing. How often a single lock
    /// is asked for is a setting of [that lock](crate::Lock::with_backoff).
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The same locks, each held for `lease` and not renewed. As
    /// [`Lock::with_lease`](crate::Lock::with_lease) for each of them.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.members = changed(self.members, |member| member.spec.set_lease(lease));
        self
    }

    /// Locks all of them, and waits as long as it takes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] for a list of locks that cannot be held together, such as a lock
    /// by two addresses of its server: permanent, nothing is held. Otherwise as
    /// [`Lock::lock`](crate::Lock::lock), of any of them; nothing is held then.
    pub fn lock(&self) -> Result<MultiGuard<T>, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: shown(self.members()?) }),
        }
    }

    /// Locks all of them if they are free: one attempt for each, no wait. `None` if another owner
    /// has one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Locks all of them, and waits for [at most](Wait::at_most) `limit` in total. `None` if that
    /// was not enough.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(limit)
    }

    /// Locks all of them, and waits [until](Wait::until) `deadline`. `None` if that was not enough.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(deadline)
    }

    /// Locks all of them, and waits as long as [`wait`](Wait) says. `None` if that was not enough,
    /// and a server has answered that another owner has one of them.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_lock_with<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<MultiGuard<T>>, Error> {
        let members = self.members()?;
        let clock = members.first().ok_or_else(no_locks)?.clock()?;
        // What can never be held together is an error before anything is sent.
        members.iter().try_for_each(MemberLock::check)?;
        let wait = wait.into().begin(&*clock);
        let acquire = MultiAcquire { members, clock, backoff: self.backoff };
        acquire.acquire(wait)?.map(MultiGuard::new).transpose()
    }

    /// Acquires the free locks of the list: one try for each lock, no wait. `None` if no lock is free.
    /// The guard holds these locks, and its [`names`](MultiGuard::names) are theirs.
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
    /// As [`lock`](Self::lock). Nothing is held then.
    pub fn available(&self) -> Result<Option<MultiGuard<T>>, Error> {
        let members = self.members()?;
        let clock = members.first().ok_or_else(no_locks)?.clock()?;
        members.iter().try_for_each(MemberLock::check)?;
        let acquire = MultiAcquire { members, clock, backoff: self.backoff };
        acquire.acquire_available()?.map(MultiGuard::new).transpose()
    }

    /// Whether the calling thread, or each lock's owner, holds all of them for certain. Local: no
    /// round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.members.as_ref().is_ok_and(|members| members.iter().all(MemberLock::is_held))
    }

    fn members(&self) -> Result<&[MemberLock], Error> {
        self.members.as_deref().map_err(Clone::clone)
    }
}

/// The members, each changed, in the same order.
fn changed(
    members: Result<Arc<[MemberLock]>, Error>,
    change: impl FnMut(&mut MemberLock),
) -> Result<Arc<[MemberLock]>, Error> {
    let mut members = members?.to_vec();
    members.iter_mut().for_each(change);
    Ok(members.into())
}

/// The locks in the order in which all clients acquire them, each once.
fn ordered(mut members: Vec<MemberLock>) -> Result<Arc<[MemberLock]>, Error> {
    if members.is_empty() {
        return Err(no_locks());
    }
    // On one key the write lock comes first, as a reader cannot become a writer.
    members.sort_by_cached_key(|member| {
        (member.server.clone(), member.key(), member.spec.kind == Kind::Read)
    });
    let mut different: Vec<MemberLock> = Vec::with_capacity(members.len());
    for member in members {
        // The list is sorted: those on one key are neighbours.
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
