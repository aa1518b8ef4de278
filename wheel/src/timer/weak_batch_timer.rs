//! What schedules on a timer of values and cancels: all of it but its thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::context::Context;
use crate::driver::shard::{SHARDS, Shard, Shards, home_shard};
use crate::error::ScheduleError;
use crate::stats::statistics::Statistics;
use crate::time::clock::Clock;
use crate::wheel::Key;

/// Schedules on a [`BatchTimer`](crate::BatchTimer) and cancels, and keeps neither the timer nor
/// its thread alive.
///
/// It is for the timer's own handler, and for values that schedule themselves again. A handler that
/// owned the timer in an [`Arc`] would keep it alive for ever. After the timer was stopped or
/// dropped, nothing is pending, and scheduling fails with [`ScheduleError::Stopped`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{BatchTimer, ManualClock, WeakBatchTimer};
///
/// let clock = ManualClock::new();
/// let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
/// let timer = builder.build_batch_cyclic(|timer: WeakBatchTimer<u32>| {
///     // Each value comes back after a second, one less.
///     move |batch: &mut Vec<u32>| {
///         for number in batch.drain(..).filter(|number| *number > 0) {
///             timer.schedule(Duration::from_secs(1), number - 1).ok();
///         }
///     }
/// })?;
/// let again = timer.downgrade();
/// again.schedule(Duration::from_secs(1), 3)?;
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(timer.statistics().fired, 4);
///
/// drop(timer);
/// assert!(again.schedule(Duration::ZERO, 7).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WeakBatchTimer<T> {
    shards: Arc<Shards<T>>,
    context: Arc<Context>,
    first_shard: u64,
}

/// Names one timeout of a [`BatchTimer`](crate::BatchTimer) while it is pending, and nothing
/// afterwards.
///
/// It may be kept, copied and used by any thread. In another timer of the same process it names
/// nothing: the key contains the number of its timer, and no number is used twice.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{BatchTimer, TimerKey};
///
/// let timer = BatchTimer::builder().build_batch(|_: &mut Vec<u32>| {})?;
/// let key: TimerKey = timer.schedule(Duration::from_secs(60), 7)?;
/// assert_eq!(timer.cancel(key), Some(7));
/// assert_eq!(timer.cancel(key), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    key: Key,
    shard: u64,
}

/// The number of the first shard of a new timer: the timer's number in the upper bits (DESIGN:
/// keys). The other bits are the number of the shard within its timer.
///
/// The timer's number has 61 bits and does not wrap: at a million timers a second they last for
/// 73,000 years.
fn first_shard_of_new_timer() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: each call gets another number, and nothing else depends on it.
    NEXT.fetch_add(1, Ordering::Relaxed) << SHARDS.ilog2()
}

/// How many values are scheduled or cancelled under one lock: many enough that the lock does not
/// count and the waits for memory overlap, few enough that another thread waits for microseconds.
const MANY: usize = 256;

