//! Which guards there are, for the lock that gives them.

use crate::fenced_guard::FencedGuard;
use crate::grip::Grip;
use crate::guard::LockGuard;
use crate::owned_guard::OwnedGuard;

/// A guard that a [`Lock`](crate::Lock) gives: [`LockGuard`], [`FencedGuard`] or [`OwnedGuard`]. Nothing else can be
/// one.
///
/// ```
/// use wheellock::{Error, Guard, Lock};
///
/// fn with_lock<G: Guard>(lock: &Lock<G>, work: impl FnOnce(&G)) -> Result<(), Error> {
///     let guard = lock.lock()?;
///     work(&guard);
///     Ok(())
/// }
///
/// let client = wheellock::Client::in_memory();
/// with_lock(&client.fenced_lock("orders:42"), |guard| println!("{}", guard.token()))?;
/// # Ok::<(), Error>(())
/// ```
pub trait Guard: FromGrip {}

mod sealed {
    /// What only this crate can do.
    pub trait FromGrip {
        #[doc(hidden)]
        fn from_grip(grip: super::Grip) -> Self;
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
}

impl FromGrip for FencedGuard {
    fn from_grip(grip: Grip) -> Self {
        Self::new(grip)
    }
}

impl FromGrip for OwnedGuard {
    fn from_grip(grip: Grip) -> Self {
        Self::new(grip)
    }
}
