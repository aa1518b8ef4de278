//! The typed timer: a single handler receives all due values in batches, without boxing.

use std::array;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::TimerBuilder;
use super::weak_batch_timer::WeakBatchTimer;
use crate::driver::context::Context;
use crate::driver::lifecycle::Lifecycle;
use crate::driver::shard::{Capacity, DueValues, Shard, Shards};
use crate::driver::ticker::Ticker;
use crate::driver::wakeup::Wakeup;
use crate::error::{BuildError, StopError};
use crate::time::clock::Parker;
use crate::time::sync::AtomicUsize;
use crate::time::tick::{TickDuration, TickScale};
use crate::wheel::Wheel;

/// The time for which a chunk of memory stays empty before the ticker releases the chunk.
///
/// A second is longer than the pauses of a varying load, which therefore needs no new memory. With
/// immediate releases, each cancel of a million closures took 240 ns longer: whenever the C library
/// frees or allocates a chunk, the library first merges all small free pieces of memory.
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// Returns [`RELEASE_DELAY`] in ticks, at least 1, so that the ticker sleeps before a release.
fn release_delay(tick: TickDuration) -> u64 {
    tick.ticks_in(RELEASE_DELAY).max(1)
}

/// A timer that passes values to a handler when the values are due.
///
/// Started by [`TimerBuilder::build_batch`].
///
/// [`HashedWheelTimer`](crate::HashedWheelTimer) is built on this timer, which is for programs with
/// many timeouts of the same kind: leases to renew, requests to give up, connections to close. A
/// pending value takes 20 bytes plus the size of the value, rounded up to a multiple of 8.
///
/// The handler runs on the ticker thread, with no lock held. A call passes at most 1024 values, in
/// a vector for the handler to empty; values left in the vector are dropped. The handler may call
/// the timer, and may drop the timer. The handler delays all later timeouts, so long work belongs
/// on another thread. A panic of the handler is caught, [counted](crate::Statistics::panicked) and
/// reported to [`TimerBuilder::on_panic`]; the rest of the batch is dropped, and the next batch is
/// passed as usual.
///
/// No value is passed before the deadline. Values scheduled by the same thread arrive in the order
/// of their ticks, and within a tick in the order of scheduling. Between threads there is no order
/// among values due at the same time.
///
/// Dropping the timer drops the pending values and waits for the ticker thread to end, unless the
/// ticker thread drops the timer.
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
    /// Starts a timer that passes due values of type `T` to `handler`.
    ///
    /// See [`BatchTimer`] for the thread and the order of the calls.
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

    /// Starts a timer with a handler that schedules and cancels on the same timer.
    ///
    /// As with [`Arc::new_cyclic`], `make_handler` receives a handle to the new timer, and returns
    /// the handler. `make_handler` is called once, on the calling thread, before the ticker thread
    /// is started. Otherwise this call does the same as [`build_batch`](Self::build_batch).
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system refuses a
    /// thread (transient). `make_handler` is not called if a setting is out of range.
    ///
    /// # Panics
    ///
    /// If `make_handler` panics. No timer is started then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use hashed_wheel::{BatchTimer, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let builder = BatchTimer::builder().clock(Arc::new(clock.clone()));
    /// // Schedules each value again after a second, reduced by 1.
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
            move |due: &mut DueValues<T>| {
                let started = context.now();
                context.record_all_fired(&due.ticks, started);
                context.run(started, || handler(&mut due.values));
            }
        };
        self.build_batch_with(handle, |_| false)
    }

    /// As [`build_batch_cyclic`](Self::build_batch_cyclic), with a handler that records the fired
    /// values.
    pub(crate) fn build_batch_with<
        T: Send + 'static,
        H: FnMut(&mut DueValues<T>) + Send + 'static,
    >(
        self,
        make_handler: impl FnOnce(&WeakBatchTimer<T>) -> H,
        retains_capacity: fn(&T) -> bool,
    ) -> Result<BatchTimer<T>, BuildError> {
        let (tick, bucket_count) = self.check()?;
        // The shards and the ticker share the context, the parker and the wakeup.
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
        let ticker = Ticker { shards, wakeup, parker, context, handler, retains_capacity };
        let lifecycle =
            Lifecycle::start(ticker, self.thread_name).map_err(BuildError::ThreadSpawn)?;
        Ok(BatchTimer { lifecycle, weak })
    }
}

impl BatchTimer<()> {
    /// Returns a builder with the default settings, as
    /// [`HashedWheelTimer::builder`](crate::HashedWheelTimer::builder) does.
    ///
    /// The handler passed to [`build_batch`](TimerBuilder::build_batch) determines the type of the
    /// values.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::new()
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// Returns a handle for scheduling and cancelling, which keeps neither the timer nor the ticker
    /// thread alive.
    pub fn downgrade(&self) -> WeakBatchTimer<T> {
        self.weak.clone()
    }

    /// Stops the timer and returns the pending values, in the order of the due ticks.
    ///
    /// Every scheduled value was passed to the handler, was cancelled, or is returned here. The
    /// call waits for the handler to return from the current batch, and for the ticker thread to
    /// end. Afterwards nothing can be scheduled, and a second call returns nothing.
    ///
    /// # Errors
    ///
    /// [`StopError`]: `OnTickerThread`, if the handler calls `stop`, or `Forked`. Nothing is
    /// stopped then.
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

/// The methods for scheduling and cancelling.
impl<T> Deref for BatchTimer<T> {
    type Target = WeakBatchTimer<T>;

    fn deref(&self) -> &WeakBatchTimer<T> {
        &self.weak
    }
}

/// A value that was pending when the timer was stopped, with the deadline of the value.
///
/// Returned by [`BatchTimer::stop`] and [`HashedWheelTimer::stop`](crate::HashedWheelTimer::stop).
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
    /// The deadline, rounded up to a tick; `None` for a deadline out of range.
    pub deadline: Option<Instant>,
    /// The scheduled value or [`Task`](crate::Task).
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

/// Shows the number of pending values, the time until the next is due, and the number of panics.
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
