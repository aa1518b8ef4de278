//! The locks and atomics of the crate, or their models.
//!
//! In this crate's own tests with `--cfg hashed_wheel_loom` the types are loom's, which runs a test
//! once for every order in which its threads can meet. All locks and atomics of the ticker's
//! handshake with its callers are imported from here; counters and settings need not be. A user's
//! build never has the models, whatever flags the build sets: the cfg is this crate's own, so a
//! program with `--cfg loom` for another crate gets the ordinary timer.

#[cfg(not(all(test, hashed_wheel_loom)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(all(test, hashed_wheel_loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(all(test, hashed_wheel_loom))]
pub(crate) use self::modelled::Mutex;
#[cfg(all(test, hashed_wheel_loom))]
pub(crate) use loom::sync::MutexGuard;
#[cfg(all(test, hashed_wheel_loom))]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(all(test, hashed_wheel_loom))]
mod modelled {
    use std::sync::PoisonError;

    use loom::sync::MutexGuard;

    /// Loom's lock with the interface of `parking_lot`'s.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
