//! The handle for scheduling and cancelling values, without the timer's thread.
//!
//! A weak timer has the shards and the clock. The shards refuse values once the timer is gone, so
//! no upgrade is needed. An upgrade would make a task the last owner for a moment, and dropping the
//! timer would then not wait for the thread.

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

/// A handle for scheduling and cancelling on a [`BatchTimer`](crate::BatchTimer), without
/// ownership.
///
/// Returned by [`BatchTimer::downgrade`](crate::BatchTimer::downgrade).
///
/// The handle keeps neither the timer nor the ticker thread alive, and is for the timer's own
/// handler and for values that schedule themselves again. A handler owning the timer in an [`Arc`]
/// would keep the timer alive for ever. After a stop or drop of the timer, nothing is pending, and
/// scheduling fails with [`ScheduleError::Stopped`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{BatchTimer, ManualClock, WeakBatchTimer};
///
/// let clock = ManualClock::new();
/// let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
/// let timer = builder.build_batch_cyclic(|timer: WeakBatchTimer<u32>| {
///     // Schedules each value again after a second, reduced by 1.
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

/// The key of a pending timeout of a [`BatchTimer`](crate::BatchTimer).
///
/// Returned by [`WeakBatchTimer::schedule`].
///
/// A key may be stored, copied and used by any thread. Once the timeout is no longer pending, the
/// key names nothing. In another timer of the same process the key also names nothing: the key
/// contains the number of the timer, and no number is used twice.
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

/// Returns the number of a new timer's first shard, with the number of the timer in the upper bits.
///
/// The lower bits are the number of the shard within the timer. A key of another timer finds no
/// shard; the comparison has no measurable cost.
///
/// The timer's number has 61 bits and does not wrap: at a million timers a second the numbers last
/// for 73,000 years.
fn first_shard_of_new_timer() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: each call gets a different number, and nothing else depends on the counter.
    NEXT.fetch_add(1, Ordering::Relaxed) << SHARDS.ilog2()
}

/// The number of values scheduled or cancelled per lock.
///
/// The number is high enough for a negligible cost of the lock and for overlapping waits for
/// memory, and low enough that another thread waits for microseconds. A million values are
/// scheduled in 0.6 of the time of single calls, and cancelled at random by two threads in half of
/// the time.
const MANY: usize = 256;

#[expect(clippy::must_use_candidate, reason = "most are called for what they do")]
impl<T: Send + 'static> WeakBatchTimer<T> {
    /// Creates a handle to a new timer.
    pub(crate) fn new(shards: Arc<Shards<T>>, context: Arc<Context>) -> Self {
        Self { shards, context, first_shard: first_shard_of_new_timer() }
    }

    /// Schedules `value` to be passed to the handler after `delay`, and returns the key, to cancel
    /// or reschedule the value.
    ///
    /// The value is passed no earlier, and at most a tick plus the operating system's wake-up
    /// later. A value due more than 584 years after the timer's start is never passed, but can be
    /// cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked` (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.tick_in(delay), value)
    }

    /// Schedules `value` to be passed to the handler when the timer's clock reaches `deadline`, and
    /// returns the key.
    ///
    /// The value is passed no earlier, and at most a tick plus the operating system's wake-up
    /// later. A past deadline is due at the next tick at the latest.
    ///
    /// The call does not read the clock, which is half of the cost of [`schedule`](Self::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked` (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.scale.deadline_tick(deadline), value)
    }

    /// Schedules many values, each after a delay, and appends the keys to `keys` in the same order.
    ///
    /// All delays count from the start of the call. The call reads the clock once, and takes a lock
    /// for 256 values at a time. The values are in a vector, because an iterator would run user
    /// code under the lock.
    ///
    /// Afterwards `timeouts` is empty. After an error, the values before the first refused value
    /// are scheduled, and `keys` has their keys; `timeouts` contains the values not scheduled, from
    /// the first refused value on.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], without a value: `Full` (transient), `Stopped` or `Forked` (permanent).
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

    /// Cancels a pending value and returns the value; `None` if the value is no longer pending.
    ///
    /// Either `cancel` or the ticker gets the value. The capacity of a cancelled value is free at
    /// once.
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shard(key)?.cancel(key.key)
    }

    /// Cancels the pending values among `keys`, and returns these values.
    ///
    /// Values scheduled by the same thread are returned in the order of the keys.
    ///
    /// The call takes a lock for 256 keys at a time. For values spread over the memory, the call is
    /// up to twice as fast as [`cancel`](Self::cancel), because the processor waits for several
    /// values at once.
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

    /// Cancels all pending values and returns the values, in no order.
    ///
    /// Values scheduled during the call may stay pending. The call takes a lock for at most 4096
    /// values at a time.
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
            // Cancels chunk by chunk, so that another thread does not wait for the whole shard.
            for number in 0..shard.chunk_count() {
                shard.cancel_chunk(number, &mut cleared);
            }
        }
        cleared
    }

    /// Changes the deadline of a pending value, by the rules of [`schedule_at`](Self::schedule_at).
    ///
    /// Returns `true` if the value is pending and has the new deadline, and `false` if the value is
    /// no longer pending. The key stays valid.
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.reschedule_tick(key, self.context.scale.deadline_tick(deadline))
    }

    /// Changes the deadline of a pending value to `delay` from now, by the rules of
    /// [`schedule`](Self::schedule).
    ///
    /// Returns `true` if the value is pending and has the new deadline, and `false` if the value is
    /// no longer pending. The key stays valid.
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

    /// Returns a copy of a pending value; `None` if the value is no longer pending.
    ///
    /// The value must be [`Copy`]: a `clone` would run user code under a lock.
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

    /// Returns the deadline of a pending value, rounded up to a tick.
    ///
    /// `None` if the value is no longer pending, and for a deadline out of range.
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.shard(key)?.deadline(key.key)
    }

    /// Returns the number of pending values: scheduled, not cancelled, not yet taken for the
    /// handler.
    ///
    /// The number is exact while no thread schedules, cancels or takes values.
    pub fn pending_timeouts(&self) -> usize {
        self.pending()
    }

    /// Returns the timer's counts since the start, and the lateness of the values.
    pub fn statistics(&self) -> Statistics {
        let lateness = self.context.lateness.summary();
        // Relaxed: a figure, nothing depends on the value.
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

    /// Returns the timer's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.context.clock
    }

    /// Inlined, so that the key stays in registers: the halves of the key are written separately,
    /// and a processor reading both halves at once from memory waits for the writes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call makes scheduling a tenth slower")]
    fn schedule_tick(&self, tick: u64, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (number, key) = self.schedule_at_home(tick, value)?;
        Ok(self.key(number, key))
    }

    /// Schedules in the calling thread's home shard, and returns the shard's number and the key.
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

    /// Returns the shard named by a key; `None` for a key of another timer.
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
    /// Returns the shard with this number.
    pub(crate) fn shard_numbered(&self, number: u8) -> &Arc<Shard<T>> {
        &self.shards[usize::from(number)]
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Writes the `Debug` output under the type name `name`. The cost does not grow with the number
    /// of pending values.
    pub(crate) fn debug_as(&self, name: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Context { clock, scale, panics, .. } = &*self.context;
        let next_due = self.shards.iter().filter_map(|shard| shard.next_due()).min();
        // `None` also for a deadline out of range.
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

/// Shows the number of pending values, the time until the next is due, and the number of panics.
impl<T> fmt::Debug for WeakBatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug_as("WeakBatchTimer", formatter)
    }
}
