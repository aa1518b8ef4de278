//! When the ticker wakes next, and who may bring that forward.
//!
//! Each shard has a *plan*: the tick by which the ticker looks at it next. Nothing in the shard is due before its plan.
//! The ticker sleeps to the earliest plan. Who schedules something earlier brings the plan of the shard forward, under
//! the shard's lock, and wakes the ticker if it would sleep beyond.
//!
//! A plan is moved back only by the ticker, when it has been reached. If cancelling moved it back, then scheduling and
//! cancelling on an idle timer, the usual life of a timeout, would wake the ticker each time.
//!
//! No wake-up is lost. The caller writes the plan, then reads how long the ticker sleeps; the ticker writes how long it
//! is going to sleep, then reads the plans again. Between the writing and the reading each has a fence. Of two fences
//! one comes first, and who passes the second sees what was written before the first: the caller unparks, or the
//! ticker does not park. An unpark that comes between the ticker's last look and its sleep leaves a permit, and the
//! park returns at once.
//!
//! The atomics themselves are relaxed: what is in a shard is ordered by its lock, and for all else there are the
//! fences. (Fences, not sequentially consistent loads and stores, because loom knows the former exactly.)

use std::fmt;
use std::sync::Weak;

use crate::clock::Parker;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use crate::tick::NEVER;

/// What the ticker and those who schedule know of each other.
pub(crate) struct Alarm {
    /// The tick to which the ticker sleeps; [`AWAKE`] while it does not.
    sleeps_until: AtomicU64,
    stopping: AtomicBool,
    /// The ticker is to take one more turn and end.
    draining: AtomicBool,
    /// The ticker alone keeps its parker alive: a manual clock waits for every parker there is, and a ticker that has
    /// ended never parks again.
    parker: Weak<Parker>,
}

impl Alarm {
    pub(crate) fn new(parker: Weak<Parker>) -> Self {
        Self {
            sleeps_until: AtomicU64::new(AWAKE),
            stopping: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            parker,
        }
    }

    /// Wakes the ticker if it sleeps beyond `tick`. The plan of the shard must have been brought forward before.
    pub(crate) fn bring_forward(&self, tick: u64) {
        fence(Ordering::SeqCst);
        if tick < self.sleeps_until.load(Ordering::Relaxed) {
            // A note to the callers after this one, until the ticker wakes: it is on its way. Awake, it has the lowest
            // value already and keeps it.
            self.sleeps_until.fetch_min(tick, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Says that the ticker is about to sleep to `tick`. It must look at the plans once more before it does.
    pub(crate) fn fall_asleep(&self, tick: u64) {
        self.sleeps_until.store(tick, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeps_until.store(AWAKE, Ordering::Relaxed);
    }

    /// Tells the ticker to end.
    pub(crate) fn stop(&self) {
        // Before the permit, which the ticker takes and then looks here.
        self.stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Tells the ticker to end after one more turn.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether the ticker is to end, now or after one more turn: no time to sleep.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_stopping() || self.is_draining()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        if let Some(parker) = self.parker.upgrade() {
            parker.unpark();
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Alarm")
            .field("sleeps_until", &self.sleeps_until)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}

/// No tick is earlier, so nobody wakes a ticker that is awake.
const AWAKE: u64 = 0;

/// The tick by which the ticker looks at a shard next; [`NEVER`] if it need not.
///
/// Written under the lock of the shard only, so that no change is lost; read by the ticker without it.
#[derive(Debug)]
pub(crate) struct Plan(AtomicU64);

impl Plan {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn tick(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Makes the plan `tick` if that is earlier, and returns whether it was.
    pub(crate) fn bring_forward(&self, tick: u64) -> bool {
        // The latest there is: only holders of the lock write, and the caller is one.
        let earlier = tick < self.0.load(Ordering::Relaxed);
        if earlier {
            self.0.store(tick, Ordering::Relaxed);
        }
        earlier
    }

    /// For the ticker, under the lock, when the plan has been reached.
    pub(crate) fn renew(&self, next_due: Option<u64>) {
        self.0.store(next_due.unwrap_or(NEVER), Ordering::Relaxed);
    }
}
