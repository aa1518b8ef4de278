//! Where a panic in foreign code ends: it is caught, counted and reported.

use std::any::Any;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::PanicHook;

pub(crate) struct Panics {
    count: AtomicU64,
    hook: Option<PanicHook>,
}

impl Panics {
    pub(crate) fn new(hook: Option<PanicHook>) -> Self {
        Self { count: AtomicU64::new(0), hook }
    }

    pub(crate) fn count(&self) -> u64 {
        // Relaxed: a number to look at, nothing follows from it.
        self.count.load(Ordering::Relaxed)
    }

    /// Calls `foreign` and returns, whether it panics or not.
    ///
    /// Unwind safety is asserted: of what `foreign` can see, the crate itself keeps nothing, and what a task shares
    /// with others is protected by the poisoning of its own locks, as on any thread.
    pub(crate) fn contain(&self, foreign: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.report(payload);
        }
    }

    /// Counts and reports what somebody else has caught.
    #[cold]
    pub(crate) fn report(&self, payload: Box<dyn Any + Send>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let last = catch_unwind(AssertUnwindSafe(|| {
            if let Some(hook) = &self.hook {
                hook(&*payload);
            }
            // In here, because the destructor of a payload is foreign code too.
            drop(payload);
        }));
        // Whoever panics with a payload that panics when it is dropped could do so for ever. Leak the second.
        mem::forget(last);
    }
}

impl fmt::Debug for Panics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Panics").field("count", &self.count()).finish_non_exhaustive()
    }
}
