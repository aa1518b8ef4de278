//! One shard of a timer: a wheel behind a lock, for the threads that call it their home.
//!
//! One lock around one wheel is four times slower with two threads than with one. So a timer has eight shards, and each
//! thread has a home among them, the same in every timer. (Shards picked at random would be worse than one: every
//! thread would touch every lock.) A key names the shard, so any thread can cancel.
//!
//! Values are moved in and out under the lock, and never dropped or called under it: their destructors are foreign
//! code.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use crate::alarm::{Alarm, Plan};
use crate::bound::{Allowance, Bound};
use crate::error::ScheduleError;
use crate::sync::{Mutex, MutexGuard};
use crate::tick::TickScale;
use crate::wheel::{Key, Wheel};

pub(crate) const SHARDS: u8 = 8;

/// Aligned so that no two shards share a cache line, nor a pair of lines that is fetched together.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard<T> {
    state: Mutex<State<T>>,
    plan: Plan,
    alarm: Arc<Alarm>,
    bound: Option<Arc<Bound>>,
    scale: TickScale,
}

#[derive(Debug)]
struct State<T> {
    wheel: Wheel<T>,
    /// Nothing new is taken in.
    closed: bool,
    /// What was pending has been given back. Nothing at all is taken in.
    emptied: bool,
    /// What was pending when the shard was closed, sorted.
    unprocessed: Vec<Key>,
    /// The places that this shard was lent, if there is a bound.
    allowance: Allowance,
    scheduled: u64,
    cancelled: u64,
    rejected: u64,
}

/// What was taken out of shards because it is due, in the order in which it was taken.
#[derive(Debug)]
pub(crate) struct Due<T> {
    pub(crate) values: Vec<T>,
    /// The tick at which each of them was due.
    pub(crate) ticks: Vec<u64>,
}

impl<T> Due<T> {
    pub(crate) const fn new() -> Self {
        Self { values: Vec::new(), ticks: Vec::new() }
    }
}

/// What one shard has seen so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Taken in by [`Shard::schedule`].
    pub(crate) scheduled: u64,
    pub(crate) cancelled: u64,
    /// Refused because there was no place.
    pub(crate) rejected: u64,
    pub(crate) pending: usize,
}

/// Where a timeout is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Pending,
    /// It was pending when the timer was stopped.
    Unprocessed,
    /// It was taken to be run, or cancelled.
    Gone,
}

impl<T> Shard<T> {
    pub(crate) fn new(
        wheel: Wheel<T>,
        scale: TickScale,
        alarm: Arc<Alarm>,
        bound: Option<Arc<Bound>>,
    ) -> Self {
        let state = State {
            wheel,
            closed: false,
            emptied: false,
            unprocessed: Vec::new(),
            allowance: Allowance::default(),
            scheduled: 0,
            cancelled: 0,
            rejected: 0,
        };
        Self { state: Mutex::new(state), plan: Plan::new(), alarm, bound, scale }
    }

    /// Takes a value in. `all` are the shards of the timer: what they hold of the bound is collected before a value is
    /// refused.
    pub(crate) fn schedule(
        &self,
        deadline: u64,
        value: T,
        all: &[Arc<Self>],
    ) -> Result<Key, ScheduleError<T>> {
        let mut state = self.state.lock();
        if !state.closed && !self.take_place(&mut state) {
            // Unlocked meanwhile: nobody holds two of these locks.
            drop(state);
            let found = self.collect_place(all);
            state = self.state.lock();
            self.put_places(&mut state, usize::from(found));
            if !state.closed && !self.take_place(&mut state) {
                state.rejected += 1;
                return Err(ScheduleError::Full(value));
            }
        }
        if state.closed {
            return Err(ScheduleError::Stopped(value));
        }
        if state.wheel.is_full() {
            self.put_places(&mut state, 1);
            state.rejected += 1;
            return Err(ScheduleError::Full(value));
        }
        state.scheduled += 1;
        let due = state.wheel.due(deadline).get();
        let key = state.wheel.insert(deadline, value);
        self.see_to(state, due);
        Ok(key)
    }

    /// Takes a value in again that has kept its place when it was taken out. Gives it back, and leaves the place with
    /// the caller, if nothing is taken in any more.
    pub(crate) fn rearm(&self, deadline: u64, value: T) -> Result<Key, T> {
        let mut state = self.state.lock();
        if state.emptied || state.wheel.is_full() {
            return Err(value);
        }
        let due = state.wheel.due(deadline).get();
        let key = state.wheel.insert(deadline, value);
        self.see_to(state, due);
        Ok(key)
    }

