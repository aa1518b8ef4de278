//! Calls user code: records lateness and duration, and catches panics.
//!
//! The clock is read between two tasks. The reading takes 23 ns and yields the exact lateness of
//! each task and the duration of the longest task. The timer with typed values reads the clock once
//! in a batch.

use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fork::HomeProcess;
use super::panics::{PanicHook, Panics};
use crate::stats::histogram::Histogram;
use crate::time::clock::Clock;
use crate::time::tick::TickScale;

/// State shared by a timer, the timer's handler and the timer's tasks.
#[derive(Debug)]
pub(crate) struct Context {
    /// The process of the ticker thread.
    pub(crate) home: HomeProcess,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) scale: TickScale,
    pub(crate) panics: Panics,
    pub(crate) lateness: Histogram,
    /// The duration of the longest task, in nanoseconds.
    pub(crate) longest_task: AtomicU64,
}

// A panic cannot leave a `Context` half changed: no user code runs under a lock of the timer.
impl RefUnwindSafe for Context {}

impl Context {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        scale: TickScale,
        panic_hook: Option<PanicHook>,
    ) -> Self {
        Self {
            home: HomeProcess::new(),
            clock,
            scale,
            panics: Panics::new(panic_hook),
            lateness: Histogram::new(),
            longest_task: AtomicU64::new(0),
        }
    }

    /// The nanoseconds since the timer's start, for the computation of deadlines. `None` if out of
    /// range, and in a child of a fork: a child schedules no values and does not read the clock,
    /// because the clock's own lock may stay locked there.
    #[inline]
    pub(crate) fn since_start(&self) -> Option<u64> {
        if self.home.is_current_by_count() { self.scale.since_start(&*self.clock) } else { None }
    }

    /// The first tick at or after `delay` from now.
    #[inline]
    pub(crate) fn tick_in(&self, delay: Duration) -> u64 {
        self.scale.tick_after(self.since_start(), delay)
    }

    /// The present instant. Returns the timer's start if the clock panics, and in a child of a
    /// fork, as in [`since_start`](Self::since_start). The instant is used for figures only, and a
    /// wrong figure is better than a task taken but not run.
    pub(crate) fn now(&self) -> Instant {
        let mut now = self.scale.start();
        if self.home.is_current_by_count() {
            self.panics.catch(|| now = self.clock.now());
        }
        now
    }

    /// Calls `code`, records the duration since `started`, and returns the instant at which the
    /// call ended. A panic is caught and reported.
    pub(crate) fn run(&self, started: Instant, code: impl FnOnce()) -> Instant {
        self.panics.catch(code);
        let ended = self.now();
        let nanos = ended.saturating_duration_since(started).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        // Relaxed: the duration is a figure only; no other memory depends on the value.
        if nanos > self.longest_task.load(Ordering::Relaxed) {
            self.longest_task.fetch_max(nanos, Ordering::Relaxed);
        }
        ended
    }

    /// Records the lateness of a timeout, due at `tick` and fired at `now`.
    pub(crate) fn record_fired(&self, tick: u64, now: Instant) {
        self.lateness.record(self.scale.nanos_after(tick, now), 1);
    }

    /// Records the lateness of timeouts, due at `ticks` and fired at `now`. `ticks` holds ascending
    /// runs; equal ticks in a row are recorded together.
    pub(crate) fn record_all_fired(&self, ticks: &[u64], now: Instant) {
        for run in ticks.chunk_by(|one, next| one == next) {
            if let Some(tick) = run.first() {
                self.lateness.record(self.scale.nanos_after(*tick, now), run.len() as u64);
            }
        }
    }
}
