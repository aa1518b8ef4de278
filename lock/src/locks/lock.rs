//! A lock of any kind: acquire, inspect, force open.

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

/// A named lock, cheap to create, to clone and to share; only a guard holds the lock.
///
/// The constructor, such as [`Client::lock`](crate::Client::lock), determines the kind of lock. All
/// kinds are acquired, held, renewed and released in the same way. An acquire returns a guard `G`:
/// a [`LockGuard`], which is bound to the thread; a [`FencedGuard`], which also has a token; or,
/// for a lock made by [`sendable`](Self::sendable) or [`with_owner`](Self::with_owner), an
/// [`OwnedGuard`], which may be sent to another thread.
///
/// All locks of the same name and kind are mutually exclusive: within a client, between processes,
/// and with Redisson's locks in Java. A [`lock`](crate::Client::lock), `fair_lock`, `fenced_lock`,
/// `spin_lock` and the non-reentrant `lock` and `fair_lock` of the same name are mutually exclusive
/// too, as their keys are alike. But a release may wake only waiters of the same kind at once;
/// waiters of another kind try again within a second.
///
/// The thread that holds a lock may acquire the lock again, unless the kind says otherwise. Each
/// acquire returns a guard, and the lock is free when the last guard is gone. Two `Lock` objects of
/// the same client and name share the hold of a thread.
///
/// By default a hold is *watched*: the watchdog renews the lease until the last guard is gone. With
/// [`with_lease`](Self::with_lease) a hold is not renewed and expires, unless a guard is
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
/// Created by [`Client::fenced_lock`](crate::Client::fenced_lock).
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
    /// Returns the lock of `spec` for the calling thread.
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self { spec, owner: None, guards: PhantomData }
    }

    /// The same lock, whose holds last for `lease` and are not renewed.
    ///
    /// The lease counts from before the acquire was sent, in whole milliseconds. `lease` is between
    /// 10 ms and a hundred years; otherwise each acquire fails with [`Error::InvalidLease`]. At the
    /// end of the lease the hold is lost, with the reason [`LostReason::Expired`].
    ///
    /// A nested acquire never shortens the lease of the thread's hold. If a guard of the hold is
    /// watched, the hold is renewed as long as the watched guard exists.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.spec.set_lease(lease);
        self
    }

    /// The same lock, with holds of at least `min_hold`: after an earlier release, the lock stays
    /// held on the server for the rest of `min_hold`, and then expires.
    ///
    /// The setting is for a job, however short, that must not run again at once. The release is
    /// sent as usual, and `unlock` does not wait for the rest of `min_hold`. From the release on,
    /// [`is_held`](LockGuard::is_held) is false, and nothing renews the hold. Every acquire finds a
    /// busy lock, also on the same thread. A waiter, also a waiter of Redisson, gets the lock when
    /// the time is over. [`force_unlock`](Self::force_unlock) ends the hold earlier.
    ///
    /// The time counts from the first acquire of the hold, also for a nested acquire. The longest
    /// `min_hold` of a hold applies. `min_hold` is between 10 ms and a hundred years, or zero for
    /// no minimum hold; otherwise the acquire fails with [`Error::InvalidLease`].
    ///
    /// `min_hold` may be longer than the lease. But the server learns of the minimum hold only from
    /// the release: if the process dies before the release, the lock is free at the end of the
    /// lease. A late release prolongs the hold by the delay. A write lock whose thread also has the
    /// read lock is released at once, without a minimum hold. For members of a
    /// [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock) the setting has no effect.
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
    /// `wheellock_acquires_total`, `wheellock_wait_seconds` and `wheellock_held_seconds` carry the
    /// text as `label`. Without the feature the label has no effect.
    ///
    /// A label names a purpose of locks, such as `checkout`, and not each of many locks: the text
    /// is a part of the program, not external input. A client distinguishes 64 labels, in the order
    /// of the first acquires, and counts all further labels as `other`. Each label costs the client
    /// about 8 KiB of memory for each [kind](crate::Acquires::of) of lock acquired under the label,
    /// and costs a recorder three more series. Acquires of a lock without a label are counted
    /// without a label. [`Stats::acquires`](crate::Stats::acquires) counts all acquires, whatever
    /// the label.
    ///
    /// A nested guard joins the existing hold and does not change the hold's label.
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

    /// Acquires the lock, and waits without a limit.
    ///
    /// The waiter does not poll: a release wakes the waiter. In case the message of the release is
    /// lost, the waiter tries again after a second at most, or, behind others in the queue of a
    /// fair lock, after five seconds at most. The waiters of a
    /// [`spin_lock`](crate::Client::spin_lock) and of a [`simple_lock`](crate::Client::simple_lock)
    /// poll, with the pauses of [`with_backoff`](Self::with_backoff). A nested acquire does not
    /// wait, and costs a round trip.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidName`], [`Error::InvalidLease`], [`Error::InvalidSetting`] - the name or a
    ///   setting of the lock cannot be used. Permanent; nothing was sent.
    /// * [`Error::AlreadyHeld`] - the caller holds the lock, and this kind of lock does not nest.
    ///   Permanent while the hold lasts.
    /// * [`Error::Upgrade`] - the caller holds the read lock and requests the write lock. Permanent
    ///   while the read hold lasts.
    /// * [`Error::WrongType`] - the key contains something that is not a lock, or a simple lock
    ///   although this lock is of another kind, or the reverse. Permanent.
    /// * [`Error::Unreachable`] - no connection to the server was made, or none was free, for twice
    ///   the command timeout. Transient; the command did not run.
    /// * [`Error::OutcomeUnknown`] - the server did not answer for twice the command timeout.
    ///   Transient. Nothing is held; a hold possibly created by the command is released in the
    ///   background.
    /// * [`Error::Refused`] - the server refused the command, by a code that is
    ///   [transient](Error::is_retryable) or permanent. The client retries most transient codes for
    ///   twice the command timeout.
    /// * [`Error::Authentication`], [`Error::Tls`], [`Error::InvalidUrl`] - the server and the
    ///   client do not accept each other, or the URL does not fit the server. Permanent; nothing
    ///   ran.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the hold. Transient; nothing is held.
    /// * [`Error::Lost`] - the grant was late: the lease was over when the answer arrived. Nothing
    ///   is held; another call may succeed.
    /// * [`Error::Deadlock`] - the wait is part of a cycle of waits: only with
    ///   [`OnDeadlock::Fail`](crate::OnDeadlock::Fail). Transient; nothing is held.
    /// * [`Error::WatchdogGone`] - the renewal thread has ended, and nothing would renew the hold.
    ///   Permanent for this client.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent for this client.
    /// * [`Error::Forked`] - this process is a fork of the client's process. Permanent.
    pub fn lock(&self) -> Result<G, Error> {
        match self.try_lock_with(Wait::forever())? {
            Some(guard) => Ok(guard),
            // Not reached: a wait without a limit does not time out.
            None => Err(Error::Cancelled { name: self.name() }),
        }
    }

    /// Acquires the lock if free, with a single try. Returns `None` if another owner holds the
    /// lock, or if others wait in the queue of a fair lock.
    ///
    /// For a [`sendable`](Self::sendable) lock, and for a
    /// [`simple_lock`](crate::Client::simple_lock), a hold of the calling thread counts as a hold
    /// of another owner. The call does not wait for a release by another owner; the call waits for
    /// the server, for twice the command timeout at most.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock). Also [`Error::OutcomeUnknown`] if the server has not
    /// [acknowledged](crate::guide::dropping) an earlier release by this client: possibly no owner
    /// holds the lock. Transient.
    pub fn try_lock(&self) -> Result<Option<G>, Error> {
        self.try_lock_with(Wait::none())
    }

    /// Acquires the lock, and waits for [at most](Wait::at_most) `limit`. Returns `None` if the
    /// wait ends without the lock, because another owner held the lock or was ahead in the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`try_lock_with`](Self::try_lock_with), except [`Error::Cancelled`].
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<G>, Error> {
        self.try_lock_with(limit)
    }

    /// Acquires the lock, and waits [until](Wait::until) `deadline`. Returns `None` if the wait
    /// ends without the lock, because another owner held the lock or was ahead in the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`try_lock_with`](Self::try_lock_with), except [`Error::Cancelled`].
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<G>, Error> {
        self.try_lock_with(deadline)
    }

    /// Acquires the lock, and waits as long as [`wait`](Wait) says. Returns `None` if the wait ends
    /// without the lock, because another owner held the lock or was ahead in the queue.
    ///
    /// A wait for a fair lock that ends without the lock leaves the queue on the server: before the
    /// return if the server acknowledges in time, else in the background.
    ///
    /// # Errors
    ///
    /// * The errors of [`lock`](Self::lock), at the end of the wait at the latest.
    /// * [`Error::Unreachable`] or [`Error::OutcomeUnknown`] - the server has not answered by the
    ///   end of the wait, and no thread of this client had the lock. Or the server has not
    ///   [acknowledged](crate::guide::dropping) an earlier release by this client: possibly no
    ///   owner holds the lock. Transient.
    /// * [`Error::Cancelled`] - the caller [cancelled](Wait::or_cancelled) the wait. Nothing is
    ///   held.
    #[expect(single_use_lifetimes, reason = "it cannot be elided in an `impl Trait`")]
    pub fn try_lock_with<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<G>, Error> {
        let core = self.spec.core()?;
        let wait = wait.into().begin(&*core.clock);
        Ok(acquire(&core, &self.spec, &self.local_holder(), wait)?.map(G::from_raw))
    }

    /// The lock's name with the client's [prefix](crate::Client::with_prefix). A name of more than
    /// 80 characters is truncated. An invalid name is returned too.
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

    /// Whether any owner holds the lock, according to the server. Costs a round trip.
    ///
    /// A lock in a [cache](Self::with_cache), or released before the end of its [minimum
    /// hold](Self::with_min_hold), counts as held. For a half of a read-write lock, the result is
    /// whether there is a reader, or whether there is a writer. For all other locks, only the
    /// existence of the key is checked: a lock of another kind or foreign data under the name
    /// counts as held too.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// key of a read-write lock contains something else.
    pub fn is_locked(&self) -> Result<bool, Error> {
        self.spec.call(&by_kind::is_locked(self.spec.kind, self.spec.name()?))
    }

    /// How long the current owner holds the lock without a renewal, according to the server. Costs
    /// a round trip.
    ///
    /// The result is the time to live of the key: `None` if there is no key, and so no holder;
    /// [`Duration::MAX`] if the key never expires, as no key of this crate's locks. The halves of a
    /// read-write lock share the key, and return the same time.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock).
    pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.spec.call(&TimeToLive(self.spec.name()?))
    }

    /// The holder of the lock, according to the server. `None` if the lock is free, or if the key
    /// contains a number, such as the number of a semaphore. With several readers, any reader.
    ///
    /// Costs a round trip for the lock, and one for the record of each other client among the
    /// holders and in the queue of a fair lock, for at most 100 clients. The holder is not
    /// disturbed. For a Redisson thread only the owner and the rest of the lease are known. A
    /// [`RedLock`](crate::RedLock) and a [`MultiLock`](crate::MultiLock) have a holder for each
    /// member: query the member locks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// key contains no lock.
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        Ok(self.holders()?.into_iter().next())
    }

    /// All holders of the lock, according to the server; about 1,000 holders if there are more.
    /// Empty if the lock is free.
    ///
    /// Only the read half of a read-write lock has several holders. A write half returns the
    /// writer's hold, a read half the readers' holds. Costs the round trips of
    /// [`holder`](Self::holder).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// key contains no lock.
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        let mut holders = status_of(&self.spec.core()?, &self.spec.name()?)?.holders;
        match self.spec.kind {
            Kind::Read => holders.retain(|holder| holder.shared),
            Kind::Write => holders.retain(|holder| !holder.shared),
            _ => {}
        }
        Ok(holders)
    }

    /// The waiters for the lock, in this client and elsewhere.
    ///
    /// The waiters of a fair lock are known exactly and in order. For other kinds, the number of
    /// clients that are [subscribed](Waiters::elsewhere) to the lock's messages is known. Costs the
    /// round trips of [`holder`](Self::holder).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// key contains no lock.
    pub fn waiters(&self) -> Result<Waiters, Error> {
        Ok(status_of(&self.spec.core()?, &self.spec.name()?)?.waiters)
    }

    /// Whether the calling thread, or the [owner](Self::with_owner), holds the lock for certain.
    /// Local: no round trip.
    ///
    /// Always `false` for a [`sendable`](Self::sendable) lock: call the guard's `is_held` instead.
    #[must_use]
    pub fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// The number of guards of the calling thread, or of the [owner](Self::with_owner). Local: no
    /// round trip.
    ///
    /// Zero without a hold, after a loss, for a [`sendable`](Self::sendable) lock, and in the child
    /// of a fork.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.spec.held_by(&self.local_holder()).map_or(0, |hold| hold.guards())
    }

    /// Asks the holders of the lock to release the lock, for a deploy or for more urgent work.
    /// Returns the number of clients that hold the lock, and how many of these clients receive the
    /// message.
    ///
    /// The call sends one message with `reason`, of 1,000 bytes at most, to the client of each
    /// holder. The message goes to all holders of the name, whatever the kind of their lock. So any
    /// `Lock` of the name will do. A hold that was released before the end of its [minimum
    /// hold](Self::with_min_hold) gets no message, and is not counted.
    ///
    /// No hold ends by the message alone. A holder receives the message by the guard's
    /// [`revocation`](crate::LockGuard::revocation), and releases the lock or continues. Only a
    /// [cached](Self::with_cache) hold, which has no guard, is released at once. The server does
    /// not store the message: a client without a subscription at this time, such as Redisson, never
    /// receives the message.
    ///
    /// Costs the round trips of [`holder`](Self::holder), and one for the client of each holder.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let lock = Client::in_memory().lock("orders:42");
    /// let guard = lock.lock()?;
    /// assert!(!guard.is_asked()); // from here on this client receives requests
    /// let asked = lock.ask("deploy of 2.1")?;
    /// assert_eq!((asked.holders, asked.heard), (1, 1));
    /// assert!(guard.is_asked() && guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidSetting`] - the reason is too long. Permanent; nothing was sent.
    /// * [`Error::WrongType`] - the key contains no lock. Permanent.
    /// * [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    ///   [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    ///   [`Error::Forked`], as explained at [`lock`](Self::lock). Some holders may have received
    ///   the message.
    pub fn ask(&self, reason: &str) -> Result<Asked, Error> {
        ask(&self.spec.core()?, &self.spec.name()?, reason)
    }

    /// Ends every hold of the lock, whoever the owner is, and wakes a waiter. Returns whether there
    /// was a hold. Costs a round trip. The call is meant for an operator.
    ///
    /// A holder of this client is notified at once. Any other holder notices the loss at the next
    /// renewal; a holder whose hold is not renewed notices only when the guard is extended or
    /// released. Until then two owners may hold the lock.
    ///
    /// The call ends any content of the key that [`Client::status`](crate::Client::status) reports
    /// as a lock of this kind, including holds of other programs. Different content of the key
    /// stays: other data, a simple lock if this lock is of another kind, or a read-write lock if
    /// this lock is not a half of a read-write lock. The read half ends nothing and returns `false`
    /// while there is a writer.
    ///
    /// # Errors
    ///
    /// * [`Error::WrongType`] - the key has different content, which the error names. Permanent;
    ///   nothing was changed.
    /// * [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    ///   [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    ///   [`Error::Forked`], as explained at [`lock`](Self::lock). After `OutcomeUnknown` the holds
    ///   may have ended; a repeated call also ends a hold that was granted meanwhile.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        let (name, kind) = (self.spec.name()?, self.spec.kind);
        let core = self.spec.core()?;
        let own = core.holds.of_name(&name);
        // A thread that got such a hold by a hand-over now would not notice the loss.
        let _forced: Vec<_> = own.iter().map(ForcedRelease::begin).collect();
        let request = begin_request(&core, &name);
        let ended = self.spec.call(&by_kind::force_release(kind, name, request))?;
        // If the server has ended a hold, holds of another layout may be gone too: a writer may
        // read. If the server found no hold, the holds of this layout are gone as well: an earlier
        // copy of the command has ended the hold, or the hold was gone before. Only a reader under
        // the same holder's write hold still exists: the lock was not in mode read.
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

    /// Counts a panic of a closure called for this lock.
    pub(crate) fn count_panic(&self) {
        if let Ok(core) = self.spec.core() {
            core.events.count_panic();
        }
    }

    /// Returns the owner of an acquire now: the lock's owner, or the calling thread.
    fn local_holder(&self) -> LocalHolder {
        self.owner.clone().unwrap_or_else(LocalHolder::current_thread)
    }

    /// The same lock, with guards to send to another thread or to hold across an `.await`.
    ///
    /// Each acquire has a new owner, so the lock never nests: while a guard exists, every further
    /// acquire waits or returns `None`, also on the same thread, task or handle. Only a read lock
    /// can have several guards at the same time: each guard is a reader. A task that has the guard
    /// of a watched hold and waits without a limit for the same lock waits forever. For the same
    /// reason a read lock is not granted under the write lock of the same task.
    ///
    /// All kinds of locks can be sendable. A sendable lock excludes the same locks of the name as
    /// before. A [`lock`](crate::Client::lock) is [handed over](crate::guide::hand_over) between
    /// threads, sendable or not.
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

    /// The same lock for the named `owner` instead of the calling thread. The guards may be sent to
    /// another thread, and an acquire for the same name of an owner nests on any thread.
    ///
    /// **Two tasks with the same owner name at the same time are both let in.** On this client,
    /// both tasks are the same owner: when the first task is granted the lock, the second task
    /// nests, even after a wait. So an owner name must stand for a single task at a time. Use a
    /// named owner to nest across threads. Only to send a guard, use [`sendable`](Self::sendable),
    /// where two tasks are never let in.
    ///
    /// On the server an owner is still the client's identity and a number, new for each hold; the
    /// name stays in this process. An owner of the same name on another client is a different
    /// owner.
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

    /// The same lock, with `backoff` for the pauses between the tries of a waiter.
    ///
    /// The setting has an effect only on locks whose waiters poll: a
    /// [`spin_lock`](crate::Client::spin_lock) and a [`simple_lock`](crate::Client::simple_lock).
    /// Waiters of other kinds are woken. The default is 1 to 128 ms.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.spec.backoff = backoff;
        self
    }
}

