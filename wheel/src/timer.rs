//! The timer that runs closures.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::BatchTimer;
use crate::clock::Clock;
use crate::config::TimerBuilder;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::timeout::{Task, Timeout, UnprocessedTask};

/// A timer that runs closures on a thread of its own when their time has come.
///
/// It is Netty's `HashedWheelTimer` in Rust, on a [`Wheel`](crate::Wheel) that is never walked and a ticker that does
/// not tick while nothing is due.
///
/// Tasks run one after the other on the ticker thread, with no lock held. They may schedule and cancel, and may drop
/// the timer that runs them; only [`stop`](Self::stop) they may not. A task that takes long, or waits, delays all
/// behind it: hand such work to another thread. A task that panics harms no other: the panic is caught,
/// [counted](Self::panics) and reported to [`TimerBuilder::on_panic`].
///
/// All methods take `&self`; share a timer in an [`Arc`]. One timer serves a whole program: it takes one thread, and a
/// second one is needed only to keep slow tasks away from others.
///
/// Dropping the timer drops the pending tasks unrun and waits for the ticker thread to end, which finishes the tasks
/// that it has taken. If a task drops the timer, nothing is waited for. Do not drop it while holding what a task waits
/// for.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
///
/// let clock = ManualClock::new();
/// let timer = HashedWheelTimer::builder().clock(Arc::new(clock.clone())).build()?;
/// let (sender, receiver) = crossbeam_channel::unbounded();
/// let timeout = timer.schedule(Duration::from_secs(30), move || {
///     sender.send("too late").ok();
/// })?;
/// clock.advance(Duration::from_secs(29));
/// assert!(!timeout.is_expired());
/// clock.advance(Duration::from_secs(1));
/// assert!(timeout.is_expired());
/// assert_eq!(receiver.try_recv(), Ok("too late"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HashedWheelTimer {
    tasks: BatchTimer<Task>,
}

impl HashedWheelTimer {
    /// The settings of a timer, to be changed and then [built](TimerBuilder::build).
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }

    /// Runs `task` when `delay` has passed from now: not before, and at most a tick and the operating system's wake-up
    /// after, if no other task holds up the ticker thread. A delay beyond all that an [`Instant`] can hold never ends,
    /// but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient) or `Stopped` (permanent).
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        let (shard, key) = self.tasks.schedule_after(delay, Box::new(task))?;
        Ok(Timeout::new(Arc::clone(self.tasks.shard_numbered(shard)), key))
    }

    /// Runs `task` when the timer's clock shows `deadline`, as [`schedule`](Self::schedule) does. A deadline that has
    /// passed is due at the next tick at the latest.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the task: `Full` (transient) or `Stopped` (permanent).
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError<Task>> {
        let (shard, key) = self.tasks.schedule_by(deadline, Box::new(task))?;
        Ok(Timeout::new(Arc::clone(self.tasks.shard_numbered(shard)), key))
    }

    /// How many tasks are pending: scheduled, not cancelled, not yet taken to be run. Exact while no other thread
    /// changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.tasks.pending_timeouts()
    }

    /// How many panics of tasks have been caught.
    pub fn panics(&self) -> u64 {
        self.tasks.panics()
    }

    /// The clock that the timer goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.tasks.clock()
    }

    /// Stops the timer and gives back the tasks that were pending, in the order of the ticks at which they were due.
    /// Every task that was scheduled has been run, cancelled, or is given back here.
    ///
    /// It waits for the ticker thread to end, which first finishes the tasks that it has taken: 1024 at most. Nothing
    /// can be scheduled afterwards. The second call gives back nothing. Do not call it while holding what a task waits
    /// for.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if a task calls it. Nothing is stopped then.
    pub fn stop(&self) -> Result<Vec<UnprocessedTask>, StopError> {
        let unprocessed = self.tasks.stop_with_deadlines()?;
        Ok(unprocessed
            .into_iter()
            .map(|(deadline, task)| UnprocessedTask::new(deadline, task))
            .collect())
    }
}

impl TimerBuilder {
    /// Starts a timer that runs closures.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system gives no thread (transient).
    pub fn build(self) -> Result<HashedWheelTimer, BuildError> {
        let tasks = self.build_batch_with(|panics| {
            move |batch: &mut Vec<Task>| {
                for task in batch.drain(..) {
                    // Each by itself, so that a panic stops no other task of the batch.
                    panics.contain(task);
                }
            }
        })?;
        Ok(HashedWheelTimer { tasks })
    }
}

impl fmt::Debug for HashedWheelTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HashedWheelTimer").field("tasks", &self.tasks).finish()
    }
}
