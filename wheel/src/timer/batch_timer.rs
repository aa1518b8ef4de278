//! The typed timer: one handler gets everything that is due, in batches, and nothing is boxed.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::builder::TimerBuilder;
use crate::driver::capacity::Capacity;
use crate::driver::context::Context;
use crate::driver::lifecycle::{Lifecycle, StopMode};
use crate::driver::panics::Panics;
use crate::driver::shard::{Due, SHARDS, Shard, home_shard};
use crate::driver::ticker::Ticker;
use crate::driver::wakeup::Wakeup;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::stats::instance_count::{Instance, MANY_TIMERS};
use crate::stats::statistics::{Recorder, Statistics};
use crate::time::clock::{Clock, Parker};
use crate::time::tick::TickScale;
use crate::wheel::{Key, Wheel};

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
/// use hashed_wheel::{HashedWheelTimer, ManualClock, crossbeam_channel};
///
/// let clock = ManualClock::new();
/// let (sender, expired) = crossbeam_channel::unbounded();
/// let timer = HashedWheelTimer::builder()
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
    shards: Arc<[Arc<Shard<T>>]>,
    context: Arc<Context>,
    first_shard: ShardId,
    _instance: Instance,
}

/// Names one timeout of a [`BatchTimer`] while it is pending, and nothing afterwards.
///
/// It may be kept, copied and used by any thread. In another timer of the same process it names
/// nothing: the key contains the number of its timer, and no number is used twice.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, TimerKey};
///
/// let timer = HashedWheelTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
/// let key: TimerKey = timer.schedule(Duration::from_secs(60), 7)?;
/// assert_eq!(timer.cancel(key), Some(7));
/// assert_eq!(timer.cancel(key), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    key: Key,
    shard: ShardId,
}

/// A shard of a timer, in one integer: the timer's number in the upper bits, the shard's in the
/// lower (DESIGN: keys).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ShardId(u64);

impl ShardId {
    /// The other 61 bits are the timer's number. They do not wrap: at a million timers a second
    /// they last for 73,000 years.
    const SHARD_BITS: u32 = SHARDS.ilog2();

    /// The first shard of a timer with a new number.
    fn of_new_timer() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: each call gets another number, and nothing else depends on it.
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << Self::SHARD_BITS)
    }

    /// The shard with this number, of the timer whose first shard this is.
    const fn with_number(self, number: u8) -> Self {
        Self(self.0 | number as u64)
    }

    /// The number of this shard; `None` if it is not of the timer whose first shard is `first`.
    fn number_in(self, first: Self) -> Option<usize> {
        usize::try_from(self.0 ^ first.0).ok().filter(|number| *number < usize::from(SHARDS))
    }
}

