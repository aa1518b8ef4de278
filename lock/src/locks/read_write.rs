//! The read-write lock: many readers, or a single writer.

use crate::core::spec::LockSpec;
use crate::locks::lock::Lock;

/// A named read-write lock, held by any number of readers, or by a single writer. Cheap to create,
/// to clone and to share; only a guard holds the lock.
///
/// Created by [`Client::read_write_lock`](crate::Client::read_write_lock).
///
/// A `ReadWriteLock` consists of two [`Lock`]s. Each has all features of a `Lock`: waiting,
/// nesting, a watchdog or a lease, and reports of a loss.
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
/// # When the lock is granted
///
/// * A reader is granted the lock unless another owner writes. Readers do not wait for waiting
///   writers: under continuous reading, no writer is ever granted the lock. Waiters of different
///   processes are in no defined order.
/// * A writer is granted the lock if there is no reader and no other writer.
/// * A thread that writes may read too, and continue to read after the release of the write lock: a
///   *downgrade*, which lets waiting readers in. The thread's guards may be released in any order.
/// * A thread that only reads cannot write: the acquire would wait for the thread's own read hold.
///   Every acquire of the write lock returns [`Error::Upgrade`](crate::Error::Upgrade) at once. The
///   thread has to release the read lock first, and another owner may write in between.
/// * The guards of a [sendable](Lock::sendable) lock have separate owners. A task with the write
///   lock cannot read. A task with the read lock that requests the write lock gets no error, and
///   waits for the task's own guard.
///
/// [`Lock::is_locked`] of the read lock returns whether there is a reader, and of the write lock
/// whether there is a writer. [`Lock::force_unlock`] of the read lock ends all readers, unless
/// there is a writer. `force_unlock` of the write lock ends the writer's hold and the writer's read
/// hold. [`Lock::remaining_lease`] is the same for both locks: how long any owner holds the lock.
///
/// # Beside Redisson
///
/// Keys and messages are the same as in Redisson's `RReadWriteLock`. Java's behaviour has three
/// consequences.
///
/// *A read hold with more than Java's lease left can end early.* All readers share a key. A Java
/// reader's renewal sets the key's time to live to Java's lease, 30 s by default, even if other
/// readers were granted longer leases. A reader of this crate therefore requests the remaining time
/// of the granted lease again every third of the shorter of both leases, even if not watched, and
/// so restores the time to live long before the key expires. But Java may have shortened the time
/// to live, and then this process may be stopped or cut off from the server for so long that the
/// last request is older than Java's lease. Then the key can be gone while the guard still counts
/// on the granted lease. So beside Java readers, the promise that two holders never both see
/// `is_held() == true` **does not hold** for a read hold whose last contact with the server is
/// longer ago than Java's lease; such a pause has lasted for at least two thirds of Java's lease.
/// Read leases up to Java's lease, such as the default, are not affected. Where Java's
/// `lockWatchdogTimeout` is not 30 s, set
/// [`ClientBuilder::foreign_watchdog`](crate::ClientBuilder::foreign_watchdog).
///
/// *A name is for a single kind.* Redisson's `RReadWriteLock` treats a name held by an `RLock` as
/// free, and both owners then count as holders. A `ReadWriteLock` of this crate waits for the
/// `RLock`.
///
/// *A Java reader waiting for a Java writer* is not notified of the writer's downgrade, and sleeps
/// until the writer's lease is over. A writer of this crate wakes all readers.
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock,
}

impl ReadWriteLock {
    /// Returns the read-write lock with these two halves, which have the same name.
    pub(crate) fn new(read: LockSpec, write: LockSpec) -> Self {
        Self { read: Lock::new(read), write: Lock::new(write) }
    }

    /// The lock of the readers: a thread with a guard of this lock may read, like all other
    /// readers.
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

    /// The lock of the writers: a thread with a guard of this lock may write, and is the only
    /// holder, apart from the same thread's read hold.
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
