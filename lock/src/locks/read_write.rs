//! The read-write lock: many readers, or one writer.

use crate::core::spec::LockSpec;
use crate::locks::lock::Lock;

/// A read-write lock of one name: held by any number of readers, or by one writer. Cheap to make,
/// to clone and to share; it holds nothing by itself.
///
/// It is two [`Lock`]s, and each does all that a `Lock` does: it waits, nests, is watched or
/// leased, and reports when it is lost.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let prices = client.read_write_lock("prices");
///
/// let writing = prices.write_lock().lock()?;
/// let reading = prices.read_lock().lock()?; // the same thread may read what it writes
/// writing.unlock()?; // from here on other threads may read too
/// assert!(reading.is_held());
/// # Ok::<(), wheellock::Error>(())
/// ```
///
/// # When it is granted
///
/// * A reader is granted it unless another owner writes. Readers do not wait for waiting writers:
///   where there is always a reader, no writer is ever granted it. The order among waiters is not
///   kept between processes.
/// * A writer is granted it if there is no reader and no other writer.
/// * A thread that writes may read too, and go on reading after it has released the write lock: a
///   *downgrade*. Other waiting readers are granted it at that moment. Its guards may be released
///   in any order.
/// * A thread that reads and does not write cannot write: it would wait for itself. That is an
///   [`Error::Upgrade`](crate::Error::Upgrade) at once, also from a `try_lock`. It has to release
///   the read lock first, and another owner may write in between.
///
/// [`Lock::is_locked`] of the read lock says whether there is a reader, of the write lock whether
/// there is a writer. [`Lock::force_unlock`] of the read lock ends all readers, unless there is a
/// writer; of the write lock it ends the writer and its own read hold. [`Lock::remaining_lease`] is
/// the same for both: how long the lock is held by any owner.
///
/// # Beside Redisson
///
/// The keys and messages are those of Redisson's `RReadWriteLock`. Three things follow from what
/// Java does.
///
/// *A read hold with more than Java's lease left can end early.* All readers share one key. A Java
/// reader's renewal sets its time to live to Java's lease, 30 s by default, whatever the other
/// readers were granted. A reader of this crate therefore asks for the rest of its lease again
/// every third of the shorter of both leases, even if it is not watched, and so restores what it
/// was granted long before the key expires. But if Java has shortened the key, and this process is
/// stopped or cut off from the server for so long that its last request is older than Java's lease,
/// the key can be gone while the guard still counts on the lease that the server had granted. So
/// beside Java readers, the promise that two holders never both see `is_held() == true` **does not
/// hold** for a read hold whose last contact with the server is longer ago than Java's lease; such
/// a pause has lasted for two thirds of it at least. Read leases of no more than Java's, as the
/// default is, are not affected. Where Java's `lockWatchdogTimeout` is not 30 s, set
/// [`ClientBuilder::foreign_watchdog`](crate::ClientBuilder::foreign_watchdog).
///
/// *A name is for one kind.* Redisson's `RReadWriteLock` takes a name that an `RLock` holds for
/// free, and both then see it as theirs. This one waits for the `RLock`.
///
/// *A Java reader that waits for a Java writer* is not told of that writer's downgrade, and sleeps
/// until its lease is over. That is Java's; a writer of this crate wakes all readers.
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock,
}

impl ReadWriteLock {
    pub(crate) fn new(read: LockSpec, write: LockSpec) -> Self {
        Self { read: Lock::new(read), write: Lock::new(write) }
    }

    /// The lock of the readers.
    ///
    /// ```
    /// use wheellock::Client;
    ///
    /// let client = Client::in_memory();
    /// let prices = client.read_write_lock("prices");
    /// let one = prices.read_lock().lock()?;
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| prices.read_lock().try_lock().map(|guard| guard.is_some()));
    ///     assert!(matches!(other.join(), Ok(Ok(true))));
    /// });
    /// one.unlock()?;
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn read_lock(&self) -> Lock {
        self.read.clone()
    }

    /// The lock of the writers.
    ///
    /// ```
    /// use wheellock::{Client, Error};
    ///
    /// let client = Client::in_memory();
    /// let prices = client.read_write_lock("prices");
    /// let reading = prices.read_lock().lock()?;
    /// assert!(matches!(prices.write_lock().try_lock(), Err(Error::Upgrade { .. })));
    /// reading.unlock()?;
    /// let _writing = prices.write_lock().lock()?;
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn write_lock(&self) -> Lock {
        self.write.clone()
    }
}
