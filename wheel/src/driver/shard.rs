//! One shard of a timer: a wheel behind a lock, and the home of some threads.
//!
//! One lock around one wheel is four times slower with two threads than with one thread. So a timer
//! has eight shards, and each thread has a home shard, with the same number in every timer. With
//! shards picked at random, every thread would touch every lock, which is slower than one shard. A
//! key names the shard of its entry, so any thread can cancel.
//!
//! Values are moved in and out under the lock, and never dropped or called under the lock:
//! destructors are user code.

use std::cell::Cell;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};
use std::vec;

use super::context::Context;
use super::wakeup::{NextWake, Wakeup};
use crate::error::ScheduleError;
use crate::stats::statistics::Statistics;
use crate::time::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::time::tick::NEVER;
use crate::wheel::{Key, Wheel};

pub(crate) const SHARDS: u8 = 8;

/// All shards of a timer.
pub(crate) type Shards<T> = [Arc<Shard<T>>; SHARDS as usize];

/// Aligned so that no two shards share a cache line, or a pair of lines fetched together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard<T> {
    state: Mutex<ShardState<T>>,
    next_wake: NextWake,
    wakeup: Arc<Wakeup>,
    capacity: Option<Capacity>,
    context: Arc<Context>,
}

/// How many more timeouts may be pending in all shards of a timer with a limit. All threads change
/// the same word, so only a timer with a limit pays, and no timeout within the limit is refused. An
/// allowance for each shard, reclaimed when a shard's allowance runs out, was faster on two threads
/// but too much mechanism.
///
/// All accesses are relaxed: the number protects no other memory.
pub(crate) type Capacity = Arc<AtomicUsize>;

#[derive(Debug)]
struct ShardState<T> {
    wheel: Wheel<T>,
    /// No new value is accepted.
    closed: bool,
    /// The pending values were returned. No value is accepted, not even a rearmed value.
    emptied: bool,
    /// The keys that were pending when the shard was closed, sorted.
    unprocessed: Vec<Key>,
    scheduled: u64,
    cancelled: u64,
    rejected: u64,
}

/// Due values taken out of shards, in the order of the taking.
#[derive(Debug)]
pub(crate) struct DueValues<T> {
    pub(crate) values: Vec<T>,
    /// The tick at which each value was due.
    pub(crate) ticks: Vec<u64>,
}

impl<T> DueValues<T> {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), ticks: Vec::new() }
    }
}

// A panic cannot leave a `Shard` half changed: no user code runs under the lock.
impl<T> RefUnwindSafe for Shard<T> {}

/// The stage of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryStage {
    Pending,
    /// Was pending at the stop of the timer. In a child of the timer's process, every entry is
    /// `Unprocessed`.
    Unprocessed,
    /// Was taken by the ticker, or cancelled.
    Removed,
}

impl<T> Shard<T> {
    pub(crate) fn new(
        wheel: Wheel<T>,
        context: Arc<Context>,
        wakeup: Arc<Wakeup>,
        capacity: Option<Capacity>,
    ) -> Self {
        let state = ShardState {
            wheel,
            closed: false,
            emptied: false,
            unprocessed: Vec::new(),
            scheduled: 0,
            cancelled: 0,
            rejected: 0,
        };
        Self { state: Mutex::new(state), next_wake: NextWake::new(), wakeup, capacity, context }
    }

    /// Schedules a value, and wakes the ticker if the ticker would sleep past the deadline. The
    /// error returns the value.
    pub(crate) fn schedule(&self, deadline: u64, value: T) -> Result<Key, ScheduleError<T>> {
        let Some(mut state) = self.lock() else { return Err(ScheduleError::Forked(value)) };
        self.check_room(&mut state, value).map(|value| {
            state.scheduled += 1;
            let due = state.wheel.due(deadline).get();
            let key = state.wheel.insert(deadline, value);
            self.wake_by(state, due);
            key
        })
    }

