//! The typed timer: one handler gets everything that is due, in batches, and nothing is boxed.

use std::array;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::TimerBuilder;
use super::weak_batch_timer::{TimerKey, WeakBatchTimer};
use crate::driver::capacity::Capacity;
use crate::driver::context::Context;
use crate::driver::lifecycle::{Lifecycle, StopMode};
use crate::driver::shard::{Due, Shard, Shards};
use crate::driver::ticker::Ticker;
use crate::driver::wakeup::Wakeup;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::stats::instance_count::{Instance, MANY_TIMERS};
use crate::stats::statistics::Statistics;
use crate::time::clock::{Clock, Parker};
use crate::time::tick::{TickDuration, TickScale};
use crate::wheel::Wheel;

/// How long a chunk of memory stays empty before it is released: longer than the pauses of a load
/// that comes and goes (DESIGN: chunks).
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// [`RELEASE_DELAY`] in ticks, at least one: the ticker sleeps in between.
fn release_delay(tick: TickDuration) -> u64 {
    tick.ticks_in(RELEASE_DELAY).max(1)
}

/// A timer that passes values to one handler when they are due.
///
/// It is what [`HashedWheelTimer`](crate::HashedWheelTimer) is built on, for a program with many
/// timeouts of one kind: leases to renew, requests to give up, connections to close. A pending
/// value takes 20 bytes plus its own size, rounded up to a multiple of 8.
///
/// The handler runs on the ticker thread, with no lock held. It gets at most 1024 values at a time,
/// in a vector that it empties; values that it leaves are dropped. It may call the timer that runs
/// it, and may drop it. It delays everything behind it, so long work belongs on another thread. A
/// panic of the handler is caught, [counted](Self::panics) and reported to
/// [`TimerBuilder::on_panic`]; the rest of that batch is dropped, and the next batch is passed as
/// usual.
///
/// No value is passed before its deadline. Values that one thread has scheduled come in the order
/// of their ticks, and within a tick in the order of scheduling. Between threads there is no order
/// among values that are due at one time.
///
/// Dropping the timer drops what is pending and waits for the ticker thread to end, unless that
/// thread drops it.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{BatchTimer, ManualClock, crossbeam_channel};
///
/// let clock = ManualClock::new();
/// let (sender, expired) = crossbeam_channel::unbounded();
/// let timer = BatchTimer::builder()
///     .clock(Arc::new(clock.clone()))
///     .build_batch(move |batch: &mut Vec<&str>| {
///         for name in batch.drain(..) {
///             sender.send(name).ok();
///         }
///     })?;
/// timer.schedule(Duration::from_secs(10), "lease 1")?;
/// let second = timer.schedule(Duration::from_secs(10), "lease 2")?;
/// assert_eq!(timer.cancel(second), Some("lease 2"));
/// clock.advance(Duration::from_secs(11));
/// assert_eq!(expired.try_iter().collect::<Vec<_>>(), ["lease 1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BatchTimer<T> {
    lifecycle: Lifecycle<T>,
    weak: WeakBatchTimer<T>,
    _instance: Instance,
}

