//! The typed timer: one handler gets everything that is due, in batches, and nothing is boxed.

use std::array;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::TimerBuilder;
use super::weak_batch_timer::WeakBatchTimer;
use crate::driver::context::Context;
use crate::driver::lifecycle::Lifecycle;
use crate::driver::shard::{Capacity, Due, Shard, Shards};
use crate::driver::ticker::Ticker;
use crate::driver::wakeup::Wakeup;
use crate::error::{BuildError, StopError};
use crate::time::clock::Parker;
use crate::time::sync::AtomicUsize;
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
/// panic of the handler is caught, [counted](crate::Statistics::panicked) and reported to
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
        let (tick, bucket_count) = self.check()?;
        // What the shards and the ticker share.
        let scale = TickScale::starting_now(&*self.clock, tick);
        let context = Arc::new(Context::new(self.clock, scale, self.panic_hook));
        let parker = Arc::new(Parker::new());
        let wakeup = Arc::new(Wakeup::new(Arc::downgrade(&parker)));
        let capacity =
            self.max_pending_timeouts.map(|count| Capacity::new(AtomicUsize::new(count)));
        let shards: Arc<Shards<T>> = Arc::new(array::from_fn(|_| {
            let wheel = Wheel::with_bucket_count(bucket_count).release_delay(release_delay(tick));
            let (context, wakeup) = (Arc::clone(&context), Arc::clone(&wakeup));
            Arc::new(Shard::new(wheel, context, wakeup, capacity.clone()))
        }));
        let weak = WeakBatchTimer::new(Arc::clone(&shards), Arc::clone(&context));
        let handler = Box::new(make_handler(&weak));
        let ticker = Ticker { shards, wakeup, parker, context, handler, keeps_capacity };
        let lifecycle =
            Lifecycle::start(ticker, self.thread_name).map_err(BuildError::ThreadSpawn)?;
        Ok(BatchTimer { lifecycle, weak })
    }
}

impl BatchTimer<()> {
    /// The default settings of a timer, as of
    /// [`HashedWheelTimer::builder`](crate::HashedWheelTimer::builder), to be changed and
    /// [built](TimerBuilder::build_batch). The handler tells the type of the values.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// A handle that schedules and cancels, and keeps neither the timer nor its thread alive.
    pub fn downgrade(&self) -> WeakBatchTimer<T> {
        self.weak.clone()
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
        let scale = self.weak.context().scale;
        let unprocessed = self.lifecycle.stop()?.into_iter();
        Ok(unprocessed
            .map(|(tick, value)| Unprocessed { deadline: scale.instant(tick), value })
            .collect())
    }
}

/// Schedules and cancels.
impl<T> Deref for BatchTimer<T> {
    type Target = WeakBatchTimer<T>;

    fn deref(&self) -> &WeakBatchTimer<T> {
        &self.weak
    }
}

/// A value that was pending when its timer was stopped, with the time at which it would have been
/// due. [`BatchTimer::stop`] and [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop) return
/// them.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, Task, Unprocessed};
///
/// let timer = HashedWheelTimer::new()?;
/// timer.schedule(Duration::from_secs(60), || {})?;
/// let unprocessed: Vec<Unprocessed<Task>> = timer.stop()?;
/// for task in unprocessed {
///     assert!(task.deadline.is_some());
///     (task.value)();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unprocessed<T> {
    /// The deadline, rounded up to a tick; `None` for a deadline that never comes.
    pub deadline: Option<Instant>,
    /// What was scheduled: a value, or a [`Task`](crate::Task).
    pub value: T,
}

// Not derived: a task has no `Debug`.
impl<T> fmt::Debug for Unprocessed<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Unprocessed")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

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