    /// Schedules at most `limit` values under one lock. `since_start` is an instant, in nanoseconds
    /// since the timer's start, and each delay counts from the instant. Ends with the first refused
    /// value, and the error returns the value and the delay.
    pub(crate) fn schedule_many(
        &self,
        since_start: Option<u64>,
        timeouts: &mut vec::Drain<'_, (Duration, T)>,
        limit: usize,
        mut scheduled: impl FnMut(Key),
    ) -> Result<(), ScheduleError<(Duration, T)>> {
        let Some(mut state) = self.lock() else {
            return timeouts.next().map_or(Ok(()), |first| Err(ScheduleError::Forked(first)));
        };
        let mut first = NEVER;
        let mut result = Ok(());
        for timeout in timeouts.take(limit) {
            match self.check_room(&mut state, timeout) {
                Ok((delay, value)) => {
                    let deadline = self.context.scale.tick_after(since_start, delay);
                    first = first.min(state.wheel.due(deadline).get());
                    state.scheduled += 1;
                    scheduled(state.wheel.insert(deadline, value));
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.wake_by(state, first);
        result
    }

    /// Takes a unit of capacity for `value`, or refuses the value.
    fn check_room<V>(&self, state: &mut ShardState<T>, value: V) -> Result<V, ScheduleError<V>> {
        if state.closed {
            return Err(ScheduleError::Stopped(value));
        }
        if state.wheel.is_full() || !self.take_capacity() {
            state.rejected += 1;
            return Err(ScheduleError::Full(value));
        }
        Ok(value)
    }

    /// Schedules a value again, if the value retained its unit of capacity in
    /// [`take_due`](Self::take_due). If the shard accepts no more values, or the wheel is full, the
    /// error returns the value, and the caller retains the unit.
    pub(crate) fn rearm(&self, deadline: u64, value: T) -> Result<Key, T> {
        let Some(mut state) = self.lock() else { return Err(value) };
        if state.emptied || state.wheel.is_full() {
            return Err(value);
        }
        let due = state.wheel.due(deadline).get();
        let key = state.wheel.insert(deadline, value);
        self.wake_by(state, due);
        Ok(key)
    }

    pub(crate) fn cancel(&self, key: Key) -> Option<T> {
        self.cancel_with(key, || {})
    }

    /// Cancels the pending values among `keys`, under one lock, and appends the values to
    /// `cancelled`.
    pub(crate) fn cancel_many(
        &self,
        keys: impl Iterator<Item = Key> + Clone,
        cancelled: &mut Vec<T>,
    ) {
        let before = cancelled.len();
        let Some(mut state) = self.lock() else { return };
        state.wheel.cancel_many(keys, cancelled);
        self.after_cancel(state, cancelled.len() - before);
    }

    /// The number of chunks of slots, for [`cancel_chunk`](Self::cancel_chunk).
    pub(crate) fn chunk_count(&self) -> usize {
        self.lock().map_or(0, |state| state.wheel.chunk_count())
    }

    /// Cancels the pending values in one chunk of slots, and appends the values to `cancelled`.
    pub(crate) fn cancel_chunk(&self, number: usize, cancelled: &mut Vec<T>) {
        let before = cancelled.len();
        let Some(mut state) = self.lock() else { return };
        state.wheel.cancel_chunk(number, cancelled);
        self.after_cancel(state, cancelled.len() - before);
    }

    /// Cancels the entry of `key` and returns the value. If the entry was pending, calls `note`
    /// under the lock: a thread which sees the entry removed also sees the effect of `note`.
    pub(crate) fn cancel_with(&self, key: Key, note: impl FnOnce()) -> Option<T> {
        let mut state = self.lock()?;
        let value = state.wheel.cancel(key)?;
        note();
        self.after_cancel(state, 1);
        Some(value)
    }

    /// Counts `count` cancelled values, gives their capacity back, and unlocks the shard.
    fn after_cancel(&self, mut state: MutexGuard<'_, ShardState<T>>, count: usize) {
        state.cancelled += count as u64;
        self.give_back_capacity(count);
        if state.wheel.has_new_empty_chunks() {
            self.wake_for_chunks(state);
        }
    }

    /// Wakes the ticker, because only the ticker frees empty chunks, and unlocks the shard.
    #[cold]
    fn wake_for_chunks(&self, state: MutexGuard<'_, ShardState<T>>) {
        let next = state.wheel.now().saturating_add(1);
        self.wake_by(state, next);
    }

    /// Gives a pending value another deadline, and calls `note` with the value, under the lock.
    /// Returns whether the value was pending.
    pub(crate) fn reschedule(&self, key: Key, deadline: u64, note: impl FnOnce(&mut T)) -> bool {
        let Some(mut state) = self.lock() else { return false };
        let due = state.wheel.due(deadline).get();
        let pending = state.wheel.reschedule(key, deadline);
        if pending {
            state.wheel.get_mut(key).map(note);
            self.wake_by(state, due);
        }
        pending
    }

    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The instant at which a pending entry is due. `None` if the entry is not pending, or if no
    /// instant represents the due tick.
    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        let due = self.lock()?.wheel.deadline(key)?;
        self.context.scale.instant(due)
    }

    /// A copy of a pending value. Copying runs no user code.
    pub(crate) fn get(&self, key: Key) -> Option<T>
    where
        T: Copy,
    {
        self.lock()?.wheel.get(key).copied()
    }

    pub(crate) fn stage(&self, key: Key) -> EntryStage {
        let Some(state) = self.lock() else { return EntryStage::Unprocessed };
        if state.wheel.get(key).is_some() {
            EntryStage::Pending
        } else if state.unprocessed.binary_search(&key).is_ok() {
            EntryStage::Unprocessed
        } else {
            EntryStage::Removed
        }
    }

    /// Whether the entry was pending at the stop of the timer, or the process is a child of the
    /// timer's process.
    pub(crate) fn is_unprocessed(&self, key: Key) -> bool {
        self.stage(key) == EntryStage::Unprocessed
    }

    pub(crate) fn pending(&self) -> usize {
        self.lock().map_or(0, |state| state.wheel.len())
    }

    /// Adds the counts of this shard to `statistics`.
    pub(crate) fn add_counts(&self, statistics: &mut Statistics) {
        if let Some(state) = self.lock() {
            statistics.scheduled += state.scheduled;
            statistics.cancelled += state.cancelled;
            statistics.rejected += state.rejected;
            statistics.pending += state.wheel.len();
        }
    }

    /// The lowest tick at which an entry is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.lock()?.wheel.next_due()
    }

    /// The tick by which the ticker must inspect this shard again.
    pub(crate) fn next_wake(&self) -> u64 {
        self.next_wake.tick()
    }

    /// Moves at most `limit` values due at `tick` to `due`, frees a few empty chunks, and sets the
    /// next wake. Only the ticker calls `take_due`. The next wake accounts for values still due and
    /// for chunks still to be freed.
    ///
    /// A value for which `retains_capacity` returns `true` retains its unit until
    /// [`give_back_capacity`](Self::give_back_capacity) is called.
    pub(crate) fn take_due(
        &self,
        tick: u64,
        limit: usize,
        due: &mut DueValues<T>,
        retains_capacity: fn(&T) -> bool,
    ) {
        let before = due.values.len();
        let Some(mut state) = self.lock() else { return };
        state.wheel.advance(tick, limit, |tick, value| {
            due.ticks.push(tick);
            due.values.push(value);
        });
        self.next_wake.set(state.wheel.next_work());
        if self.capacity.is_some() {
            let taken = &due.values[before..];
            let freed = taken.iter().filter(|value| !retains_capacity(value)).count();
            self.give_back_capacity(freed);
        }
    }

    /// Accepts no new values from now on. Pending values stay, and rearmed values are accepted.
    pub(crate) fn refuse(&self) {
        if let Some(mut state) = self.lock() {
            state.closed = true;
        }
    }

    /// Accepts no values from now on, and moves every pending value to `unprocessed`, with the due
    /// tick. A second call finds no values.
    pub(crate) fn close(&self, unprocessed: &mut Vec<(u64, T)>) {
        let Some(mut state) = self.lock() else { return };
        state.closed = true;
        state.emptied = true;
        let mut keys: Vec<Key> = state.wheel.iter().map(|(key, _, _)| key).collect();
        state.wheel.advance(u64::MAX, usize::MAX, |due, value| unprocessed.push((due, value)));
        // Handles may retain the shard for long, so the memory is freed now.
        let retired = state.wheel.retire();
        if !keys.is_empty() {
            keys.sort_unstable();
            self.give_back_capacity(keys.len());
            state.unprocessed = keys;
        }
        // Unlocked before the memory is freed, because freeing much memory takes a while.
        drop(state);
        drop(retired);
    }

    /// Locks the state. `None` in a child of the timer's process: the lock may be held there by a
    /// thread which does not exist in the child.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, ShardState<T>>> {
        self.context.home.is_current_by_count().then(|| self.state.lock())
    }

