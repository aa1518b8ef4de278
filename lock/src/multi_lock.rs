//! Several locks as one: all of them or none, and no deadlock whatever order they are named in.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::back_off::BackOff;
use crate::error::Error;
use crate::kind::Kind;
use crate::multi_guard::MultiGuard;
use crate::owner::Holder;
use crate::part::{AnyLock, Part, shown};
use crate::taking::{Taking, none};
use crate::tied::{AnyThread, ThisThread};
use crate::wait::Until;

/// Several locks that are taken together: all of them, or none. Cheap to clone and to share; it holds nothing by
/// itself.
///
/// They may be of any kinds, of any clients and so on any servers, and each stays what it is: whoever takes one of them
/// alone excludes, and is excluded by, who takes them together. A thread that holds it may take it again: each of them
/// is nested, if it is of a kind that nests. One that is named twice is taken once.
///
/// **Order.** They are taken in the order of their servers' addresses and their names, not in the order in which they
/// are given. So two threads that name the same locks in opposite order do not wait for each other. Nobody waits for
/// one of them while holding others for longer than 100 ms, or half of the shortest lease: what is not had by then is
/// waited for with nothing held, then taken first, and the others after it. Only if it is the answers that take longer,
/// the bound is doubled from round to round, up to 3 s. So two that cannot know the order - one
/// server under two addresses, or a Java `RedissonMultiLock`, which takes its locks as they are given - do not wait for
/// each other for ever either.
///
/// **Leases.** By default each is renewed by its own client's watchdog. With a lease, each counts from its own request;
/// the guard [holds](MultiGuard::is_held) as long as all do. If the first is over when the last is granted, all are
/// released, and it is an [`Error::Lost`].
///
/// On the servers there is nothing but the locks themselves. Redisson's is `RedissonMultiLock`.
///
/// ```
/// use std::time::Duration;
/// use wheellock::{Client, MultiLock};
///
/// let (one, other) = (Client::in_memory(), Client::in_memory());
/// let (order, stock) = (one.lock("orders:42"), other.fenced_lock("stock:7"));
/// let both = MultiLock::new(&[&order, &stock]);
/// if let Some(guard) = both.try_lock_for(Duration::from_secs(5))? {
///     // Alone with both.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct MultiLock<T = ThisThread> {
    parts: Result<Arc<[Part]>, Error>,
    back_off: BackOff,
    guards: PhantomData<fn() -> T>,
}

/// Between rounds that ended with nothing.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl MultiLock {
    /// Of these locks: references to [`Lock`](crate::Lock)s of any kind. An empty list is an error when the multi-lock
    /// is taken, and so are locks of which one would wait for another: on one key, of two clients, of two owners, or of
    /// kinds that exclude each other, as [`Client::lock`](crate::Client::lock) and a read lock do.
    #[must_use]
    pub fn new(locks: &[&dyn AnyLock]) -> Self {
        let parts = ordered(locks.iter().map(|lock| lock.as_part()).collect());
        let back_off = BackOff::new(Duration::from_millis(1), LONGEST_PAUSE);
        Self { parts, back_off, guards: PhantomData }
    }
}

