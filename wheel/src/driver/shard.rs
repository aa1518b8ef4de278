//! One shard of a timer: a wheel behind a lock, for the threads whose home it is.
//!
//! One lock around one wheel is four times slower with two threads than with one. So a timer has
//! eight shards, and each thread has a home among them, the same in every timer. (With shards
//! picked at random every thread would touch every lock, which is slower than one shard.) A key
//! names its shard, so any thread can cancel (DESIGN: shards).
//!
//! Values are moved in and out under the lock, and never dropped or called under it: their
//! destructors are a user's code.

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

/// Aligned so that no two shards share a cache line, nor a pair of lines that is fetched together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard<T> {
    state: Mutex<ShardState<T>>,
    next_wake: NextWake,
    wakeup: Arc<Wakeup>,
    capacity: Option<Capacity>,
    context: Arc<Context>,
}

/// How many more timeouts may be pending in all shards of a timer with a limit. It is one word that
/// all threads change.
///
/// All accesses are relaxed: the number protects nothing but itself.
pub(crate) type Capacity = Arc<AtomicUsize>;

#[derive(Debug)]
struct ShardState<T> {
    wheel: Wheel<T>,
    /// No new value is accepted.
    closed: bool,
    /// The pending values were returned. No value at all is accepted.
    emptied: bool,
    /// The keys that were pending when the shard was closed, sorted.
    unprocessed: Vec<Key>,
    scheduled: u64,
    cancelled: u64,
    rejected: u64,
}

/// Values that were taken out of shards because they are due, in the order in which they were
/// taken.
#[derive(Debug)]
pub(crate) struct Due<T> {
    pub(crate) values: Vec<T>,
    /// The tick at which each value was due.
    pub(crate) ticks: Vec<u64>,
}

impl<T> Due<T> {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), ticks: Vec::new() }
    }
}

// A panic cannot leave it half changed: no code of a user runs under its lock.
impl<T> RefUnwindSafe for Shard<T> {}

