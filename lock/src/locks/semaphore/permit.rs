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
/// still gives back any other permit. In the child of a fork the drop does nothing: the permit is
/// the parent's.
///
/// [`Permits`] are several permits acquired together. For such a guard, the methods below apply to
/// all the permits.
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
/// `true` while all are valid, and [`lost`](Permit::lost) reports the first loss. After the loss of
/// one permit, [`release`](Permit::release) returns [`Error::Lost`], and the other permits are
/// given back all the same, in the background at worst. To give permits back individually, use
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
    /// In the child of a fork the result is `false`: the parent holds the permit.
    ///
    /// Without a lease the result is always `true`. Only a
    /// [watched](crate::ExpirableSemaphore::watched) permit learns before the end of the lease, at
    /// the next renewal, that the permit was given back by id or that the semaphore was deleted.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// How long the permit is held for certain, without a further renewal; [`Duration::MAX`]
    /// without a lease, zero after the end and in the child of a fork. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Extends the lease on the server to at least `lease` from now on, and waits for the reply. A
    /// permit with a later end, or without a lease, is unchanged.
    ///
    /// `lease` is at least 10 ms and at most a hundred years. One round trip; none without a lease;
    /// for several watched permits, one for each permit. To shorten a lease, use
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
    /// * [`Error::InvalidLease`] - `lease` is out of bounds. Permanent; nothing was sent.
    /// * [`Error::Lost`] - the permit was no longer held, with the reason. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`], [`Error::Refused`],
    ///   [`Error::Authentication`] - no reply within twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout), or a refusal. The end of the permit in
    ///   this process is unchanged. After `OutcomeUnknown` the server may retain the permit for
    ///   `lease`, unless the permit is released.
    ///
    /// After an error for several permits, some of the permits may have the new lease.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.held.extend(Lease::new(lease)?)
    }

    /// Makes the watchdog renew the permit from now on until the release, with the client's
    /// [watchdog lease](crate::ClientBuilder::watchdog_lease), as if the semaphore were
    /// [watched](crate::ExpirableSemaphore::watched). Does nothing for a watched permit. One round
    /// trip. The hold of the client begins with this call, also for
    /// [`max_hold`](crate::ClientBuilder::max_hold).
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
    /// See [`extend`](Self::extend), except [`Error::InvalidLease`]. After an error the permit is
    /// not watched. Also:
    ///
    /// * [`Error::InvalidSetting`] - the permit has no lease. Permanent; nothing was sent.
    /// * [`Error::WatchdogGone`] - the thread that would renew the permit has ended. Permanent for
    ///   this client; nothing was sent.
    /// * [`Error::Shutdown`] - the client was shut down. Permanent. If the shutdown came during the
    ///   call, the permit is lost and released.
    pub fn watch(&mut self) -> Result<(), Error> {
        self.held.watch()
    }

    /// A channel for the loss of the permit: receives the reason as a single message. The channel
    /// closes without a message when the permit is given back, or is detached by
    /// [`into_id`](Self::into_id).
    ///
    /// Returns `None` unless the permit is [watched](crate::ExpirableSemaphore::watched): the loss
    /// of any other permit is not detected. Clones of the receiver share the single message.
    #[must_use]
    pub fn lost(&self) -> Option<&Receiver<LostReason>> {
        self.held.lost()
    }

    /// A future for the loss of the permit: resolves with the reason when the permit is lost, or
    /// with `None` when the guard is gone. See [`LostFuture`].
    ///
    /// Returns `Ok(None)` unless the permit is [watched](crate::ExpirableSemaphore::watched).
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
    /// only the last holder to draw a token. Permits acquired together share a token.
    /// [`LockGuard::draw_token`](crate::LockGuard::draw_token) describes the counter of the tokens.
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
    /// * [`Error::Lost`] - the permit was no longer held. Permanent.
    /// * [`Error::Unreachable`], [`Error::OutcomeUnknown`], [`Error::Refused`],
    ///   [`Error::Authentication`] - no reply within twice the [command
    ///   timeout](crate::ClientBuilder::command_timeout), or a refusal. The permit is unchanged,
    ///   and a token drawn meanwhile is never used.
    /// * [`Error::NotReplicated`] - too few [replicas](crate::ClientBuilder::replica_acks) have
    ///   acknowledged the token, which is never used. Transient.
    /// * [`Error::WrongType`] - the key of the permits or of the counter contains a value of a
    ///   different type. Permanent.
    pub fn draw_token(&self) -> Result<u64, Error> {
        self.held.draw_token()
    }

    /// The semaphore's name with the client's [prefix](crate::Client::with_prefix), truncated if
    /// very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.held.name()
    }

    /// Gives the permit back and waits for the answer. `Ok` means that the permit was held until
    /// now. Wakes waiters.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - the permit was no longer held, with the reason: the lease had ended, the
    ///   permit was given back by id, the semaphore was deleted, the client was shut down while the
    ///   permit was watched, or this process is a fork of the guard's. Permanent.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`], [`Error::Refused`] or
    ///   [`Error::Authentication`] - the server did not acknowledge the release within twice the
    ///   [command timeout](crate::ClientBuilder::command_timeout). The background finishes the
    ///   release.
    /// * [`Error::WrongType`] - the semaphore's keys contain values of a different type by now.
    ///   Nothing was given back. Permanent.
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

    /// The id of the permit, by which any client can [give the permit
    /// back](crate::ExpirableSemaphore::release). Local: no round trip.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// Ends the guard, returns the id, and leaves the permit taken, until the lease ends or
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) gives the permit back.
    /// Sends nothing. A watched permit is no longer renewed.
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

    /// The ids of the permits, by which any client can [give the permits
    /// back](crate::ExpirableSemaphore::release_all). Local: no round trip.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.id
    }

    /// Ends the guard, returns the ids, and leaves the permits taken, until the leases end, or
    /// until [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) or
    /// [`release_all`](crate::ExpirableSemaphore::release_all) gives the permits back. Sends
    /// nothing. Watched permits are no longer renewed.
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
