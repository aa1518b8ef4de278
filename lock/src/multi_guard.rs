//! The proof of holding several locks at once.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::bundle::Bundle;
use crate::error::{Error, LostReason};
use crate::tied::ThisThread;

/// All locks of a [`MultiLock`](crate::MultiLock), held. Dropping it releases all of them.
///
/// It does what a [`LockGuard`](crate::LockGuard) does, for all of them together, and belongs to the thread that took
/// it; or to an [owner](crate::MultiLock::with_owner), and then it may be sent to another thread.
///
/// Dropping it waits for the servers' answers, for at most one command timeout: after a release that is not answered,
/// the others of that server are left to the background. Different servers are asked at the same time, from threads
/// that end with the call. Releases that are not answered are finished in the background.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
/// let guard = client.multi_lock(&[&stock, &order]).lock()?;
/// assert!(guard.is_held() && order.is_locked()? && stock.is_locked()?);
/// guard.unlock()?;
/// assert!(!order.is_locked()? && !stock.is_locked()?);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiGuard<T = ThisThread> {
    bundle: Bundle,
    told: OnceLock<Receiver<LostReason>>,
    _tied: PhantomData<T>,
}

impl<T> MultiGuard<T> {
    pub(crate) fn new(bundle: Bundle) -> Self {
        Self { bundle, told: OnceLock::new(), _tied: PhantomData }
    }

    /// Whether all the locks are held for certain. Local: no round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.bundle.is_held()
    }

    /// An error unless all the locks are held for certain. Local: no round trip.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - one of them is not held any more: which, and why.
    pub fn check(&self) -> Result<(), Error> {
        self.bundle.check()
    }

    /// How long all of them are held for certain, without a renewal to come: the least of their times. Local: no round
    /// trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.bundle.remaining()
    }

    /// A channel that gets one message when the first of them is lost: the reason. It closes without one if all are
    /// released.
    ///
    /// ```
    /// use wheellock::{Client, LostReason};
    ///
    /// let client = Client::in_memory();
    /// let (order, stock) = (client.lock("orders:42"), client.lock("stock:7"));
    /// let guard = client.multi_lock(&[&order, &stock]).lock()?;
    /// stock.force_unlock()?;
    /// assert_eq!(guard.lost().recv(), Ok(LostReason::Deleted));
    /// assert!(!guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.told.get_or_init(|| self.bundle.listen())
    }

    /// The locks' names, by server and name, cut short where they are very long. One that was given twice is there
    /// once.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.bundle.names()
    }

    /// The [fencing tokens](crate::FencedGuard::token), in the order of [`names`](Self::names); `None` for a lock that
    /// is not a fenced one.
    #[must_use]
    pub fn tokens(&self) -> Vec<Option<u64>> {
        self.bundle.tokens()
    }

    /// Releases all of them, also if one cannot be released, and says how it went. `Ok` means that all were held until
    /// now and are free.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock): the first error of any.
    pub fn unlock(self) -> Result<(), Error> {
        self.bundle.let_go()
    }
}

impl<T> fmt::Debug for MultiGuard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MultiGuard")
            .field("names", &self.names())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
