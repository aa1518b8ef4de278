//! The guards of a lock: what its holder may ask of them, and how they release the lock.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::MutexGuard;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::core::lost_future::LostFuture;
use crate::core::raw_guard::RawGuard;
use crate::core::revocation_future::RevocationFuture;
use crate::error::{Error, LostReason};
use crate::hold::revocation::{Revocation, channel_of};

/// A held lock. Dropping it releases the lock.
///
/// It belongs to the thread that acquired it and cannot be sent to another, as the lock is
/// reentrant: the same thread may acquire it again, and gets one guard each time. References to it
/// may be shared, so that a helper thread can ask [`is_held`](Self::is_held). For a guard that can
/// be sent, make the lock [`sendable`](crate::Lock::sendable).
///
/// **Ask the guard. That code runs after `lock()` does not prove that the lock is still held.** A
/// process can be stopped for longer than its lease, and a server can lose a key. Ask `is_held`, or
/// [`check`](Self::check), before each step that must not happen twice, or select on
/// [`lost`](Self::lost).
///
/// Dropping it sends the release and does not wait for the answer; see [the
/// guide](crate::guide::dropping). It takes one command timeout at most, and never panics. A
/// release that is not acknowledged is finished in the background. [`unlock`](Self::unlock) waits
/// for the answer and returns the result. The hold of a guard that is forgotten ([`mem::forget`])
/// is renewed for ever, unless the client has a [`max_hold`](crate::ClientBuilder::max_hold).
///
/// [`mem::forget`]: std::mem::forget
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").lock()?;
/// assert!(guard.is_held());
/// guard.unlock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
///
/// # To send a guard
///
/// A guard that is moved to another thread, or held across an `.await` of a task that is spawned,
/// does not compile:
///
/// ```compile_fail,E0277
/// let lock = wheellock::Client::in_memory().lock("orders:42");
/// let guard = lock.lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// ```text
/// error[E0277]: `MutexGuard<'static, ()>` cannot be sent between threads safely
///   = note: required because it appears within the type `ThisThread`
///   = note: required because it appears within the type `LockGuard`
/// ```
///
/// The marker [`ThisThread`] is like a standard guard, which stays on its thread too, and the
/// compiler names that. For an async function it says `future cannot be sent between threads
/// safely`, and then the same. Make the lock [`sendable`](crate::Lock::sendable):
///
/// ```
/// let lock = wheellock::Client::in_memory().lock("orders:42").sendable();
/// let guard = lock.lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// Its guards are [`OwnedGuard`]s, that is `LockGuard<AnyThread>`, and it never nests. The
/// [guide](crate::guide::async_programs) shows them in async programs.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard<T = ThisThread> {
    raw: RawGuard,
    thread: PhantomData<T>,
}

/// A lock held by no thread: that of a [sendable](crate::Lock::sendable) lock, or of a [named
/// owner](crate::Lock::with_owner). Dropping it releases the lock.
///
/// It does all that a [`LockGuard`] does, and may be sent to another thread and released there.
///
/// ```
/// use wheellock::{Client, OwnedGuard};
///
/// let client = Client::in_memory();
/// let guard: OwnedGuard = client.lock("orders:42").sendable().lock()?;
/// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
pub type OwnedGuard = LockGuard<AnyThread>;

/// Of a guard: it belongs to the thread that acquired the lock, and cannot be sent to another.
#[derive(Debug)]
pub struct ThisThread {
    /// A standard guard can be shared but not sent, and so can these.
    _thread: PhantomData<MutexGuard<'static, ()>>,
}

/// Of a guard: it belongs to no thread, and may be sent to another and released there.
#[derive(Debug)]
pub struct AnyThread;

