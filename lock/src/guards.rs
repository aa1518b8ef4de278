//! Which guards there are, for the lock that gives them, and what all of them do.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::fenced_guard::FencedGuard;
use crate::grip::Grip;
use crate::guard::LockGuard;
use crate::owned_guard::OwnedGuard;

/// A guard that a [`Lock`](crate::Lock) gives: [`LockGuard`], [`FencedGuard`] or [`OwnedGuard`]. Nothing else can be
/// one.
///
/// For code that takes any of them. The guards have the same methods themselves.
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
pub trait Guard: FromGrip {
    /// Whether the lock is held for certain. As [`LockGuard::is_held`].
    #[must_use]
    fn is_held(&self) -> bool {
        self.grip().is_held()
    }

    /// An error unless the lock is held for certain. As [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is not held any more, and why.
    fn check(&self) -> Result<(), Error> {
        self.grip().check()
    }

    /// How long the lock is held for certain, without a renewal to come. As [`LockGuard::remaining`].
    #[must_use]
    fn remaining(&self) -> Duration {
        self.grip().remaining()
    }

    /// A channel that gets one message if the hold is lost. As [`LockGuard::lost`].
    #[must_use]
    fn lost(&self) -> &Receiver<LostReason> {
        self.grip().lost()
    }

    /// The lock's name, cut short if it is very long.
    #[must_use]
    fn name(&self) -> String {
        self.grip().name()
    }

    /// Who holds the lock, as it stands on the server. As [`LockGuard::owner`].
    #[must_use]
    fn owner(&self) -> &str {
        self.grip().owner()
    }

    /// Releases the lock and says how it went. As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    fn unlock(self) -> Result<(), Error>
    where
        Self: Sized,
    {
        self.into_grip().let_go()
    }
}

mod sealed {
    /// What only this crate can do.
    pub trait FromGrip {
        #[doc(hidden)]
        fn from_grip(grip: super::Grip) -> Self;

        #[doc(hidden)]
        fn grip(&self) -> &super::Grip;

        #[doc(hidden)]
        fn into_grip(self) -> super::Grip;
    }
}

pub(crate) use sealed::FromGrip;

impl Guard for LockGuard {}
impl Guard for FencedGuard {}
impl Guard for OwnedGuard {}

impl FromGrip for LockGuard {
    fn from_grip(grip: Grip) -> Self {
        Self::new(grip)
    }

    fn grip(&self) -> &Grip {
        Self::grip(self)
    }

    fn into_grip(self) -> Grip {
        Self::into_grip(self)
    }
}

impl FromGrip for FencedGuard {
    fn from_grip(grip: Grip) -> Self {
        Self::new(grip)
    }

    fn grip(&self) -> &Grip {
        LockGuard::grip(self)
    }

    fn into_grip(self) -> Grip {
        self.into_guard().into_grip()
    }
}

impl FromGrip for OwnedGuard {
    fn from_grip(grip: Grip) -> Self {
        Self::new(grip)
    }

    fn grip(&self) -> &Grip {
        Self::grip(self)
    }

    fn into_grip(self) -> Grip {
        Self::into_grip(self)
    }
}
