//! A periodic task: the job that is in the wheel, and the handle that ends it.
//!
//! One run at a time: the job is put back into the wheel when a run has ended, in the same box. It
//! keeps its unit of capacity meanwhile, so it can always be put back (DESIGN: periodic tasks).

use std::fmt;
use std::mem;
use std::ops::ControlFlow;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::job::{BoxedJob, Job};
use super::period::Period;
use super::task::{Task, boxed};
use crate::driver::context::Context;
use crate::driver::shard::Shard;
use crate::time::tick::NEVER;
use crate::wheel::Key;

/// A handle to a periodic task: to end it, and to see how often it ran.
///
/// Dropping the handle does not end the task. It ends when it is [cancelled](Self::cancel), when
/// its closure returns [`ControlFlow::Break`], or with its timer.
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
    shared: Arc<PeriodicState>,
}

struct PeriodicState {
    shard: Arc<Shard<BoxedJob>>,
    runs: AtomicU64,
    state: Mutex<RunState>,
}

impl PeriodicState {
    /// Locks the state. `None` in a child of the timer's process, as for the shard.
    fn state(&self) -> Option<MutexGuard<'_, RunState>> {
        self.shard.context().home.is_current_by_count().then(|| self.state.lock())
    }
}

/// Where the task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunState {
    InWheel(Key),
    /// Taken to be run, or running.
    Taken,
    /// It does not run again.
    Ended,
}

impl PeriodicTimeout {
    /// Ends the task: no run starts after this. A run that is under way on another thread continues
    /// to its end. Returns whether this call ended the task.
    ///
    /// The closure is dropped on the calling thread, with no lock held. If the ticker has taken it
    /// to be run, it is dropped on the thread that runs it, after that run. A run may cancel its
    /// own task.
    #[expect(clippy::must_use_candidate, reason = "it is called to end the task")]
    pub fn cancel(&self) -> bool {
        // Unlocked at once: the shard's lock is not taken under this lock.
        let state = self.shared.state().map(|mut state| mem::replace(&mut *state, RunState::Ended));
        match state.unwrap_or(RunState::Ended) {
            RunState::InWheel(key) => {
                let cancelled = self.shared.shard.cancel(key);
                // If it is not there, either the timer was stopped first, or the ticker has just
                // taken it and will find that it has ended.
                cancelled.is_some() || !self.shared.shard.is_unprocessed(key)
            }
            RunState::Taken => true,
            RunState::Ended => false,
        }
    }

    /// Whether the task has ended: it was cancelled, has ended itself, or its timer was stopped or
    /// dropped, or this process is a forked child of the timer's.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match self.shared.state().as_deref() {
            Some(RunState::InWheel(key)) => self.shared.shard.is_unprocessed(*key),
            Some(RunState::Taken) => false,
            Some(RunState::Ended) | None => true,
        }
    }

    /// Gives the next run another deadline, an instant of the timer's clock. At a fixed rate, the
    /// later runs are due at multiples of the period after it. Returns false, without effect,
    /// during a run and after the end.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{Clock, HashedWheelTimer, ManualClock, Period};
    ///
    /// let clock = ManualClock::new();
    /// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
    /// let minute = Duration::from_secs(60);
    /// let heartbeat = timer.schedule_periodic(minute, Period::fixed_rate(minute), || {})?;
    /// // Once now, and then every minute.
    /// assert!(heartbeat.reschedule(clock.now()));
    /// clock.advance(Duration::from_secs(119));
    /// assert_eq!(heartbeat.runs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "it is called to move the run")]
    pub fn reschedule(&self, deadline: Instant) -> bool {
        self.reschedule_at(Some(deadline))
    }

    /// As [`reschedule`](Self::reschedule), with a delay from now.
    #[expect(clippy::must_use_candidate, reason = "it is called to move the run")]
    pub fn reschedule_after(&self, delay: Duration) -> bool {
        let context = self.shared.shard.context();
        context.home.is_current_by_count()
            && self.reschedule_at(context.clock.now().checked_add(delay))
    }

    fn reschedule_at(&self, deadline: Option<Instant>) -> bool {
        let scale = &self.shared.shard.context().scale;
        let tick = deadline.map_or(NEVER, |deadline| scale.deadline_tick(deadline));
        match self.shared.state().as_deref() {
            Some(RunState::InWheel(key)) => {
                self.shared.shard.reschedule(*key, tick, |job| job.on_rescheduled(deadline))
            }
            Some(RunState::Taken | RunState::Ended) | None => false,
        }
    }

    /// How many times the task has run, including runs that panicked.
    #[must_use]
    pub fn runs(&self) -> u64 {
        // Relaxed: a figure, nothing depends on it.
        self.shared.runs.load(Ordering::Relaxed)
    }

    /// When the next run is due, rounded up to a tick. `None` during a run, after the end, and for
    /// a deadline that never comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.shared.state()? {
            RunState::InWheel(key) => self.shared.shard.deadline(key),
            RunState::Taken | RunState::Ended => None,
        }
    }
}

