//! The guards of a lock: the operations of a holder, and the release.

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

/// A held lock. Dropping the guard releases the lock.
///
/// Returned by [`Lock::lock`](crate::Lock::lock) and the other acquires of a lock.
///
/// The guard belongs to the acquiring thread and cannot be sent to another thread, as the lock is
/// reentrant: the same thread may acquire the lock again, and gets a guard each time. References to
/// the guard may be shared, so a helper thread can call [`is_held`](Self::is_held). For a guard to
/// send to another thread, make the lock [`sendable`](crate::Lock::sendable).
///
/// **Check the guard. A successful `lock()` does not prove that the lock is still held later.** A
/// process can be stopped for longer than the lease, and a server can lose a key. Call `is_held` or
/// [`check`](Self::check) before each step that must not happen twice, or select on
/// [`lost`](Self::lost).
///
/// A drop sends the release and does not wait for the answer; see [the
/// guide](crate::guide::dropping). A drop takes at most the command timeout, and never panics. A
/// release without an acknowledgement is finished in the background. [`unlock`](Self::unlock) waits
/// for the answer and returns the result. If the hold has other guards, a drop sends nothing, and
/// the lock stays held. The hold of a forgotten guard ([`mem::forget`]) is renewed for ever if the
/// guard is watched, unless the client has a [`max_hold`](crate::ClientBuilder::max_hold).
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
/// A guard moved to another thread, or held across an `.await` of a spawned task, does not compile:
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
/// The marker [`ThisThread`] contains the type of a standard guard, which cannot be sent either,
/// and the compiler names the standard type. For an async function the message begins with
/// `future cannot be sent between threads safely`. Make the lock
/// [`sendable`](crate::Lock::sendable):
///
/// ```
/// let lock = wheellock::Client::in_memory().lock("orders:42").sendable();
/// let guard = lock.lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
///
/// The guards of a sendable lock are [`OwnedGuard`]s (`LockGuard<AnyThread>`), and the lock never
/// nests. The [guide](crate::guide::async_programs) shows sendable locks in async programs.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard<T = ThisThread> {
    raw: RawGuard,
    thread: PhantomData<T>,
}

/// The guard of a [sendable](crate::Lock::sendable) lock, or of a [named
/// owner](crate::Lock::with_owner), which belongs to no thread. Dropping the guard releases the
/// lock.
///
/// An `OwnedGuard` has all methods of a [`LockGuard`], and may be sent to another thread and
/// released there.
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

/// Marker of a guard that is bound to the acquiring thread, and so cannot be sent to another
/// thread.
///
/// The type is only used as a type parameter, such as of [`LockGuard`]: no function takes or
/// returns a value of the type.
#[derive(Debug)]
pub struct ThisThread {
    /// A standard guard can be shared but not sent, and so can the marked guards.
    _thread: PhantomData<MutexGuard<'static, ()>>,
}

/// Marker of a guard that is bound to no thread: the guard may be sent to another thread, and
/// released there.
///
/// The type is only used as a type parameter, such as of [`OwnedGuard`]: no function takes or
/// returns a value of the type.
#[derive(Debug)]
pub struct AnyThread;

