//! The typed timer: one handler is given everything that is due, in batches, and nothing is boxed.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::alarm::Alarm;
use crate::clock::{Clock, Parker};
use crate::config::TimerBuilder;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::panics::Panics;
use crate::shard::{Bound, SHARDS, Shard, home};
use crate::ticker::{Ticker, TickerThread};
use crate::wheel::tick::{NEVER, TickScale};
use crate::wheel::{Key, Wheel};

/// A timer that hands values to one handler when they are due.
///
/// It is what [`HashedWheelTimer`](crate::HashedWheelTimer) is built on, for a program with many timeouts of one kind:
/// leases to renew, requests to give up, connections to close. A pending value takes 24 bytes and its own size.
///
/// The handler runs on the ticker thread, with no lock held, and is given at most 1024 values at a time, in a vector
/// that it empties; what it leaves in there is dropped. It may call the timer that runs it, and may drop it. What
/// it does delays everything behind it, so long work belongs on another thread. Of a handler that panics the panic is
/// caught, [counted](Self::panics) and reported to [`TimerBuilder::on_panic`]; the rest of that batch is dropped, and
/// the next batch is handed over as if nothing had been.
///
/// No value is handed over before its deadline. Values that one thread has scheduled come in the order of their ticks,
/// and within a tick in the order of scheduling; between threads there is no order within what is due at one time.
///
/// Dropping the timer drops what is pending and waits for the ticker thread to end, unless it is that thread which
/// drops it.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, ManualClock};
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
    shards: Arc<[Arc<Shard<T>>]>,
    alarm: Arc<Alarm>,
    clock: Arc<dyn Clock>,
    scale: TickScale,
    panics: Arc<Panics>,
    ticker_id: ThreadId,
    /// Some until the thread was told to end and has done so.
    ticker: Mutex<Option<TickerThread>>,
}

/// Names one timeout of one [`BatchTimer`], for as long as it is pending and never anything else afterwards.
///
/// It may be kept, copied and used by any thread. It means nothing to another timer.
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
    shard: u8,
}

