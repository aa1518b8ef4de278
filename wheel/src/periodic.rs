//! A task that runs again and again: the part of it that stands in the wheel, and the handle that ends it.
//!
//! One run at a time: the task is put back into the wheel when a run has ended, in the same box. It keeps its place
//! under the timer's bound meanwhile, so it can always come back.

use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::firing::Firing;
use crate::job::{BoxedJob, Job};
use crate::period::Period;
use crate::shard::Shard;
use crate::task::Task;
use crate::tick::NEVER;
use crate::wheel::Key;

/// A handle of a task that runs again and again, to end it and to see how often it ran.
///
/// Dropping the handle does not end the task. It ends when it is [cancelled](Self::cancel), when its closure says so, or
/// with its timer.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Period};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let minute = Duration::from_secs(60);
/// let heartbeat = timer.schedule_periodic(minute, Period::fixed_rate(minute), || {})?;
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(heartbeat.runs(), 60);
/// assert!(heartbeat.cancel());
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(heartbeat.runs(), 60);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PeriodicTimeout {
    shared: Arc<Shared>,
}

struct Shared {
    shard: Arc<Shard<BoxedJob>>,
    runs: AtomicU64,
    place: Mutex<Place>,
}

/// Where the task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    InWheel(Key),
    /// Taken to be run, or being run.
    Out,
    /// It runs no more.
    Ended,
}

impl PeriodicTimeout {
    /// Ends the task: no run begins after this. A run that is under way on another thread goes on to its end. Returns
    /// whether this call ended it.
    ///
    /// The closure is dropped on the calling thread, with no lock held; if it was taken to be run, on the thread that was
    /// to run it, after the run if one is under way. A run may cancel its own task.
    #[expect(clippy::must_use_candidate, reason = "ending the task is what it is called for")]
    pub fn cancel(&self) -> bool {
        let place = mem::replace(&mut *self.shared.place.lock(), Place::Ended);
        match place {
            Place::InWheel(key) => {
                let cancelled = self.shared.shard.cancel(key);
                // If it is not there, either the end of the timer was first, or the ticker has just taken it. That then
                // finds the task ended and drops it.
                cancelled.is_some() || !self.shared.shard.is_unprocessed(key)
            }
            Place::Out => true,
            Place::Ended => false,
        }
    }

    /// Whether the task runs no more: it was cancelled, has ended itself, or its timer is gone.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match *self.shared.place.lock() {
            Place::InWheel(key) => self.shared.shard.is_unprocessed(key),
            Place::Out => false,
            Place::Ended => true,
        }
    }

    /// How often the task has run, panics included.
    #[must_use]
    pub fn runs(&self) -> u64 {
        // Relaxed: a number to look at.
        self.shared.runs.load(Ordering::Relaxed)
    }

    /// When the next run is due, rounded up to a tick. None while a run is under way, after the end, and for a run that
    /// never comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.shared.place.lock() {
            Place::InWheel(key) => self.shared.shard.deadline(key),
            Place::Out | Place::Ended => None,
        }
    }
}

impl fmt::Debug for PeriodicTimeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PeriodicTimeout")
            .field("deadline", &self.deadline())
            .field("runs", &self.runs())
            .field("ended", &self.is_ended())
            .finish_non_exhaustive()
    }
}

/// The part that stands in the wheel.
pub(crate) struct Periodic<F> {
    task: F,
    period: Period,
    /// When the run is due, not rounded, so that a fixed rate does not drift.
    due: Option<Instant>,
    tenure: Tenure,
    firing: Arc<Firing>,
}

/// The task's hold on its place under the bound. Whoever drops the task while it is out of the wheel, be it an executor
/// that does not want it, ends it and gives the place back.
struct Tenure {
    shared: Arc<Shared>,
    out: bool,
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if self.out {
            *self.shared.place.lock() = Place::Ended;
            self.shared.shard.give_back_place();
        }
    }
}

impl<F: FnMut() -> ControlFlow<()> + Send + 'static> Periodic<F> {
    /// The task, and its handle. It is in no wheel yet: see [`admit`](Self::admit).
    pub(crate) fn new(
        task: F,
        period: Period,
        due: Option<Instant>,
        shard: Arc<Shard<BoxedJob>>,
        firing: Arc<Firing>,
    ) -> (Box<Self>, PeriodicTimeout) {
        let both =
            Arc::new(Shared { shard, runs: AtomicU64::new(0), place: Mutex::new(Place::Out) });
        let tenure = Tenure { shared: Arc::clone(&both), out: false };
        (Box::new(Self { task, period, due, tenure, firing }), PeriodicTimeout { shared: both })
    }

    /// Puts it back into the wheel for its next run, if nobody has ended it.
    fn rearm(mut self: Box<Self>) {
        let now = self.firing.clock.now();
        self.due = self.due.and_then(|due| self.period.next(due, now));
        let tick = self.due.map_or(NEVER, |due| self.firing.scale.deadline_tick(due));
        let shared = Arc::clone(&self.tenure.shared);
        let mut place = shared.place.lock();
        if *place == Place::Ended {
            drop(place);
            return;
        }
        self.tenure.out = false;
        // Under the lock of the place, so that a cancel that comes now finds the key.
        let unwanted = match shared.shard.rearm(tick, self) {
            Ok(key) => {
                *place = Place::InWheel(key);
                None
            }
            // The timer was stopped meanwhile, and has given back what was pending.
            Err(job) => {
                *place = Place::Ended;
                Some(job)
            }
        };
        drop(place);
        if unwanted.is_some() {
            shared.shard.give_back_place();
        }
        // Its destructor is foreign code.
        drop(unwanted);
    }
}

impl PeriodicTimeout {
    /// Runs `schedule`, which puts the task into the wheel, so that a first run that comes at once finds the key.
    pub(crate) fn admit<E>(&self, schedule: impl FnOnce() -> Result<Key, E>) -> Result<(), E> {
        let mut place = self.shared.place.lock();
        *place = Place::InWheel(schedule()?);
        Ok(())
    }
}

impl<F: FnMut() -> ControlFlow<()> + Send + 'static> Job for Periodic<F> {
    fn run(mut self: Box<Self>) {
        {
            let mut place = self.tenure.shared.place.lock();
            if *place == Place::Ended {
                drop(place);
                return;
            }
            *place = Place::Out;
        }
        let mut flow = ControlFlow::Continue(());
        let firing = Arc::clone(&self.firing);
        // Contained here, so that a panic costs the task one run and not its life.
        firing.panics.contain(|| flow = (self.task)());
        self.tenure.shared.runs.fetch_add(1, Ordering::Relaxed);
        if flow.is_continue() {
            self.rearm();
        }
    }

    fn into_task(self: Box<Self>) -> Task {
        let mut task = self.task;
        Box::new(move || {
            // Once, by hand: whether to go on is no question any more.
            let _flow = task();
        })
    }

    fn keeps_place(&self) -> bool {
        true
    }

    fn taken(&mut self) {
        self.tenure.out = true;
    }
}
