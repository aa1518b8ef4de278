//! Catches, counts and reports panics in user code.

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
        // Relaxed: the count is a figure only; no other memory depends on the value.
        self.count.load(Ordering::Relaxed)
    }

    /// Calls `code`, and catches and reports a panic of `code`.
    ///
    /// Unwind safety is asserted: the crate retains no state visible to `code`, and state shared by
    /// a task is protected by the poisoning of the task's own locks, as on any thread.
    pub(crate) fn catch(&self, code: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
            self.report(payload);
        }
    }

    /// Counts and reports a panic caught by the caller.
    #[cold]
    pub(crate) fn report(&self, payload: Box<dyn Any + Send>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(hook) = &self.hook {
            let outcome = catch_unwind(AssertUnwindSafe(|| hook(&*payload)));
            outcome.unwrap_or_else(drop_payload);
        }
        // Outside of the hook's call: if the hook panicked, and the payload's destructor panicked
        // during the unwind, the process would abort.
        drop_payload(payload);
    }
}

/// Drops the payload of a panic. The destructor is user code too, and may panic with a second
/// payload, whose destructor may panic in turn, without end. So a second payload is leaked.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

impl fmt::Debug for Panics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Panics").field("count", &self.count()).finish_non_exhaustive()
    }
}
