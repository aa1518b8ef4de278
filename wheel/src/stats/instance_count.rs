//! How many timers exist in this process. One is enough for most programs. A timer for each
//! connection or request is a mistake that shows only under load: every timer has a thread.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A new timer is reported when more than this number exist. Netty's limit is the same.
pub(crate) const MANY_TIMERS: usize = 64;

/// Relaxed in all uses: the number protects nothing.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Counts one timer for as long as it exists.
pub(crate) struct Instance(());

impl Instance {
    /// Counts one more, and returns how many there are now.
    pub(crate) fn new() -> (Self, usize) {
        (Self(()), COUNT.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Instance")
    }
}