impl<T> LockGuard<T> {
    /// Whether the lock is held for certain. Local: no round trip.
    ///
    /// The lease counts from before the request was sent, by the client's clock. So the first call
    /// after a pause of the process that is longer than the lease returns `false`. Once a call has
    /// returned `false`, every later call returns `false`. In the child of a fork the result is
    /// `false`: the parent holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.raw.is_held()
    }

    /// Returns an error unless the lock is held for certain. Local: no round trip.
    ///
    /// The method is [`is_held`](Self::is_held) in a form for `?`, before each step that must not
    /// happen twice.
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
    /// [`Error::Lost`] - the lock is no longer held, with the reason. Permanent. In the child of a
    /// fork the reason is [`LostReason::Forked`].
    pub fn check(&self) -> Result<(), Error> {
        self.raw.check()
    }

    /// How long the lock is held for certain, without a further renewal. Local: no round trip.
    ///
    /// Zero after a loss, and in the child of a fork.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.raw.remaining()
    }

    /// Extends the lease on the server to at least `lease` from now on, and waits for the reply.
    /// Costs a round trip.
    ///
    /// The method is for a lock [with a lease](crate::Lock::with_lease) and work that takes longer
    /// than expected. If the hold already lasts longer than `lease`, the later end remains. A
    /// watched hold may be extended too, beyond the next renewals. All guards of the hold have the
    /// new end. [`max_hold`](crate::ClientBuilder::max_hold) does not limit `lease`, which is
    /// between 10 ms and a hundred years.
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
    ///   twice the command timeout, or a refusal. The end of the hold is unchanged. After
    ///   `OutcomeUnknown` the server may retain the key for `lease`, unless the lock is released.
    /// * [`Error::Shutdown`] - the client was shut down during the call. The hold is over.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.raw.extend(lease)
    }

    /// Has the watchdog renew the hold from now on, until this guard is gone, with the client's
    /// [`watchdog_lease`](crate::ClientBuilder::watchdog_lease). Costs a round trip.
    ///
    /// Afterwards the guard is like a guard of a lock without a separate
    /// [lease](crate::Lock::with_lease): the hold lasts for at least the watchdog's lease, and a
    /// later end remains. For a watched guard the method sends nothing, and changes nothing.
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
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Permanent.
    /// * [`Error::WatchdogGone`] - the thread that would renew the hold has ended. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal.
    /// * [`Error::Shutdown`] - the client was shut down during the call. The hold is over.
    ///
    /// After an error the guard is not watched, and the end of the hold is unchanged. After
    /// `OutcomeUnknown` the server may retain the key for the watchdog's lease, unless the lock is
    /// released.
    pub fn watch(&self) -> Result<(), Error> {
        self.raw.watch()
    }

    /// A channel for the loss of the hold, which receives the reason as a single message. The
    /// channel closes without a message when this guard is gone, even if the hold has other guards.
    ///
    /// A loss before the first call is received too. Each guard has a separate channel. Clones of
    /// the receiver share the single message. In the child of a fork the message is
    /// [`LostReason::Forked`].
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

    /// A future for the loss of the hold, which resolves with the reason, or with `None` when this
    /// guard is gone. For async programs: [the guide](crate::guide::async_programs) has an example.
    ///
    /// A client's first future starts the client's thread `lock-wakers`, which wakes the tasks of
    /// all futures. See [`LostFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread. Transient.
    pub fn lost_future(&self) -> Result<LostFuture, Error> {
        self.raw.lost_future()
    }

    /// A channel for a [request](crate::Lock::ask) to release the lock, which receives the first
    /// request as a single message. The channel closes without a message when this guard is gone.
    ///
    /// A request is no loss: the holder ends the work and drops the guard, or continues. Later
    /// requests for the same hold are not received. After a request the hold is not [handed
    /// over](crate::guide::hand_over) to another thread.
    ///
    /// A client's first call subscribes to the requests for all locks of the client, and returns at
    /// once: a request sent before the server has confirmed the subscription is missed. Each
    /// holder's client needs such a call before the request. In the child of a fork the channel is
    /// closed.
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

    /// Whether this client has received a [request](crate::Lock::ask) to release the lock, since
    /// the hold began. Local: no round trip.
    ///
    /// Once the result is `true`, the result stays `true`. A client's first call subscribes to
    /// requests, as for [`revocation`](Self::revocation): earlier requests are missed. In the child
    /// of a fork the result is `false`.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.raw.revocation().is_some_and(|signal| signal.is_asked())
    }

    /// A future for a [request](crate::Lock::ask) to release the lock, which resolves with the
    /// first request, or with `None` when this guard is gone.
    ///
    /// A loss of the hold does not resolve the future. A client's first call subscribes to
    /// requests, as for [`revocation`](Self::revocation). See [`RevocationFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread to wake the task. Transient.
    pub fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        self.raw.revocation_future()
    }

    /// The lock's name, with the client's prefix. A name of more than 80 characters is truncated.
    #[must_use]
    pub fn name(&self) -> String {
        self.raw.name()
    }

    /// The owner of the lock on the server: the client's identity and the number of this hold, as
    /// `UUID:NUMBER`.
    ///
    /// All guards of a hold have the same owner. A [hand-over](crate::guide::hand_over) between
    /// threads does not change the owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.raw.owner()
    }

    /// The fencing token of this hold: a number by which a resource refuses older holders. Costs a
    /// round trip, or none if the hold has a token.
    ///
    /// The server draws the token at the first call. All guards of the hold have the same token
    /// from then on.
    ///
    /// A token is larger than the tokens of all earlier holds of this name, of any kind of lock and
    /// in any process, Redisson's fenced locks included. The counter is the key
    /// `redisson_lock_token:{name}`, which never expires. If a failover or a restart loses the
    /// counter's last steps, tokens still grow: a new token is at least the server's clock in
    /// microseconds. The order breaks if the clock of the new master is behind, or if the counter
    /// was ahead of the clock. With [`replica_acks`](crate::ClientBuilder::replica_acks) replicas
    /// acknowledge the token.
    ///
    /// A token of a read lock is larger than the tokens of all earlier writers, and smaller than
    /// the tokens of all later writers. Under the thread's own write lock, a read lock has a
    /// separate token. A [fenced lock](crate::Client::fenced_lock) has a token from the acquire,
    /// with no further round trip. A hold with a token is neither handed over nor
    /// [cached](crate::Lock::with_cache), since the next use needs a new token: the hold is
    /// released to the server. [Fencing, step by step](crate::guide::fencing) explains the use of
    /// the number.
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
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The hold is unchanged, and a token drawn
    ///   meanwhile is never used. Transient, except for permanent refusals.
    /// * [`Error::NotReplicated`] - too few replicas have acknowledged the token, which is never
    ///   used. Transient.
    /// * [`Error::WrongType`] - the key of the lock or of the counter contains something else.
    ///   Permanent.
    /// * [`Error::Shutdown`] - the client was shut down during the call. The hold is over.
    pub fn draw_token(&self) -> Result<u64, Error> {
        self.raw.draw_token()
    }

    /// Releases the lock, and waits for the server's answer. `Ok` means: the lock was held until
    /// now and is free, or was [handed over](crate::guide::hand_over) to the next thread of this
    /// client.
    ///
    /// `Ok` has another meaning in three cases. If the hold has other guards, the lock stays held,
    /// and only the hold's count decreases. If the lock has a [minimum
    /// hold](crate::Lock::with_min_hold), the lock stays busy until the minimum hold is over. If
    /// the lock has a [cache](crate::Lock::with_cache), the client may retain the lock.
    ///
    /// After the release of the last guard, the hold is over in this process before the first byte
    /// is sent, whatever the result. Costs a round trip, or none for a lock that was handed over or
    /// is cached.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Another owner may have
    ///   held the lock at the same time. A new owner's hold is not touched. In the child of a fork
    ///   the reason is [`LostReason::Forked`], and the parent's hold is not touched.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release within twice the command timeout, or refused the release. The
    ///   release is finished in the background; at worst the lease ends the hold.
    pub fn unlock(self) -> Result<(), Error> {
        self.raw.release()
    }

    /// Gives up the lock without freeing the key: no acquire succeeds before the
    /// [rest](Self::remaining) of the lease is over. The hold is not renewed any more, and expires.
    ///
    /// `Ok` means: the lock was held until now, and the server keeps the key. From now on `is_held`
    /// is false. [`force_unlock`](crate::Lock::force_unlock) frees the lock earlier.
    ///
    /// If the hold has other guards, the hold continues, and the last guard's release frees the
    /// lock no earlier than the end of the present lease. A write lock whose thread also has the
    /// read lock is released at once, as by [`unlock`](Self::unlock).
    /// [`with_min_hold`](crate::Lock::with_min_hold) has the same effect for a time that is known
    /// at the acquire.
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
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. The key is not kept.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the call within twice the command timeout, or refused the call. The call
    ///   is finished in the background.
    pub fn keep_until_lease_ends(self) -> Result<(), Error> {
        self.raw.keep_until_lease_ends()
    }
}

