//! A lock of any kind: acquire it, ask about it, force it open.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin::ask::{Asked, ask};
use crate::admin::status::{Holder, Waiters, status_of};
use crate::core::acquire::acquire;
use crate::core::named::begin_request;
use crate::core::spec::LockSpec;
use crate::error::{Error, LostReason};
use crate::hold::hold::Hold;
use crate::locks::any_lock::{AnyLock, AsMember, MemberLock};
use crate::locks::guard::{FencedGuard, Guard, LockGuard, OwnedGuard};
use crate::model::backoff::Backoff;
use crate::model::kind::{Kind, Layout};
use crate::model::owner::LocalHolder;
use crate::model::wait::Wait;
use crate::ops::by_kind;
use crate::ops::{LastToken, TimeToLive};

/// A lock of one name. Cheap to make, to clone and to share; it holds nothing by itself.
///
/// Its kind depends on the method that made it: [`Client::lock`](crate::Client::lock) or another of
/// the client. All kinds are acquired, held, renewed and released in the same way, and give a guard
/// `G`: a [`LockGuard`] that stays on its thread, a [`FencedGuard`] with a token, or an
/// [`OwnedGuard`], which may be sent to another thread, by [`sendable`](Self::sendable) or
/// [`with_owner`](Self::with_owner).
///
/// All locks of one name and kind exclude each other: those of one client, of other processes, and
/// Redisson's in Java. [`lock`](crate::Client::lock), `fair_lock`, `fenced_lock`, `spin_lock` and
/// the non-reentrant ones exclude each other too, for their keys are alike; but each wakes only the
/// waiters of its own kind at once, and the others find out within a second. A thread that holds a
/// lock may acquire it again, unless the kind says otherwise; it is free when the last of its
/// guards is gone. Two `Lock` objects of one client and name on one thread are one hold.
///
/// By default a hold is *watched*: its lease is renewed until its last guard is gone.
/// [`with_lease`](Self::with_lease) makes a hold that ends by itself, unless its guard is
/// [extended](crate::LockGuard::extend) or [watched](crate::LockGuard::watch).
///
/// The idea, the keys and the messages are Redisson's (`RLock`).
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let lock = client.lock("orders:42");
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     // Alone.
///     guard.unlock()?;
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
pub struct Lock<G = LockGuard> {
    spec: LockSpec,
    /// `None`: the calling thread.
    owner: Option<LocalHolder>,
    guards: PhantomData<fn() -> G>,
}

/// A lock whose guards have a [fencing token](FencedGuard::token).
///
/// ```
/// use wheellock::{Client, FencedLock};
///
/// let lock: FencedLock = Client::in_memory().fenced_lock("orders:42");
/// let token = lock.lock()?.token();
/// assert!(lock.lock()?.token() > token);
/// assert!(lock.last_token()? > token);
/// # Ok::<(), wheellock::Error>(())
/// ```
pub type FencedLock = Lock<FencedGuard>;