// A panic cannot leave it half changed: no code of a user runs under its lock.
impl RefUnwindSafe for PeriodicState {}

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

/// The job that is in the wheel.
pub(crate) struct Periodic<F> {
    task: F,
    period: Period,
    /// When the run is due, not rounded to a tick, so that a fixed rate does not drift.
    due: Option<Instant>,
    capacity: CapacityHold,
    context: Arc<Context>,
}

/// A periodic task as one that runs once.
pub(crate) fn once(mut task: impl FnMut() -> ControlFlow<()> + Send + 'static) -> Task {
    boxed(move || {
        // It runs once, so what it returns does not matter.
        let _flow = task();
    })
}

/// The task's unit of capacity while it is out of the wheel. If the task is dropped then, by an
/// executor for example, this ends it and gives the unit back.
struct CapacityHold {
    shared: Arc<PeriodicState>,
    held: bool,
}

impl Drop for CapacityHold {
    fn drop(&mut self) {
        if !self.held {
            return;
        }
        if let Some(mut state) = self.shared.state() {
            *state = RunState::Ended;
            drop(state);
            self.shared.shard.give_back_capacity(1);
        }
    }
}

impl<F: FnMut() -> ControlFlow<()> + Send + 'static> Periodic<F> {
    /// Creates the job and its handle. [`PeriodicTimeout::schedule_with`] puts it into the wheel.
    pub(crate) fn new(
        task: F,
        period: Period,
        due: Option<Instant>,
        shard: Arc<Shard<BoxedJob>>,
        context: Arc<Context>,
    ) -> (Box<Self>, PeriodicTimeout) {
        let state = Mutex::new(RunState::Taken);
        let handle = PeriodicTimeout {
            shared: Arc::new(PeriodicState { shard, runs: AtomicU64::new(0), state }),
        };
        let capacity = CapacityHold { shared: Arc::clone(&handle.shared), held: false };
        (Box::new(Self { task, period, due, capacity, context }), handle)
    }

    /// Puts it back into the wheel for its next run, unless it has ended.
    fn rearm(mut self: Box<Self>) {
        if !self.context.home.is_current_by_count() {
            // The task has forked. In the child it is not run again, and not dropped either.
            mem::forget(self);
            return;
        }
        // 1. Find the next deadline.
        let mut now = None;
        self.context.panics.catch(|| now = Some(self.context.clock.now()));
        // If the clock panicked, the task is dropped here, not while that panic unwinds: its
        // destructor may panic as well.
        let Some(now) = now else { return };
        self.due = self.due.and_then(|due| self.period.next(due, now, &self.context.scale));
        let tick = self.due.map_or(NEVER, |due| self.context.scale.deadline_tick(due));
        let shared = Arc::clone(&self.capacity.shared);
        // 2. Put it into the wheel, unless it was cancelled meanwhile. Under the lock of the state,
        //    so that a cancel that comes now finds the key.
        let mut state = shared.state.lock();
        if *state == RunState::Ended {
            drop(state);
            return;
        }
        self.capacity.held = false;
        let refused = match shared.shard.rearm(tick, self) {
            Ok(key) => {
                *state = RunState::InWheel(key);
                None
            }
            // The timer was stopped meanwhile, and has returned what was pending.
            Err(job) => {
                *state = RunState::Ended;
                Some(job)
            }
        };
        drop(state);
        // 3. Without the lock: if it was refused, give its capacity back and drop it, which runs a
        //    user's destructor.
        if refused.is_some() {
            shared.shard.give_back_capacity(1);
        }
        drop(refused);
    }
}

impl PeriodicTimeout {
    /// Calls `schedule`, which puts the job into the wheel, under the lock: a first run that comes
    /// at once finds the key.
    pub(crate) fn schedule_with<E>(
        &self,
        schedule: impl FnOnce() -> Result<Key, E>,
    ) -> Result<(), E> {
        let mut state = self.shared.state.lock();
        *state = RunState::InWheel(schedule()?);
        Ok(())
    }
}

impl<F: FnMut() -> ControlFlow<()> + Send + 'static> Job for Periodic<F> {
    fn run(mut self: Box<Self>) {
        {
            let mut state = self.capacity.shared.state.lock();
            if *state == RunState::Ended {
                drop(state);
                return;
            }
            *state = RunState::Taken;
        }
        let mut flow = ControlFlow::Continue(());
        let context = Arc::clone(&self.context);
        // Caught here, so that a panic ends this run and not the task.
        context.panics.catch(|| flow = (self.task)());
        self.capacity.shared.runs.fetch_add(1, Ordering::Relaxed);
        if flow.is_continue() {
            self.rearm();
        }
    }

    fn into_task(self: Box<Self>) -> Task {
        once(self.task)
    }

    fn on_rescheduled(&mut self, deadline: Option<Instant>) {
        self.due = deadline;
    }

    fn keeps_capacity(&self) -> bool {
        true
    }

    fn on_taken(&mut self) {
        self.capacity.held = true;
    }
}
