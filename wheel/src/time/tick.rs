//! The tick: how an instant becomes a whole number, rounded so that nothing fires early (DESIGN:
//! tick arithmetic).

use core::num::NonZeroU64;
use core::time::Duration;
use std::time::Instant;

use crate::error::BuildError;

/// The length of a tick: not zero, and at most `u64::MAX` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickDuration {
    nanos: NonZeroU64,
    /// `u64::MAX` divided by the tick, rounded down.
    reciprocal: u64,
}

impl TickDuration {
    const fn from_nanos(nanos: NonZeroU64) -> Self {
        Self { nanos, reciprocal: u64::MAX / nanos.get() }
    }

    /// Divides by the tick: the number of whole ticks, and the rest.
    ///
    /// Every call that schedules divides by the tick, and a division takes longer than all the rest
    /// of the rounding. So this multiplies by the reciprocal, which is at most one less than `2^64
    /// / tick`. The product divided by 2^64 is less than one below the exact quotient. Rounded
    /// down, it is the quotient or one less, and the rest tells which.
    #[inline]
    fn divide(self, nanos: u64) -> (u64, u64) {
        let tick = self.nanos.get();
        let product = u128::from(nanos) * u128::from(self.reciprocal);
        let quotient = (product >> u64::BITS) as u64;
        let rest = nanos - quotient * tick;
        if rest < tick { (quotient, rest) } else { (quotient + 1, rest - tick) }
    }
}

impl TryFrom<Duration> for TickDuration {
    type Error = BuildError;

    fn try_from(duration: Duration) -> Result<Self, BuildError> {
        u64::try_from(duration.as_nanos())
            .ok()
            .and_then(NonZeroU64::new)
            .map(Self::from_nanos)
            .ok_or(BuildError::TickDuration(duration))
    }
}

/// The tick of a deadline that is out of range. It never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// Translates between instants and ticks. Tick 0 is `start`; tick n is `start + n * tick`.
///
/// It counts nanoseconds from the start in a `u64`. A deadline beyond that range, 584 years, never
/// comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickScale {
    start: Instant,
    tick: TickDuration,
}

impl TickScale {
    pub(crate) fn new(start: Instant, tick: TickDuration) -> Self {
        Self { start, tick }
    }

    pub(crate) const fn start(&self) -> Instant {
        self.start
    }

    /// The first tick at or after `deadline`: 0 for an instant before the start, [`NEVER`] for one
    /// out of range.
    #[inline]
    pub(crate) fn deadline_tick(&self, deadline: Instant) -> u64 {
        self.round_up(self.nanos_since_start(deadline))
    }

    /// The first tick at or after `now + delay`; [`NEVER`] if that is out of range.
    #[inline]
    pub(crate) fn tick_after(&self, now: Instant, delay: Duration) -> u64 {
        let deadline = self
            .nanos_since_start(now)
            .zip(whole_nanos(delay))
            .and_then(|(now, delay)| now.checked_add(delay));
        self.round_up(deadline)
    }

    /// The first tick at or after a deadline. **The one place where a deadline is rounded.** It
    /// rounds up: rounding down would fire up to a tick early.
    #[inline]
    fn round_up(&self, nanos: Option<u64>) -> u64 {
        match nanos.map(|nanos| self.tick.divide(nanos)) {
            Some((tick, 0)) => tick,
            Some((tick, _)) => tick + 1,
            None => NEVER,
        }
    }

    /// The last tick that has come at `now`. It rounds down, which also keeps timeouts from firing
    /// early. Never [`NEVER`].
    pub(crate) fn elapsed_ticks(&self, now: Instant) -> u64 {
        let nanos = self.nanos_since_start(now).unwrap_or(NEVER);
        self.tick.divide(nanos).0.min(NEVER - 1)
    }

    /// The instant of the last tick that has come at `now`; the start, if `now` is before it.
    pub(crate) fn last_tick(&self, now: Instant) -> Instant {
        self.instant(self.elapsed_ticks(now)).unwrap_or(now)
    }