impl<T> LockGuard<T> {
    /// Whether the lock is held for certain. Local: no round trip.
    ///
    /// The lease counts from before its request was sent, by the client's clock. So this is `false`
    /// at the first instruction after a pause that outlasted the lease. Once it is `false` it stays
    /// so. In the child of a fork it is `false`: the parent holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.raw.is_held()
    }

    /// An error unless the lock is held for certain: [`is_held`](Self::is_held) in a form for `?`,
    /// before each step that must not happen twice. Local: no round trip.
    ///
    /// ```
    /// use wheellock::{Client, Error, LockGuard};
    ///
    /// fn two_steps(guard: &LockGuard) -> Result<(), Error> {
    ///     guard.check()?;
    ///     // the first step
    ///     guard.check()?;
    ///     // the second step
    ///     Ok(())
    /// }
    ///
    /// let client = Client::in_memory();
    /// two_steps(&client.lock("orders:42").lock()?)?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is no longer held, with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.raw.check()
    }

    /// How long the lock is held for certain, without a renewal to come. Zero once it is lost.
    /// Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.raw.remaining()
    }

    /// Asks the server to keep the lock for `lease` from now on, and waits for the reply: the hold
    /// lasts at least for `lease`. A hold with a later end keeps its end.
    ///
    /// For a lock [with a lease](crate::Lock::with_lease) whose work takes longer than expected. A
    /// watched hold may be extended too, beyond the next renewals. All guards of the hold have the
    /// new end. One round trip.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let guard = client.lock("report").with_lease(Duration::from_secs(60)).lock()?;
    /// guard.extend(Duration::from_secs(600))?;
    /// assert!(guard.remaining() > Duration::from_secs(500));
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidLease`] - `lease` is out of bounds. Permanent; nothing was sent.
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The hold has the end that it had. After
    ///   `OutcomeUnknown` the server may keep the key for `lease`; a release ends that.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.raw.extend(lease)
    }

    /// From now on the watchdog renews the hold until this guard is gone, with the client's
    /// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease), as if the lock had no
    /// [lease of its own](crate::Lock::with_lease). Does nothing for a watched guard. One round
    /// trip.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let guard = client.lock("report").with_lease(Duration::from_secs(60)).lock()?;
    /// guard.watch()?;
    /// assert!(client.holds()[0].watched);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend), and [`Error::WatchdogGone`]: the thread that would renew the
    /// hold has ended. After an error the guard is not watched.
    pub fn watch(&self) -> Result<(), Error> {
        self.raw.watch()
    }

    /// A channel that gets one message if the hold is lost: the reason. It closes without one when
    /// this guard is gone, even if other guards of the hold are left.
    ///
    /// Each guard has one channel. Clones of the receiver share its one message.
    ///
    /// ```
    /// use wheellock::{Client, LostReason, Memory};
    ///
    /// let memory = Memory::new();
    /// let client = Client::builder().in_memory(&memory).build()?;
    /// let guard = client.lock("orders:42").lock()?;
    /// client.lock("orders:42").force_unlock()?;
    /// wheellock::crossbeam_channel::select! {
    ///     recv(guard.lost()) -> reason => assert_eq!(reason, Ok(LostReason::Deleted)),
    /// }
    /// assert!(!guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.raw.lost()
    }

    /// A future that is ready when the hold is lost, with the reason, or when this guard is gone,
    /// with `None`. For async programs: [the guide](crate::guide::async_programs) has an example.
    ///
    /// The first one of a client starts its thread `lock-wakers`, which wakes all of them. See
    /// [`LostFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread. Transient.
    pub fn lost_future(&self) -> Result<LostFuture, Error> {
        self.raw.lost_future()
    }

    /// A channel that gets one message when somebody [asks](crate::Lock::ask) this client to let the
    /// lock go: a request, and no loss. The holder ends its work and drops the guard, or goes on. The
    /// channel closes without a message when this guard is gone.
    ///
    /// The first call of a client subscribes to its channel and returns at once: a request that is
    /// sent before the server has confirmed the subscription is not heard.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let lock = Client::in_memory().lock("orders:42");
    /// let guard = lock.lock()?;
    /// let asked = guard.revocation().clone();
    /// lock.ask("deploy")?; // mostly from another process
    /// assert_eq!(asked.recv().unwrap().reason, "deploy");
    /// assert!(guard.is_asked() && guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.raw.revocation())
    }

    /// Whether somebody has asked this client to let the lock go. As
    /// [`revocation`](Self::revocation). Local: no round trip.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.raw.revocation().is_some_and(|signal| signal.is_asked())
    }

    /// A future that is ready when somebody asks this client to let the lock go, or when this guard is
    /// gone, with `None`. As [`revocation`](Self::revocation).
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread that wakes its task. Transient.
    pub fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        self.raw.revocation_future()
    }

    /// The lock's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.raw.name()
    }

    /// The owner under which the server keeps the lock: the client's identity and the number of
    /// this hold. Threads that [hand it over](crate::guide::hand_over) have the same.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.raw.owner()
    }

    /// The fencing token of this hold: a number by which a resource refuses older holders. The server
    /// draws the token at the first call, and all guards of the hold have the same token from then on.
    /// One round trip, or none if the hold has a token.
    ///
    /// A token is larger than the tokens of all earlier holds of this name, of any kind of lock and in
    /// any process, Redisson's fenced locks included. The counter is the key
    /// `redisson_lock_token:{name}`, which never expires. If a failover or a restart loses its last
    /// steps, tokens grow all the same: a new token is at least the server's clock in microseconds. That
    /// order breaks if the clock of the new master is behind, or if the counter was ahead of the clock.
    /// With [`replica_acks`](crate::ClientBuilder::replica_acks) replicas acknowledge the token.
    ///
    /// A token of a read lock is larger than those of all earlier writers, and smaller than those of
    /// all later writers. Under the thread's own write lock, a read lock has a token of its own. A [fenced lock](crate::Client::fenced_lock) has its token from its acquire,
    /// with no further round trip. A [cached](crate::Lock::with_cache) lock whose token was drawn is
    /// released to the server, since the next use needs a token of its own. [Fencing, step by
    /// step](crate::guide::fencing) tells what to do with the number.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let lock = Client::in_memory().fair_lock("orders:42");
    /// let first = lock.lock()?.draw_token()?;
    /// let second = lock.lock()?.draw_token()?;
    /// assert!(second > first);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`], [`Error::Refused`] - no reply within twice
    ///   the command timeout, or a refusal. The hold stays as it is, and a token that was drawn
    ///   meanwhile is never used. Transient.
    /// * [`Error::NotReplicated`] - too few replicas have acknowledged the token, which is never used.
    ///   Transient.
    /// * [`Error::WrongType`] - the key of the lock or of the counter holds something else. Permanent.
    pub fn draw_token(&self) -> Result<u64, Error> {
        self.raw.draw_token()
    }

    /// Releases the lock. `Ok` means that it was held until now and is free, or was [handed
    /// over](crate::guide::hand_over) to the next thread of this client.
    ///
    /// If other guards of this hold are left, it stays held, and only its count goes down.
    ///
    /// The hold is over in this process before the first byte is sent, whatever the result.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - it was no longer held. Another owner may have held it at the same time.
    ///   A new owner's hold is not touched.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release within twice the command timeout. It is finished in the
    ///   background; at worst the lease ends it.
    pub fn unlock(self) -> Result<(), Error> {
        self.raw.release()
    }

    /// Gives the lock up without freeing it: nobody gets it before what is
    /// [left](Self::remaining) of its lease is over. It is not renewed any more, and ends by
    /// itself.
    ///
    /// From now on `is_held` is false. If other guards of this hold are left, it goes on, and the
    /// release of the last one frees the lock no earlier than this. As
    /// [`with_min_hold`](crate::Lock::with_min_hold), for a time that is known only at the end.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let lock = client.lock("report").with_lease(Duration::from_secs(600));
    /// lock.lock()?.keep_until_lease_ends()?;
    /// assert!(lock.try_lock()?.is_none());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`unlock`](Self::unlock).
    pub fn keep_until_lease_ends(self) -> Result<(), Error> {
        self.raw.keep_until_lease_ends()
    }
}

