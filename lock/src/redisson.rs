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
//! | `getName()` | [`LockGuard::name`](crate::LockGuard::name) |
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