impl TimerBuilder {
    /// Starts a timer that hands values of one type to `handler` when they are due. See [`BatchTimer`] for where and
    /// how the handler runs.
    ///
    /// # Errors
    ///
    /// [`BuildError`], if a setting is out of range (permanent) or the operating system gives no thread (transient).
    pub fn build_batch<T: Send + 'static>(
        self,
        handler: impl FnMut(&mut Vec<T>) + Send + 'static,
    ) -> Result<BatchTimer<T>, BuildError> {
        self.build_batch_with(|_| handler)
    }

    /// As [`build_batch`](Self::build_batch), with a handler that may contain panics itself.
    pub(crate) fn build_batch_with<T: Send + 'static, H: FnMut(&mut Vec<T>) + Send + 'static>(
        self,
        handler: impl FnOnce(Arc<Panics>) -> H,
    ) -> Result<BatchTimer<T>, BuildError> {
        let config = self.check()?;
        let clock = config.clock;
        let scale = TickScale::new(clock.now(), config.tick_duration);
        let parker = Arc::new(Parker::new());
        let alarm = Arc::new(Alarm::new(Arc::downgrade(&parker)));
        let bound = config.max_pending_timeouts.map(|count| Arc::new(Bound::new(count)));
        let shards = (0..SHARDS)
            .map(|_| {
                let wheel = Wheel::new(config.ticks_per_wheel)?;
                Ok(Arc::new(Shard::new(wheel, scale, Arc::clone(&alarm), bound.clone())))
            })
            .collect::<Result<Arc<[_]>, BuildError>>()?;
        let panics = Arc::new(Panics::new(config.panic_hook));
        let ticker = Ticker {
            shards: Arc::clone(&shards),
            alarm: Arc::clone(&alarm),
            parker,
            clock: Arc::clone(&clock),
            scale,
            panics: Arc::clone(&panics),
            handler: Box::new(handler(Arc::clone(&panics))),
        };
        let ticker = ticker.start(config.thread_name).map_err(BuildError::ThreadSpawn)?;
        let ticker_id = ticker.id();
        Ok(BatchTimer {
            shards,
            alarm,
            clock,
            scale,
            panics,
            ticker_id,
            ticker: Mutex::new(Some(ticker)),
        })
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// Hands `value` over when `delay` has passed from now: not before, and at most a tick and the operating system's
    /// wake-up after. A delay beyond all that an [`Instant`] can hold never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient) or `Stopped` (permanent).
    pub fn schedule(&self, delay: Duration, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (shard, key) = self.schedule_after(delay, value)?;
        Ok(TimerKey { key, shard })
    }

    /// Hands `value` over when the timer's clock shows `deadline`: not before, and at most a tick and the operating
    /// system's wake-up after. A deadline that has passed is due at the next tick at the latest.
    ///
    /// It spares the reading of the clock, half of what [`schedule`](Self::schedule) takes.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` (transient) or `Stopped` (permanent).
    pub fn schedule_at(&self, deadline: Instant, value: T) -> Result<TimerKey, ScheduleError<T>> {
        let (shard, key) = self.schedule_by(deadline, value)?;
        Ok(TimerKey { key, shard })
    }

    /// Takes a value back, if it has not been taken to be handed over. Of `cancel` and the ticker exactly one gets the
    /// value. Its place is free at once.
    pub fn cancel(&self, key: TimerKey) -> Option<T> {
        self.shard(key).cancel(key.key)
    }

    /// Gives a pending value another deadline, by the rules of [`schedule_at`](Self::schedule_at). False if it is not
    /// pending any more. The key stays good.
    pub fn reschedule(&self, key: TimerKey, deadline: Instant) -> bool {
        self.shard(key).reschedule(key.key, deadline)
    }

    /// When a pending value is due: its deadline, rounded up to a tick. None if it is not pending any more, and for a
    /// deadline that never comes.
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.shard(key).deadline(key.key)
    }

    /// How many values are pending: scheduled, not cancelled, not yet taken to be handed over. Exact while no other
    /// thread changes it.
    pub fn pending_timeouts(&self) -> usize {
        self.shards.iter().map(|shard| shard.pending()).sum()
    }

    /// How many panics of the handler, and of destructors of what it left, have been caught.
    pub fn panics(&self) -> u64 {
        self.panics.count()
    }

    /// The clock that the timer goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Stops the timer and gives back what was pending, in the order of the ticks at which it was due. Every value
    /// that was scheduled has been handed over, cancelled, or is given back here.
    ///
    /// It waits for the handler to return from the batch that it has, and for the ticker thread to end. Nothing can be
    /// scheduled afterwards. The second call gives back nothing.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if the handler calls it. Nothing is stopped then.
    pub fn stop(&self) -> Result<Vec<T>, StopError> {
        let unprocessed = self.stop_with_ticks()?;
        Ok(unprocessed.into_iter().map(|(_, value)| value).collect())
    }

    /// As [`stop`](Self::stop), each value with its due instant.
    pub(crate) fn stop_with_deadlines(&self) -> Result<Vec<(Option<Instant>, T)>, StopError> {
        let unprocessed = self.stop_with_ticks()?;
        Ok(unprocessed.into_iter().map(|(tick, value)| (self.scale.instant(tick), value)).collect())
    }

    fn stop_with_ticks(&self) -> Result<Vec<(u64, T)>, StopError> {
        if self.is_on_ticker_thread() {
            return Err(StopError::OnTickerThread);
        }
        // Held while the thread ends: who calls at the same time must not return before it has.
        let mut ticker = self.ticker.lock();
        let unprocessed = self.close();
        if let Some(ticker) = ticker.take() {
            ticker.join();
        }
        Ok(unprocessed)
    }

    /// Schedules in the calling thread's home shard, and says which shard that is.
    pub(crate) fn schedule_after(
        &self,
        delay: Duration,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        match self.clock.now().checked_add(delay) {
            Some(deadline) => self.schedule_by(deadline, value),
            None => self.schedule_tick(NEVER, value),
        }
    }

    /// As [`schedule_after`](Self::schedule_after), for an instant.
    pub(crate) fn schedule_by(
        &self,
        deadline: Instant,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        self.schedule_tick(self.scale.deadline_tick(deadline), value)
    }

    fn schedule_tick(&self, tick: u64, value: T) -> Result<(u8, Key), ScheduleError<T>> {
        let number = home();
        let key = self.shards[usize::from(number)].schedule(tick, value)?;
        Ok((number, key))
    }

    /// The shard with this number, one that the timer has given.
    pub(crate) fn shard_numbered(&self, number: u8) -> &Arc<Shard<T>> {
        &self.shards[usize::from(number)]
    }

    fn shard(&self, key: TimerKey) -> &Shard<T> {
        self.shard_numbered(key.shard)
    }
}

impl<T> BatchTimer<T> {
    fn is_on_ticker_thread(&self) -> bool {
        thread::current().id() == self.ticker_id
    }

    /// Closes every shard and tells the ticker to end.
    fn close(&self) -> Vec<(u64, T)> {
        self.alarm.stop();
        let mut unprocessed = Vec::new();
        for shard in &*self.shards {
            shard.close(&mut unprocessed);
        }
        // Stable, so that what one thread has scheduled for one tick stays in order.
        unprocessed.sort_by_key(|(tick, _)| *tick);
        unprocessed
    }
}

impl<T> Drop for BatchTimer<T> {
    fn drop(&mut self) {
        let unprocessed = self.close();
        if let Some(ticker) = self.ticker.get_mut().take()
            && !self.is_on_ticker_thread()
        {
            ticker.join();
        }
        // Last: these destructors are foreign code, and by now nothing of the timer is left to be in their way.
        drop(unprocessed);
    }
}

impl<T> fmt::Debug for BatchTimer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BatchTimer")
            .field("clock", &self.clock)
            .field("alarm", &self.alarm)
            .field("panics", &self.panics)
            .field("ticker", &self.ticker)
            .finish_non_exhaustive()
    }
}
