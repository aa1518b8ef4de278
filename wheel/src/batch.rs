//! The typed timer: one handler is given everything that is due, in batches, and nothing is boxed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::alarm::Alarm;
use crate::bound::Bound;
use crate::census::{MANY_TIMERS, Resident};
use crate::clock::{Clock, Parker};
use crate::config::TimerBuilder;
use crate::error::{BuildError, ScheduleError, StopError};
use crate::firing::Firing;
use crate::lifecycle::{Ending, Lifecycle};
use crate::panics::Panics;
use crate::shard::{Due, SHARDS, Shard, home};
use crate::statistics::{Record, Statistics};
use crate::tick::TickScale;
use crate::ticker::Ticker;
use crate::wheel::{Key, Wheel};

/// A timer that hands values to one handler when they are due.
///
/// It is what [`HashedWheelTimer`](crate::HashedWheelTimer) is built on, for a program with many timeouts of one kind:
/// leases to renew, requests to give up, connections to close. A pending value takes 20 bytes and its own size, rounded up to its alignment of 8.
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
    lifecycle: Lifecycle<T>,
    shards: Arc<[Arc<Shard<T>>]>,
    firing: Arc<Firing>,
    _resident: Resident,
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
        let mut handler = handler;
        let handle = |firing: Arc<Firing>| {
            move |due: &mut Due<T>| {
                let begun = firing.now();
                firing.fired_all(&due.ticks, begun);
                firing.run(begun, || handler(&mut due.values));
            }
        };
        self.build_batch_with(handle, |_| false)
    }

    /// As [`build_batch`](Self::build_batch), with a handler that notes for itself what it fires.
    pub(crate) fn build_batch_with<T: Send + 'static, H: FnMut(&mut Due<T>) + Send + 'static>(
        self,
        handler: impl FnOnce(Arc<Firing>) -> H,
        keeps_place: fn(&T) -> bool,
    ) -> Result<BatchTimer<T>, BuildError> {
        let config = self.check()?;
        let scale = TickScale::new(config.clock.now(), config.tick_duration);
        let parker = Arc::new(Parker::new());
        let alarm = Arc::new(Alarm::new(Arc::downgrade(&parker)));
        let bound = config.max_pending_timeouts.map(|count| Arc::new(Bound::new(count)));
        let shards = (0..SHARDS)
            .map(|_| {
                let wheel = Wheel::new(config.ticks_per_wheel)?;
                Ok(Arc::new(Shard::new(wheel, scale, Arc::clone(&alarm), bound.clone())))
            })
            .collect::<Result<Arc<[_]>, BuildError>>()?;
        let firing = Arc::new(Firing {
            clock: config.clock,
            scale,
            panics: Panics::new(config.panic_hook),
            record: Record::new(),
        });
        let ticker = Ticker {
            shards: Arc::clone(&shards),
            alarm,
            parker,
            firing: Arc::clone(&firing),
            handler: Box::new(handler(Arc::clone(&firing))),
            keeps_place,
        };
        let (resident, living) = Resident::new();
        let timer = BatchTimer {
            lifecycle: Lifecycle::new(ticker, config.thread_name),
            shards,
            firing,
            _resident: resident,
        };
        if !config.starts_lazily {
            timer.start()?;
        }
        if let Some(hook) = config.crowd_hook.filter(|_| living > MANY_TIMERS) {
            timer.firing.panics.contain(|| hook(living));
        }
        Ok(timer)
    }
}