    /// Gives back the place of a value that had kept it when it was taken out.
    pub(crate) fn give_back_place(&self) {
        if self.bound.is_some() {
            self.put_places(&mut self.state.lock(), 1);
        }
    }

    pub(crate) fn cancel(&self, key: Key) -> Option<T> {
        self.cancel_with(key, || {})
    }

    /// Cancels, and calls `note` under the lock if that has won: who sees the entry gone sees the note as well.
    pub(crate) fn cancel_with(&self, key: Key, note: impl FnOnce()) -> Option<T> {
        let mut state = self.state.lock();
        let value = state.wheel.cancel(key)?;
        note();
        state.cancelled += 1;
        self.put_places(&mut state, 1);
        Some(value)
    }

    pub(crate) fn reschedule(&self, key: Key, deadline: Instant) -> bool {
        let deadline = self.scale.deadline_tick(deadline);
        let mut state = self.state.lock();
        let due = state.wheel.due(deadline).get();
        let pending = state.wheel.reschedule(key, deadline);
        if pending {
            self.see_to(state, due);
        }
        pending
    }

    /// When a pending entry is due; none for what is not pending, and for a tick beyond all instants.
    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        let due = self.state.lock().wheel.deadline(key)?;
        self.scale.instant(due)
    }

    pub(crate) fn stage(&self, key: Key) -> Stage {
        let state = self.state.lock();
        if state.wheel.get(key).is_some() {
            Stage::Pending
        } else if state.unprocessed.binary_search(&key).is_ok() {
            Stage::Unprocessed
        } else {
            Stage::Gone
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.state.lock().wheel.len()
    }

    /// Whether the entry was pending when the timer was stopped.
    pub(crate) fn is_unprocessed(&self, key: Key) -> bool {
        self.stage(key) == Stage::Unprocessed
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            scheduled: state.scheduled,
            cancelled: state.cancelled,
            rejected: state.rejected,
            pending: state.wheel.len(),
        }
    }

    /// The ticks at which the first `most` entries are due, lowest first.
    pub(crate) fn earliest(&self, most: usize) -> Vec<u64> {
        self.state.lock().wheel.earliest(most)
    }

    /// The tick by which the ticker must look here again.
    pub(crate) fn plan(&self) -> u64 {
        self.plan.tick()
    }

    /// For the ticker: moves at most `limit` values that are due at `tick` to `due`, and renews the plan. If more
    /// are due, the plan says so.
    ///
    /// A value that `keeps_place` has its place in the bound until [`give_back_place`](Self::give_back_place).
    pub(crate) fn take_due(
        &self,
        tick: u64,
        limit: usize,
        due: &mut Due<T>,
        keeps_place: fn(&T) -> bool,
    ) {
        let before = due.values.len();
        let mut state = self.state.lock();
        state.wheel.advance(tick, limit, |tick, value| {
            due.ticks.push(tick);
            due.values.push(value);
        });
        self.plan.renew(state.wheel.next_due());
        if self.bound.is_some() {
            let taken = &due.values[before..];
            let freed = taken.iter().filter(|value| !keeps_place(value)).count();
            self.put_places(&mut state, freed);
        }
    }

    /// Takes nothing new in any more. What is pending stays, and what is to be rearmed comes back.
    pub(crate) fn refuse(&self) {
        self.state.lock().closed = true;
    }

    /// Takes nothing in any more, and gives everything that is pending to `unprocessed`, each with its due tick. The
    /// second time there is nothing left to give.
    pub(crate) fn close(&self, unprocessed: &mut Vec<(u64, T)>) {
        let mut state = self.state.lock();
        state.closed = true;
        state.emptied = true;
        let mut keys: Vec<Key> = state.wheel.iter().map(|(key, _, _)| key).collect();
        if keys.is_empty() {
            state.wheel.retire();
            return;
        }
        state.wheel.advance(u64::MAX, usize::MAX, |due, value| unprocessed.push((due, value)));
        // Handles may keep the shard alive for long after.
        state.wheel.retire();
        keys.sort_unstable();
        self.put_places(&mut state, keys.len());
        state.unprocessed = keys;
    }

    /// Sees to it that the ticker comes in time for an entry that was just put in and is due at this tick.
    fn see_to(&self, state: MutexGuard<'_, State<T>>, due: u64) {
        let earlier = self.plan.bring_forward(due);
        // Unlocked before the ticker is woken, or it would wake only to wait for the lock.
        drop(state);
        if earlier {
            self.alarm.bring_forward(due);
        }
    }

    /// Takes a place for one more; there always is one without a bound.
    fn take_place(&self, state: &mut State<T>) -> bool {
        self.bound.as_ref().is_none_or(|bound| bound.take(&mut state.allowance))
    }

    fn put_places(&self, state: &mut State<T>, count: usize) {
        if let Some(bound) = &self.bound {
            bound.put(&mut state.allowance, count);
        }
    }

    /// Takes back what the shards were lent, until there is a place for the caller, who must hold no lock.
    ///
    /// It takes that place along: among the shared ones, another shard could be quicker, and find them all in vain.
    #[cold]
    fn collect_place(&self, all: &[Arc<Self>]) -> bool {
        self.bound.as_ref().filter(|bound| bound.is_lent()).is_some_and(|bound| {
            all.iter().any(|shard| bound.collect(&mut shard.state.lock().allowance))
        })
    }
}