    /// How many nanoseconds `now` is after `tick`; zero if it is before.
    pub(crate) fn nanos_after(&self, tick: u64, now: Instant) -> u64 {
        let now = self.nanos_since_start(now).unwrap_or(u64::MAX);
        now.saturating_sub(tick.saturating_mul(self.tick.nanos.get()))
    }

    /// The instant of `tick`; `None` if it is out of range, also of what an `Instant` can hold.
    pub(crate) fn instant(&self, tick: u64) -> Option<Instant> {
        let nanos = tick.checked_mul(self.tick.nanos.get()).filter(|_| tick != NEVER)?;
        self.start.checked_add(Duration::from_nanos(nanos))
    }

    /// The nanoseconds from the start to `instant`; `None` if out of range.
    #[inline]
    fn nanos_since_start(&self, instant: Instant) -> Option<u64> {
        whole_nanos(instant.saturating_duration_since(self.start))
    }
}

/// The duration in nanoseconds; `None` if a `u64` cannot hold them.
#[inline]
fn whole_nanos(duration: Duration) -> Option<u64> {
    duration.as_secs().checked_mul(1_000_000_000)?.checked_add(duration.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::clock::{Clock, SystemClock};

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
    fn the_tick_of_a_deadline_never_comes_before_the_deadline() {
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
    fn deadlines_out_of_range_saturate() {
        let scale = scale(Duration::from_nanos(1));
        let far = scale.start + Duration::from_secs(100_000_000_000);
        assert_eq!(scale.deadline_tick(far), NEVER);
        assert_eq!(scale.elapsed_ticks(far), NEVER - 1);
        assert_eq!(scale.instant(NEVER), None);
        assert_eq!(scale.tick_after(scale.start, Duration::MAX), NEVER);
        assert_eq!(scale.tick_after(far, Duration::ZERO), NEVER);
        let last = Duration::from_nanos(u64::MAX);
        assert_eq!(scale.tick_after(scale.start + last, Duration::from_nanos(1)), NEVER);
        let coarse = TickScale::new(scale.start, TickDuration::from_nanos(NonZeroU64::MAX));
        assert_eq!(coarse.instant(2), None);
        assert_eq!(coarse.deadline_tick(far), NEVER);
        assert_eq!(coarse.tick_after(scale.start, last), 1);
        assert_eq!(coarse.instant(1), Some(scale.start + last));
    }

    #[test]
    fn a_delay_and_its_deadline_have_the_same_tick() {
        for tick in [1, 3, 1_000_000, 10_000_001] {
            let scale = scale(Duration::from_nanos(tick));
            for (since, delay) in [(0, 0), (0, 1), (1, 999_999), (5_000_000_001, 2_999_999_999)] {
                let now = scale.start + Duration::from_nanos(since);
                let delay = Duration::from_nanos(delay);
                assert_eq!(scale.tick_after(now, delay), scale.deadline_tick(now + delay));
            }
        }
    }

    proptest! {
        #[test]
        fn multiplying_by_the_reciprocal_divides_exactly(
            nanos in any::<u64>(),
            ticks in any::<u64>(),
            bits in 0..64_u32,
        ) {
            let tick = NonZeroU64::new(ticks >> bits).unwrap_or(NonZeroU64::MIN);
            let duration = TickDuration::from_nanos(tick);
            let edge = nanos / tick * tick.get();
            for nanos in [nanos, edge, edge.saturating_sub(1), u64::MAX, 0] {
                assert_eq!(duration.divide(nanos), (nanos / tick, nanos % tick));
            }
        }
    }

    #[test]
    fn a_tick_is_neither_zero_nor_longer_than_a_u64_of_nanoseconds() {
        assert!(TickDuration::try_from(Duration::ZERO).is_err());
        assert!(TickDuration::try_from(Duration::MAX).is_err());
        assert!(TickDuration::try_from(Duration::from_nanos(u64::MAX)).is_ok());
    }
}