/// A forced release of a hold's name by this client, counted in the hold. While such a release is
/// counted, until the drop, no thread hands the hold over.
struct ForcedRelease<'a>(&'a Hold);

impl<'a> ForcedRelease<'a> {
    /// Counts a forced release in `hold`, until the drop of the result.
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
    /// The same lock, retained by this client between two uses for at most `time`. The next acquire
    /// of the name by any thread of this client sends no request.
    ///
    /// **The price.** While the lock is cached, nobody uses the lock, and the server reports this
    /// client as the holder:
    ///
    /// * A single try elsewhere is refused.
    /// * If this process dies between two uses, waiters wait for the rest of the lease.
    /// * A waiter of another client waits for up to `time` longer, unless the waiter's client
    ///   caches the lock too.
    /// * [`Client::status`](crate::Client::status) shows the lock as held.
    ///
    /// A refused client with a cache for the same lock notifies the holder's client. The holder's
    /// client releases a cached lock at once, and a lock in use at the next release, and does not
    /// cache the name for a second. Redisson, and clients without a cache for the lock, notify
    /// nobody.
    ///
    /// `time` counts from the first release into the cache, however often the lock is used
    /// meanwhile. At the end of `time` the lock is released; a lock in use is released by the next
    /// release. So other clients wait for `time` and a single use at most. `time` is between 1 ms
    /// and a third of the [lease](crate::ClientBuilder::watchdog_lease). A client caches at most
    /// [1,024 locks](crate::ClientBuilder::max_cached_locks), unless set otherwise. Nothing is
    /// cached before the server has confirmed the client's subscription to such notifications.
    ///
    /// A cached lock is renewed like a used lock. The loss of a cached lock is not reported, only
    /// [counted](crate::CacheStats::lost). [`Client::shutdown`](crate::Client::shutdown) and the
    /// end of the last client release all cached locks. A child of a fork has nothing cached.
    ///
    /// Only a watched [`lock`](crate::Client::lock), sendable or not, can be cached. The acquire
    /// fails with [`Error::InvalidSetting`] for a lock with a [lease](Self::with_lease) or a
    /// [minimum hold](Self::with_min_hold), for a [named owner](Self::with_owner), for another
    /// kind, for a member of a [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock), or
    /// with a `time` outside of the limits.
    ///
    /// The [guide](crate::guide::cache) says when a cache helps. The idea is from cluster file
    /// systems, whose nodes retain a lock until another node requests the lock.
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
    /// The last [fencing token](FencedGuard::token) that the server has drawn for the name, by any
    /// client. Zero if no token was drawn. Costs a round trip.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// counter's key contains something else.
    pub fn last_token(&self) -> Result<u64, Error> {
        Ok(self.spec.call(&LastToken::new(&self.spec.name()?))?.unwrap_or(0))
    }
}

impl Lock<OwnedGuard> {
    /// The last [fencing token](FencedGuard::token) that the server has drawn for the name, by any
    /// client. Zero if no token was drawn. `None` if the lock is not a [fenced
    /// lock](crate::Client::fenced_lock).
    ///
    /// Costs a round trip for a fenced lock; sends nothing otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Unreachable`], [`Error::OutcomeUnknown`],
    /// [`Error::Refused`], [`Error::Authentication`], [`Error::Tls`], [`Error::Shutdown`] or
    /// [`Error::Forked`], as explained at [`lock`](Self::lock). Also [`Error::WrongType`], if the
    /// counter's key contains something else. No error if the lock is not fenced.
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
