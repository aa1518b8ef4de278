//! Signals the shutdown of a client to the calls under way.
//!
//! A shutdown that runs out of time aborts the calls under way, so no call outlasts the shutdown
//! while a server hangs. Later calls still work on new connections, because a permit with a lease
//! of its own may still be released. Connections for renewals stay open for the queued releases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::model::sync::{Parker, Parkers};

/// The number of aborts before a call started. The next abort ends the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallGeneration(pub(crate) u64);

impl CallGeneration {
    /// The generation of commands outside the program's calls. No abort ends them.
    pub(crate) const NEVER_ABORTED: Self = Self(u64::MAX);
}

/// The progress of a client's shutdown.
#[derive(Debug, Default)]
pub(crate) struct ShutdownState {
    begun: AtomicBool,
    /// How often the calls under way were aborted.
    aborts: AtomicU64,
    /// Calls that pause between two attempts.
    pausing: Parkers,
}

impl ShutdownState {
    /// Ends waits for a lock. Other calls continue.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.pausing.unpark_all();
    }

    /// Ends all calls under way. Later calls are unaffected.
    pub(crate) fn abort_calls(&self) {
        self.aborts.fetch_add(1, Ordering::SeqCst);
        self.pausing.unpark_all();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns the generation of a call that starts now.
    pub(crate) fn generation(&self) -> CallGeneration {
        CallGeneration(self.aborts.load(Ordering::SeqCst))
    }

    /// Runs `pause`, which [`begin`](Self::begin) and [`abort_calls`](Self::abort_calls) end by
    /// unparking. `pause` must first check whether the call has ended: an earlier event is not
    /// signalled again.
    pub(crate) fn while_pausing(&self, pause: impl FnOnce(&Parker)) {
        let parker = Parker::new();
        self.while_parked(&parker, || pause(&parker));
    }

    /// Like [`while_pausing`](Self::while_pausing), for a thread that parks on its own `parker`.
    pub(crate) fn while_parked(&self, parker: &Parker, pause: impl FnOnce()) {
        self.pausing.with(parker, pause);
    }
}