impl<G: Guard> Lock<G> {
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self { spec, owner: None, guards: PhantomData }
    }

    /// The same lock, with holds that last for `lease` and are not renewed.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds. The shortest is 10
    /// ms, the longest a hundred years; outside of that, acquiring the lock is an
    /// [`Error::InvalidLease`].
    ///
    /// If the thread holds the lock already, its lease is never shortened; if one of its guards is
    /// watched, the hold is renewed as long as that guard is there.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.spec.set_lease(lease);
        self
    }

    /// The same lock, with holds that last for at least `min_hold`: one that is released earlier
    /// stays on the server for what is left of it, and then ends by itself.
    ///
    /// For a job that must not run again at once, however short it is. The release is sent as ever,
    /// and returns at once. From then on [`is_held`](LockGuard::is_held) is false, nothing renews
    /// the hold, and no thread waits for its end. Every other acquire meets a busy lock, that of
    /// the same thread too. A waiter gets the lock when the time is over, in Redisson as well;
    /// [`force_unlock`](Self::force_unlock) ends it earlier.
    ///
    /// The time counts from when the hold was acquired; a nested acquire counts it from there too,
    /// and the longest one of a hold is taken. It is between 10 ms and a hundred years, or zero for
    /// none; anything else is an [`Error::InvalidLease`] when the lock is acquired. It may be
    /// longer than the lease, but then it depends on the release: a holder that dies keeps the lock
    /// for the rest of its lease only. A release that arrives late keeps the lock for that much
    /// longer. A writer that still reads is released at once. As a member of a
    /// [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) the lock has no shortest
    /// hold.
    ///
    /// The idea is `ShedLock`'s (`lockAtLeastFor`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let report = client.lock("report").with_min_hold(Duration::from_secs(60));
    /// if let Some(guard) = report.try_lock()? {
    ///     // A short job.
    ///     guard.unlock()?;
    /// }
    /// assert!(report.try_lock()?.is_none(), "it is not run again for a minute");
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_min_hold(mut self, min_hold: Duration) -> Self {
        self.spec.set_min_hold(min_hold);
        self
    }

    /// The same lock, with a label for its acquires in the metrics of the cargo feature `metrics`:
    /// `wheellock_acquires_total`, `wheellock_wait_seconds` and `wheellock_held_seconds` carry it
    /// as `label`. Without that feature it changes nothing.
    ///
    /// It names what a program uses locks for, such as `checkout`, and not each of many locks: it
    /// is a part of the program, and not a name that comes from outside. A client tells 64 labels
    /// apart, in the order of their first acquires, and counts all further ones as `other`. Each
    /// costs it about 8 KiB for each [kind](crate::Acquires::of) of lock that is acquired under it,
    /// and a recorder what three more series cost there. A lock without a label is counted without
    /// one, and [`Stats::acquires`](crate::Stats::acquires) counts all alike.
    ///
    /// A nested guard adds to the hold that is there, whose label stays.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let order = client.lock("orders:42").with_metrics_label("checkout");
    /// // wheellock_acquires_total{kind="lock",end="acquired",label="checkout"} 1
    /// order.lock()?.unlock()?;
    /// assert_eq!(client.stats().acquires.of("lock").acquired, 1);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_metrics_label(mut self, label: &'static str) -> Self {
        self.spec.metrics_label = Some(label);
        self
    }

    /// Acquires the lock, and waits for it without a limit.
    ///
    /// It waits without polling: the holder's release wakes it. If that message is lost, it asks
    /// again after a second at most.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`] - permanent, nothing was sent.
    /// * [`Error::WrongType`] - the key holds something that is not a lock.
    /// * [`Error::Unreachable`], [`Error::Refused`], [`Error::Authentication`] - the server did not
    ///   do it, for twice the command timeout.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Nothing is held; what the command may have created is released in the background.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged it. Nothing is held.
    /// * [`Error::Lost`] - it was granted too late: the lease was over when the answer came.
    /// * [`Error::Shutdown`] - the client was shut down.
    /// * [`Error::Forked`] - this process is a fork of the client's. Permanent.
    /// * [`Error::WatchdogGone`] - the renewal thread has ended, and nothing would renew the hold.
    pub fn lock(&self) -> Result<G, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: self.name() }),
        }
    }

    /// Acquires the lock if it is free. `None` if another owner holds it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`Error::OutcomeUnknown`] also if this client has released the lock
    /// and the server has not [acknowledged](crate::guide::dropping) that: then nobody else need
    /// hold it. Transient.
    pub fn try_lock(&self) -> Result<Option<G>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Acquires the lock, and waits for it for [at most](Wait::at_most) `limit`. `None` if it could
    /// not be had in that time.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<G>, Error> {
        self.try_lock_with(limit)
    }

    /// Acquires the lock, and waits for it [until](Wait::until) `deadline`. `None` if it could not
    /// be had by then.
    ///
    /// # Errors
    ///
    /// As [`try_lock_with`](Self::try_lock_with).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<G>, Error> {
        self.try_lock_with(deadline)
    }

    /// Acquires the lock, and waits for it as long as [`wait`](Wait) says. `None` if it could not
    /// be had in that time, because another owner held it or was ahead in the queue.
    ///
    /// A wait for a fair lock that ends without the lock leaves the queue on the server: before it
    /// returns if the server acknowledges that in time, else in the background.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and by the end of the wait: a server that does not answer by
    /// then is an error, unless another thread of this client had the lock. And
    /// [`Error::Cancelled`].
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_lock_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<G>, Error> {
        let core = self.spec.core()?;
        let wait = wait.into().begin(&*core.clock);
        Ok(acquire(&core, &self.spec, &self.local_holder(), wait)?.map(G::from_raw))
    }

    /// The lock's name with the client's [prefix](crate::Client::with_prefix), cut short if it is
    /// very long; also if it is not a valid name.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// assert_eq!(Client::in_memory().fair_lock("orders:42").name(), "orders:42");
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.spec.shown_name()
    }

    /// Whether any owner holds the lock, as the server says. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.spec.call(&by_kind::is_locked(self.spec.kind, self.spec.name()?))
    }

    /// How long the lock is held by its current owner unless it is renewed, as the server says.
    /// `None` if it is not held; [`Duration::MAX`] if its key has no expiry, which every lock of
    /// this crate has. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.spec.call(&TimeToLive(self.spec.name()?))
    }

    /// Who holds the lock, as the server says; `None` if it is free. Of several readers it is one.
    ///
    /// Two round trips: the lock, and the record of the holder's client. No holder is disturbed. A
    /// Redisson thread is shown as what can be known of it: its owner, and the rest of the lease. A
    /// [`RedLock`](crate::RedLock) and a [`MultiLock`](crate::MultiLock) have a holder for each
    /// member: ask the locks that they are made of.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        Ok(self.holders()?.into_iter().next())
    }

    /// All holders, of which only the read half of a read-write lock has several; of very many,
    /// some 1,000. A write half has a writer's hold, a read half those of readers.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        let mut holders = status_of(&self.spec.core()?, &self.spec.name()?)?.holders;
        match self.spec.kind {
            Kind::Read => holders.retain(|holder| holder.shared),
            Kind::Write => holders.retain(|holder| !holder.shared),
            _ => {}
        }
        Ok(holders)
    }

    /// Who waits for the lock, in this client and elsewhere. The waiters of a fair lock are known
    /// exactly and in their order; of others, how many clients [listen](Waiters::elsewhere).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn waiters(&self) -> Result<Waiters, Error> {
        Ok(status_of(&self.spec.core()?, &self.spec.name()?)?.waiters)
    }

    /// Whether the calling thread, or the [owner](Self::with_owner), holds the lock for certain.
    /// Never for a [`sendable`](Self::sendable) lock: ask the guard. Local: no round trip.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many guards of this lock the calling thread, or the [owner](Self::with_owner), has; zero
    /// if its hold was lost, and for a [`sendable`](Self::sendable) lock. Local: no round trip.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.spec.held_by(&self.local_holder()).map_or(0, |hold| hold.guards())
    }

    /// Asks the clients that hold the lock to let it go, for a deploy or for work that is more urgent.
    /// Each is told once, and told `reason`, of 1,000 bytes at most. Any lock object of the name will
    /// do: the request is for whoever holds the lock, of any kind.
    ///
    /// A request ends nothing: a holder learns of it by its guard's
    /// [`revocation`](crate::LockGuard::revocation), and ends its work, or goes on. A lock that is
    /// [cached](Self::with_cache) is released at once. Nothing of the request is stored: a client that
    /// does not hear requests now, such as Redisson's, never learns of it.
    ///
    /// One round trip for the holders, two for each of their clients.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let lock = Client::in_memory().lock("orders:42");
    /// let guard = lock.lock()?;
    /// assert!(!guard.is_asked()); // from here on this client hears requests
    /// let asked = lock.ask("deploy of 2.1")?;
    /// assert_eq!((asked.holders, asked.heard), (1, 1));
    /// assert!(guard.is_asked() && guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * As [`lock`](Self::lock). Some holders may have been told.
    /// * [`Error::InvalidSetting`] - the reason is too long. Permanent.
    pub fn ask(&self, reason: &str) -> Result<Asked, Error> {
        ask(&self.spec.core()?, &self.spec.name()?, reason)
    }

    /// Ends every hold of the lock, and wakes a waiter. Returns whether there was a hold.
    ///
    /// The holder is told: at once if it is this client, else at its next renewal. Until then two
    /// owners may hold the lock. It is meant for an operator.
    ///
    /// It ends what [`Client::status`](crate::Client::status) calls a lock of this kind, with the
    /// holds of others too. Anything else that the key holds stays: other data, a simple lock, or a
    /// read-write lock if this is none.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`Error::WrongType`] says what the key holds.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        let (name, kind) = (self.spec.name()?, self.spec.kind);
        let core = self.spec.core()?;
        let own = core.holds.of_name(&name);
        // A thread that was given one of them now would not learn that it is gone.
        let _forced: Vec<_> = own.iter().map(ForcedRelease::begin).collect();
        let request = begin_request(&core, &name);
        let ended = self.spec.call(&by_kind::force_release(kind, name, request))?;
        // A hold of another layout may be gone too: a writer may read. So may one that the server
        // did not find: an earlier copy of the command has ended it, or it was gone before. Only a
        // reader under its own write hold is still there: the lock was not in mode read.
        let writes = |reader: &Hold| {
            own.iter().any(|hold| {
                hold.kind.layout() == Layout::Writer
                    && hold.has_same_holder(reader)
                    && hold.is_held(core.now())
            })
        };
        for hold in &own {
            let is_gone =
                hold.kind.layout() == kind.layout() && !(kind == Kind::Read && writes(hold));
            if ended || is_gone {
                core.watchdog.lose(hold, LostReason::Deleted);
            }
        }
        Ok(ended)
    }

    /// A closure that was called for this lock has panicked.
    pub(crate) fn count_panic(&self) {
        if let Ok(core) = self.spec.core() {
            core.events.count_panic();
        }
    }

    fn local_holder(&self) -> LocalHolder {
        self.owner.clone().unwrap_or_else(LocalHolder::current_thread)
    }

    /// The same lock with guards that may be sent to other threads, and held across an `.await`.
    ///
    /// Each acquire is for an owner of its own, so the lock never nests: while a guard is there,
    /// every other acquire waits or returns `None`, also one of the same thread, task or handle. A
    /// task that waits without a limit for a lock whose guard it has waits forever. For the same
    /// reason a read lock is not granted under the write lock of the same task.
    ///
    /// All kinds of locks can be sendable, and they exclude the others of their name as before. A
    /// [`lock`](crate::Client::lock) is [handed over](crate::guide::hand_over) between threads,
    /// sendable or not.
    ///
    /// ```
    /// use wheellock::{Client, Lock, OwnedGuard};
    ///
    /// let lock: Lock<OwnedGuard> = Client::in_memory().lock("orders:42").sendable();
    /// let guard = lock.lock()?;
    /// assert!(lock.try_lock()?.is_none()); // it does not nest
    /// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
    /// assert!(lock.try_lock()?.is_some());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn sendable(self) -> Lock<OwnedGuard> {
        Lock { spec: self.spec, owner: Some(LocalHolder::Guard), guards: PhantomData }
    }

    /// The same lock for an owner of that name instead of the calling thread: its guards may be
    /// sent to other threads, and a thread that gives the same name nests.
    ///
    /// **Two tasks that use one name at the same time are both let in.** They are one owner, on
    /// this client: when one of them is granted the lock, the other nests, even if it waited. So a
    /// name must stand for one task at a time. Use it to nest across threads; only to send a guard,
    /// use [`sendable`](Self::sendable), where that cannot happen.
    ///
    /// On the server an owner is still the client's identity and a number drawn anew for each hold;
    /// the name stays here. An owner of the same name on another client is another owner.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let lock = client.lock("orders:42").with_owner("request 7");
    /// let guard = lock.lock()?;
    /// std::thread::spawn(move || drop(guard)).join().unwrap();
    /// assert!(!lock.is_locked()?);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_owner(self, owner: &str) -> Lock<OwnedGuard> {
        let owner = Some(LocalHolder::named(owner));
        Lock { spec: self.spec, owner, guards: PhantomData }
    }

    /// The same lock with other pauses between tries. It matters to locks whose waiters poll:
    /// [`spin_lock`](crate::Client::spin_lock) and [`simple_lock`](crate::Client::simple_lock); the
    /// others are woken.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.spec.backoff = backoff;
        self
    }
}

