//! The proof of holding one permit of an expirable semaphore, and how it ends.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::permit_id::PermitId;
use crate::taken::Taken;

/// A permit that is held. Dropping it gives it back.
///
/// Any thread may do that: unlike a [`LockGuard`](crate::LockGuard) it can be sent. It ends with its lease, if it has
/// one, or when it is [watched](crate::ExpirableSemaphore::watched) and lost: ask [`is_valid`](Self::is_valid) before
/// each step that needs it. [`into_id`](Self::into_id) takes the id out and leaves the permit taken, to be given back
/// by whoever has the id.
///
/// Dropping it sends the release and waits for the answer, for at most one command timeout. It never panics. A release
/// that is not answered is finished in the background. [`release`](Self::release) does the same and says how it went.
/// Shutting the client down gives it back only if it is watched; dropping it does, also afterwards.
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
pub struct Permit {
    taken: Taken,
    id: PermitId,
}

impl Permit {
    /// The permit of that id, which is the only one in `taken`.
    pub(crate) fn new(taken: Taken, id: PermitId) -> Self {
        Self { taken, id }
    }

    /// Whether the permit is held for certain, as far as its lease goes. Local: no round trip.
    ///
    /// The answer is what the clock says of the lease, counted from before its request was sent. Once it is `false` it
    /// stays so. Without a lease it is `true`. In the child of a fork it is `false`: the parent holds the permit.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.taken.is_valid()
    }

    /// How long the permit is held for certain, without a renewal to come; [`Duration::MAX`] if it has no lease, zero
    /// once it is over. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.taken.remaining()
    }

    /// A channel that gets one message if the permit is lost: the reason. It closes without one if it is given back.
    ///
    /// `None` unless the permit is [watched](crate::ExpirableSemaphore::watched): of another nobody finds out before it
    /// is asked. Clones of the receiver share its one message.
    #[must_use]
    pub fn lost(&self) -> Option<&Receiver<LostReason>> {
        self.taken.lost()
    }

    /// The semaphore's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.taken.name()
    }

    /// Which permit it is.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.id
    }

    /// The id alone. The permit stays taken until its lease ends, or until somebody gives it back by
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release). One that was watched is not renewed any
    /// more.
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
    #[must_use = "nobody else knows the id"]
    pub fn into_id(self) -> PermitId {
        let Self { taken, id } = self;
        drop(taken.into_ids());
        id
    }

    /// Gives the permit back and says how it went. `Ok` means that it was held until now.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - it was no longer held: its lease had run out, or somebody gave it back.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did not acknowledge the
    ///   release within twice the command timeout. It is finished in the background.
    /// * [`Error::WrongType`] - the semaphore's keys hold something else by now.
    pub fn release(self) -> Result<(), Error> {
        self.taken.release()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permit")
            .field("name", &self.name())
            .field("id", &self.id)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
