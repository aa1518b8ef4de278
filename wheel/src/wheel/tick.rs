//! The tick: how an instant becomes a whole number, rounded so that nothing fires early.

use core::num::NonZeroU64;
use core::time::Duration;
use std::time::Instant;

use crate::error::BuildError;

/// The length of a tick: never zero, and few enough nanoseconds for a `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickDuration(NonZeroU64);

impl TryFrom<Duration> for TickDuration {
    type Error = BuildError;

    fn try_from(duration: Duration) -> Result<Self, BuildError> {
        u64::try_from(duration.as_nanos())
            .ok()
            .and_then(NonZeroU64::new)
            .map(Self)
            .ok_or(BuildError::TickDuration(duration))
    }
}

/// The tick of a deadline that is out of reach. It never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// Translates between instants and ticks. Tick 0 is `start`; tick n is `start + n * tick`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickScale {
    start: Instant,
    tick: TickDuration,
}

impl TickScale {
    pub(crate) fn new(start: Instant, tick: TickDuration) -> Self {
        Self { start, tick }
    }

    /// The first tick that does not come before `deadline`. **The one place where a deadline is rounded**, and it
    /// rounds up: rounding down would fire up to a tick early.
    ///
    /// An instant before the start gives 0; one beyond the last tick gives [`NEVER`].
    pub(crate) fn deadline_tick(&self, deadline: Instant) -> u64 {
        let nanos = deadline.saturating_duration_since(self.start).as_nanos();
        let tick = self.tick.0.get();
        match u64::try_from(nanos) {
            // Within 584 years of the start, which spares the slow division of 128 bits.
            Ok(nanos) => nanos.div_ceil(tick),
            Err(_) => u64::try_from(nanos.div_ceil(u128::from(tick))).unwrap_or(NEVER),
        }
    }

    /// The last tick that has come at `now`: it rounds down, the other half of never being early. Not [`NEVER`], ever.
    pub(crate) fn elapsed_ticks(&self, now: Instant) -> u64 {
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(nanos / u128::from(self.tick.0.get())).unwrap_or(NEVER).min(NEVER - 1)
    }

    /// How many nanoseconds `now` is after `tick`: zero if it is not.
    pub(crate) fn nanos_after(&self, tick: u64, now: Instant) -> u64 {
        let now = now.saturating_duration_since(self.start).as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        now.saturating_sub(tick.saturating_mul(self.tick.0.get()))
    }

    /// The instant of `tick`; none for [`NEVER`], and if it lies beyond what an `Instant` can hold.
    pub(crate) fn instant(&self, tick: u64) -> Option<Instant> {
        const NANOS_PER_SECOND: u128 = 1_000_000_000;
        if tick == NEVER {
            return None;
        }
        // Cannot overflow: both factors have 64 bits.
        let nanos = u128::from(tick) * u128::from(self.tick.0.get());
        let seconds = u64::try_from(nanos / NANOS_PER_SECOND).ok()?;
        let rest = u64::try_from(nanos % NANOS_PER_SECOND).ok()?;
        self.start
            .checked_add(Duration::from_secs(seconds))?
            .checked_add(Duration::from_nanos(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    fn scale(tick: Duration) -> TickScale {
        TickScale::new(SystemClock.now(), TickDuration::try_from(tick).unwrap())
    }

    #[test]
    fn a_deadline_rounds_up_to_a_tick_and_the_present_rounds_down() {
        let scale = scale(Duration::from_millis(10));
        let after = |nanos| scale.start + Duration::from_nanos(nanos);
        // nanoseconds after the start, tick of a deadline, ticks that have come
        for (nanos, deadline, elapsed) in [
            (0, 0, 0),
            (1, 1, 0),
            (9_999_999, 1, 0),
            (10_000_000, 1, 1),
            (10_000_001, 2, 1),
            (19_999_999, 2, 1),
            (20_000_000, 2, 2),
        ] {
            assert_eq!(scale.deadline_tick(after(nanos)), deadline, "deadline {nanos} ns");
            assert_eq!(scale.elapsed_ticks(after(nanos)), elapsed, "now {nanos} ns");
        }
    }

    #[test]
    fn the_tick_of_a_deadline_has_not_come_before_the_deadline() {
        for tick_nanos in [1, 3, 999, 1_000_000, 10_000_001, u64::MAX] {
            let scale = scale(Duration::from_nanos(tick_nanos));
            for nanos in [0, 1, 2, 998, 999, 1000, 1_000_001, 123_456_789_123] {
                let deadline = scale.start + Duration::from_nanos(nanos);
                let tick = scale.deadline_tick(deadline);
                if let Some(instant) = scale.instant(tick) {
                    assert!(instant >= deadline);
                    assert_eq!(scale.elapsed_ticks(instant), tick);
                }
                let just_before = deadline.checked_sub(Duration::from_nanos(1)).unwrap();
                assert!(nanos == 0 || scale.elapsed_ticks(just_before) < tick);
            }
        }
    }

    #[test]
    fn an_instant_before_the_start_is_tick_zero() {
        let scale = scale(Duration::from_millis(1));
        let before = scale.start.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!(scale.deadline_tick(before), 0);
        assert_eq!(scale.elapsed_ticks(before), 0);
    }

    #[test]
    fn the_end_of_time_saturates() {
        let scale = scale(Duration::from_nanos(1));
        let far = scale.start + Duration::from_secs(100_000_000_000);
        assert_eq!(scale.deadline_tick(far), NEVER);
        assert_eq!(scale.elapsed_ticks(far), NEVER - 1);
        assert_eq!(scale.instant(NEVER), None);
        let coarse = TickScale::new(scale.start, TickDuration(NonZeroU64::MAX));
        assert_eq!(coarse.instant(NEVER - 1), None);
        assert_eq!(coarse.deadline_tick(far), 6);
    }

    #[test]
    fn a_tick_is_neither_zero_nor_longer_than_a_u64_of_nanoseconds() {
        assert!(TickDuration::try_from(Duration::ZERO).is_err());
        assert!(TickDuration::try_from(Duration::MAX).is_err());
        assert!(TickDuration::try_from(Duration::from_nanos(u64::MAX)).is_ok());
    }
}
