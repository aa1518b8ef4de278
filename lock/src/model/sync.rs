//! The locks of this crate, without poison, and parking.
//!
//! The locks are the standard library's, each in one word. `parking_lot` keeps its sleeping threads
//! in a table shared by all locks of the process. A fork at the wrong moment leaves a part of the
//! table locked in the child, and so all locks of this part. (The shards of the wheel still use
//! `parking_lot`.)
//!
//! In tests with `--cfg wheellock_shuttle` the locks are shuttle's, which runs a test in many
//! orders of its threads. loom lost: there are too many steps to run all orders, and shared state
//! is under locks, so the memory model matters little. Time stands still in most of these tests, so
//! shuttle reports a missing wake as a deadlock, where a poll would hide the mistake on a real
//! clock.

use std::ops::{Deref, DerefMut};
#[cfg(not(all(test, wheellock_shuttle)))]
use std::sync;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select};
use hashed_wheel::Clock;
use sync::{RwLockReadGuard, RwLockWriteGuard};

#[cfg(all(test, wheellock_shuttle))]
use crate::testing::modelled::sync;

#[cfg(all(test, wheellock_shuttle))]
pub(crate) use crate::testing::modelled::sync::{Parker, SystemClock, thread};
#[cfg(not(all(test, wheellock_shuttle)))]
pub(crate) use hashed_wheel::{Parker, SystemClock};
#[cfg(not(all(test, wheellock_shuttle)))]
pub(crate) use std::thread;

/// A mutex which stays usable after a panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`]. `None` only while a [`Condvar`] has the inner guard.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a little of the value, to bring the mutex into the cache before `lock`.
    #[cfg_attr(
        all(test, wheellock_shuttle),
        expect(clippy::unused_self, reason = "there is no cache in a model")
    )]
    pub(crate) fn fetch(&self) {
        #[cfg(not(all(test, wheellock_shuttle)))]
        std::hint::black_box(self.0.is_poisoned());
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("the guard is taken only during a wait"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("the guard is taken only during a wait"),
        }
    }
}

/// A condition variable. A wait may end for no reason.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification, with the mutex of `guard` unlocked meanwhile.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 =
            guard.0.take().map(|guard| self.0.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a notification, for at most `limit`. To know whether the limit has passed, the
    /// caller reads a clock.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
        guard.0 = guard.0.take().map(|guard| {
            self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
        });
    }
}

/// A reader-writer lock which stays usable after a panic.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mutex without data, with a lock operation with a timeout.
#[derive(Debug, Default)]
pub(crate) struct TimedMutex {
    taken: Mutex<bool>,
    unlocked: Condvar,
}

/// Unlocks the mutex on drop.
#[derive(Debug)]
pub(crate) struct TimedMutexGuard<'a>(&'a TimedMutex);

impl TimedMutex {
    /// Locks the mutex. Returns `None` after `limit`.
    pub(crate) fn try_lock_for(&self, limit: Duration) -> Option<TimedMutexGuard<'_>> {
        let begun = SystemClock.now();
        let mut taken = self.taken.lock();
        while *taken {
            let waited = SystemClock.now().saturating_duration_since(begun);
            let left = limit.checked_sub(waited).filter(|left| !left.is_zero())?;
            self.unlocked.wait_for(&mut taken, left);
        }
        *taken = true;
        Some(TimedMutexGuard(self))
    }
}

impl Drop for TimedMutexGuard<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.unlocked.notify_one();
    }
}

/// The parkers of the threads that wait for an event. The source of the event unparks all these
/// threads.
#[derive(Debug, Default)]
pub(crate) struct Parkers(Mutex<Vec<Parker>>);

/// A listed parker, until dropped.
struct Listed<'a>(&'a Parkers, &'a Parker);

impl Parkers {
    /// Lists `parker` while `wait` runs, which may panic: a clock is foreign code.
    pub(crate) fn with(&self, parker: &Parker, wait: impl FnOnce()) {
        self.0.lock().push(parker.clone());
        let _listed = Listed(self, parker);
        wait();
    }

    pub(crate) fn unpark_all(&self) {
        self.0.lock().iter().for_each(Parker::unpark);
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.0.lock().retain(|other| !other.is(self.1));
    }
}

/// Parks on a clock until `deadline`, unless unparked or cancelled.
pub(crate) fn park(
    clock: &dyn Clock,
    parker: &Parker,
    deadline: Option<Instant>,
    cancel: Option<&Receiver<()>>,
) {
    #[cfg(all(test, wheellock_shuttle))]
    parker.park(cancel.is_some(), deadline, || {
        deadline.is_some_and(|deadline| deadline <= clock.now()) || is_cancelled(cancel)
    });
    #[cfg(not(all(test, wheellock_shuttle)))]
    match cancel {
        Some(cancel) => clock.park(parker, deadline, cancel),
        None => clock.park(parker, deadline, &crossbeam_channel::never()),
    }
}

/// Lets time pass until `deadline`, unless unparked or cancelled: parks, or advances a clock which
/// stands still.
pub(crate) fn pass_until(
    clock: &dyn Clock,
    parker: &Parker,
    deadline: Instant,
    cancel: Option<&Receiver<()>>,
) {
    #[cfg(all(test, wheellock_shuttle))]
    park(clock, parker, Some(deadline), cancel);
    #[cfg(not(all(test, wheellock_shuttle)))]
    match cancel {
        Some(cancel) => clock.pass_until(parker, deadline, cancel),
        None => clock.pass_until(parker, deadline, &crossbeam_channel::never()),
    }
}

/// Whether `cancel` has a message, or all senders are gone. Takes no message: other waits may use
/// the same channel.
pub(crate) fn is_cancelled(cancel: Option<&Receiver<()>>) -> bool {
    cancel.is_some_and(|cancel| {
        let mut select = Select::new();
        select.recv(cancel);
        select.try_ready().is_ok()
    })
}

/// Whether the next park on `parker` returns at once.
#[cfg(test)]
pub(crate) fn is_unparked(parker: &Parker) -> bool {
    format!("{parker:?}").contains("permit: true")
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    #[test]
    fn a_panic_leaves_a_lock_as_usable_as_before() {
        let lock = Mutex::new(1);
        let panics = || {
            let _locked = lock.lock();
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn a_wait_that_panics_leaves_no_parker_in_the_list() {
        let (parkers, parker, other) = (Parkers::default(), Parker::new(), Parker::new());
        parkers.with(&other, || {
            let panics = || parkers.with(&parker, || panic!("on purpose"));
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
            assert!(matches!(parkers.0.lock().as_slice(), [left] if left.is(&other)));
        });
        assert!(parkers.0.lock().is_empty());
    }

    #[test]
    fn timed_mutex_waits_until_released_or_timeout() {
        let mutex = TimedMutex::default();
        let first = mutex.try_lock_for(Duration::ZERO);
        assert!(first.is_some());
        assert!(mutex.try_lock_for(Duration::ZERO).is_none());
        assert!(mutex.try_lock_for(Duration::from_millis(1)).is_none());
        thread::scope(|scope| {
            let second = scope.spawn(|| mutex.try_lock_for(Duration::from_secs(60)).is_some());
            drop(first);
            assert!(second.join().unwrap());
        });
        assert!(mutex.try_lock_for(Duration::ZERO).is_some());
    }
}