impl LockGuard<AnyThread> {
    /// The [fencing token](crate::FencedGuard::token) of the hold. `None` if the lock is not fenced
    /// and no token was [drawn](Self::draw_token), and in the child of a fork. Local: no round
    /// trip.
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

/// A held [`FencedLock`](crate::FencedLock): a [`LockGuard`] with a fencing token. Dropping the
/// guard releases the lock.
///
/// Returned by [`Lock::lock`](crate::Lock::lock) and the other acquires of a fenced lock.
///
/// The token is a number, drawn by the server with the grant of the hold. Every later hold has a
/// larger token. A resource that remembers the largest token so far, and refuses requests with a
/// smaller token, is safe from a holder that has not noticed a loss. Nested guards of a hold have
/// the same token.
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
/// The idea is Redisson's (`RFencedLock`), and before Redisson Martin Kleppmann's (How to do
/// distributed locking, 2016).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct FencedGuard {
    guard: LockGuard,
    token: u64,
}

impl FencedGuard {
    /// The fencing token, which is larger than the tokens of all earlier holds of the name, of any
    /// owner. Local: no round trip.
    ///
    /// The token is at least the server's clock in microseconds at the time of the draw. See
    /// [`LockGuard::draw_token`] for the limits of the order.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock, and waits for the server's answer. `Ok` means: the lock was held until
    /// now and is free. The exceptions, such as other guards of the hold, are at
    /// [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release in time, or refused the release. The release is finished in
    ///   the background.
    pub fn unlock(self) -> Result<(), Error> {
        self.guard.unlock()
    }