impl LockGuard<AnyThread> {
    /// The [fencing token](crate::FencedGuard::token), if the lock is a fenced one or a token was
    /// [drawn](Self::draw_token). Local: no round trip.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.raw.token()
    }
}

impl<T> fmt::Debug for LockGuard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt_as("LockGuard", formatter)
    }
}

/// A held [`FencedLock`](crate::FencedLock): a [`LockGuard`] with a fencing token.
///
/// The token is a number that the server drew when it granted the hold. Every later hold has a
/// larger one. A resource that remembers the largest token it has seen, and refuses requests with a
/// smaller one, is safe from a holder that has lost its lock and does not know it yet.
///
/// ```
/// use wheellock::Client;
///
/// /// A file, a table or a service that remembers the last writer's token.
/// #[derive(Default)]
/// struct Register {
///     token: u64,
///     value: String,
/// }
///
/// impl Register {
///     fn write(&mut self, token: u64, value: &str) -> Result<(), &'static str> {
///         if token < self.token {
///             return Err("a later holder has written already");
///         }
///         self.token = token;
///         self.value = value.to_owned();
///         Ok(())
///     }
/// }
///
/// let client = Client::in_memory();
/// let mut register = Register::default();
/// let first = client.fenced_lock("orders:42").lock()?;
/// let stale = first.token();
/// drop(first);
///
/// let second = client.fenced_lock("orders:42").lock()?;
/// assert!(second.token() > stale);
/// assert!(register.write(second.token(), "new").is_ok());
/// assert!(register.write(stale, "old").is_err());
/// # Ok::<(), wheellock::Error>(())
/// ```
///
/// Nested guards of one hold have one token. The idea is Redisson's (`RFencedLock`), and before it
/// Martin Kleppmann's (How to do distributed locking, 2016).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct FencedGuard {
    guard: LockGuard,
    token: u64,
}

