//! Beside Redisson: which method of its synchronous interfaces is which here, and what one server shared by both means.
//!
//! Keys, channels and payloads are Redisson's, so a Java and a Rust process on one server exclude, wake and count each
//! other. The tests of this crate run against the real Redisson 4.7.0.
//!
//! # Objects
//!
//! | Redisson | here |
//! |---|---|
//! | `getLock` | [`Client::lock`](crate::Client::lock) |
//! | `getFairLock` | [`Client::fair_lock`](crate::Client::fair_lock) |
//! | `getReadWriteLock` | [`Client::read_write_lock`](crate::Client::read_write_lock) |
//! | `getFencedLock` | [`Client::fenced_lock`](crate::Client::fenced_lock) |
//! | `getSpinLock` | [`Client::spin_lock`](crate::Client::spin_lock), pauses by [`Lock::with_back_off`](crate::Lock::with_back_off) |
//! | `getNonReentrantLock` | [`Client::non_reentrant_lock`](crate::Client::non_reentrant_lock) |
//! | `getNonReentrantFairLock` | [`Client::non_reentrant_fair_lock`](crate::Client::non_reentrant_fair_lock) |
//! | `getMultiLock(RLock...)` | [`MultiLock`](crate::MultiLock) |
//! | `getMultiLock(group, values)` | none: it names fields by a hash over bytes of a Java serializer, and has defects of its own; take a [`MultiLock`](crate::MultiLock) |
//! | `getRedLock` | [`RedLock`](crate::RedLock) |
//! | `getSemaphore` | [`Client::semaphore`](crate::Client::semaphore) |
//! | `getPermitExpirableSemaphore` | [`Client::expirable_semaphore`](crate::Client::expirable_semaphore) |
//! | `getCountDownLatch` | [`Client::count_down_latch`](crate::Client::count_down_latch) |
//!
//! # `RLock`
//!
//! | Redisson | here |
//! |---|---|
//! | `lock()` | [`Lock::lock`](crate::Lock::lock) |
//! | `lock(lease, unit)` | [`with_lease`](crate::Lock::with_lease), then `lock` |
//! | `lockInterruptibly()`, with or without a lease | [`lock_or_cancel`](crate::Lock::lock_or_cancel): any thread cancels by a channel, for a thread of Rust's cannot be interrupted |
//! | `tryLock()` | [`try_lock`](crate::Lock::try_lock) |
//! | `tryLock(wait, unit)` | [`try_lock_for`](crate::Lock::try_lock_for), [`try_lock_until`](crate::Lock::try_lock_until), [`try_lock_for_or_cancel`](crate::Lock::try_lock_for_or_cancel) |
//! | `tryLock(wait, lease, unit)` | `with_lease`, then `try_lock_for` |
//! | `unlock()` | dropping the guard, or [`LockGuard::unlock`](crate::LockGuard::unlock), which says how it went |
//! | `forceUnlock()` | [`force_unlock`](crate::Lock::force_unlock) |
//! | `isLocked()` | [`is_locked`](crate::Lock::is_locked); asks the master, never a replica |
//! | `isHeldByThread(id)` | none: a hold belongs to a guard. [`with_owner`](crate::Lock::with_owner) names owners, and [`hold_count`](crate::Lock::hold_count) asks for one |
//! | `isHeldByCurrentThread()` | [`is_held_by_current_thread`](crate::Lock::is_held_by_current_thread): local and certain; or [`LockGuard::is_held`](crate::LockGuard::is_held) |
//! | `getHoldCount()` | [`hold_count`](crate::Lock::hold_count) |
//! | `remainTimeToLive()` | [`remaining_lease`](crate::Lock::remaining_lease); `None` for -2, [`Duration::MAX`](std::time::Duration::MAX) for -1 |
//! | `getName()` | [`Lock::name`](crate::Lock::name), [`LockGuard::name`](crate::LockGuard::name) |
//! | `newCondition()` | none; Redisson's throws |
//! | `addListener`, `removeListener` | none: they need the server's keyspace events. [`LockGuard::lost`](crate::LockGuard::lost) and [`on_lost`](crate::ClientBuilder::on_lost) tell of a loss without them |
//!
//! # `RFencedLock`
//!
//! | Redisson | here |
//! |---|---|
//! | `getToken()` | [`last_token`](crate::FencedLock::last_token) |
//! | `lockAndGetToken()`, with or without a lease; `tryLockAndGetToken` in all forms | the methods of every lock; [`FencedGuard::token`](crate::FencedGuard::token) |
//!
//! # `RReadWriteLock`
//!
//! | Redisson | here |
//! |---|---|
//! | `readLock()` | [`ReadWriteLock::read_lock`](crate::ReadWriteLock::read_lock) |
//! | `writeLock()` | [`ReadWriteLock::write_lock`](crate::ReadWriteLock::write_lock) |
//!
//! # `RSemaphore`
//!
//! | Redisson | here |
//! |---|---|
//! | `acquire()`, `acquire(n)` | [`acquire(n)`](crate::Semaphore::acquire) |
//! | `tryAcquire()`, `tryAcquire(n)` | [`try_acquire(n)`](crate::Semaphore::try_acquire) |
//! | `tryAcquire` with a wait | [`try_acquire_for`](crate::Semaphore::try_acquire_for), [`try_acquire_until`](crate::Semaphore::try_acquire_until), [`try_acquire_for_or_cancel`](crate::Semaphore::try_acquire_for_or_cancel) |
//! | `acquire` that a thread's interruption ends | [`acquire_or_cancel`](crate::Semaphore::acquire_or_cancel) |
//! | `release()`, `release(n)` | [`release(n)`](crate::Semaphore::release) |
//! | `releaseIfExists(n)` | [`release_if_exists`](crate::Semaphore::release_if_exists) |
//! | `availablePermits()` | [`available_permits`](crate::Semaphore::available_permits) |
//! | `drainPermits()` | [`drain_permits`](crate::Semaphore::drain_permits) |
//! | `trySetPermits(n)` | [`try_set_permits`](crate::Semaphore::try_set_permits) |
//! | `trySetPermits(n, ttl)` | [`try_set_permits_for`](crate::Semaphore::try_set_permits_for) |
//! | `addPermits(n)` | [`add_permits`](crate::Semaphore::add_permits) |
//!
//! # `RPermitExpirableSemaphore`
//!
//! | Redisson | here |
//! |---|---|
//! | `acquire()`, and with a lease | [`acquire`](crate::ExpirableSemaphore::acquire), after [`with_lease`](crate::ExpirableSemaphore::with_lease) |
//! | `acquire(n)`, and with a lease | [`acquire_many`](crate::ExpirableSemaphore::acquire_many), which gives one [`Permits`](crate::Permits) |
//! | `acquire` that a thread's interruption ends | [`acquire_or_cancel`](crate::ExpirableSemaphore::acquire_or_cancel), [`acquire_many_or_cancel`](crate::ExpirableSemaphore::acquire_many_or_cancel) |
//! | `tryAcquire` of one, in all forms | [`try_acquire`](crate::ExpirableSemaphore::try_acquire), [`try_acquire_for`](crate::ExpirableSemaphore::try_acquire_for), [`try_acquire_until`](crate::ExpirableSemaphore::try_acquire_until), [`try_acquire_for_or_cancel`](crate::ExpirableSemaphore::try_acquire_for_or_cancel) |
//! | `tryAcquire` of several | [`try_acquire_many`](crate::ExpirableSemaphore::try_acquire_many), [`try_acquire_many_for`](crate::ExpirableSemaphore::try_acquire_many_for), [`try_acquire_many_until`](crate::ExpirableSemaphore::try_acquire_many_until), [`try_acquire_many_for_or_cancel`](crate::ExpirableSemaphore::try_acquire_many_for_or_cancel) |
//! | a permit whose lease is renewed | Redisson has none; [`watched`](crate::ExpirableSemaphore::watched) |
//! | `release(id)` | dropping the [`Permit`](crate::Permit), [`Permit::release`](crate::Permit::release), or [`release(&id)`](crate::ExpirableSemaphore::release) |
//! | `tryRelease(id)` | [`try_release`](crate::ExpirableSemaphore::try_release) |
//! | `release(ids)`, `tryRelease(ids)` | dropping the [`Permits`](crate::Permits), [`Permits::release`](crate::Permits::release), or [`release_all`](crate::ExpirableSemaphore::release_all) |
//! | `availablePermits()`, `getPermits()`, `acquiredPermits()` | [`available_permits`](crate::ExpirableSemaphore::available_permits), [`permits`](crate::ExpirableSemaphore::permits), [`acquired_permits`](crate::ExpirableSemaphore::acquired_permits) |
//! | `trySetPermits`, `setPermits`, `addPermits` | [`try_set_permits`](crate::ExpirableSemaphore::try_set_permits), [`set_permits`](crate::ExpirableSemaphore::set_permits), [`add_permits`](crate::ExpirableSemaphore::add_permits) |
//! | `updateLeaseTime(id, lease, unit)` | [`update_lease`](crate::ExpirableSemaphore::update_lease); [`remove_lease`](crate::ExpirableSemaphore::remove_lease) for -1 |
//! | `getLeaseTime(id)` | [`lease_of`](crate::ExpirableSemaphore::lease_of) |
//!
//! # `RCountDownLatch`
//!
//! | Redisson | here |
//! |---|---|
//! | `await()`, and with a time | [`wait`](crate::CountDownLatch::wait), [`wait_for`](crate::CountDownLatch::wait_for), [`wait_until`](crate::CountDownLatch::wait_until), [`wait_or_cancel`](crate::CountDownLatch::wait_or_cancel), [`wait_for_or_cancel`](crate::CountDownLatch::wait_for_or_cancel) |
//! | `countDown()` | [`count_down`](crate::CountDownLatch::count_down) |
//! | `getCount()` | [`count`](crate::CountDownLatch::count) |
//! | `trySetCount(n)` | [`try_set_count`](crate::CountDownLatch::try_set_count) |
//! | `delete()` | [`delete`](crate::CountDownLatch::delete) |
//!
//! # `RedissonMultiLock` and `RedissonRedLock`
//!
//! [`MultiLock`](crate::MultiLock) and [`RedLock`](crate::RedLock) have what Redisson's have: taking, in all forms, and
//! releasing. The rest of `RLock` Redisson's do not support, and neither do these.
//!
//! # What every Redisson object has
//!
//! `RObject` and `RExpirable`: `delete`, `rename`, `dump`, `touch`, `expire` and the like work on keys, and any client of
//! Redis does that. Here only what a lock needs has a method. The asynchronous and reactive forms are left out: this
//! crate is for threads.
//!
//! # Settings
//!
//! | Redisson | here | unless set |
//! |---|---|---|
//! | `lockWatchdogTimeout` | [`watchdog_lease`](crate::ClientBuilder::watchdog_lease) | 30 s, as there |
//! | `lockWatchdogBatchSize` | [`renewal_batch`](crate::ClientBuilder::renewal_batch) | 25, and 100 when behind; there 100 |
//! | `timeout` | [`command_timeout`](crate::ClientBuilder::command_timeout) | 3 s, as there |
//! | `nameMapper` that puts a text before each name | [`key_prefix`](crate::ClientBuilder::key_prefix), for keys and channels alike as there; [`with_prefix`](crate::Client::with_prefix) for some of a client's locks. `getName()` leaves the text out, [`Lock::name`](crate::Lock::name) does not | none, as there |
//! | `checkLockSyncedSlaves`, `slavesSyncTimeout` | [`replica_acks`](crate::ClientBuilder::replica_acks): as many as are asked for, or it is an error; there all that are known are waited for, and one is enough | off; there on, 1 s |
//!
//! # Where this differs from Redisson on purpose
//!
//! * *An owner is drawn anew for each hold*, where Redisson's is the thread's: a command that arrives late can do nothing
//!   to the next hold of the same thread.
//! * *Counts are written, not incremented, and a time to live is never shortened.* A command that is sent twice counts
//!   once. A partial release leaves the time to live as it was.
//! * *A fencing token is at least the server's clock in microseconds*, and one hold has one token however often it is
//!   nested. Redisson goes on counting from there.
//! * *A permit that has expired is not given back a second time*, and unlocking a fair lock that has expired is a loss and
//!   no success.
//! * *Read and write locks look whether their key is somebody else's*: one under which a plain lock stands is busy, where
//!   Redisson takes it.
//! * *Every wait looks again after a while*, whatever messages were lost, where semaphores and latches of Redisson's sleep
//!   on.
//!
//! # What cannot be mended from one side
//!
//! * Redisson's fair `tryLock` without a lease sends its wait in the wrong unit, so its place in the queue ends after
//!   milliseconds. Give it a lease.
//! * Redisson's fair locks and permits reckon with the clock of the Java process; ours with the server's. A process whose
//!   clock goes ahead by more than the wait drops those who wait.
//! * A thread of Redisson's takes its wait off the moments of those behind it in a fair line. Ours reckon with
//!   `fairLockWaitTimeout` as it is unless set, five minutes. If a thread waits for longer, by that setting or by
//!   `tryLock` with a longer wait, ours behind it may lose their places when its turn comes. They stand in line again,
//!   at the end, when they ask next, which is within 5 s.
//! * A thread of Redisson's that waits for a fair lock says only once that it lives: when it comes. Behind waiters of
//!   ours it has its wait and half a minute, five and a half minutes in all, however many of them stand before it and
//!   however long they hold. Then it is taken for dead, and comes in again at the end.
//! * A fair line's list and set have no time to live, as Redisson's have none. If all clients die while some wait, both
//!   keys stay until somebody asks for that lock again; for a name that is never used again, for ever.
//! * Redisson's renewal of a read lock sets the time to live of the whole lock to its own lease. A longer one of ours is
//!   set again within a third of that; see [`Client::read_write_lock`](crate::Client::read_write_lock).
//! * A waiter of Redisson's that missed a message sleeps as long as the lock's time to live was when it asked.
