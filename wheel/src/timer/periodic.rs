//! A periodic task: the job in the wheel, and the handle for ending the task.
//!
//! Runs never overlap: a job goes back into the wheel, in the same box, when the run has ended.
//! Meanwhile the job retains the unit of capacity, so the timer's limit cannot refuse the next
//! run.

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

/// A handle to a periodic task, for ending the task and for counting the runs.
///
/// Returned by [`WeakTimer::schedule_periodic`](crate::WeakTimer::schedule_periodic) and
/// [`WeakTimer::schedule_while`](crate::WeakTimer::schedule_while).
///
/// Dropping the handle does not end the task. The task ends when [cancelled](Self::cancel), when
/// the closure returns [`ControlFlow::Break`], or with the timer.
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
    /// Locks the state; `None` in a forked child of the timer's process, as with the shard.
    fn state(&self) -> Option<MutexGuard<'_, RunState>> {
        self.shard.context().home.is_current_by_count().then(|| self.state.lock())
    }
}

/// The stage of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunState {
    InWheel(Key),
    /// Taken to be run, or running.
    Taken,
    /// The task does not run again.
    Ended,
}

impl PeriodicTimeout {
    /// Ends the task, and returns whether this call has ended the task: `false` if the task had
    /// ended before.
    ///
    /// No run starts afterwards. A run under way on another thread continues to the end. A run may
    /// cancel its own task.
    ///
    /// The closure is dropped on the calling thread, with no lock held. If the ticker has already
    /// taken the closure for a run, the closure is dropped on the thread of the run, after the run.
    #[expect(clippy::must_use_candidate, reason = "it is called to end the task")]
    pub fn cancel(&self) -> bool {
        // Unlocked at once: the shard's lock is not taken under this lock.
        let state = self.shared.state().map(|mut state| mem::replace(&mut *state, RunState::Ended));
        match state.unwrap_or(RunState::Ended) {
            RunState::InWheel(key) => {
                let cancelled = self.shared.shard.cancel(key);
                // If the entry is missing, either the timer was stopped first, or the ticker has
                // just taken the job, and the run will find the state `Ended`.
                cancelled.is_some() || !self.shared.shard.is_unprocessed(key)
            }
            RunState::Taken => true,
            RunState::Ended => false,
        }
    }

    /// Returns whether the task has ended.
    ///
    /// A task ends when cancelled, by returning [`ControlFlow::Break`], or when the timer is
    /// stopped or dropped. In a forked child of the timer's process, every task has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match self.shared.state().as_deref() {
            Some(RunState::InWheel(key)) => self.shared.shard.is_unprocessed(*key),
            Some(RunState::Taken) => false,
            Some(RunState::Ended) | None => true,
        }
    }

    /// Changes the deadline of the next run to `deadline`, an instant of the timer's clock.
    ///
    /// At a fixed rate, later runs are due at multiples of the period after `deadline`. Returns
    /// `true` if the next run has the new deadline, and `false`, without effect, during a run and
    /// after the end.
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
    /// // Runs now, and then every minute.
    /// assert!(heartbeat.reschedule(clock.now()));
    /// clock.advance(Duration::from_secs(119));
    /// assert_eq!(heartbeat.runs(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "it is called to move the run")]
    pub fn reschedule(&self, deadline: Instant) -> bool {
        self.reschedule_at(Some(deadline))
    }

    /// Changes the deadline of the next run to `delay` from now, by the timer's clock.
    ///
    /// The effect on later runs and the result are as for [`reschedule`](Self::reschedule):
    /// `false`, without effect, during a run and after the end.
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

    /// Returns the number of runs so far, including runs that panicked.
    #[must_use]
    pub fn runs(&self) -> u64 {
        // Relaxed: a figure, nothing depends on the value.
        self.shared.runs.load(Ordering::Relaxed)
    }

    /// Returns the deadline of the next run, rounded up to a tick.
    ///
    /// `None` during a run, after the end, and for a deadline out of range.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.shared.state()? {
            RunState::InWheel(key) => self.shared.shard.deadline(key),
            RunState::Taken | RunState::Ended => None,
        }
    }
}

// A panic cannot leave the state half changed: no user code runs under the lock.
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

/// The job in the wheel.
pub(crate) struct Periodic<F> {
    task: F,
    period: Period,
    /// The deadline of the run, not rounded to a tick, so that a fixed rate does not drift.
    due: Option<Instant>,
    capacity: CapacityHold,
    context: Arc<Context>,
}

/// Converts a periodic task into a task for a single run.
pub(crate) fn once(mut task: impl FnMut() -> ControlFlow<()> + Send + 'static) -> Task {
    boxed(move || {
        // There is no next run, so the result does not matter.
        let _flow = task();
    })
}

/// The task's unit of capacity while the task is out of the wheel.
///
/// If the task is dropped then, for example by an executor, the drop ends the task and gives the
/// unit back.
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
    /// Creates the job and the handle. [`PeriodicTimeout::schedule_with`] puts the job into the
    /// wheel.
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

    /// Puts the job back into the wheel for the next run, unless the task has ended.
    fn rearm(mut self: Box<Self>) {
        if !self.context.home.is_current_by_count() {
            // The task has forked. In the child the task is neither run again nor dropped.
            mem::forget(self);
            return;
        }
        // 1. Find the next deadline.
        let mut now = None;
        self.context.panics.catch(|| now = Some(self.context.clock.now()));
        // If the clock panicked, the task is dropped here and not during unwinding: the task's
        // destructor may panic as well.
        let Some(now) = now else { return };
        self.due = self.due.and_then(|due| self.period.next(due, now, &self.context.scale));
        let tick = self.due.map_or(NEVER, |due| self.context.scale.deadline_tick(due));
        let shared = Arc::clone(&self.capacity.shared);
        // 2. Put the job into the wheel, unless the task was cancelled meanwhile. The state is
        //    locked, so that a concurrent cancel finds the key.
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
            // The timer was stopped meanwhile, and has returned the pending tasks; or the wheel is
            // full.
            Err(job) => {
                *state = RunState::Ended;
                Some(job)
            }
        };
        drop(state);
        // 3. Without the lock: give back the capacity of a refused job and drop the job, which runs
        //    a user's destructor.
        if refused.is_some() {
            shared.shard.give_back_capacity(1);
        }
        drop(refused);
    }
}

impl PeriodicTimeout {
    /// Calls `schedule`, which puts the job into the wheel, under the lock, so that an immediate
    /// first run finds the key.
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
        // The panic is caught here to end this run and not the task.
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

    fn retains_capacity(&self) -> bool {
        true
    }

    fn on_taken(&mut self) {
        self.capacity.held = true;
    }
}