impl FencedGuard {
    /// The fencing token: larger than that of every hold before, of any owner. At least the
    /// server's clock in microseconds when it was drawn. Local: no round trip.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock. As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<(), Error> {
        self.guard.unlock()
    }

    /// Gives the lock up without freeing it. As [`LockGuard::keep_until_lease_ends`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    pub fn keep_until_lease_ends(self) -> Result<(), Error> {
        self.guard.keep_until_lease_ends()
    }
}

impl Deref for FencedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for FencedGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FencedGuard")
            .field("name", &self.name())
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A guard of a [`Lock`](crate::Lock): [`LockGuard`], [`FencedGuard`] or
/// [`OwnedGuard`]. It cannot be implemented outside of this crate.
///
/// For code that is generic over the guard. The guards have the same methods themselves.
///
/// ```
/// use wheellock::{Error, Guard, Lock};
///
/// fn with_lock<G: Guard>(lock: &Lock<G>, work: impl FnOnce(&G)) -> Result<(), Error> {
///     let guard = lock.lock()?;
///     work(&guard);
///     guard.check()?;
///     guard.unlock()
/// }
///
/// let client = wheellock::Client::in_memory();
/// with_lock(&client.fenced_lock("orders:42"), |guard| println!("{}", guard.token()))?;
/// # Ok::<(), Error>(())
/// ```
pub trait Guard: FromRawGuard {
    /// Whether the lock is held for certain. As [`LockGuard::is_held`].
    #[must_use]
    fn is_held(&self) -> bool {
        self.raw().is_held()
    }

    /// An error unless the lock is held for certain. As [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is no longer held, with the reason.
    fn check(&self) -> Result<(), Error> {
        self.raw().check()
    }