    /// Makes the ticker inspect this shard by the tick `due`, and unlocks the shard.
    fn wake_by(&self, state: MutexGuard<'_, ShardState<T>>, due: u64) {
        let earlier = self.next_wake.lower_to(due);
        // Unlocked before the ticker is woken, or the ticker would wake and wait for the lock.
        drop(state);
        if earlier {
            self.wakeup.wake_by(due);
        }
    }

    /// Takes a unit of capacity. Returns `false` if no unit is free, and always `true` for a timer
    /// without a limit.
    fn take_capacity(&self) -> bool {
        let take = |free: usize| free.checked_sub(1);
        self.capacity.as_ref().is_none_or(|capacity| {
            capacity.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        })
    }

    /// Gives back the capacity of `count` values.
    pub(crate) fn give_back_capacity(&self, count: usize) {
        if let Some(capacity) = &self.capacity {
            capacity.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// The number of the calling thread's home shard. Threads are assigned to shards in turn, at their
/// first call.
pub(crate) fn home_shard() -> u8 {
    thread_local! {
        static HOME: Cell<Option<u8>> = const { Cell::new(None) };
    }
    // The counter wraps around evenly, as 256 is a multiple of the number of shards.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    HOME.with(|home| {
        home.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            home.set(Some(number));
            number
        })
    })
}

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::time::clock::{Clock, SystemClock};
    use crate::time::tick::TickScale;

    /// For how many ticks the shards of [`pair`] keep empty chunks.
    const DELAY: u64 = 7;

    /// Two shards of one timer, with no ticker.
    fn pair(limit: usize) -> Vec<Arc<Shard<u32>>> {
        let scale = TickScale::new(SystemClock.now(), Duration::from_millis(1)).unwrap();
        let context = Arc::new(Context::new(Arc::new(SystemClock), scale, None));
        let wakeup = Arc::new(Wakeup::new(Weak::new()));
        let capacity = Capacity::new(AtomicUsize::new(limit));
        (0..2)
            .map(|_| {
                let wheel = Wheel::new(8).unwrap().release_delay(DELAY);
                let capacity = Some(Arc::clone(&capacity));
                Arc::new(Shard::new(wheel, Arc::clone(&context), Arc::clone(&wakeup), capacity))
            })
            .collect()
    }

    fn fill(shard: &Shard<u32>) -> Vec<Key> {
        std::iter::from_fn(|| shard.schedule(1, 0).ok()).collect()
    }

    #[test]
    fn a_shard_refuses_what_is_beyond_the_limit_and_counts_it() {
        let shards = pair(10);
        let keys = fill(&shards[0]);
        assert_eq!(keys.len(), 10);
        for key in &keys[..4] {
            assert!(shards[0].cancel(*key).is_some());
        }
        assert_eq!(fill(&shards[1]).len(), 4);
        for (shard, counts) in shards.iter().zip([(10, 4, 1, 6), (4, 0, 1, 4)]) {
            let mut sum = Statistics::default();
            shard.add_counts(&mut sum);
            assert_eq!((sum.scheduled, sum.cancelled, sum.rejected, sum.pending), counts);
        }
    }

    #[test]
    fn firing_and_closing_give_the_capacity_back() {
        let shards = pair(10);
        let mut due = DueValues::new();
        assert_eq!(fill(&shards[0]).len(), 10);
        shards[0].take_due(1, 3, &mut due, |_| false);
        assert_eq!(fill(&shards[1]).len(), 3);
        shards[0].close(&mut Vec::new());
        assert_eq!(fill(&shards[1]).len(), 7);
        assert!(matches!(shards[0].schedule(1, 0), Err(ScheduleError::Stopped(0))));
    }

    #[test]
    fn a_closed_shard_has_returned_what_was_pending_and_its_memory() {
        let shards = pair(usize::MAX);
        for (tick, value) in [(5, 1), (17, 2), (5, 3)] {
            shards[0].schedule(tick, value).unwrap();
        }
        let mut unprocessed = Vec::new();
        shards[0].close(&mut unprocessed);
        assert_eq!(unprocessed, [(5, 1), (5, 3), (17, 2)]);
        // A handle keeps the shard, but no chunk of it.
        assert_eq!((shards[0].chunk_count(), shards[0].pending()), (0, 0));
        shards[0].close(&mut unprocessed);
        assert_eq!(unprocessed.len(), 3);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn the_ticker_wakes_to_release_chunks_that_cancels_emptied() {
        const STEP: usize = 100;
        let shards = pair(usize::MAX);
        let shard = &shards[0];
        let keys: Vec<Key> =
            (0..50 * STEP).map(|_| shard.schedule(1_000_000, 0).unwrap()).collect();
        // In this order all chunks become empty at the end, and none before.
        for start in 0..STEP {
            for key in keys.iter().skip(start).step_by(STEP) {
                assert!(shard.cancel(*key).is_some());
            }
        }
        assert!(shard.state.lock().wheel.has_new_empty_chunks());
        let mut wakes = Vec::new();
        while shard.next_wake() < 1_000_000 {
            wakes.push(shard.next_wake());
            shard.take_due(shard.next_wake(), 9, &mut DueValues::new(), |_| false);
        }
        // At once, to see which chunks are empty, and several times after the delay.
        assert!((3..50).contains(&wakes.len()), "{wakes:?}");
        assert_eq!(wakes[0], 1);
        assert!(wakes[1..].iter().all(|tick| *tick == 1 + DELAY), "{wakes:?}");
        assert_eq!(shard.state.lock().wheel.next_work(), None);
        assert_eq!(shard.next_wake(), NEVER);
    }

    #[test]
    fn a_value_that_repeats_keeps_its_capacity_while_it_runs() {
        let shards = pair(2);
        let mut due = DueValues::new();
        for value in [1, 2] {
            shards[0].schedule(1, value).unwrap();
        }
        shards[0].take_due(1, 9, &mut due, |value| *value == 1);
        assert_eq!(due.values, [1, 2]);
        assert_eq!(fill(&shards[1]).len(), 1, "the unit of the other value");
        let key = shards[0].rearm(2, 1).unwrap();
        assert!(shards[1].schedule(1, 3).is_err());
        let mut sum = Statistics::default();
        shards[0].add_counts(&mut sum);
        assert_eq!(sum.scheduled, 2);
        assert_eq!(shards[0].cancel(key), Some(1));
        assert_eq!(fill(&shards[1]).len(), 1);

        shards[1].take_due(1, 1, &mut due, |_| true);
        assert!(shards[0].schedule(1, 3).is_err());
        shards[1].give_back_capacity(1);
        assert!(shards[0].schedule(1, 3).is_ok());
        shards[1].close(&mut Vec::new());
        assert_eq!(shards[1].rearm(1, 7), Err(7));
    }
}