    /// Gives up the lock without freeing the key: no acquire succeeds before the rest of the lease
    /// is over. `Ok` means: the lock was held until now, and the server keeps the key. The
    /// exceptions, such as other guards of the hold, are at [`LockGuard::keep_until_lease_ends`].
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release in time, or refused the release. The release is finished in
    ///   the background.
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

/// A guard of a [`Lock`](crate::Lock): [`LockGuard`], [`FencedGuard`] or [`OwnedGuard`]. The trait
/// is sealed: only this crate implements `Guard`.
///
/// The trait is for code that is generic over the guard. The guards have inherent methods of the
/// same names, with the same effect.
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
    /// Whether the lock is held for certain. Local: no round trip. Once the result is `false`, the
    /// result stays `false`. More at [`LockGuard::is_held`].
    #[must_use]
    fn is_held(&self) -> bool {
        self.raw().is_held()
    }

    /// Returns an error unless the lock is held for certain. Local: no round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - the lock is no longer held, with the reason. Permanent.
    fn check(&self) -> Result<(), Error> {
        self.raw().check()
    }

    /// How long the lock is held for certain, without a further renewal. Zero after a loss. Local:
    /// no round trip.
    #[must_use]
    fn remaining(&self) -> Duration {
        self.raw().remaining()
    }