impl TimerBuilder {
    /// Starts a timer that passes values of one type to `handler` when they are due. See
    /// [`BatchTimer`] for where and how the handler runs.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system refuses a
    /// thread (transient).
    pub fn build_batch<T: Send + 'static>(
        self,
        handler: impl FnMut(&mut Vec<T>) + Send + 'static,
    ) -> Result<BatchTimer<T>, BuildError> {
        let mut handler = handler;
        let handle = |context: Arc<Context>| {
            move |due: &mut Due<T>| {
                let started = context.now();
                context.record_all_fired(&due.ticks, started);
                context.run(started, || handler(&mut due.values));
            }
        };
        self.build_batch_with(handle, |_| false)
    }

    /// As [`build_batch`](Self::build_batch), with a handler that records what it fires.
    pub(crate) fn build_batch_with<T: Send + 'static, H: FnMut(&mut Due<T>) + Send + 'static>(
        self,
        handler: impl FnOnce(Arc<Context>) -> H,
        keeps_capacity: fn(&T) -> bool,
    ) -> Result<BatchTimer<T>, BuildError> {
        let config = self.check()?;
        // What the shards and the ticker share.
        let scale = TickScale::new(config.clock.now(), config.tick_duration);
        let parker = Arc::new(Parker::new());
        let wakeup = Arc::new(Wakeup::new(Arc::downgrade(&parker)));
        let capacity = config.max_pending_timeouts.map(|count| Arc::new(Capacity::new(count)));
        let shards = (0..SHARDS)
            .map(|_| {
                let wheel = Wheel::new(config.ticks_per_wheel)?;
                Ok(Arc::new(Shard::new(wheel, scale, Arc::clone(&wakeup), capacity.clone())))
            })
            .collect::<Result<Arc<[_]>, BuildError>>()?;
        let context = Arc::new(Context {
            clock: config.clock,
            scale,
            panics: Panics::new(config.panic_hook),
            recorder: Recorder::new(),
        });
        let ticker = Ticker {
            shards: Arc::clone(&shards),
            wakeup,
            parker,
            context: Arc::clone(&context),
            handler: Box::new(handler(Arc::clone(&context))),
            keeps_capacity,
        };
        let (instance, instances) = Instance::new();
        let timer = BatchTimer {
            lifecycle: Lifecycle::new(ticker, config.thread_name),
            shards,
            context,
            first_shard: ShardId::of_new_timer(),
            _instance: instance,
        };
        if !config.starts_lazily {
            timer.start()?;
        }
        if let Some(hook) = config.many_timers_hook.filter(|_| instances > MANY_TIMERS) {
            timer.context.panics.catch(|| hook(instances));
        }
        Ok(timer)
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// Passes `value` to the handler when `delay` has passed: not before, and at most a tick plus
    /// the operating system's wake-up later. A delay that ends more than 584 years after the
    /// timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient) or `Stopped`
    /// (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (shard, key) = self.schedule_after(delay, value)?;
        Ok(self.key(shard, key))
    }

    /// Passes `value` to the handler when the timer's clock reaches `deadline`: not before, and at
    /// most a tick plus the operating system's wake-up later. A deadline that has passed is due at
    /// the next tick at the latest.
    ///
    /// It does not read the clock, which is half of the cost of [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient) or `Stopped`
    /// (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (shard, key) = self.schedule_by(deadline, value)?;
        Ok(self.key(shard, key))
    }

    /// Cancels a pending value and returns it; `None` if the ticker has taken it or it was
    /// cancelled. Either `cancel` or the ticker gets the value. Its capacity is free at once.
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shard(key)?.cancel(key.key)
    }

    /// Gives a pending value another deadline, by the rules of [`schedule_at`](Self::schedule_at).
    /// Returns false if it is no longer pending. The key stays valid.
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.shard(key).is_some_and(|shard| shard.reschedule(key.key, deadline))
    }

    /// When a pending value is due: its deadline, rounded up to a tick. `None` if it is no longer
    /// pending, and for a deadline that never comes.
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.shard(key)?.deadline(key.key)
    }

    /// How many values are pending: scheduled, not cancelled, not yet taken for the handler. Exact
    /// while no other thread changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.pending()
    }

    /// How many panics have been caught: of the handler, of destructors, of the clock on the ticker
    /// thread.
    pub fn panics(&self) -> u64 {
        self.context.panics.count()
    }

    /// What the timer has done since it was built, and how late it was.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.context.recorder.statistics();
        statistics.panicked = self.context.panics.count();
        for shard in &*self.shards {
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
        &self.context.clock
    }

    /// Starts the ticker thread of a timer that [starts lazily](TimerBuilder::start_lazily), before
    /// its first timeout. No effect if the thread runs, or after a stop.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`] (transient): the operating system refused a thread. A later
    /// call, or the next timeout, tries again.
    pub fn start(&self) -> Result<(), BuildError> {
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
    /// [`StopError::OnTickerThread`], if the handler calls it. Nothing is stopped then.
    pub fn drain(&self) -> Result<Vec<T>, StopError> {
        self.stop_values(StopMode::Drain)
    }

    /// Stops the timer and returns what was pending, in the order of the due ticks. Every value
    /// that was scheduled has been passed to the handler, was cancelled, or is returned here.
    ///
    /// It waits for the handler to return from its current batch, and for the ticker thread to end.
    /// Nothing can be scheduled afterwards. The second call returns nothing.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if the handler calls it. Nothing is stopped then.
    pub fn stop(&self) -> Result<Vec<T>, StopError> {
        self.stop_values(StopMode::Stop)
    }

    /// Stops or drains, and returns each value with the instant at which it was due.
    pub(crate) fn stop_with(&self, mode: StopMode) -> Result<Vec<(Option<Instant>, T)>, StopError> {
        let scale = self.context.scale;
        let unprocessed = self.lifecycle.stop(mode)?;
        Ok(unprocessed.into_iter().map(|(tick, value)| (scale.instant(tick), value)).collect())
    }

    /// Schedules in the calling thread's home shard, and returns the number of that shard.
    pub(crate) fn schedule_after(
        &self,
        delay: Duration,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        let Context { clock, scale, .. } = &*self.context;
        self.schedule_tick(scale.tick_after(clock.now(), delay), value)
    }

    /// As [`schedule_after`](Self::schedule_after), for an instant.
    pub(crate) fn schedule_by(
        &self,
        deadline: Instant,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        self.schedule_tick(self.context.scale.deadline_tick(deadline), value)
    }

    pub(crate) fn schedule_tick(&self, tick: u64, value: T) -> Result<(u8, Key), ScheduleError<T>> {
        if !self.lifecycle.is_started()
            && let Err(error) = self.lifecycle.start()
        {
            return Err(ScheduleError::NotStarted(value, error));
        }
        let number = home_shard();
        let key = self.shards[usize::from(number)].schedule(tick, value, &self.shards)?;
        Ok((number, key))
    }

    fn stop_values(&self, mode: StopMode) -> Result<Vec<T>, StopError> {
        let unprocessed = self.lifecycle.stop(mode)?;
        Ok(unprocessed.into_iter().map(|(_, value)| value).collect())
    }

    /// The shard with this number.
    pub(crate) fn shard_numbered(&self, number: u8) -> &Arc<Shard<T>> {
        &self.shards[usize::from(number)]
    }

    fn key(&self, shard: u8, key: Key) -> TimerKey {
        TimerKey { key, shard: self.first_shard.with_number(shard) }
    }

    /// The shard that a key names; `None` for a key of another timer.
    #[inline]
    fn shard(&self, key: TimerKey) -> Option<&Shard<T>> {
        let number = key.shard.number_in(self.first_shard)?;
        self.shards.get(number).map(|shard| &**shard)
    }
}

impl<T> BatchTimer<T> {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What `Debug` shows, under the name of a type. The work does not grow with what is pending.
    pub(crate) fn debug_as(&self, name: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { clock, scale, panics, .. } = &*self.context;
        let next_due = self.shards.iter().filter_map(|shard| shard.next_due()).min();
        // `None` also for a deadline that never comes.
        let next_due = next_due.and_then(|tick| scale.instant(tick));
        let next_due_in = next_due.map(|due| due.saturating_duration_since(clock.now()));
        formatter
            .debug_struct(name)
            .field("pending", &self.pending())
            .field("next_due_in", &next_due_in)
            .field("panics", &panics.count())
            .finish_non_exhaustive()
    }

    fn pending(&self) -> usize {
        self.shards.iter().map(|shard| shard.pending()).sum()
    }
}

// A panic cannot leave it half changed: no code of a user runs under its locks.
impl<T> UnwindSafe for BatchTimer<T> {}
impl<T> RefUnwindSafe for BatchTimer<T> {}

/// Shows how many values are pending, when the next is due, and how many panics were caught.
impl<T> fmt::Debug for BatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug_as("BatchTimer", formatter)
    }
}