impl TimerBuilder {
    /// Starts a timer that passes values of one type to `handler` when they are due. See
    /// [`BatchTimer`] for where and how the handler runs.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range or an executor was set, which only
    /// [`build`](Self::build) uses (permanent), or the operating system refuses a thread
    /// (transient).
    pub fn build_batch<T: Send + 'static>(
        self,
        handler: impl FnMut(&mut Vec<T>) + Send + 'static,
    ) -> Result<BatchTimer<T>, BuildError> {
        self.build_batch_cyclic(|_| handler)
    }

    /// As [`build_batch`](Self::build_batch), for a handler that schedules and cancels on its own
    /// timer: `make_handler` gets a handle to that timer, as with [`Arc::new_cyclic`], and returns
    /// the handler. It is called once, on the calling thread, before the timer's thread is started.
    ///
    /// # Errors
    ///
    /// As [`build_batch`](Self::build_batch). `make_handler` is not called if a setting is out of
    /// range.
    ///
    /// # Panics
    ///
    /// If `make_handler` does. There is no timer then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{BatchTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
    /// // Each value comes back after a second, one less.
    /// let timer = builder.build_batch_cyclic(|timer| {
    ///     move |batch: &mut Vec<u32>| {
    ///         for number in batch.drain(..).filter(|number| *number > 0) {
    ///             timer.schedule(Duration::from_secs(1), number - 1).ok();
    ///         }
    ///     }
    /// })?;
    /// timer.schedule(Duration::from_secs(1), 3)?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(timer.statistics().fired, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_batch_cyclic<T: Send + 'static, H: FnMut(&mut Vec<T>) + Send + 'static>(
        self,
        make_handler: impl FnOnce(WeakBatchTimer<T>) -> H,
    ) -> Result<BatchTimer<T>, BuildError> {
        if self.has_executor() {
            return Err(BuildError::ExecutorOfBatch);
        }
        let handle = |timer: &WeakBatchTimer<T>| {
            let context = Arc::clone(timer.context());
            let mut handler = make_handler(timer.clone());
            move |due: &mut Due<T>| {
                let started = context.now();
                context.record_all_fired(&due.ticks, started);
                context.run(started, || handler(&mut due.values));
            }
        };
        self.build_batch_with(handle, |_| false)
    }

    /// As [`build_batch_cyclic`](Self::build_batch_cyclic), with a handler that records what it
    /// fires.
    pub(crate) fn build_batch_with<T: Send + 'static, H: FnMut(&mut Due<T>) + Send + 'static>(
        self,
        make_handler: impl FnOnce(&WeakBatchTimer<T>) -> H,
        keeps_capacity: fn(&T) -> bool,
    ) -> Result<BatchTimer<T>, BuildError> {
        let config = self.check()?;
        // What the shards and the ticker share.
        let scale = TickScale::starting_now(&*config.clock, config.tick_duration);
        let context = Arc::new(Context::new(config.clock, scale, config.panic_hook));
        let parker = Arc::new(Parker::new());
        let wakeup = Arc::new(Wakeup::new(Arc::downgrade(&parker)));
        let release_delay = release_delay(config.tick_duration);
        let capacity = config.max_pending_timeouts.map(|count| Arc::new(Capacity::new(count)));
        let shards: Arc<Shards<T>> = Arc::new(array::from_fn(|_| {
            let wheel = Wheel::with_bucket_count(config.bucket_count).release_delay(release_delay);
            let (context, wakeup) = (Arc::clone(&context), Arc::clone(&wakeup));
            Arc::new(Shard::new(wheel, context, wakeup, capacity.clone()))
        }));
        let weak = WeakBatchTimer::new(Arc::clone(&shards), Arc::clone(&context));
        let handler = Box::new(make_handler(&weak));
        let ticker = Ticker { shards, wakeup, parker, context, handler, keeps_capacity };
        let (instance, instances) = Instance::new();
        let timer = BatchTimer {
            lifecycle: Lifecycle::new(ticker, config.thread_name),
            weak,
            _instance: instance,
        };
        if !config.starts_lazily {
            timer.start()?;
        }
        if let Some(hook) = config.many_timers_hook.filter(|_| instances > MANY_TIMERS) {
            timer.context().panics.catch(|| hook(instances));
        }
        Ok(timer)
    }
}

