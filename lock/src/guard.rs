//! The proof of holding: what a holder may ask of it, and how it ends.

use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::grip::Grip;

/// A held lock. Dropping it releases the lock.
///
/// It belongs to the thread that took it and cannot be sent to another, for the lock is reentrant: the same thread may
/// take it again, and gets one guard each time. References to it may be shared, so that a helper thread can ask
/// [`is_held`](Self::is_held).
///
/// **Believe the guard, not the code's position.** A process can be stopped for longer than its lease, and a server can
/// lose a key. Ask `is_held`, or [`check`](Self::check), before each step that must not happen twice, or select on
/// [`lost`](Self::lost).
///
/// Dropping it sends the release and waits for the answer, for at most one command timeout. It never panics. A release
/// that is not answered is finished in the background. [`unlock`](Self::unlock) does the same and says how it went.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let guard = client.lock("orders:42").lock()?;
/// assert!(guard.is_held());
/// guard.unlock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
///
/// It stays on its thread:
///
/// ```compile_fail,E0277
/// let guard = wheellock::Client::in_memory().lock("orders:42").lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    grip: Grip,
    /// A standard guard can be shared but not sent, and so can this one.
    _thread: PhantomData<MutexGuard<'static, ()>>,
}

impl LockGuard {
    pub(crate) fn new(grip: Grip) -> Self {
        Self { grip, _thread: PhantomData }
    }

    pub(crate) fn grip(&self) -> &Grip {
        &self.grip
    }

    pub(crate) fn into_grip(self) -> Grip {
        self.grip
    }

    /// Whether the lock is held for certain. Local: no round trip.
    ///
    /// The answer is what the clock says of the lease, counted from before its request was sent. So it is `false` at
    /// the first instruction after a pause that outlasted the lease. Once it is `false` it stays so. In the child of a
    /// fork it is `false`: the parent holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.grip.is_held()
    }

    /// An error unless the lock is held for certain: [`is_held`](Self::is_held) in a form for `?`, before each step that
    /// must not happen twice. Local: no round trip.
    ///
    /// ```
    /// use wheellock::{Client, Error, LockGuard};
    ///
    /// fn two_steps(guard: &LockGuard) -> Result<(), Error> {
    ///     guard.check()?;
    ///     // the first step
    ///     guard.check()?;
    ///     // the second step
    ///     Ok(())
    /// }
    ///
    /// let client = Client::in_memory();
    /// two_steps(&client.lock("orders:42").lock()?)?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] - it is not held any more, and why.
    pub fn check(&self) -> Result<(), Error> {
        self.grip.check()
    }

    /// How long the lock is held for certain, without a renewal to come. Zero once it is lost. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.grip.remaining()
    }

    /// A channel that gets one message if the hold is lost: the reason. It closes without one if it is released.
    ///
    /// Each guard has one channel. Clones of the receiver share its one message.
    ///
    /// ```
    /// use wheellock::{Client, LostReason, Memory};
    ///
    /// let memory = Memory::new();
    /// let client = Client::builder().in_memory(&memory).build()?;
    /// let guard = client.lock("orders:42").lock()?;
    /// client.lock("orders:42").force_unlock()?;
    /// crossbeam_channel::select! {
    ///     recv(guard.lost()) -> reason => assert_eq!(reason, Ok(LostReason::Deleted)),
    /// }
    /// assert!(!guard.is_held());
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<LostReason> {
        self.grip.lost()
    }

    /// The lock's name, cut short if it is very long.
    #[must_use]
    pub fn name(&self) -> String {
        self.grip.name()
    }

    /// Who holds the lock, as it stands on the server: the client's identity and the number of this hold.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.grip.owner()
    }

    /// Releases the lock and says how it went. `Ok` means that it was held until now and is free.
    ///
    /// If other guards of this hold are left, it stays held, and only its count goes down.
    ///
    /// The hold is over for everybody before the first byte is sent, whatever comes of it.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] - it was no longer held. What was done under it may have been done by somebody else too. The
    ///   new owner's hold is not touched.
    /// * [`Error::OutcomeUnknown`], [`Error::Unreachable`] or [`Error::Refused`] - the server did not acknowledge the
    ///   release within twice the command timeout. It is finished in the background; at worst the lease ends it.
    pub fn unlock(self) -> Result<(), Error> {
        self.grip.let_go()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grip.show("LockGuard", formatter)
    }
}
