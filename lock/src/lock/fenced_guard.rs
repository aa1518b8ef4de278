//! The guard of a fenced lock: a guard with a fencing token.

use std::fmt;
use std::ops::Deref;

use crate::error::Error;
use crate::lock::guard::LockGuard;
use crate::lock::raw_guard::RawGuard;

/// A held [`FencedLock`](crate::FencedLock): a [`LockGuard`] with a fencing token.
///
/// The token is a number that the server drew when it granted the hold. Every later hold has a
/// larger one. A resource that remembers the largest token it has seen, and refuses requests with a
/// smaller one, is safe from a holder that has lost its lock and does not know it yet.
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
/// Nested guards of one hold have one token. The idea is Redisson's (`RFencedLock`), and before it
/// Martin Kleppmann's (How to do distributed locking, 2016).
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct FencedGuard {
    guard: LockGuard,
    token: u64,
}

impl FencedGuard {
    pub(crate) fn new(raw: RawGuard) -> Self {
        // The acquire of a fenced lock sees to it that there is one. Zero would be refused by every
        // resource.
        let token = raw.token().unwrap_or(0);
        Self { guard: LockGuard::new(raw), token }
    }

    pub(crate) fn into_guard(self) -> LockGuard {
        self.guard
    }

    /// The fencing token: larger than that of every hold before, of any owner. At least the
    /// server's clock in microseconds when it was drawn. Local: no round trip.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Releases the lock. As [`LockGuard::unlock`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<(), Error> {
        self.guard.unlock()
    }

    /// Gives the lock up without freeing it. As [`LockGuard::keep_until_lease_ends`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`].
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
