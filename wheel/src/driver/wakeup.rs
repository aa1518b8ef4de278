//! When the ticker wakes next, and how a caller brings that forward.
//!
//! Each shard has a *next wake*: the tick by which the ticker looks at it again. Nothing in the
//! shard is due earlier. The ticker sleeps to the earliest of them. A caller that schedules
//! something earlier lowers the next wake of the shard, under the shard's lock, and unparks the
//! ticker if it would sleep longer.
//!
//! Only the ticker raises a next wake, when it has come. If a cancel raised it, scheduling and
//! cancelling on an idle timer, the usual life of a timeout, would wake the ticker each time.
//!
//! No wake-up is lost. The caller writes the next wake, then reads how long the ticker sleeps; the
//! ticker writes how long it is going to sleep, then reads every next wake again. Each has a fence
//! between its write and its read. One of the two fences comes first, and the thread with the
//! second sees what was written before the first: the caller unparks, or the ticker does not park.
//! An unpark between the ticker's last look and its sleep leaves a permit, and the park returns at
//! once.
//!
//! The atomics themselves are relaxed: the lock orders what is in a shard, and the fences order the
//! rest. Fences, not sequentially consistent loads and stores, because loom models fences exactly
//! (DESIGN: wakeup).

use std::sync::Weak;

use crate::time::clock::Parker;
use crate::time::sync::{AtomicBool, AtomicU64, Ordering, fence};
use crate::time::tick::NEVER;

/// The handshake between the ticker and the threads that schedule or stop.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// The tick to which the ticker sleeps; [`AWAKE`] while it does not.
    sleeps_until: AtomicU64,
    stopping: AtomicBool,
    /// Only the ticker keeps its parker alive: a manual clock waits for every parker that exists,
    /// and a ticker that has ended never parks again.
    parker: Weak<Parker>,
}

impl Wakeup {
    pub(crate) fn new(parker: Weak<Parker>) -> Self {
        Self { sleeps_until: AtomicU64::new(AWAKE), stopping: AtomicBool::new(false), parker }
    }

    /// Wakes the ticker if it sleeps beyond `tick`. The caller has lowered the next wake of its
    /// shard.
    pub(crate) fn wake_by(&self, tick: u64) {
        fence(Ordering::SeqCst);
        if tick < self.sleeps_until.load(Ordering::Relaxed) {
            // Tells later callers, until the ticker wakes, that it is unparked already. If it is
            // awake by now, the value is AWAKE, the lowest, and stays.
            self.sleeps_until.fetch_min(tick, Ordering::Relaxed);
            self.unpark();
        }
    }

    /// Announces that the ticker is about to sleep to `tick`. It reads every next wake again before
    /// it does.
    pub(crate) fn begin_sleep(&self, tick: u64) {
        self.sleeps_until.store(tick, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn end_sleep(&self) {
        self.sleeps_until.store(AWAKE, Ordering::Relaxed);
    }

    /// Tells the ticker to end.
    pub(crate) fn stop(&self) {
        // Before the permit: the ticker takes the permit and then reads this.
        self.stopping.store(true, Ordering::Relaxed);
        self.unpark();
    }

    /// Whether the ticker is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn unpark(&self) {
        if let Some(parker) = self.parker.upgrade() {
            parker.unpark();
        }
    }
}

/// No tick is earlier, so no caller wakes a ticker that is awake.
const AWAKE: u64 = 0;

/// The tick by which the ticker looks at a shard again; [`NEVER`] if it need not.
///
/// Written only under the lock of the shard, so that no change is lost; the ticker reads it
/// without.
#[derive(Debug)]
pub(crate) struct NextWake(AtomicU64);

impl NextWake {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn tick(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Lowers it to `tick` if that is earlier, and returns whether it was.
    pub(crate) fn lower_to(&self, tick: u64) -> bool {
        // The latest value: only holders of the lock write it, and the caller is one.
        let earlier = tick < self.0.load(Ordering::Relaxed);
        if earlier {
            self.0.store(tick, Ordering::Relaxed);
        }
        earlier
    }

    /// Sets it anew. For the ticker, under the lock, when the tick has come.
    pub(crate) fn set(&self, tick: Option<u64>) {
        self.0.store(tick.unwrap_or(NEVER), Ordering::Relaxed);
    }
}