impl BatchTimer<()> {
    /// The default settings of a timer, the same as those of
    /// [`HashedWheelTimer::builder`](crate::HashedWheelTimer::builder), to be changed and
    /// [built](TimerBuilder::build_batch). The handler tells the type of the values.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// Passes `value` to the handler when `delay` has passed: not before, and at most a tick plus
    /// the operating system's wake-up later. A delay that ends more than 584 years after the
    /// timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient), `Stopped` or
    /// `Forked` (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        match self.ensure_started() {
            Ok(()) => self.weak.schedule(delay, value),
            Err(error) => Err(ScheduleError::NotStarted(value, error)),
        }
    }

    /// Passes `value` to the handler when the timer's clock reaches `deadline`: not before, and at
    /// most a tick plus the operating system's wake-up later. A deadline that has passed is due at
    /// the next tick at the latest.
    ///
    /// It does not read the clock, which is half of the cost of [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient), `Stopped` or
    /// `Forked` (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        match self.ensure_started() {
            Ok(()) => self.weak.schedule_at(deadline, value),
            Err(error) => Err(ScheduleError::NotStarted(value, error)),
        }
    }

    /// Schedules many values, each after its delay, and appends their keys to `keys` in the same
    /// order. All delays count from the start of the call. It reads the clock once, and takes a
    /// lock for 256 values at a time.
    ///
    /// `timeouts` is empty afterwards. After an error it has what was not scheduled, from the first
    /// value that was refused.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], without a value: `Full` or `NotStarted` (transient), `Stopped` or
    /// `Forked` (permanent).
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::BatchTimer;
    ///
    /// let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
    /// let mut timeouts: Vec<_> =
    ///     (0..1000).map(|number| (Duration::from_secs(60), number)).collect();
    /// let mut keys = Vec::new();
    /// timer.schedule_many(&mut timeouts, &mut keys)?;
    /// assert_eq!((timeouts.len(), keys.len()), (0, 1000));
    /// assert_eq!(timer.cancel_many(&keys).len(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schedule_many(
        &self,
        timeouts: &mut Vec<(Duration, T)>,
        keys: &mut Vec<TimerKey>,
    ) -> Result<(), ScheduleError<()>> {
        match self.ensure_started() {
            Ok(()) => self.weak.schedule_many(timeouts, keys),
            Err(error) => Err(ScheduleError::NotStarted((), error)),
        }
    }

    /// Cancels a pending value and returns it; `None` if the ticker has taken it or it was
    /// cancelled. Either `cancel` or the ticker gets the value. Its capacity is free at once.
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.weak.cancel(key)
    }

    /// Cancels those of the keys that are pending, and returns their values. Among those that one
    /// thread has scheduled the values are in the order of the keys.
    ///
    /// It takes a lock for 256 keys at a time. For values all over the memory it is up to twice as
    /// fast as [`cancel`](Self::cancel), because the processor waits for several at once.
    pub fn cancel_many(&self, keys: &[TimerKey]) -> Vec<T> {
        self.weak.cancel_many(keys)
    }

    /// Cancels everything that is pending and returns the values, in no order. What is scheduled
    /// meanwhile may stay pending. Other threads wait for at most 4096 values at a time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::BatchTimer;
    ///
    /// let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
    /// timer.schedule(Duration::from_secs(60), 7)?;
    /// assert_eq!(timer.clear(), [7]);
    /// assert_eq!(timer.pending_timeouts(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&self) -> Vec<T> {
        self.weak.clear()
    }

    /// Gives a pending value another deadline, by the rules of [`schedule_at`](Self::schedule_at).
    /// Returns false if it is no longer pending. The key stays valid.
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.weak.reschedule(key, deadline)
    }

    /// Gives a pending value another deadline, `delay` from now, by the rules of
    /// [`schedule`](Self::schedule). Returns false if it is no longer pending. The key stays valid.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{BatchTimer, Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
    /// let timer = builder.build_batch(|_: &mut Vec<&str>| {})?;
    /// let idle = timer.schedule(Duration::from_secs(30), "connection 1")?;
    /// clock.advance(Duration::from_secs(20));
    /// // The connection was used: thirty seconds more.
    /// assert!(timer.reschedule_after(idle, Duration::from_secs(30)));
    /// assert_eq!(timer.deadline(idle), Some(clock.now() + Duration::from_secs(30)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule_after(&self, key: TimerKey, delay: Duration) -> bool {
        self.weak.reschedule_after(key, delay)
    }

    /// A copy of a pending value; `None` if it is no longer pending.
    ///
    /// Only for values that are [`Copy`]: a `clone` would be a user's code under a lock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::BatchTimer;
    ///
    /// let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
    /// let key = timer.schedule(Duration::from_secs(60), 7)?;
    /// assert_eq!(timer.get(key), Some(7));
    /// timer.cancel(key);
    /// assert_eq!(timer.get(key), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, key: TimerKey) -> Option<T>
    where
        T: Copy,
    {
        self.weak.get(key)
    }

    /// When a pending value is due: its deadline, rounded up to a tick. `None` if it is no longer
    /// pending, and for a deadline that never comes.
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.weak.deadline(key)
    }

    /// How many values are pending: scheduled, not cancelled, not yet taken for the handler. Exact
    /// while no other thread changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.weak.pending()
    }

    /// How many panics have been caught: of the handler, of destructors, of the clock on the ticker
    /// thread.
    pub fn panics(&self) -> u64 {
        self.context().panics.count()
    }

    /// What the timer has done since it was built, and how late it was.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.context().recorder.statistics();
        statistics.panicked = self.context().panics.count();
        for shard in self.weak.shards() {
            let counts = shard.counts();
            statistics.scheduled += counts.scheduled;
            statistics.cancelled += counts.cancelled;
            statistics.rejected += counts.rejected;
            statistics.pending += counts.pending;
        }
        statistics
    }

    /// The clock of the timer.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.context().clock
    }

    /// A handle that schedules and cancels, and keeps neither the timer nor its thread alive.
    pub fn downgrade(&self) -> WeakBatchTimer<T> {
        self.weak.clone()
    }

    /// Starts the ticker thread of a timer that [starts lazily](TimerBuilder::start_lazily), before
    /// its first timeout. No effect if the thread runs, or after a stop.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`] (transient): the operating system refused a thread. A later
    /// call, or the next timeout, tries again. [`BuildError::Forked`] (permanent).
    pub fn start(&self) -> Result<(), BuildError> {
        if !self.context().home.is_current() {
            return Err(BuildError::Forked);
        }
        self.lifecycle.start().map_err(BuildError::ThreadSpawn)
    }

    /// Passes everything that is already due to the handler, then stops as [`stop`](Self::stop)
    /// does and returns the rest.
    ///
    /// From the start of the call nothing can be scheduled. It waits until the handler has got
    /// everything that was due when it was called, however much that is.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if the handler calls it, or `Forked`. Nothing is stopped
    /// then.
    pub fn drain(&self) -> Result<Vec<Unprocessed<T>>, StopError> {
        self.stop_with(StopMode::Drain)
    }

    /// Stops the timer and returns what was pending, in the order of the due ticks. Every value
    /// that was scheduled has been passed to the handler, was cancelled, or is returned here.
    ///
    /// It waits for the handler to return from its current batch, and for the ticker thread to end.
    /// Nothing can be scheduled afterwards. The second call returns nothing.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if the handler calls it, or `Forked`. Nothing is stopped
    /// then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::BatchTimer;
    ///
    /// let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
    /// timer.schedule(Duration::from_secs(60), 7)?;
    /// for unprocessed in timer.stop()? {
    ///     assert_eq!(unprocessed.value, 7);
    ///     assert!(unprocessed.deadline.is_some());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop(&self) -> Result<Vec<Unprocessed<T>>, StopError> {
        self.stop_with(StopMode::Stop)
    }

    /// Stops or drains.
    pub(crate) fn stop_with(&self, mode: StopMode) -> Result<Vec<Unprocessed<T>>, StopError> {
        let scale = self.context().scale;
        let unprocessed = self.lifecycle.stop(mode)?.into_iter();
        Ok(unprocessed
            .map(|(tick, value)| Unprocessed { deadline: scale.instant(tick), value })
            .collect())
    }

    /// Starts the ticker thread, if it starts with the first timeout and this is the first.
    #[inline]
    pub(crate) fn ensure_started(&self) -> io::Result<()> {
        if self.lifecycle.is_started() { Ok(()) } else { self.lifecycle.start() }
    }
}

