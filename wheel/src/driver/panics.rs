//! Where a panic in a user's code ends: it is caught, counted and reported.

use std::any::Any;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Called with the payload of a panic.
pub(crate) type PanicHook = Arc<dyn Fn(&(dyn Any + Send)) + Send + Sync>;

pub(crate) struct Panics {
    count: AtomicU64,
    hook: Option<PanicHook>,
}

impl Panics {
    pub(crate) fn new(hook: Option<PanicHook>) -> Self {
        Self { count: AtomicU64::new(0), hook }
    }

    pub(crate) fn count(&self) -> u64 {
        // Relaxed: a figure, nothing depends on it.
        self.count.load(Ordering::Relaxed)
    }

    /// Calls `code` and returns, whether it panics or not.
    ///
    /// Unwind safety is asserted: the crate keeps nothing of what `code` can see, and what a task
    /// shares with others is protected by the poisoning of its own locks, as on any thread.
    pub(crate) fn catch(&self, code: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
            self.report(payload);
        }
    }

    /// Counts and reports a panic that the caller has caught.
    #[cold]
    pub(crate) fn report(&self, payload: Box<dyn Any + Send>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(hook) = &self.hook {
            let outcome = catch_unwind(AssertUnwindSafe(|| hook(&*payload)));
            outcome.unwrap_or_else(drop_payload);
        }
        // Not inside the call of the hook: if that panics, and the payload's destructor panics
        // while it unwinds, the process aborts.
        drop_payload(payload);
    }
}

/// Drops the payload of a panic. Its destructor is a user's code too, and may panic with a payload
/// whose destructor panics, and so on without end: the second payload is leaked.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

impl fmt::Debug for Panics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Panics").field("count", &self.count()).finish_non_exhaustive()
    }
}