    /// Extends the lease on the server to at least `lease` from now on, and waits for the reply. If
    /// the hold already lasts longer, the later end remains. More at [`LockGuard::extend`].
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidLease`] - `lease` is not between 10 ms and a hundred years. Permanent;
    ///   nothing was sent.
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The end of the hold is unchanged.
    /// * [`Error::Shutdown`] - the client was shut down during the call. The hold is over.
    fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.raw().extend(lease)
    }

    /// Has the watchdog renew the hold from now on, until this guard is gone. Costs a round trip,
    /// or none for a watched guard. More at [`LockGuard::watch`].
    ///
    /// # Errors
    ///
    /// * [`Error::WatchdogGone`] - the thread that would renew the hold has ended. Permanent.
    /// * [`Error::Lost`] - the lock was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`] or [`Error::Refused`] - no reply within
    ///   twice the command timeout, or a refusal. The end of the hold is unchanged.
    /// * [`Error::Shutdown`] - the client was shut down during the call. The hold is over.
    fn watch(&self) -> Result<(), Error> {
        self.raw().watch()
    }

    /// A channel for the loss of the hold, which receives the reason as a single message. The
    /// channel closes without a message when this guard is gone. More at [`LockGuard::lost`].
    #[must_use]
    fn lost(&self) -> &Receiver<LostReason> {
        self.raw().lost()
    }

    /// A future for the loss of the hold, which resolves with the reason, or with `None` when this
    /// guard is gone. More at [`LostFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread to wake the task. Transient.
    fn lost_future(&self) -> Result<LostFuture, Error> {
        self.raw().lost_future()
    }

    /// A channel for a [request](crate::Lock::ask) to release the lock, which receives the first
    /// request as a single message. The channel closes without a message when this guard is gone.
    /// More at [`LockGuard::revocation`].
    #[must_use]
    fn revocation(&self) -> &Receiver<Revocation> {
        channel_of(self.raw().revocation())
    }

    /// Whether this client has received a [request](crate::Lock::ask) to release the lock, since
    /// the hold began. Local: no round trip. More at [`LockGuard::is_asked`].
    #[must_use]
    fn is_asked(&self) -> bool {
        self.raw().revocation().is_some_and(|signal| signal.is_asked())
    }

    /// A future for a [request](crate::Lock::ask) to release the lock, which resolves with the
    /// first request, or with `None` when this guard is gone. More at [`RevocationFuture`].
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread to wake the task. Transient.
    fn revocation_future(&self) -> Result<RevocationFuture, Error> {
        self.raw().revocation_future()
    }

    /// The lock's name, with the client's prefix. A name of more than 80 characters is truncated.
    #[must_use]
    fn name(&self) -> String {
        self.raw().name()
    }

    /// The owner of the lock on the server: the client's identity and the number of this hold, as
    /// `UUID:NUMBER`. More at [`LockGuard::owner`].
    #[must_use]
    fn owner(&self) -> &str {
        self.raw().owner()
    }

    /// The fencing token of this hold: a number larger than the tokens of all earlier holds of the
    /// name. Costs a round trip, or none if the hold has a token. More at
    /// [`LockGuard::draw_token`].
    ///
    /// # Errors
    ///
    /// The errors of [`LockGuard::draw_token`].
    fn draw_token(&self) -> Result<u64, Error> {
        self.raw().draw_token()
    }

    /// Releases the lock, and waits for the server's answer. `Ok` means: the lock was held until
    /// now and is free. The exceptions, such as other guards of the hold, are at
    /// [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release in time, or refused the release. The release is finished in
    ///   the background.
    fn unlock(self) -> Result<(), Error>
    where
        Self: Sized,
    {
        self.into_raw().release()
    }

    /// Gives up the lock without freeing the key: no acquire succeeds before the rest of the lease
    /// is over. `Ok` means: the lock was held until now, and the server keeps the key. The
    /// exceptions, such as other guards of the hold, are at [`LockGuard::keep_until_lease_ends`].
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the lock was no longer held, with the reason.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release in time, or refused the release. The release is finished in
    ///   the background.
    fn keep_until_lease_ends(self) -> Result<(), Error>
    where
        Self: Sized,
    {
        self.into_raw().keep_until_lease_ends()
    }
}

mod sealed {
    /// The methods of `Guard` for this crate only.
    pub trait FromRawGuard {
        /// Returns the typed guard of `raw`.
        #[doc(hidden)]
        fn from_raw(raw: crate::core::raw_guard::RawGuard) -> Self;

        /// Returns the body of the guard, with the methods for all types of guards.
        #[doc(hidden)]
        fn raw(&self) -> &crate::core::raw_guard::RawGuard;

        /// Returns the body of the guard, without a release.
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
        // The acquire of a fenced lock ensures a token. Every resource would refuse zero.
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
