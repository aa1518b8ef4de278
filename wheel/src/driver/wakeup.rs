//! The ticker's next wake, and how a caller makes the wake earlier.
//!
//! Each shard has a *next wake*: the tick by which the ticker inspects the shard again. No value in
//! the shard is due earlier. The ticker sleeps to the earliest next wake of all shards. A caller
//! with an earlier deadline lowers the shard's next wake, under the shard's lock, and unparks the
//! ticker if the ticker would sleep longer.
//!
//! Only the ticker raises a next wake, once the tick is reached. If a cancel raised the next wake,
//! each pair of schedule and cancel on an idle timer, the usual life of a timeout, would wake the
//! ticker.
//!
//! No wake-up is lost. The caller writes the next wake, then reads how long the ticker sleeps. The
//! ticker writes how long the ticker is going to sleep, then reads every next wake again. Both have
//! a fence between the write and the read. One of the two fences comes first, and the thread with
//! the second fence sees all writes before the first fence: the caller unparks, or the ticker does
//! not park. An unpark between the ticker's last read and the park leaves a permit, and the park
//! returns at once.
//!
//! The atomics themselves are relaxed: the lock orders the contents of a shard, and the fences
//! order the rest. Sequentially consistent loads and stores would also be correct, but loom models
//! only fences exactly.

use std::sync::Weak;

use crate::time::clock::Parker;
use crate::time::sync::{AtomicBool, AtomicU64, Ordering, fence};
use crate::time::tick::NEVER;

/// The handshake between the ticker and the threads which schedule or stop.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// The tick to which the ticker sleeps; [`AWAKE`] while the ticker is awake.
    sleeps_until: AtomicU64,
    stopping: AtomicBool,
    /// Weak, because only the ticker may retain the parker: a manual clock waits for every existing
    /// parker, and a ticker never parks again after its end.
    parker: Weak<Parker>,
}

impl Wakeup {
    pub(crate) fn new(parker: Weak<Parker>) -> Self {
        Self { sleeps_until: AtomicU64::new(AWAKE), stopping: AtomicBool::new(false), parker }
    }

    /// Wakes the ticker if the ticker sleeps beyond `tick`. The caller must lower the shard's next
    /// wake before the call.
    pub(crate) fn wake_by(&self, tick: u64) {
        fence(Ordering::SeqCst);
        if tick < self.sleeps_until.load(Ordering::Relaxed) {
            // Until the ticker wakes, a later caller with the same or a later tick does not unpark
            // the ticker again. If the ticker is awake by now, the value is `AWAKE`, the minimum,
            // and stays.
            self.sleeps_until.fetch_min(tick, Ordering::Relaxed);
            self.unpark();
        }
    }

    /// Announces the ticker's sleep to `tick`. After the call and before the sleep, the ticker must
    /// read every next wake again.
    pub(crate) fn begin_sleep(&self, tick: u64) {
        self.sleeps_until.store(tick, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn end_sleep(&self) {
        self.sleeps_until.store(AWAKE, Ordering::Relaxed);
    }

    /// Tells the ticker to end.
    pub(crate) fn stop(&self) {
        // Before the permit: the ticker takes the permit and then reads `stopping`.
        self.stopping.store(true, Ordering::Relaxed);
        self.unpark();
    }

    /// Whether the ticker must end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn unpark(&self) {
        if let Some(parker) = self.parker.upgrade() {
            parker.unpark();
        }
    }
}

/// The value for an awake ticker. No tick is earlier, so no caller unparks an awake ticker.
const AWAKE: u64 = 0;

/// The tick by which the ticker inspects a shard again; [`NEVER`] if no inspection is needed.
///
/// Written only under the shard's lock, so no change is lost. The ticker reads the tick without the
/// lock.
#[derive(Debug)]
pub(crate) struct NextWake(AtomicU64);

impl NextWake {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn tick(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Lowers the next wake to `tick` if `tick` is earlier. Returns whether `tick` was earlier.
    pub(crate) fn lower_to(&self, tick: u64) -> bool {
        // The latest value: writers hold the shard's lock, and so does the caller.
        let earlier = tick < self.0.load(Ordering::Relaxed);
        if earlier {
            self.0.store(tick, Ordering::Relaxed);
        }
        earlier
    }

    /// Replaces the next wake by `tick`, or by [`NEVER`]. Called by the ticker, under the shard's
    /// lock, once the next wake is reached.
    pub(crate) fn set(&self, tick: Option<u64>) {
        self.0.store(tick.unwrap_or(NEVER), Ordering::Relaxed);
    }
}
