//! One kind of exclusive lock: its name in Java and here, and how its waiters wait.

use std::env;
use std::time::Duration;

use wheellock::{Client, Error, FencedGuard, Guard, Lock, LockGuard};

/// A version of Redisson: major, minor.
pub(crate) type Version = (u32, u32);

/// The version of the Java program.
pub(crate) fn redisson() -> Version {
    let version = env::var("REDISSON_VERSION").unwrap_or_else(|_| "4.7.0".to_owned());
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

/// A kind of exclusive lock that both sides have.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// What the Java program calls it.
    pub(crate) word: &'static str,
    /// The first version of Redisson that has it.
    pub(crate) since: Version,
    /// What the library has for it.
    pub(crate) open: fn(&Client, &str) -> Box<dyn Exclusive>,
    /// How many scripts a waiter runs without success, on either side, before its longest sleep.
    pub(crate) tries: u64,
    /// Whether its holder may take it again.
    pub(crate) reentrant: bool,
    /// Whether Redisson's unlock throws when the hold was lost and the lock is free. Its fair
    /// lock's does not (D17).
    pub(crate) tells_loss: bool,
    /// How long a hand-over may take, from the answer of the release.
    pub(crate) at_once: Duration,
}

/// What all exclusive locks of the library can do.
pub(crate) trait Exclusive: Send + Sync {
    fn lock(&self) -> Result<Box<dyn Held>, Error>;
    fn try_lock(&self) -> Result<Option<Box<dyn Held>>, Error>;
    fn try_lock_for(&self, wait: Duration) -> Result<Option<Box<dyn Held>>, Error>;
    fn leased(&self, lease: Duration) -> Box<dyn Exclusive>;
    fn at_least(&self, min_hold: Duration) -> Box<dyn Exclusive>;
    fn is_locked(&self) -> Result<bool, Error>;
    fn remaining_lease(&self) -> Result<Option<Duration>, Error>;
    fn hold_count(&self) -> u32;
    fn force_unlock(&self) -> Result<bool, Error>;
}

/// What all guards of the library can do.
pub(crate) trait Held {
    fn is_held(&self) -> bool;
    fn unlock(self: Box<Self>) -> Result<(), Error>;
}

impl<G: Guard + Held + 'static> Exclusive for Lock<G> {
    fn lock(&self) -> Result<Box<dyn Held>, Error> {
        Ok(Box::new(Lock::lock(self)?))
    }

    fn try_lock(&self) -> Result<Option<Box<dyn Held>>, Error> {
        Ok(Lock::try_lock(self)?.map(|guard| Box::new(guard) as _))
    }

    fn try_lock_for(&self, wait: Duration) -> Result<Option<Box<dyn Held>>, Error> {
        Ok(Lock::try_lock_for(self, wait)?.map(|guard| Box::new(guard) as _))
    }

    fn leased(&self, lease: Duration) -> Box<dyn Exclusive> {
        Box::new(self.clone().with_lease(lease))
    }

    fn at_least(&self, min_hold: Duration) -> Box<dyn Exclusive> {
        Box::new(self.clone().with_min_hold(min_hold))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        Lock::is_locked(self)
    }

    fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        Lock::remaining_lease(self)
    }

    fn hold_count(&self) -> u32 {
        Lock::hold_count(self)
    }

    fn force_unlock(&self) -> Result<bool, Error> {
        Lock::force_unlock(self)
    }
}

/// A guard, by the methods that it has of its own.
macro_rules! held {
    ($($guard:ty),+) => {
        $(impl Held for $guard {
            fn is_held(&self) -> bool {
                LockGuard::is_held(self)
            }

            fn unlock(self: Box<Self>) -> Result<(), Error> {
                <$guard>::unlock(*self)
            }
        })+
    };
}

held!(LockGuard, FencedGuard);
