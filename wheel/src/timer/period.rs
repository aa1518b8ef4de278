//! The rules for the next run of a periodic task.

use std::time::{Duration, Instant};

use crate::time::tick::TickScale;

/// The repetition of a periodic task: a fixed rate or a fixed delay.
///
/// Created by [`fixed_rate`](Self::fixed_rate) or [`fixed_delay`](Self::fixed_delay).
///
/// At a *fixed rate* the runs are due at multiples of the period after the first run, however long
/// the runs take: the rate does not drift. With a *fixed delay* a run is due a period after the end
/// of the previous run. In both, runs never overlap. (Java's `ScheduledExecutorService` uses the
/// same terms.)
///
/// At a fixed rate, a run is missed if the previous run ends at the missed run's tick or later.
/// Lateness by the rounding of deadlines to ticks misses no run. [`MissedRuns`] sets the handling
/// of missed runs: [`Skip`](MissedRuns::Skip) unless set. With a period shorter than a tick, or of
/// zero, there is one run per tick.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{MissedRuns, Period};
///
/// let heartbeat = Period::fixed_rate(Duration::from_secs(1));
/// let every_run_counts = heartbeat.missed(MissedRuns::CatchUp);
/// let pause_between = Period::fixed_delay(Duration::from_millis(200));
/// assert_eq!(pause_between.length(), Duration::from_millis(200));
/// # let _ = every_run_counts;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    length: Duration,
    /// `None` for a fixed delay, which misses no runs.
    missed: Option<MissedRuns>,
}

/// The handling of runs missed at a fixed rate.
///
/// The argument of [`Period::missed`].
///
/// Runs are missed if due during an earlier run, or while the ticker was delayed.
///
/// ```
/// use hashed_wheel::MissedRuns;
///
/// assert_eq!(MissedRuns::default(), MissedRuns::Skip);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedRuns {
    /// Missed runs are left out. The next run is at the next multiple of the period whose tick is
    /// still ahead.
    #[default]
    Skip,
    /// Each missed run takes place, one run per tick.
    CatchUp,
    /// Missed runs are left out, and the rate restarts: the next run is a period after the end of
    /// the late run.
    Delay,
}

impl Period {
    /// Creates a fixed rate: runs are due `length` apart.
    #[must_use]
    pub const fn fixed_rate(length: Duration) -> Self {
        Self { length, missed: Some(MissedRuns::Skip) }
    }

    /// Creates a fixed delay: a pause of `length` between the end of a run and the next run.
    #[must_use]
    pub const fn fixed_delay(length: Duration) -> Self {
        Self { length, missed: None }
    }

    /// Sets the handling of missed runs. The call has no effect on a fixed delay, which misses no
    /// runs.
    #[must_use]
    pub const fn missed(mut self, missed: MissedRuns) -> Self {
        if self.missed.is_some() {
            self.missed = Some(missed);
        }
        self
    }

    /// Returns the length of the period: the time from one due run to the next at a fixed rate, or
    /// from the end of a run to the next run with a fixed delay.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// Returns the deadline after a run due at `due` and ended at `now`; `None` if out of range.
    ///
    /// A run due before the next tick can still run at the next tick, so only runs due by the last
    /// tick are missed. Comparing with `now` instead would make every second run missed at a period
    /// near one tick, because rounding up to a tick makes every run late.
    pub(crate) fn next(&self, due: Instant, now: Instant, scale: &TickScale) -> Option<Instant> {
        let on_time = due.checked_add(self.length);
        match self.missed {
            None => now.checked_add(self.length),
            Some(MissedRuns::CatchUp) => on_time,
            Some(missed) => {
                let last_tick = scale.last_tick(now);
                match on_time {
                    Some(on_time) if on_time <= last_tick => match missed {
                        MissedRuns::Delay => now.checked_add(self.length),
                        _ => last_tick.checked_add(self.until_multiple(on_time, last_tick)),
                    },
                    on_time => on_time,
                }
            }
        }
    }

    /// The time from `last_tick` to the next multiple of the period, counted from `on_time`. Zero
    /// only for a period of zero.
    fn until_multiple(&self, on_time: Instant, last_tick: Instant) -> Duration {
        let late = last_tick.saturating_duration_since(on_time).as_nanos();
        let past = late % self.length.as_nanos().max(1);
        self.length.saturating_sub(Duration::new(
            u64::try_from(past / NANOS_PER_SECOND).unwrap_or(u64::MAX),
            u32::try_from(past % NANOS_PER_SECOND).unwrap_or(0),
        ))
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::clock::{Clock, SystemClock};

    fn scale(start: Instant, tick: u64) -> TickScale {
        TickScale::new(start, Duration::from_millis(tick)).unwrap()
    }

    #[test]
    fn the_next_run_under_each_rule() {
        let start = SystemClock.now();
        let scale = scale(start, 1);
        let at = |millis| start + Duration::from_millis(millis);
        let rate = Period::fixed_rate(Duration::from_millis(100));
        let delay = Period::fixed_delay(Duration::from_millis(100));
        // now, at which the run due at 0 has ended; next run by skip, catch up, delay, fixed delay
        for (now, skip, catch_up, shifted, paused) in [
            (0, 100, 100, 100, 100),
            (99, 100, 100, 100, 199),
            (100, 200, 100, 200, 200),
            (101, 200, 100, 201, 201),
            (350, 400, 100, 450, 450),
            (400, 500, 100, 500, 500),
        ] {
            let next = |period: Period| period.next(start, at(now), &scale);
            assert_eq!(next(rate), Some(at(skip)), "skip at {now}");
            assert_eq!(next(rate.missed(MissedRuns::CatchUp)), Some(at(catch_up)), "{now}");
            assert_eq!(next(rate.missed(MissedRuns::Delay)), Some(at(shifted)), "delay at {now}");
            assert_eq!(next(delay), Some(at(paused)), "fixed delay at {now}");
            assert_eq!(next(delay.missed(MissedRuns::CatchUp)), Some(at(paused)), "{now}");
        }
    }

    #[test]
    fn only_runs_due_by_the_last_tick_are_missed() {
        let start = SystemClock.now();
        let scale = scale(start, 10);
        let at = |millis| start + Duration::from_millis(millis);
        // period, due, end of the run; next run by skip and by delay
        for (period, due, now, skip, shifted) in [
            // Due at 2, so it ran at 10. The next is due before this run ends, and can run at 20.
            (10, 2, 13, 12, 12),
            (10, 2, 19, 12, 12),
            (10, 2, 20, 22, 30),
            (10, 2, 29, 22, 39),
            (10, 2, 33, 32, 43),
            (10, 0, 13, 20, 23),
            (10, 10, 13, 20, 20),
            (3, 3, 10, 12, 13),
            (3, 3, 19, 12, 22),
            (25, 7, 33, 32, 32),
            (25, 7, 40, 57, 65),
        ] {
            let rate = Period::fixed_rate(Duration::from_millis(period));
            let next = |rate: Period| rate.next(at(due), at(now), &scale);
            assert_eq!(next(rate), Some(at(skip)), "skip {due} at {now}");
            assert_eq!(next(rate.missed(MissedRuns::Delay)), Some(at(shifted)), "{due} at {now}");
        }
    }

    #[test]
    fn a_period_beyond_all_instants_has_no_next_run() {
        let now = SystemClock.now();
        let scale = scale(now, 1);
        assert_eq!(Period::fixed_rate(Duration::MAX).next(now, now, &scale), None);
        assert_eq!(Period::fixed_delay(Duration::MAX).next(now, now, &scale), None);
    }
}
