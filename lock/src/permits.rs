//! The proof of holding several permits of an expirable semaphore that were taken together.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::permit_id::PermitId;
use crate::taken::Taken;

/// Permits that were taken together. Dropping this gives all of them back.
///
/// It does for several what a [`Permit`](crate::Permit) does for one, and may be sent to another thread as well.
/// However many they are, giving them back is one request, and dropping this waits for its answer for at most one command
/// timeout. To give them back one by one, [take the ids out](Self::into_ids).
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
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct Permits {
    taken: Taken,
}

impl Permits {
    pub(crate) fn new(taken: Taken) -> Self {
        Self { taken }
    }

    /// Whether all of them are held for certain, as far as their leases go. Local: no round trip. As
    /// [`Permit::is_valid`](crate::Permit::is_valid).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.taken.is_valid()
    }

    /// How long all of them are held for certain, without a renewal to come; [`Duration::MAX`] if they have no lease,
    /// zero once one is over. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.taken.remaining()
    }

    /// A channel that gets one message when the first of them is lost: the reason. It closes without one if they are
    /// given back. `None` unless they are [watched](crate::ExpirableSemaphore::watched).
    #[must_use]
    pub fn lost(&self) -> Option<&Receiver<LostReason>> {
        self.taken.lost()
    }

    /// The semaphore's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.taken.name()
    }

    /// Which permits they are.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        self.taken.ids()
    }

    /// The ids alone. The permits stay taken until their leases end, or until somebody gives them back by
    /// [`ExpirableSemaphore::release`](crate::ExpirableSemaphore::release) or
    /// [`release_all`](crate::ExpirableSemaphore::release_all). Those that were watched are not renewed any more.
    #[must_use = "nobody else knows the ids"]
    pub fn into_ids(self) -> Vec<PermitId> {
        self.taken.into_ids()
    }

    /// Gives them back and says how it went. `Ok` means that all of them were held until now.
    ///
    /// # Errors
    ///
    /// As [`Permit::release`](crate::Permit::release). An [`Error::Lost`] means that at least one of them was no longer
    /// held. The others are given back all the same, at worst in the background.
    pub fn release(self) -> Result<(), Error> {
        self.taken.release()
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permits")
            .field("name", &self.name())
            .field("ids", &self.ids())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
