//! When a periodic task runs next: pure arithmetic.

use std::time::{Duration, Instant};

/// How a periodic task repeats.
///
/// At a *fixed rate* the runs are due at multiples of the period after the first, whatever the runs themselves take:
/// nothing drifts. With a *fixed delay* a run is due one period after the run before has ended. In both, two runs never
/// overlap. (The words are those of Java's `ScheduledExecutorService`.)
///
/// A run that ends when the next is due, or after, has missed it. What happens then at a fixed rate is for [`MissedRuns`] to say:
/// [`Skip`](MissedRuns::Skip) unless set. A period shorter than a tick gives one run a tick.
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
    rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    FixedRate(MissedRuns),
    FixedDelay,
}

/// What becomes of the runs of a fixed rate that were due while an earlier run still lasted, or while the ticker was
/// held up.
///
/// ```
/// use hashed_wheel::MissedRuns;
///
/// assert_eq!(MissedRuns::default(), MissedRuns::Skip);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedRuns {
    /// They are left out. The next run is at the next multiple of the period.
    #[default]
    Skip,
    /// Each is made up for, one a tick, until the rate is met again.
    CatchUp,
    /// They are left out, and the rate begins anew: the next run is one period after the late run's end.
    Delay,
}

impl Period {
    /// Runs that are due `length` apart.
    #[must_use]
    pub const fn fixed_rate(length: Duration) -> Self {
        Self { length, rule: Rule::FixedRate(MissedRuns::Skip) }
    }

    /// Runs with a pause of `length` between the end of one and the next.
    #[must_use]
    pub const fn fixed_delay(length: Duration) -> Self {
        Self { length, rule: Rule::FixedDelay }
    }

    /// What to do about missed runs. It means nothing for a fixed delay, which misses none.
    #[must_use]
    pub const fn missed(mut self, missed: MissedRuns) -> Self {
        if let Rule::FixedRate(_) = self.rule {
            self.rule = Rule::FixedRate(missed);
        }
        self
    }

    /// The time between two runs.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// When the run after the one that was due at `due` and ended at `now` is due; none if no instant is that late.
    pub(crate) fn next(&self, due: Instant, now: Instant) -> Option<Instant> {
        let on_time = due.checked_add(self.length);
        match self.rule {
            Rule::FixedDelay => now.checked_add(self.length),
            Rule::FixedRate(MissedRuns::CatchUp) => on_time,
            Rule::FixedRate(missed) => match on_time {
                Some(on_time) if on_time <= now => match missed {
                    MissedRuns::Delay => now.checked_add(self.length),
                    _ => now.checked_add(self.length.saturating_sub(self.past(on_time, now))),
                },
                on_time => on_time,
            },
        }
    }

    /// How far `now` is past the last multiple of the period, counted from `on_time`: less than the period.
    fn past(&self, on_time: Instant, now: Instant) -> Duration {
        let late = now.saturating_duration_since(on_time).as_nanos();
        // A period of zero is refused before it comes here.
        let past = late % self.length.as_nanos().max(1);
        Duration::new(
            u64::try_from(past / NANOS_PER_SECOND).unwrap_or(u64::MAX),
            u32::try_from(past % NANOS_PER_SECOND).unwrap_or(0),
        )
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn the_next_run_by_each_rule() {
        let start = SystemClock.now();
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
            let next = |period: Period| period.next(start, at(now));
            assert_eq!(next(rate), Some(at(skip)), "skip at {now}");
            assert_eq!(next(rate.missed(MissedRuns::CatchUp)), Some(at(catch_up)), "{now}");
            assert_eq!(next(rate.missed(MissedRuns::Delay)), Some(at(shifted)), "delay at {now}");
            assert_eq!(next(delay), Some(at(paused)), "fixed delay at {now}");
            assert_eq!(next(delay.missed(MissedRuns::CatchUp)), Some(at(paused)), "{now}");
        }
    }

    #[test]
    fn a_period_beyond_all_instants_has_no_next_run() {
        let now = SystemClock.now();
        assert_eq!(Period::fixed_rate(Duration::MAX).next(now, now), None);
        assert_eq!(Period::fixed_delay(Duration::MAX).next(now, now), None);
    }
}
