//! A handle that cancels the task on drop.

use std::fmt;
use std::ops::Deref;

use super::periodic::PeriodicTimeout;
use super::timeout::Timeout;

/// A handle that cancels the task on drop.
///
/// Use the handle for a timeout that matters only until the guarded work ends, by a return, a `?`
/// or a panic. [`Timeout::cancel_on_drop`] and [`PeriodicTimeout::cancel_on_drop`] create the
/// wrapper, which dereferences to the wrapped handle.
///
/// The task is dropped where the wrapper is dropped. A run under way on another thread continues to
/// the end.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::HashedWheelTimer;
///
/// let timer = HashedWheelTimer::new()?;
/// {
///     let too_late = timer.schedule(Duration::from_secs(5), || println!("too late"))?;
///     let too_late = too_late.cancel_on_drop();
///     assert!(!too_late.is_expired());
///     // The work that may take too long.
/// }
/// assert_eq!(timer.pending_timeouts(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it cancels its task when it is dropped"]
pub struct CancelOnDrop<H> {
    handle: H,
    cancel: fn(&H) -> bool,
}

impl<H> CancelOnDrop<H> {
    /// Drops the wrapper and the wrapped handle without cancelling the task.
    pub fn disarm(mut self) {
        self.cancel = |_| false;
    }
}

impl<H> Deref for CancelOnDrop<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.handle
    }
}

impl<H> Drop for CancelOnDrop<H> {
    fn drop(&mut self) {
        // The result does not matter: the task may have ended before.
        let _cancelled = (self.cancel)(&self.handle);
    }
}

impl<H: fmt::Debug> fmt::Debug for CancelOnDrop<H> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("CancelOnDrop").field(&self.handle).finish()
    }
}

impl Timeout {
    /// Wraps the handle to cancel the task on drop.
    pub fn cancel_on_drop(self) -> CancelOnDrop<Self> {
        CancelOnDrop { handle: self, cancel: Self::cancel }
    }
}

impl PeriodicTimeout {
    /// Wraps the handle to end the task on drop.
    pub fn cancel_on_drop(self) -> CancelOnDrop<Self> {
        CancelOnDrop { handle: self, cancel: Self::cancel }
    }
}