/// A release of a hold that is forced. Until it is answered, the hold is not handed over.
struct ForcedRelease<'a>(&'a Hold);

impl<'a> ForcedRelease<'a> {
    fn begin(hold: &'a Arc<Hold>) -> Self {
        hold.count_forced_release(true);
        Self(hold)
    }
}

impl Drop for ForcedRelease<'_> {
    fn drop(&mut self) {
        self.0.count_forced_release(false);
    }
}

impl<T> Lock<LockGuard<T>>
where
    LockGuard<T>: Guard,
{
    /// The same lock, but it stays with this client between two uses, for at most `time`. The next
    /// acquire of its name by any thread of this client has it without a request.
    ///
    /// **The price.** While the lock is cached, nobody is inside, and the server says that this
    /// client holds it:
    ///
    /// * A single try elsewhere is refused.
    /// * If this process dies between two uses, others wait for the rest of the lease.
    /// * A waiter of another client waits for up to `time` longer, if that client does not cache
    ///   the lock too.
    /// * [`Client::status`](crate::Client::status) shows the lock as held.
    ///
    /// A client that caches the lock too, and is refused, tells the holder's client. That one
    /// releases a cached lock at once, and one in use at its next release. For a second after, it
    /// does not cache that name. Redisson, and clients that do not cache the lock, tell nothing.
    ///
    /// `time` counts from the first release that leaves the lock here, however often it is used
    /// meanwhile. When it is over, the lock is released; if it is in use then, by its next release.
    /// So others wait for `time` and one use at most. It is between 1 ms and a third of the
    /// [lease](crate::ClientBuilder::watchdog_lease). Of one client
    /// [1,024 locks](crate::ClientBuilder::max_cached_locks) are cached at most.
    ///
    /// A cached lock is renewed as any other. One that is lost while it is cached is dropped in
    /// silence, and [counted](crate::CacheStats::lost). [`Client::shutdown`](crate::Client::shutdown)
    /// and the end of the last client release what is cached. A child of a fork has nothing cached.
    ///
    /// Only a [`lock`](crate::Client::lock) that is watched, sendable or not, can be cached. With a
    /// [lease](Self::with_lease) or a [minimum hold](Self::with_min_hold), for a [named
    /// owner](Self::with_owner), for another kind, as a member of a
    /// [`MultiLock`](crate::MultiLock), or with a `time` outside of the limits, acquiring it is an
    /// [`Error::InvalidSetting`].
    ///
    /// The [guide](crate::guide::cache) says when it helps. The idea is that of cluster file
    /// systems, whose nodes keep a lock until another node asks for it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let partition = client.lock("partition:7").with_cache(Duration::from_millis(200));
    /// for _message in 0..3 {
    ///     let _guard = partition.lock()?; // only the first asks the server
    /// }
    /// assert_eq!(client.stats().cache.hits, 2);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn with_cache(mut self, time: Duration) -> Self {
        self.spec.set_cache(time);
        self
    }
}