impl<T> BatchTimer<T> {
    pub(crate) fn context(&self) -> &Arc<Context> {
        self.weak.context()
    }

    pub(crate) const fn weak(&self) -> &WeakBatchTimer<T> {
        &self.weak
    }
}

/// A value that was pending when its [`BatchTimer`] was stopped, and when it would have been due:
/// see [`BatchTimer::stop`].
///
/// ```
/// use hashed_wheel::Unprocessed;
///
/// let never = Unprocessed { deadline: None, value: "a lease" };
/// assert_eq!(never.value, "a lease");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unprocessed<T> {
    /// Its deadline, rounded up to a tick; `None` for a deadline that never comes.
    pub deadline: Option<Instant>,
    /// What was scheduled.
    pub value: T,
}

// A panic cannot leave it half changed: no code of a user runs under its locks.
impl<T> UnwindSafe for BatchTimer<T> {}
impl<T> RefUnwindSafe for BatchTimer<T> {}

/// Shows how many values are pending, when the next is due, and how many panics were caught.
impl<T> fmt::Debug for BatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.weak.debug_as("BatchTimer", formatter)
    }
}

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_kept_for_a_second_and_at_least_for_a_tick() {
        let ticks = |millis| {
            let tick = TickDuration::try_from(Duration::from_millis(millis)).unwrap();
            release_delay(tick)
        };
        assert_eq!([1, 100, 1000, 3000].map(ticks), [1000, 10, 1, 1]);
    }
}