/// The number of the calling thread's home shard: threads take them in turn, when they first ask.
pub(crate) fn home() -> u8 {
    thread_local! {
        static HOME: Cell<Option<u8>> = const { Cell::new(None) };
    }
    // It wraps without a gap, as 256 is a multiple of the number of shards.
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
#[cfg(not(loom))]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::tick::TickDuration;

    /// Two shards of one timer, with no ticker.
    fn pair(bound: Bound) -> Vec<Arc<Shard<u32>>> {
        let tick = TickDuration::try_from(Duration::from_millis(1)).unwrap();
        let scale = TickScale::new(SystemClock.now(), tick);
        let alarm = Arc::new(Alarm::new(Weak::new()));
        let bound = Arc::new(bound);
        (0..2)
            .map(|_| {
                let wheel = Wheel::new(8).unwrap();
                Arc::new(Shard::new(wheel, scale, Arc::clone(&alarm), Some(Arc::clone(&bound))))
            })
            .collect()
    }

    fn fill(shard: &Shard<u32>, all: &[Arc<Shard<u32>>]) -> Vec<Key> {
        std::iter::from_fn(|| shard.schedule(1, 0, all).ok()).collect()
    }

    #[test]
    fn what_one_shard_holds_is_collected_before_another_refuses() {
        const PLACES: usize = 1500;
        let shards = pair(Bound::new(PLACES));
        let keys = fill(&shards[0], &shards);
        assert_eq!(keys.len(), PLACES);
        for key in &keys[..50] {
            assert!(shards[0].cancel(*key).is_some());
        }
        assert_eq!(fill(&shards[1], &shards).len(), 50);
        assert_eq!(
            shards[0].counts(),
            Counts { scheduled: 1500, cancelled: 50, rejected: 1, pending: PLACES - 50 }
        );
        assert_eq!(
            shards[1].counts(),
            Counts { scheduled: 50, cancelled: 0, rejected: 1, pending: 50 }
        );
    }

    #[test]
    fn every_way_out_gives_the_place_back() {
        for held_max in [0, 4] {
            let shards = pair(Bound::lending(10, held_max));
            let mut due = Due::new();
            assert_eq!(fill(&shards[0], &shards).len(), 10);
            shards[0].take_due(1, 3, &mut due, |_| false);
            assert_eq!(fill(&shards[1], &shards).len(), 3);
            shards[0].close(&mut Vec::new());
            assert_eq!(fill(&shards[1], &shards).len(), 7);
            assert!(matches!(shards[0].schedule(1, 0, &shards), Err(ScheduleError::Stopped(0))));
        }
    }

    #[test]
    fn a_value_keeps_its_place_while_it_is_run_if_it_is_to_come_again() {
        let shards = pair(Bound::new(2));
        let mut due = Due::new();
        for value in [1, 2] {
            shards[0].schedule(1, value, &shards).unwrap();
        }
        shards[0].take_due(1, 9, &mut due, |value| *value == 1);
        assert_eq!(due.values, [1, 2]);
        assert_eq!(fill(&shards[1], &shards).len(), 1, "the place of the other one");
        let key = shards[0].rearm(2, 1).unwrap();
        assert!(shards[1].schedule(1, 3, &shards).is_err());
        assert_eq!(shards[0].counts().scheduled, 2);
        assert_eq!(shards[0].cancel(key), Some(1));
        assert_eq!(fill(&shards[1], &shards).len(), 1);

        shards[1].take_due(1, 1, &mut due, |_| true);
        assert!(shards[0].schedule(1, 3, &shards).is_err());
        shards[1].give_back_place();
        assert!(shards[0].schedule(1, 3, &shards).is_ok());
        shards[1].close(&mut Vec::new());
        assert_eq!(shards[1].rearm(1, 7), Err(7));
    }
}