impl Lock<FencedGuard> {
    /// The last fencing token that was drawn, zero if there was none. One round trip.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn last_token(&self) -> Result<u64, Error> {
        Ok(self.spec.call(&LastToken::new(&self.spec.name()?))?.unwrap_or(0))
    }
}

impl Lock<OwnedGuard> {
    /// The last fencing token that was drawn, zero if there was none; `None` if the lock is not a
    /// fenced one. One round trip for a fenced one.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn last_token(&self) -> Result<Option<u64>, Error> {
        if self.spec.kind != Kind::Fenced {
            return Ok(None);
        }
        Ok(Some(self.spec.call(&LastToken::new(&self.spec.name()?))?.unwrap_or(0)))
    }
}

impl<G: Guard> AnyLock for Lock<G> {}

impl<G: Guard> AsMember for Lock<G> {
    fn as_member(&self) -> MemberLock {
        MemberLock::new(self.spec.clone().without_min_hold(), self.owner.clone())
    }
}

impl<G> Clone for Lock<G> {
    fn clone(&self) -> Self {
        Self { spec: self.spec.clone(), owner: self.owner.clone(), guards: PhantomData }
    }
}

impl<G> fmt::Debug for Lock<G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lock")
            .field("name", &self.spec.shown_name())
            .field("kind", &self.spec.kind)
            .finish_non_exhaustive()
    }
}