impl<T> MultiLock<T> {
    /// The same locks for an owner of that name, whoever they were for: its guards may be sent to other threads. As
    /// [`Lock::with_owner`](crate::Lock::with_owner) for each of them.
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
        let owner = Holder::named(owner);
        let parts = changed(self.parts, |part| part.owner = Some(owner.clone()));
        MultiLock { parts, back_off: self.back_off, guards: PhantomData }
    }

    /// The pauses between rounds, in which nothing is held: from the second on, as the lock that was missing is waited
    /// for at once. From 1 to 64 ms unless set. How often one lock is asked for is
    /// [its own](crate::Lock::with_back_off) matter.
    #[must_use]
    pub fn with_back_off(mut self, back_off: BackOff) -> Self {
        self.back_off = back_off;
        self
    }

    /// The same locks, with holds that last for `lease` and are not renewed. As
    /// [`Lock::with_lease`](crate::Lock::with_lease) for each of them.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.parts = changed(self.parts, |part| part.plan.set_lease(lease));
        self
    }

    /// Takes all the locks, and waits for them as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), of any of them; nothing is held then. And [`Error::InvalidSetting`] for a
    /// list of locks that cannot be taken together.
    pub fn lock(&self) -> Result<MultiGuard<T>, Error> {
        self.lock_with(None)
    }

    /// Takes all the locks if they are free: one try for each, no waiting. `None` if somebody else holds one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard<T>>, Error> {
        self.carry_out(None)
    }

    /// Takes all the locks, and waits for them for at most `wait` in all. `None` if they could not be had in that time.
    /// A `wait` of zero is a [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(wait, None)
    }

    /// Takes all the locks, and waits for them for at most `wait` in all, or until `cancel` has a message or has lost
    /// its senders. As [`Lock::try_lock_for_or_cancel`](crate::Lock::try_lock_for_or_cancel).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    pub fn try_lock_for_or_cancel(
        &self,
        wait: Duration,
        cancel: &Receiver<()>,
    ) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_with(wait, Some(cancel))
    }

    /// Takes all the locks, and waits for them until `deadline`, as [`try_lock_for`](Self::try_lock_for) does.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard<T>>, Error> {
        self.try_lock_for(self.clock()?.remaining(deadline))
    }

    /// Takes all the locks, and waits for them until `cancel` has a message or has lost its senders. As
    /// [`Lock::lock_or_cancel`](crate::Lock::lock_or_cancel).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`Error::Cancelled`].
    pub fn lock_or_cancel(&self, cancel: &Receiver<()>) -> Result<MultiGuard<T>, Error> {
        self.lock_with(Some(cancel))
    }

    /// Whether the calling thread, or each lock's owner, holds all of them for certain. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.parts.as_ref().is_ok_and(|parts| parts.iter().all(Part::is_held))
    }

    fn lock_with(&self, cancel: Option<&Receiver<()>>) -> Result<MultiGuard<T>, Error> {
        match self.carry_out(Some(Until { deadline: None, cancel }))? {
            Some(guard) => Ok(guard),
            // A wait without a deadline does not end by time.
            None => Err(Error::Cancelled { name: shown(self.parts()?) }),
        }
    }

    fn try_lock_with(
        &self,
        wait: Duration,
        cancel: Option<&Receiver<()>>,
    ) -> Result<Option<MultiGuard<T>>, Error> {
        if wait.is_zero() {
            return self.try_lock();
        }
        // A deadline beyond what the clock can say is none.
        let deadline = self.clock()?.now().checked_add(wait);
        self.carry_out(Some(Until { deadline, cancel }))
    }

    fn parts(&self) -> Result<&[Part], Error> {
        self.parts.as_deref().map_err(Clone::clone)
    }

    /// The clock that a wait is measured by: that of the first lock's client.
    fn clock(&self) -> Result<Arc<dyn Clock>, Error> {
        let first = self.parts()?.first();
        first.map_or_else(|| Err(none()), Part::clock)
    }

    /// Once if there is no end to wait for.
    fn carry_out(&self, until: Option<Until<'_>>) -> Result<Option<MultiGuard<T>>, Error> {
        let parts = self.parts()?;
        // Before anything is sent: what can never be taken.
        parts.iter().try_for_each(Part::check)?;
        let taking = Taking { parts, clock: self.clock()?, back_off: self.back_off };
        let taken = until.map_or_else(|| taking.at_once(), |until| taking.by_rounds(until))?;
        Ok(taken.map(MultiGuard::new))
    }
}

/// Each of them changed, in the same order.
fn changed(
    parts: Result<Arc<[Part]>, Error>,
    change: impl FnMut(&mut Part),
) -> Result<Arc<[Part]>, Error> {
    let mut parts = parts?.to_vec();
    parts.iter_mut().for_each(change);
    Ok(parts.into())
}

/// Puts the locks in the order in which everybody takes them.
fn ordered(mut parts: Vec<Part>) -> Result<Arc<[Part]>, Error> {
    if parts.is_empty() {
        return Err(none());
    }
    // Who writes and reads one key writes first: nobody can become a writer while reading.
    parts
        .sort_by_cached_key(|part| (part.server.clone(), part.key(), part.plan.kind == Kind::Read));
    // Neighbours only if they share a key, and few do.
    let mut different: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        if different.iter().any(|other| other.is_the_same_as(&part)) {
            continue;
        }
        if let Some(other) = different.iter().find(|other| other.excludes(&part)) {
            let reason = format!("two owners of {:?} would wait for each other", other.shown());
            return Err(Error::InvalidSetting { setting: "multi_lock", reason });
        }
        different.push(part);
    }
    Ok(different.into())
}

impl<T> Clone for MultiLock<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), back_off: self.back_off, guards: PhantomData }
    }
}

impl<T> fmt::Debug for MultiLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MultiLock").field("parts", &self.parts).finish_non_exhaustive()
    }
}