impl<T: Send + 'static> BatchTimer<T> {
    /// Hands `value` over when `delay` has passed from now: not before, and at most a tick and the operating system's
    /// wake-up after. A delay that would end 584 years after the timer's start never ends, but can be cancelled.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient) or `Stopped` (permanent).
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
    /// [`ScheduleError`], with the value: `Full` or `NotStarted` (transient) or `Stopped` (permanent).
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

    /// How many panics have been caught: of the handler, of destructors, of the clock on the ticker thread.
    pub fn panics(&self) -> u64 {
        self.firing.panics.count()
    }

    /// What the timer has done so far, and how late it was.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.firing.record.statistics();
        statistics.panicked = self.firing.panics.count();
        for shard in &*self.shards {
            let counts = shard.counts();
            statistics.scheduled += counts.scheduled;
            statistics.cancelled += counts.cancelled;
            statistics.rejected += counts.rejected;
            statistics.pending += counts.pending;
        }
        statistics
    }

    /// The clock that the timer goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.firing.clock
    }

    /// Starts the ticker thread of a timer that was to [start lazily](TimerBuilder::start_lazily), instead of leaving
    /// that to the first timeout. Without effect if it runs, and after a stop.
    ///
    /// # Errors
    ///
    /// [`BuildError::ThreadSpawn`], transient: the operating system gave no thread. A later call, or the next timeout,
    /// tries again.
    pub fn start(&self) -> Result<(), BuildError> {
        self.lifecycle.start()
    }

    /// Hands over everything that is already due, then stops as [`stop`](Self::stop) does and gives back the rest.
    ///
    /// From the beginning of the call nothing new is taken in. It waits until everything is handed over that was due
    /// when it was called, however much that is.
    ///
    /// # Errors
    ///
    /// [`StopError::OnTickerThread`], if the handler calls it. Nothing is stopped then.
    pub fn drain(&self) -> Result<Vec<T>, StopError> {
        let unprocessed = self.lifecycle.end(Ending::Drain)?;
        Ok(unprocessed.into_iter().map(|(_, value)| value).collect())
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
        let unprocessed = self.lifecycle.end(Ending::Stop)?;
        Ok(unprocessed.into_iter().map(|(_, value)| value).collect())
    }

    /// Stops or drains, and gives each value back with its due instant.
    pub(crate) fn end_with_deadlines(
        &self,
        ending: Ending,
    ) -> Result<Vec<(Option<Instant>, T)>, StopError> {
        let scale = self.firing.scale;
        let unprocessed = self.lifecycle.end(ending)?;
        Ok(unprocessed.into_iter().map(|(tick, value)| (scale.instant(tick), value)).collect())
    }

    /// Schedules in the calling thread's home shard, and says which shard that is.
    pub(crate) fn schedule_after(
        &self,
        delay: Duration,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        let Firing { clock, scale, .. } = &*self.firing;
        self.schedule_tick(scale.tick_after(clock.now(), delay), value)
    }

    /// As [`schedule_after`](Self::schedule_after), for an instant.
    pub(crate) fn schedule_by(
        &self,
        deadline: Instant,
        value: T,
    ) -> Result<(u8, Key), ScheduleError<T>> {
        self.schedule_tick(self.firing.scale.deadline_tick(deadline), value)
    }

    pub(crate) fn schedule_tick(&self, tick: u64, value: T) -> Result<(u8, Key), ScheduleError<T>> {
        if !self.lifecycle.is_started() && self.start().is_err() {
            return Err(ScheduleError::NotStarted(value));
        }
        let number = home();
        let key = self.shards[usize::from(number)].schedule(tick, value, &self.shards)?;
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
    pub(crate) fn firing(&self) -> &Arc<Firing> {
        &self.firing
    }
}

/// How many of the timeouts that are due first `Debug` shows.
const SHOWN: usize = 16;

impl<T> fmt::Debug for BatchTimer<T> {
    /// Shows how many timeouts are pending, and how long it is until the first 16 of them are due. It looks at no more
    /// than these, so it may be used with a million pending.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Firing { clock, scale, panics, .. } = &*self.firing;
        let pending: usize = self.shards.iter().map(|shard| shard.pending()).sum();
        let mut ticks: Vec<u64> =
            self.shards.iter().flat_map(|shard| shard.earliest(SHOWN)).collect();
        ticks.sort_unstable();
        ticks.truncate(SHOWN);
        let now = clock.now();
        // None is for what never comes.
        let due_in: Vec<Option<Duration>> = ticks
            .into_iter()
            .map(|tick| Some(scale.instant(tick)?.saturating_duration_since(now)))
            .collect();
        formatter
            .debug_struct("BatchTimer")
            .field("clock", clock)
            .field("pending", &pending)
            .field("due_in", &due_in)
            .field("alarm", self.lifecycle.alarm())
            .field("panics", panics)
            .finish_non_exhaustive()
    }
}
