//! How the shutdown of a client reaches the calls that are under way (DESIGN: shutdown).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::model::sync::{Parker, Parkers};

/// How often calls had been aborted when a call started. The next abort ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallGeneration(pub(crate) u64);

impl CallGeneration {
    /// Of what is not a call of the program and is never aborted.
    pub(crate) const NEVER_ABORTED: Self = Self(u64::MAX);
}

/// How far the shutdown of a client has come.
#[derive(Debug, Default)]
pub(crate) struct ShutdownState {
    begun: AtomicBool,
    /// How often the calls under way were aborted.
    aborts: AtomicU64,
    /// Calls that pause between two attempts.
    pausing: Parkers,
}

impl ShutdownState {
    /// Ends waits for a lock. Other calls go on.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.pausing.unpark_all();
    }

    /// Ends all calls that are under way. Later ones go on.
    pub(crate) fn abort_calls(&self) {
        self.aborts.fetch_add(1, Ordering::SeqCst);
        self.pausing.unpark_all();
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// The generation of a call that starts now.
    pub(crate) fn generation(&self) -> CallGeneration {
        CallGeneration(self.aborts.load(Ordering::SeqCst))
    }

    /// Runs `pause`, which [`begin`](Self::begin) and [`abort_calls`](Self::abort_calls) end by
    /// unparking. Check for both inside: what came before is not signalled again.
    pub(crate) fn while_pausing(&self, pause: impl FnOnce(&Parker)) {
        let parker = Parker::new();
        self.while_parked(&parker, || pause(&parker));
    }

    /// As [`while_pausing`](Self::while_pausing), for a thread that parks on its own `parker`.
    pub(crate) fn while_parked(&self, parker: &Parker, pause: impl FnOnce()) {
        self.pausing.with(parker, pause);
    }
}