#[expect(clippy::must_use_candidate, reason = "most are called for what they do")]
impl<T: Send + 'static> WeakBatchTimer<T> {
    /// A handle to a new timer.
    pub(crate) fn new(shards: Arc<Shards<T>>, context: Arc<Context>) -> Self {
        Self { shards, context, first_shard: first_shard_of_new_timer() }
    }

    /// Passes `value` to the handler when `delay` has passed: not before, and at most a tick plus
    /// the operating system's wake-up later. A delay that ends more than 584 years after the
    /// timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.tick_in(delay), value)
    }

    /// Passes `value` to the handler when the timer's clock reaches `deadline`: not before, and at
    /// most a tick plus the operating system's wake-up later. A deadline that has passed is due at
    /// the next tick at the latest.
    ///
    /// It does not read the clock, which is half of the cost of [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.scale.deadline_tick(deadline), value)
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
    /// [`ScheduleError`], without a value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
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
        let since_start = self.context.since_start();
        let number = home_shard();
        keys.reserve(timeouts.len());
        let mut left = timeouts.drain(..);
        while left.len() > 0 {
            let scheduled = |key| keys.push(self.key(number, key));
            let shard = self.shard_numbered(number);
            if let Err(error) = shard.schedule_many(since_start, &mut left, MANY, scheduled) {
                let mut refused = None;
                let error = error.map(|timeout| refused = Some(timeout));
                *timeouts = refused.into_iter().chain(left).collect();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Cancels a pending value and returns it; `None` if the ticker has taken it or it was
    /// cancelled. Either `cancel` or the ticker gets the value. Its capacity is free at once.
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shard(key)?.cancel(key.key)
    }

    /// Cancels those of the keys that are pending, and returns their values. Among those that one
    /// thread has scheduled the values are in the order of the keys.
    ///
    /// It takes a lock for 256 keys at a time. For values all over the memory it is up to twice as
    /// fast as [`cancel`](Self::cancel), because the processor waits for several at once.
    pub fn cancel_many(&self, keys: &[TimerKey]) -> Vec<T> {
        let mut cancelled = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MANY) {
            for (number, shard) in self.shards.iter().enumerate() {
                let is_of_shard = |key: &&TimerKey| self.shard_number(**key) == Some(number);
                let mut of_shard = keys.iter().filter(is_of_shard).map(|key| key.key).peekable();
                if of_shard.peek().is_some() {
                    shard.cancel_many(of_shard, &mut cancelled);
                }
            }
        }
        cancelled
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
        let mut cleared = Vec::new();
        for shard in &*self.shards {
            // A chunk at a time, so that other threads do not wait for all of it.
            for number in 0..shard.chunk_count() {
                shard.cancel_chunk(number, &mut cleared);
            }
        }
        cleared
    }

    /// Gives a pending value another deadline, by the rules of [`schedule_at`](Self::schedule_at).
    /// Returns false if it is no longer pending. The key stays valid.
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.reschedule_tick(key, self.context.scale.deadline_tick(deadline))
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
        self.reschedule_tick(key, self.context.tick_in(delay))
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
        self.shard(key)?.get(key.key)
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

    /// What the timer has done since it was built, and how late it was.
    pub fn statistics(&self) -> Statistics {
        let lateness = self.context.lateness.summary();
        // Relaxed: a figure, nothing depends on it.
        let longest_task = self.context.longest_task.load(Ordering::Relaxed);
        let mut statistics = Statistics {
            fired: lateness.count,
            panicked: self.context.panics.count(),
            lateness,
            longest_task: Duration::from_nanos(longest_task),
            ..Statistics::default()
        };
        for shard in &*self.shards {
            shard.add_counts(&mut statistics);
        }
        statistics
    }

    /// The clock of the timer.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.context.clock
    }

    /// Inlined, so that the key stays in registers: its halves are written one by one, and a
    /// processor that reads both at once from memory waits for them.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call makes scheduling a tenth slower")]
    fn schedule_tick(&self, tick: u64, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (number, key) = self.schedule_at_home(tick, value)?;
        Ok(self.key(number, key))
    }

    /// Schedules in the calling thread's home shard, and returns the number of that shard.
    #[inline]
    pub(crate) fn schedule_at_home(
        &self,
        tick: u64,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        let number = home_shard();
        let key = self.shard_numbered(number).schedule(tick, value)?;
        Ok((number, key))
    }

    fn reschedule_tick(&self, key: TimerKey, tick: u64) -> bool {
        self.shard(key).is_some_and(|shard| shard.reschedule(key.key, tick, |_| {}))
    }

    fn key(&self, shard: u8, key: Key) -> TimerKey {
        TimerKey { key, shard: self.first_shard | u64::from(shard) }
    }

    /// The shard that a key names; `None` for a key of another timer.
    #[inline]
    fn shard(&self, key: TimerKey) -> Option<&Shard<T>> {
        self.shard_number(key).map(|number| &*self.shards[number])
    }

    #[inline]
    fn shard_number(&self, key: TimerKey) -> Option<usize> {
        let number = usize::try_from(key.shard ^ self.first_shard).ok();
        number.filter(|number| *number < usize::from(SHARDS))
    }
}

impl<T> WeakBatchTimer<T> {
    /// The shard with this number.
    pub(crate) fn shard_numbered(&self, number: u8) -> &Arc<Shard<T>> {
        &self.shards[usize::from(number)]
    }

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

// Not derived: the values need not be `Clone`.
impl<T> Clone for WeakBatchTimer<T> {
    fn clone(&self) -> Self {
        let (shards, context) = (Arc::clone(&self.shards), Arc::clone(&self.context));
        Self { shards, context, first_shard: self.first_shard }
    }
}

/// Shows how many values are pending, when the next is due, and how many panics were caught.
impl<T> fmt::Debug for WeakBatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug_as("WeakBatchTimer", formatter)
    }
}
