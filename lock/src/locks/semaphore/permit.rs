//! The guard of an expirable semaphore's permits: a single permit, or several acquired together.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::core::lost_future::LostFuture;
use crate::error::{Error, LostReason};
use crate::locks::semaphore::held::HeldPermits;
use crate::model::lease::Lease;
use crate::model::permit_id::PermitId;

/// A held permit, given back when the guard is dropped.
///
/// Returned by [`ExpirableSemaphore::acquire`](crate::ExpirableSemaphore::acquire) and the other
/// acquires of one permit.
///
/// Unlike a [`LockGuard`](crate::LockGuard) a permit can be sent to another thread. A permit ends
/// when the lease ends, or when a [watched](crate::ExpirableSemaphore::watched) permit is lost:
/// check [`is_valid`](Self::is_valid) before each step that needs the permit.
/// [`into_id`](Self::into_id) leaves the permit taken, to be given back by id.
///
/// **Drop.** The drop sends the release and does not wait for the [answer](crate::guide::dropping).
/// The drop takes one command timeout at most, and never panics. An unacknowledged release is
/// finished in the background. [`release`](Self::release) waits and returns the outcome. The
/// [shutdown](crate::Client::shutdown) of the client gives back watched permits only; a later drop
/// still gives back any other permit.
///
/// [`Permits`] are several permits acquired together.
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

/// Permits acquired together, and given back in one request when the guard is dropped.
///
/// Returned by [`ExpirableSemaphore::acquire_many`](crate::ExpirableSemaphore::acquire_many) and
/// the other acquires of several permits.
///
/// The methods of a [`Permit`] apply to all the permits: [`is_valid`](Permit::is_valid) returns
/// `true` while all are valid, and [`lost`](Permit::lost) reports the first loss. After a loss,
/// [`release`](Permit::release) returns [`Error::Lost`], and the remaining permits are given back
/// all the same, in the background at worst. To give permits back individually, use
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
    /// Whether the permit is held for certain, as far as the lease tells. Local: no round trip.
    ///
    /// The lease counts from before the request was sent. Once `false`, the result stays `false`.
    /// Without a lease the result is `true`. In the child of a fork the result is `false`: the
    /// parent holds the permit.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long the permit is held for certain, without a further renewal; [`Duration::MAX`]
    /// without a lease, zero after the end. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Asks the server for `lease` from now on, and waits for the reply: the permit lasts at least
    /// for `lease`. A permit with a later end, or without an end, is unchanged. One round trip. To
    /// shorten a lease, use [`update_lease`](crate::ExpirableSemaphore::update_lease).
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
    /// See [`LockGuard::extend`](crate::LockGuard::extend). If one of several permits is lost, the
    /// rest may have the new lease.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.held.extend(Lease::new(lease)?)
    }

    /// Makes the watchdog renew the permit from now on until the release, as if the semaphore were
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
    /// See [`LockGuard::watch`](crate::LockGuard::watch). Also [`Error::InvalidSetting`] for a
    /// permit without a lease. After an error the permit is not watched.
    pub fn watch(&mut self) -> Result<(), Error> {
        self.held.watch()
    }

    /// A channel for the loss of the permit: the message is the reason. The channel closes without
    /// a message if the permit is given back.
    ///
    /// `None` unless the permit is [watched](crate::ExpirableSemaphore::watched): only a watched
    /// permit's loss is noticed. Clones of the receiver share a single message.
    #[must_use]
    pub fn lost(&self) -> Option<&Receiver<LostReason>> {
        self.held.lost()
    }

    /// A future which resolves with the reason when the permit is lost, or with `None` when the
    /// permit is given back. See [`LostFuture`]. The method returns `None` unless the permit is
    /// [watched](crate::ExpirableSemaphore::watched).
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] - the operating system refused the thread for waking tasks. Transient.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let seats = client.expirable_semaphore("seats").watched();
    /// seats.try_set_permits(1)?;
    /// let permit = seats.acquire()?;
    /// // Await the future in this task or in another task.
    /// assert!(permit.lost_future()?.is_some());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    pub fn lost_future(&self) -> Result<Option<LostFuture>, Error> {
        self.held.lost_future()
    }

    /// A fencing token: a number by which a resource refuses older holders. The server draws the
    /// token at the first call. One round trip, then none.
    ///
    /// A token is larger than all tokens drawn before under this name, of permits and of locks.
    /// While a semaphore has one permit, tokens distinguish successive holders, as for a lock. The
    /// holders of several permits work at the same time: a resource refusing smaller tokens admits
    /// only the last holder to draw a token. Permits acquired together share a token. See
    /// [`LockGuard::draw_token`](crate::LockGuard::draw_token).
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
    /// See [`LockGuard::draw_token`](crate::LockGuard::draw_token).
    pub fn draw_token(&self) -> Result<u64, Error> {
        self.held.draw_token()
    }

    /// The semaphore's name, truncated if very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.held.name()
    }

    /// Gives the permit back and returns the outcome. `Ok` means the permit was held until now.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the permit was no longer held: the lease had expired, or the permit was
    ///   given back by id.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did
    ///   not acknowledge the release within twice the command timeout. The background finishes the
    ///   release.
    /// * [`Error::WrongType`] - the semaphore's keys contain values of a different type by now.
    pub fn release(self) -> Result<(), Error> {
        self.held.release()
    }
}

impl Permit {
    /// Returns the guard of the first permit in `held`; `None` without permits.
    pub(crate) fn new(held: HeldPermits) -> Option<Self> {
        let id = *held.ids().first()?;
        Some(Self { held, id })
    }

    /// The id of the permit.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// Returns the id and leaves the permit taken, until the lease ends or
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) gives the permit back. A
    /// watched permit is no longer renewed.
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
    /// Returns the guard of all permits in `held`.
    pub(crate) fn many(held: HeldPermits) -> Self {
        let id = held.ids().to_vec();
        Self { held, id }
    }

    /// The ids of the permits.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.id
    }

    /// Returns the ids and leaves the permits taken, until the leases end, or until
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) or
    /// [`release_all`](crate::ExpirableSemaphore::release_all) gives the permits back. Watched
    /// permits are no longer renewed.
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
