//! The proof of holding for an owner that is not a thread: it may go from thread to thread.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::grip::Grip;

/// A lock held by a [named owner](crate::Lock::with_owner). Dropping it releases the lock.
///
/// It does all that a [`LockGuard`](crate::LockGuard) does, and may be sent to another thread and released there.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").with_owner("request 7").lock()?;
/// std::thread::spawn(move || guard.unlock()).join().unwrap()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct OwnedGuard {
    grip: Grip,
}

impl OwnedGuard {
    pub(crate) fn new(grip: Grip) -> Self {
        Self { grip }
    }

    pub(crate) fn grip(&self) -> &Grip {
        &self.grip
    }

    pub(crate) fn into_grip(self) -> Grip {
        self.grip
    }

    /// As [`LockGuard::is_held`](crate::LockGuard::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.grip.is_held()
    }

    /// As [`LockGuard::check`](crate::LockGuard::check).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is not held any more, and why.
    pub fn check(&self) -> Result<(), Error> {
        self.grip.check()
    }

    /// As [`LockGuard::remaining`](crate::LockGuard::remaining).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grip.remaining()
    }

    /// As [`LockGuard::lost`](crate::LockGuard::lost).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.grip.lost()
    }

    /// The lock's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.grip.name()
    }

    /// Who holds the lock, as it stands on the server.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.grip.owner()
    }

    /// The [fencing token](crate::FencedGuard::token), if the lock is a fenced one.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.grip.token()
    }

    /// Releases the lock and says how it went.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock(self) -> Result<(), Error> {
        self.grip.let_go()
    }
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grip.show("OwnedGuard", formatter)
    }
}