/// How far a timeout has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryStage {
    Pending,
    /// It was pending when the timer was stopped. In a child of the timer's process every entry is.
    Unprocessed,
    /// It was taken to be run, or cancelled.
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

    /// Schedules a value, and makes sure that the ticker wakes in time.
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

    /// Schedules at most `limit` values under one lock, each after its delay from the instant that
    /// is `since_start` nanoseconds after the timer's start. Ends with the first value that is
    /// refused.
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

    /// Schedules a value again that kept its capacity when it was taken out. If no value is
    /// accepted any more, it returns the value, and the caller keeps the capacity.
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

    /// Cancels those of the keys whose value is pending, under one lock.
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

    /// Cancels what is pending in one chunk of slots.
    pub(crate) fn cancel_chunk(&self, number: usize, cancelled: &mut Vec<T>) {
        let before = cancelled.len();
        let Some(mut state) = self.lock() else { return };
        state.wheel.cancel_chunk(number, cancelled);
        self.after_cancel(state, cancelled.len() - before);
    }

    /// Cancels, and calls `note` under the lock if the entry was pending: a thread that sees the
    /// entry removed also sees the note.
    pub(crate) fn cancel_with(&self, key: Key, note: impl FnOnce()) -> Option<T> {
        let mut state = self.lock()?;
        let value = state.wheel.cancel(key)?;
        note();
        self.after_cancel(state, 1);
        Some(value)
    }

    /// Counts `count` values that were cancelled, gives their capacity back, and unlocks the shard.
    fn after_cancel(&self, mut state: MutexGuard<'_, ShardState<T>>, count: usize) {
        state.cancelled += count as u64;
        self.give_back_capacity(count);
        if state.wheel.has_new_empty_chunks() {
            self.wake_for_chunks(state);
        }
    }

    /// Wakes the ticker, which alone releases memory (DESIGN: chunks), and unlocks the shard.
    #[cold]
    fn wake_for_chunks(&self, state: MutexGuard<'_, ShardState<T>>) {
        let next = state.wheel.now().saturating_add(1);
        self.wake_by(state, next);
    }

    /// Gives a pending value another deadline, and calls `note` with the value, under the lock.
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

    /// When a pending entry is due; `None` if it is not pending, and for a tick beyond all
    /// instants.
    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        let due = self.lock()?.wheel.deadline(key)?;
        self.context.scale.instant(due)
    }

    /// A copy of a pending value. Copying runs no code of a user.
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

    /// Whether the entry was pending when the timer was stopped, or the process is a child of the
    /// timer's.
    pub(crate) fn is_unprocessed(&self, key: Key) -> bool {
        self.stage(key) == EntryStage::Unprocessed
    }

    pub(crate) fn pending(&self) -> usize {
        self.lock().map_or(0, |state| state.wheel.len())
    }

    /// Adds what this shard has counted.
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

    /// The tick by which the ticker must look here again.
    pub(crate) fn next_wake(&self) -> u64 {
        self.next_wake.tick()
    }

    /// For the ticker: moves at most `limit` values that are due at `tick` to `due`, releases a
    /// little memory, and sets the next wake. If more values are due or more memory is to be
    /// released, the next wake says so.
    ///
    /// A value that `keeps_capacity` has its unit until
    /// [`give_back_capacity`](Self::give_back_capacity).
    pub(crate) fn take_due(
        &self,
        tick: u64,
        limit: usize,
        due: &mut Due<T>,
        keeps_capacity: fn(&T) -> bool,
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
            let freed = taken.iter().filter(|value| !keeps_capacity(value)).count();
            self.give_back_capacity(freed);
        }
    }

    /// Accepts no new value from now on. Pending values stay, and values that are rearmed are
    /// accepted.
    pub(crate) fn refuse(&self) {
        if let Some(mut state) = self.lock() {
            state.closed = true;
        }
    }

    /// Accepts no value at all from now on, and moves every pending one to `unprocessed`, with its
    /// due tick. The second call finds none.
    pub(crate) fn close(&self, unprocessed: &mut Vec<(u64, T)>) {
        let Some(mut state) = self.lock() else { return };
        state.closed = true;
        state.emptied = true;
        let mut keys: Vec<Key> = state.wheel.iter().map(|(key, _, _)| key).collect();
        state.wheel.advance(u64::MAX, usize::MAX, |due, value| unprocessed.push((due, value)));
        // Handles may keep the shard alive for long: its memory goes now.
        let retired = state.wheel.retire();
        if !keys.is_empty() {
            keys.sort_unstable();
            self.give_back_capacity(keys.len());
            state.unprocessed = keys;
        }
        // Unlocked before the memory is freed, which takes a while if it is much.
        drop(state);
        drop(retired);
    }

    /// Locks the state. `None` in a child of the timer's process, where a thread that the child
    /// does not have may hold the lock (DESIGN: forks).
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, ShardState<T>>> {
        self.context.home.is_current_by_count().then(|| self.state.lock())
    }

    /// Makes sure that the ticker looks here by the tick `due`, and unlocks the shard.
    fn wake_by(&self, state: MutexGuard<'_, ShardState<T>>, due: u64) {
        let earlier = self.next_wake.lower_to(due);
        // Unlocked before the ticker is woken, or it would wake only to wait for the lock.
        drop(state);
        if earlier {
            self.wakeup.wake_by(due);
        }
    }

    /// Takes a unit of capacity. True if the timer has no limit.
    fn take_capacity(&self) -> bool {
        let take = |free: usize| free.checked_sub(1);
        self.capacity.as_ref().is_none_or(|capacity| {
            capacity.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        })
    }

    /// Gives back the capacity of this many values.
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
    // It wraps around evenly, as 256 is a multiple of the number of shards.
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
        let mut due = Due::new();
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
            shard.take_due(shard.next_wake(), 9, &mut Due::new(), |_| false);
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
        let mut due = Due::new();
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
