//! A clock with readings of the processor's time-stamp counter between two full readings.
//!
//! A full reading takes 23 ns, a counter reading 6. The crate `quanta` reads the counter, because a
//! reading needs unsafe code; its calibration is not used, because a preemption can falsify the
//! calibration to either side.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never};

use super::clock::{Clock, Parker, SystemClock};

/// The system's clock, with the processor's time-stamp counter for the start of a delay.
///
/// Created by [`new`](Self::new), for [`TimerBuilder::clock`](crate::TimerBuilder::clock).
///
/// Scheduling reads the counter instead of the system's clock: such a reading takes half as long.
/// Needs the feature `tsc`.
///
/// A thread reads the system's clock in full at least once a millisecond; in between, the counts
/// since the last full reading are added. Such a reading is up to 20 us late and never early: the
/// rate is rounded up, and 0.4 % and 1 us are added. Timeouts still fire by the system's clock
/// alone. Scheduling and cancelling with [`BatchTimer`](crate::BatchTimer) takes 0.75 to 0.9 of the
/// time: the more a lock costs on the processor, the less is saved. Methods with an [`Instant`] as
/// an argument read no clock.
///
/// The counter is used only where Linux derives the time from the counter, and then the counters of
/// all cores agree. Anywhere else the system's clock is read, and
/// [`uses_counter`](Self::uses_counter) returns `false`.
///
/// A *live migration* of the virtual machine may change the counter or its rate during operation.
/// After a jump forward, or a jump back beyond the last full reading, the next reading is a full
/// reading, or up to a millisecond late. After a smaller jump back, the readings until the next
/// full reading are early, and timeouts scheduled from these readings may be early too: by the lost
/// counts, less than a millisecond. Use [`SystemClock`] for a program where early timeouts are
/// unacceptable.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use hashed_wheel::{HashedWheelTimer, TscClock};
///
/// let timer = HashedWheelTimer::builder().clock(Arc::new(TscClock::new())).build()?;
/// let timeout = timer.schedule(Duration::from_secs(60), || {})?;
/// assert!(timeout.cancel());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TscClock {
    counter: Option<Counter>,
}

/// The counter and the counter's rate.
#[derive(Clone)]
struct Counter {
    clock: quanta::Clock,
    /// Nanoseconds per count as a fraction of 2^32, rounded up.
    rate: u64,
    /// The number of counts in a millisecond, rounded down.
    counts_max: u64,
}

/// The Linux clock sources based on the counter.
const COUNTER_CLOCKS: [&str; 2] = ["tsc", "arch_sys_counter"];

/// Covers the difference between two cores, and counts read ahead of other instructions.
const MARGIN_NANOS: u64 = 1_000;

/// The duration of the rate's measurement: long enough that the error of the readings at both ends
/// is a hundred thousandth.
const MEASURED: Duration = Duration::from_millis(10);

/// The number of readings taken to find a reading that no preemption has prolonged.
const READINGS: usize = 10;

thread_local! {
    /// The last full reading of this thread, the same for all clocks: the counter before the
    /// reading, and the nanoseconds.
    static FULL: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl TscClock {
    /// Creates the clock. Measuring the counter's rate takes 10 ms, and 200 ms more for the first
    /// clock of a process.
    #[must_use]
    pub fn new() -> Self {
        let is_counted =
            fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .is_ok_and(|name| COUNTER_CLOCKS.contains(&name.trim()));
        Self { counter: if is_counted { Counter::measure() } else { None } }
    }

    /// Returns whether the clock reads the processor's counter.
    ///
    /// `false` where the system does not derive the time from the counter.
    #[must_use]
    pub const fn uses_counter(&self) -> bool {
        self.counter.is_some()
    }
}

impl Counter {
    /// Measures the counter's rate. `None` if the system's clock has no nanoseconds, or the counter
    /// stands still.
    fn measure() -> Option<Self> {
        let clock = quanta::Clock::new();
        let (_, first_nanos, first_count) = Self::read_around(&clock)?;
        SystemClock.park(&Parker::new(), Some(SystemClock.now() + MEASURED), &never());
        let (last_count, last_nanos, _) = Self::read_around(&clock)?;
        // The fewest counts possible between the two readings, so the rate is not too low.
        let counts = last_count.checked_sub(first_count).filter(|counts| *counts > 0)?;
        let nanos = last_nanos.checked_sub(first_nanos)?;
        let rate = (u128::from(nanos) << 32).div_ceil(u128::from(counts));
        let rate = u64::try_from(rate + rate / 256).ok().filter(|rate| *rate > 0)?;
        Some(Self { clock, rate, counts_max: (1_000_000 << 32) / rate })
    }

    /// Reads the system's clock, and the counter before and after, as close together as possible.
    fn read_around(clock: &quanta::Clock) -> Option<(u64, u64, u64)> {
        let read = |_| {
            let before = clock.raw();
            let nanos = SystemClock.nanos()?;
            Some((before, nanos, clock.raw()))
        };
        (0..READINGS).filter_map(read).min_by_key(|(before, _, after)| after.wrapping_sub(*before))
    }

    #[inline]
    fn nanos(&self) -> Option<u64> {
        let count = self.clock.raw();
        let (full_count, full_nanos) = FULL.get();
        // A counter which went back has wrapped around: `since` is a great number.
        let since = count.wrapping_sub(full_count);
        if since <= self.counts_max {
            Some(full_nanos + ((since * self.rate) >> 32))
        } else {
            self.read_full(count)
        }
    }

    /// Reads the system's clock, after the counter.
    #[cold]
    fn read_full(&self, count: u64) -> Option<u64> {
        let nanos = SystemClock.nanos()? + MARGIN_NANOS;
        // If the thread was preempted in between, later readings would be late by the same time.
        let apart = self.clock.raw().wrapping_sub(count);
        if apart <= self.counts_max / 100 {
            FULL.set((count, nanos));
        }
        Some(nanos)
    }
}

impl Clock for TscClock {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn nanos(&self) -> Option<u64> {
        SystemClock.nanos()
    }

    #[inline]
    fn late_nanos(&self) -> Option<u64> {
        match &self.counter {
            Some(counter) => counter.nanos(),
            None => SystemClock.nanos(),
        }
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        SystemClock.park(parker, deadline, interrupt);
    }
}

impl Default for TscClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TscClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TscClock")
            .field("uses_counter", &self.uses_counter())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn tsc_reading_is_never_early_and_at_most_a_millisecond_late() {
        let clock = TscClock::new();
        let read = |clock: TscClock| {
            for _ in 0..200_000 {
                let before = SystemClock.nanos();
                let late = clock.late_nanos();
                let after = SystemClock.nanos().map(|nanos| nanos + 1_000_000);
                assert!(before <= late && late <= after, "{before:?} {late:?} {after:?}");
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| read(clock.clone()));
            }
        });
    }

    #[test]
    fn a_counter_that_jumps_makes_the_next_reading_a_full_one() {
        let Some(counter) = TscClock::new().counter else {
            return;
        };
        let count = counter.clock.raw();
        let wrong = 7;
        for jumped in [count.wrapping_add(1 << 40), count.wrapping_sub(1 << 40), 0, u64::MAX] {
            FULL.set((jumped, wrong));
            let before = SystemClock.nanos();
            assert!(counter.nanos() >= before);
        }
    }
}
