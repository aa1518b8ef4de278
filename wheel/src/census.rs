//! How many timers live in this process. One is enough for most programs, and a timer for each connection or request is
//! a mistake that shows only under load: every one of them has a thread.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// From how many living timers on a new one is reported. Netty's limit is the same.
pub(crate) const MANY_TIMERS: usize = 64;

/// Relaxed in all uses: the number protects nothing.
static LIVING: AtomicUsize = AtomicUsize::new(0);

/// One living timer.
pub(crate) struct Resident(());

impl Resident {
    /// Counts one more, and says how many there are now.
    pub(crate) fn new() -> (Self, usize) {
        (Self(()), LIVING.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Resident")
    }
}
