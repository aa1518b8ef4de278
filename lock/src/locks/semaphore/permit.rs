//! The guard of permits of an expirable semaphore: of one, or of several that were acquired
//! together.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::core::lost_future::LostFuture;
use crate::error::{Error, LostReason};
use crate::locks::semaphore::held::HeldPermits;
use crate::model::lease::Lease;
use crate::model::permit_id::PermitId;

/// A permit that is held. Dropping it gives it back.
///
/// Unlike a [`LockGuard`](crate::LockGuard) it can be sent to another thread. It ends with its
/// lease, if it has one, or when it is [watched](crate::ExpirableSemaphore::watched) and lost:
/// check [`is_valid`](Self::is_valid) before each step that needs it. [`into_id`](Self::into_id)
/// leaves the permit taken, to be given back by its id.
///
/// **Drop.** It sends the release and does not wait for the [answer](crate::guide::dropping). It
/// takes one command timeout at most. A release that is not acknowledged is finished in the
/// background. It never panics. [`release`](Self::release) waits and returns the outcome. The
/// [shutdown](crate::Client::shutdown) of the client gives back a watched permit only; dropping a
/// permit gives it back even after that.
///
/// [`Permits`] are several that were acquired together.
///
/// ```
/// use std::time::Duration;
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let seats = client.expirable_semaphore("seats").with_lease(Duration::from_secs(60));
/// seats.try_set_permits(1)?;
/// let permit = seats.acquire()?;
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         assert!(permit.is_valid());
///         permit.release()
///     });
/// });
/// assert_eq!(seats.available_permits()?, 1);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the permit is given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct Permit<I = PermitId> {
    held: HeldPermits,
    id: I,
}

/// Permits that were acquired together. Dropping this gives all of them back, in one request.
///
/// It has the methods of a [`Permit`], for all of them: they are [valid](Permit::is_valid) while
/// each is, and [lost](Permit::lost) when the first is. If one was lost,
/// [`release`](Permit::release) returns [`Error::Lost`], and the others are given back all the
/// same, in the background at worst. To give them back one by one, use
/// [`into_ids`](Permits::into_ids).
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let seats = client.expirable_semaphore("seats");
/// seats.try_set_permits(5)?;
/// let permits = seats.acquire_many(3)?;
/// assert_eq!(permits.ids().len(), 3);
/// std::thread::spawn(move || permits.release()).join().unwrap()?;
/// assert_eq!(seats.available_permits()?, 5);
/// # Ok::<(), wheellock::Error>(())
/// ```
pub type Permits = Permit<Vec<PermitId>>;

impl<I> Permit<I> {
    /// Whether the permit is held for certain, as far as its lease goes. Local: no round trip.
    ///
    /// The lease counts from before its request was sent. Once this is `false` it stays so. Without
    /// a lease it is `true`. In the child of a fork it is `false`: the parent holds the permit.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long the permit is held for certain, without a further renewal; [`Duration::MAX`] if it
    /// has no lease, zero once it is over. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Asks the server for `lease` from now on, and waits for the reply: the permit lasts at least
    /// for `lease`. A permit with a later end, or without an end, keeps its end. One round trip. To
    /// shorten a lease, use
    /// [`update_lease`](crate::ExpirableSemaphore::update_lease).
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").with_lease(Duration::from_secs(60));
    /// seats.try_set_permits(1)?;
    /// let permit = seats.acquire()?;
    /// permit.extend(Duration::from_secs(600))?;
    /// assert!(permit.remaining() > Duration::from_secs(500));
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::extend`](crate::LockGuard::extend). Of several permits one may be lost; the
    /// others may have the new lease then.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.held.extend(Lease::new(lease)?)
    }

    /// From now on the watchdog renews the permit until it is given back, as if the semaphore were
    /// [watched](crate::ExpirableSemaphore::watched). Does nothing for a watched permit. One round
    /// trip.
    ///
    /// ```
    /// use std::time::Duration;
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").with_lease(Duration::from_secs(60));
    /// seats.try_set_permits(1)?;
    /// let mut permit = seats.acquire()?;
    /// assert!(permit.lost().is_none());
    /// permit.watch()?;
    /// assert!(permit.lost().is_some());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::watch`](crate::LockGuard::watch), and [`Error::InvalidSetting`] for a permit
    /// that has no lease. After an error the permit is not watched.
    pub fn watch(&mut self) -> Result<(), Error> {
        self.held.watch()
    }

