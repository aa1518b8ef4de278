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
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::alarm::{Alarm, Plan};
use crate::error::ScheduleError;
use crate::wheel::tick::TickScale;
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
    scheduled: u64,
    cancelled: u64,
    rejected: u64,
    /// What was pending when the shard was closed, sorted.
    unprocessed: Vec<Key>,
}

/// What was taken out of shards because it is due, in the order in which it was taken.
#[derive(Debug)]
pub(crate) struct Due<T> {
    pub(crate) values: Vec<T>,
    /// The tick at which each of them was due.
    pub(crate) ticks: Vec<u64>,
}

/// What happened in one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) scheduled: u64,
    pub(crate) cancelled: u64,
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
            scheduled: 0,
            cancelled: 0,
            rejected: 0,
            unprocessed: Vec::new(),
        };
        Self { state: Mutex::new(state), plan: Plan::new(), alarm, bound, scale }
    }

    pub(crate) fn schedule(&self, deadline: u64, value: T) -> Result<Key, ScheduleError<T>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(ScheduleError::Stopped(value));
        }
        if state.wheel.is_full() || !self.bound.as_ref().is_none_or(|bound| bound.reserve()) {
            state.rejected += 1;
            return Err(ScheduleError::Full(value));
        }
        state.scheduled += 1;
        let key = state.wheel.insert(deadline, value);
        self.see_to(state, key);
        Ok(key)
    }

    pub(crate) fn cancel(&self, key: Key) -> Option<T> {
        self.cancel_with(key, || {})
    }

    /// Cancels, and calls `note` under the lock if that has won: who sees the entry gone sees the note as well.
    pub(crate) fn cancel_with(&self, key: Key, note: impl FnOnce()) -> Option<T> {
        let mut state = self.state.lock();
        let value = state.wheel.cancel(key)?;
        state.cancelled += 1;
        note();
        drop(state);
        self.give_back(1);
        Some(value)
    }

    pub(crate) fn reschedule(&self, key: Key, deadline: Instant) -> bool {
        let deadline = self.scale.deadline_tick(deadline);
        let mut state = self.state.lock();
        let pending = state.wheel.reschedule(key, deadline);
        if pending {
            self.see_to(state, key);
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

    /// The tick by which the ticker must look here again.
    pub(crate) fn plan(&self) -> u64 {
        self.plan.tick()
    }

    /// For the ticker: moves at most `limit` values that are due at `tick` to `batch`, and renews the plan. If more
    /// are due, the plan says so.
    ///
    /// Of values for which `keeps_place` says so, the place under the bound stays taken.
    pub(crate) fn take_due(
        &self,
        tick: u64,
        limit: usize,
        keeps_place: fn(&T) -> bool,
        due: &mut Due<T>,
    ) {
        let mut free = 0;
        {
            let mut state = self.state.lock();
            state.wheel.advance(tick, limit, |tick, value| {
                free += usize::from(!keeps_place(&value));
                due.ticks.push(tick);
                due.values.push(value);
            });
            self.plan.renew(state.wheel.next_due());
        }
        self.give_back(free);
    }

    /// Puts back what kept its place, to be due again. Gives it back if nothing is taken in any more, and its place is
    /// then still taken.
    pub(crate) fn rearm(&self, deadline: u64, value: T) -> Result<Key, T> {
        let mut state = self.state.lock();
        if state.emptied || state.wheel.is_full() {
            return Err(value);
        }
        let key = state.wheel.insert(deadline, value);
        self.see_to(state, key);
        Ok(key)
    }

    /// Gives back the place of a value that kept it.
    pub(crate) fn give_back_place(&self) {
        self.give_back(1);
    }

    /// Whether the entry was pending when the timer was stopped.
    pub(crate) fn is_unprocessed(&self, key: Key) -> bool {
        self.stage(key) == Stage::Unprocessed
    }

    /// What happened here.
    pub(crate) fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts {
            scheduled: state.scheduled,
            cancelled: state.cancelled,
            rejected: state.rejected,
            pending: state.wheel.len(),
        }
    }

    /// Takes nothing new in any more. What is pending stays, and periodic tasks come back.
    pub(crate) fn refuse(&self) {
        self.state.lock().closed = true;
    }

    /// Takes nothing in any more, and gives everything that is pending to `unprocessed`, each with its due tick. The
    /// second time there is nothing left to give.
    pub(crate) fn close(&self, unprocessed: &mut Vec<(u64, T)>) {
        let before = unprocessed.len();
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.emptied = true;
            let mut keys: Vec<(u64, Key)> =
                state.wheel.iter().map(|(key, due, _)| (due, key)).collect();
            if keys.is_empty() {
                return;
            }
            state.wheel.advance(u64::MAX, usize::MAX, |due, value| {
                unprocessed.push((due, value));
            });
            // Handles may keep the shard alive for long after.
            state.wheel.retire();
            keys.sort_unstable_by_key(|(_, key)| *key);
            state.unprocessed = keys.into_iter().map(|(_, key)| key).collect();
        }
        self.give_back(unprocessed.len() - before);
    }

    /// Sees to it that the ticker comes in time for an entry that was just put in.
    fn see_to(&self, state: MutexGuard<'_, State<T>>, key: Key) {
        let Some(due) = state.wheel.deadline(key) else {
            return;
        };
        let earlier = self.plan.bring_forward(due);
        // Unlocked before the ticker is woken, or it would wake only to wait for the lock.
        drop(state);
        if earlier {
            self.alarm.bring_forward(due);
        }
    }

    fn give_back(&self, count: usize) {
        if let Some(bound) = &self.bound {
            bound.give_back(count);
        }
    }
}

/// The places that the shards of one timer share.
#[derive(Debug)]
pub(crate) struct Bound {
    free: AtomicUsize,
}

impl Bound {
    pub(crate) const fn new(count: usize) -> Self {
        Self { free: AtomicUsize::new(count) }
    }

    /// Takes a place if there is one. Relaxed: the number protects nothing but itself.
    fn reserve(&self) -> bool {
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1))
            .is_ok()
    }

    fn give_back(&self, count: usize) {
        self.free.fetch_add(count, Ordering::Relaxed);
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
