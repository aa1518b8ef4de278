//! What schedules on a timer of values and cancels: all of it but its thread.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::context::Context;
use crate::driver::shard::{SHARDS, Shard, Shards, home_shard};
use crate::error::ScheduleError;
use crate::wheel::Key;

/// Schedules on a [`BatchTimer`](crate::BatchTimer) and cancels, and keeps neither the timer nor
/// its thread alive.
///
/// It is for the timer's own handler, and for values that schedule themselves again. A handler that
/// owned the timer in an [`Arc`] would keep it alive for ever. After the timer was stopped or
/// dropped, nothing is pending, and scheduling fails with [`ScheduleError::Stopped`].
///
/// It does not start a timer that [starts lazily](crate::TimerBuilder::start_lazily): what it
/// schedules is due when the timer has been started.
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
    first_shard: ShardId,
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

/// How many values are scheduled or cancelled under one lock: many enough that the lock does not
/// count and the waits for memory overlap, few enough that another thread waits for microseconds.
const MANY: usize = 256;

#[expect(clippy::must_use_candidate, reason = "most are called for what they do")]
impl<T: Send + 'static> WeakBatchTimer<T> {
    /// A handle to a new timer.
    pub(crate) fn new(shards: Arc<Shards<T>>, context: Arc<Context>) -> Self {
        Self { shards, context, first_shard: ShardId::of_new_timer() }
    }

    /// As [`BatchTimer::schedule`](crate::BatchTimer::schedule).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.tick_in(delay), value)
    }

    /// As [`BatchTimer::schedule_at`](crate::BatchTimer::schedule_at).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        self.schedule_tick(self.context.scale.deadline_tick(deadline), value)
    }

    /// As [`BatchTimer::schedule_many`](crate::BatchTimer::schedule_many).
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], without a value: `Full` (transient), `Stopped` or `Forked`
    /// (permanent).
    pub fn schedule_many(
        &self,
        timeouts: &mut Vec<(Duration, T)>,
        keys: &mut Vec<TimerKey>,
    ) -> Result<(), ScheduleError<()>> {
        let since_start = self.context.since_start();
        let number = home_shard();
        let shard = self.shard_numbered(number);
        keys.reserve(timeouts.len());
        let mut left = timeouts.drain(..);
        while left.len() > 0 {
            let before = left.len();
            shard.schedule_many(since_start, &mut left, MANY, |key| {
                keys.push(self.key(number, key));
            });
            // Refused: the next one by itself, which also reclaims capacity, or says why.
            if left.len() == before
                && let Some((delay, value)) = left.next()
            {
                let tick = self.context.scale.tick_after(since_start, delay);
                match self.schedule_tick(tick, value) {
                    Ok(key) => keys.push(key),
                    Err(error) => {
                        let mut refused = None;
                        let error = error.map(|value| refused = Some((delay, value)));
                        *timeouts = refused.into_iter().chain(left).collect();
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`BatchTimer::cancel`](crate::BatchTimer::cancel).
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shard(key)?.cancel(key.key)
    }

    /// As [`BatchTimer::cancel_many`](crate::BatchTimer::cancel_many).
    pub fn cancel_many(&self, keys: &[TimerKey]) -> Vec<T> {
        let mut cancelled = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MANY) {
            // The shards that the keys are of, usually one: a bit for each.
            let bit = |key: &TimerKey| key.shard.number_in(self.first_shard).map(|at| 1_u64 << at);
            let mut shards = keys.iter().filter_map(bit).fold(0, |bits, bit| bits | bit);
            while shards != 0 {
                let number = shards.trailing_zeros() as usize;
                let is_of_shard =
                    |key: &&TimerKey| key.shard.number_in(self.first_shard) == Some(number);
                let of_shard = keys.iter().filter(is_of_shard).map(|key| key.key);
                self.shards[number].cancel_many(of_shard, &mut cancelled);
                shards &= shards - 1;
            }
        }
        cancelled
    }

    /// As [`BatchTimer::clear`](crate::BatchTimer::clear).
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

    /// As [`BatchTimer::reschedule`](crate::BatchTimer::reschedule).
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.shard(key).is_some_and(|shard| shard.reschedule(key.key, deadline))
    }

    /// As [`BatchTimer::reschedule_after`](crate::BatchTimer::reschedule_after).
    pub fn reschedule_after(&self, key: TimerKey, delay: Duration) -> bool {
        self.shard(key).is_some_and(|shard| shard.reschedule_after(key.key, delay))
    }

    /// As [`BatchTimer::get`](crate::BatchTimer::get).
    pub fn get(&self, key: TimerKey) -> Option<T>
    where
        T: Copy,
    {
        self.shard(key)?.get(key.key)
    }

    /// As [`BatchTimer::deadline`](crate::BatchTimer::deadline).
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.shard(key)?.deadline(key.key)
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
        let key = self.shard_numbered(number).schedule(tick, value, self.shards())?;
        Ok((number, key))
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

impl<T> WeakBatchTimer<T> {
    /// The shard with this number.
    pub(crate) fn shard_numbered(&self, number: u8) -> &Arc<Shard<T>> {
        &self.shards[usize::from(number)]
    }

    pub(crate) fn shards(&self) -> &[Arc<Shard<T>>] {
        &*self.shards
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

    pub(crate) fn pending(&self) -> usize {
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

// A panic cannot leave it half changed: no code of a user runs under its locks.
impl<T> UnwindSafe for WeakBatchTimer<T> {}
impl<T> RefUnwindSafe for WeakBatchTimer<T> {}

/// Shows how many values are pending, when the next is due, and how many panics were caught.
impl<T> fmt::Debug for WeakBatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug_as("WeakBatchTimer", formatter)
    }
}
