//! What surrounds every run of a user's code: its lateness and duration are recorded, and a panic
//! is caught (DESIGN: lateness).

use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fork::HomeProcess;
use super::panics::{PanicHook, Panics};
use crate::stats::histogram::Histogram;
use crate::time::clock::Clock;
use crate::time::tick::TickScale;

/// What a timer shares with its handler and its tasks.
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

// A panic cannot leave it half changed: no code of a user runs under a lock of the timer.
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

    /// The nanoseconds since the timer's start, from which delays are counted. In a child of a fork
    /// nothing is scheduled, and the clock, whose own lock may stay locked there, is not read.
    #[inline]
    pub(crate) fn since_start(&self) -> Option<u64> {
        if self.home.is_current_by_count() { self.scale.since_start(&*self.clock) } else { None }
    }

    /// The first tick at or after `delay` from now.
    #[inline]
    pub(crate) fn tick_in(&self, delay: Duration) -> u64 {
        self.scale.tick_after(self.since_start(), delay)
    }

    /// The present instant, or the start of the timer if the clock panics: it is used for figures
    /// only, and a wrong figure is better than a task that was taken and does not run. The start
    /// also in a child of a fork, as in [`since_start`](Self::since_start).
    pub(crate) fn now(&self) -> Instant {
        let mut now = self.scale.start();
        if self.home.is_current_by_count() {
            self.panics.catch(|| now = self.clock.now());
        }
        now
    }

    /// Calls `code`, which started at `started`, records how long it took, and returns when it
    /// ended.
    pub(crate) fn run(&self, started: Instant, code: impl FnOnce()) -> Instant {
        self.panics.catch(code);
        let ended = self.now();
        let nanos = ended.saturating_duration_since(started).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        // Relaxed: a figure, nothing depends on it.
        if nanos > self.longest_task.load(Ordering::Relaxed) {
            self.longest_task.fetch_max(nanos, Ordering::Relaxed);
        }
        ended
    }

    /// Records that one timeout, due at `tick`, is fired at `now`.
    pub(crate) fn record_fired(&self, tick: u64, now: Instant) {
        self.lateness.record(self.scale.nanos_after(tick, now), 1);
    }

    /// Records that timeouts, due at these ticks in ascending runs, are fired at `now`.
    pub(crate) fn record_all_fired(&self, ticks: &[u64], now: Instant) {
        for run in ticks.chunk_by(|one, next| one == next) {
            if let Some(tick) = run.first() {
                self.lateness.record(self.scale.nanos_after(*tick, now), run.len() as u64);
            }
        }
    }
}