    /// How long the lock is held for certain, without a renewal to come. As
    /// [`LockGuard::remaining`].
    #[must_use]
    fn remaining(&self) -> Duration {
        self.raw().remaining()
    }

    /// Asks the server to keep the lock for `lease` from now on. As [`LockGuard::extend`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::extend`].
    fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.raw().extend(lease)
    }

    /// The watchdog renews the hold from now on. As [`LockGuard::watch`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::watch`].
    fn watch(&self) -> Result<(), Error> {
        self.raw().watch()
    }

    /// A channel that gets one message if the hold is lost. As [`LockGuard::lost`].
    #[must_use]
    fn lost(&self) -> &Receiver<LostReason> {
        self.raw().lost()
    }

    /// A future that is ready when the hold is lost or this guard is gone. As
    /// [`LockGuard::lost_future`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused a thread. Transient.
    fn lost_future(&self) -> Result<LostFuture, Error> {
        self.raw().lost_future()
    }

    /// A channel that gets one message when somebody asks for the lock. As
    /// [`LockGuard::revocation`].
    #[must_use]
    fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.raw().revocation())
    }

    /// Whether somebody has asked for the lock. As [`LockGuard::is_asked`].
    #[must_use]
    fn is_asked(&self) -> bool {
        self.raw().revocation().is_some_and(|signal| signal.is_asked())
    }

    /// A future that is ready when somebody asks for the lock. As
    /// [`LockGuard::revocation_future`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused a thread. Transient.
    fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        self.raw().revocation_future()
    }

    /// The lock's name, cut short if it is very long.
    #[must_use]
    fn name(&self) -> String {
        self.raw().name()
    }

    /// The owner under which the server keeps the lock. As [`LockGuard::owner`].
    #[must_use]
    fn owner(&self) -> &str {
        self.raw().owner()
    }

    /// The fencing token of this hold, drawn at the first call. As [`LockGuard::draw_token`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::draw_token`].
    fn draw_token(&self) -> Result<u64, Error> {
        self.raw().draw_token()
    }

    /// Releases the lock. As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    fn unlock(self) -> Result<(), Error>
    where
        Self: Sized,
    {
        self.into_raw().release()
    }

    /// Gives the lock up without freeing it. As [`LockGuard::keep_until_lease_ends`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    fn keep_until_lease_ends(self) -> Result<(), Error>
    where
        Self: Sized,
    {
        self.into_raw().keep_until_lease_ends()
    }
}

mod sealed {
    /// What only this crate can do.
    pub trait FromRawGuard {
        #[doc(hidden)]
        fn from_raw(raw: crate::core::raw_guard::RawGuard) -> Self;

        #[doc(hidden)]
        fn raw(&self) -> &crate::core::raw_guard::RawGuard;

        #[doc(hidden)]
        fn into_raw(self) -> crate::core::raw_guard::RawGuard;
    }
}

pub(crate) use sealed::FromRawGuard;

impl<T> Guard for LockGuard<T> {}
impl Guard for FencedGuard {}

impl<T> FromRawGuard for LockGuard<T> {
    fn from_raw(raw: RawGuard) -> Self {
        Self { raw, thread: PhantomData }
    }

    fn raw(&self) -> &RawGuard {
        &self.raw
    }

    fn into_raw(self) -> RawGuard {
        self.raw
    }
}

impl FromRawGuard for FencedGuard {
    fn from_raw(raw: RawGuard) -> Self {
        // The acquire of a fenced lock sees to it that there is one. Zero would be refused by every
        // resource.
        let token = raw.token().unwrap_or(0);
        Self { guard: LockGuard::from_raw(raw), token }
    }

    fn raw(&self) -> &RawGuard {
        &self.guard.raw
    }

    fn into_raw(self) -> RawGuard {
        self.guard.raw
    }
}