    /// A channel that gets one message if the permit is lost: the reason. It closes without a
    /// message if it is given back.
    ///
    /// `None` unless the permit is [watched](crate::ExpirableSemaphore::watched): only a watched
    /// permit's loss is noticed. Clones of the receiver share the one message.
    #[must_use]
    pub fn lost(&self) -> Option<&Receiver<LostReason>> {
        self.held.lost()
    }

    /// A future that is ready when the permit is lost, with the reason, or when it is given back,
    /// with `None`. See [`LostFuture`]. `None` unless the permit is
    /// [watched](crate::ExpirableSemaphore::watched).
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread that wakes its task. Transient.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").watched();
    /// seats.try_set_permits(1)?;
    /// let permit = seats.acquire()?;
    /// // To be awaited, also in another task.
    /// assert!(permit.lost_future()?.is_some());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn lost_future(&self) -> Result<Option<LostFuture>, Error> {
        self.held.lost_future()
    }

    /// A fencing token: a number by which a resource refuses older holders. The server draws the token
    /// at the first call. One round trip, then none.
    ///
    /// A token is larger than all tokens that were drawn before under this name, of permits and of
    /// locks. While a semaphore has one permit, tokens tell its holders apart as those of a lock do.
    /// The holders of several permits work at the same time: a resource that refuses smaller tokens
    /// admits only the holder that drew last. Several permits that were acquired together have one
    /// token. As [`LockGuard::draw_token`](crate::LockGuard::draw_token).
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats");
    /// seats.try_set_permits(1)?;
    /// let first = seats.acquire()?.draw_token()?;
    /// assert!(seats.acquire()?.draw_token()? > first);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::draw_token`](crate::LockGuard::draw_token).
    pub fn draw_token(&self) -> Result<u64, Error> {
        self.held.draw_token()
    }

    /// The semaphore's name, truncated if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.held.name()
    }

    /// Gives the permit back and returns the outcome. `Ok` means that it was held until now.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - it was not held any more. Its lease had expired, or it was given back by
    ///   its id.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release within twice the command timeout. It is finished in the
    ///   background.
    /// * [`Error::WrongType`] - the semaphore's keys hold something else by now.
    pub fn release(self) -> Result<(), Error> {
        self.held.release()
    }
}

impl Permit {
    /// The one permit in `held`.
    pub(crate) fn new(held: HeldPermits) -> Option<Self> {
        let id = *held.ids().first()?;
        Some(Self { held, id })
    }

    /// The id of the permit.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// The id alone. The permit stays taken until its lease ends, or until it is given back by
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release). One that was watched is
    /// not renewed any more.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats");
    /// seats.try_set_permits(1)?;
    /// let id = seats.acquire()?.into_id();
    /// assert_eq!(seats.available_permits()?, 0);
    /// seats.release(&id)?;
    /// assert_eq!(seats.available_permits()?, 1);
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use = "the permit can be given back only by its id"]
    pub fn into_id(self) -> PermitId {
        self.held.detach();
        self.id
    }
}

impl Permit<Vec<PermitId>> {
    pub(crate) fn many(held: HeldPermits) -> Self {
        let id = held.ids().to_vec();
        Self { held, id }
    }

    /// The ids of the permits.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.id
    }

    /// The ids alone. The permits stay taken until their leases end, or until they are given back
    /// by [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) or
    /// [`release_all`](crate::ExpirableSemaphore::release_all). Those that were watched are not
    /// renewed any more.
    #[must_use = "the permits can be given back only by their ids"]
    pub fn into_ids(self) -> Vec<PermitId> {
        self.held.detach();
        self.id
    }
}

impl<I: fmt::Debug> fmt::Debug for Permit<I> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permit")
            .field("name", &self.name())
            .field("id", &self.id)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
