//! What all guards of a [`Lock`](crate::Lock) do, for generic code.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::lock::fenced_guard::FencedGuard;
use crate::lock::guard::LockGuard;
use crate::lock::lost_future::LostFuture;
use crate::lock::raw_guard::RawGuard;

/// A guard of a [`Lock`](crate::Lock): [`LockGuard`], [`FencedGuard`] or
/// [`OwnedGuard`](crate::OwnedGuard). It cannot be implemented outside of this crate.
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
        fn from_raw(raw: crate::lock::raw_guard::RawGuard) -> Self;

        #[doc(hidden)]
        fn raw(&self) -> &crate::lock::raw_guard::RawGuard;

        #[doc(hidden)]
        fn into_raw(self) -> crate::lock::raw_guard::RawGuard;
    }
}

pub(crate) use sealed::FromRawGuard;

impl<T> Guard for LockGuard<T> {}
impl Guard for FencedGuard {}

impl<T> FromRawGuard for LockGuard<T> {
    fn from_raw(raw: RawGuard) -> Self {
        Self::new(raw)
    }

    fn raw(&self) -> &RawGuard {
        self.raw()
    }

    fn into_raw(self) -> RawGuard {
        self.into_raw()
    }
}

impl FromRawGuard for FencedGuard {
    fn from_raw(raw: RawGuard) -> Self {
        Self::new(raw)
    }

    fn raw(&self) -> &RawGuard {
        LockGuard::raw(self)
    }

    fn into_raw(self) -> RawGuard {
        self.into_guard().into_raw()
    }
}
