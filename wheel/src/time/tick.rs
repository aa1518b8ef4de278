//! The tick: the conversion of an instant to a whole number, rounded so that nothing fires early.
//!
//! A timer reads an instant and the clock's nanoseconds at its start. A delay counts from a reading
//! in nanoseconds, which cannot be compared with an instant; due timeouts are determined from
//! instants alone.

use core::num::NonZeroU64;
use core::time::Duration;
use std::time::Instant;

use super::clock::Clock;
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

    /// Returns the number of whole ticks in `duration`.
    pub(crate) fn ticks_in(self, duration: Duration) -> u64 {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.divide(nanos).0
    }

    /// Divides by the tick. Returns the number of whole ticks, and the remainder.
    ///
    /// Every call that schedules divides by the tick, and a division would take 8 ns of a schedule
    /// and cancel, longer than the rest of the rounding. So this method multiplies by the
    /// reciprocal, for about 1 ns. The reciprocal is at most 1 less than `2^64 / tick`. The product
    /// divided by 2^64 is less than 1 below the exact quotient. Rounded down, the product is the
    /// quotient or 1 less; the remainder decides.
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

/// The tick of a deadline out of range. The wheel never reaches this tick.
pub(crate) const NEVER: u64 = u64::MAX;

/// Translates between instants and ticks, for an event loop around a [`Wheel`](crate::Wheel). Tick
/// 0 is the start; tick n is n tick durations later.
///
/// Created by [`new`](Self::new).
///
/// Deadlines are rounded up and the present is rounded down, so nothing is early. The scale counts
/// nanoseconds from the start in a `u64`: a deadline beyond this range, 584 years, is never
/// reached.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::{Clock, SystemClock, TickScale, Wheel};
///
/// let start = SystemClock.now();
/// let scale = TickScale::new(start, Duration::from_millis(10))?;
/// let mut wheel = Wheel::new(512)?;
/// wheel.insert(scale.deadline_tick(start + Duration::from_millis(25)), "idle");
///
/// // The timeout for `poll`; no limit if nothing is pending.
/// let now = start + Duration::from_millis(18);
/// let sleep = wheel.next_due().and_then(|tick| scale.time_until(tick, now));
/// assert_eq!(sleep, Some(Duration::from_millis(12)));
///
/// let mut due = Vec::new();
/// for now in [now, now + Duration::from_millis(12)] {
///     wheel.advance(scale.elapsed_ticks(now), usize::MAX, |_, value| due.push((now, value)));
/// }
/// assert_eq!(due, [(start + Duration::from_millis(30), "idle")]);
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
///
/// The program `examples/event_loop.rs` of this crate is such an event loop, with a socket and
/// 10,000 idle timeouts.
#[derive(Clone, Copy, Debug)]
pub struct TickScale {
    start: Instant,
    /// The clock's nanoseconds at the start or a little before, so a later reading never yields
    /// less than the time since the start. `None` if the clock has no nanoseconds.
    start_nanos: Option<u64>,
    tick: TickDuration,
}

/// The number of readings of the start. A reading reads two clocks, and a thread can be preempted
/// in between, so the reading with the least time in between counts. This time makes every timeout
/// later.
const START_READINGS: usize = 5;

impl TickScale {
    /// Creates a scale with ticks of this duration, starting at `start`.
    ///
    /// # Errors
    ///
    /// [`BuildError::TickDuration`] (permanent), if the tick is zero or longer than 584 years.
    pub fn new(start: Instant, tick: Duration) -> Result<Self, BuildError> {
        TickDuration::try_from(tick).map(|tick| Self::starting_at(start, tick))
    }

    pub(crate) const fn starting_at(start: Instant, tick: TickDuration) -> Self {
        Self { start, start_nanos: None, tick }
    }

    /// Creates a scale which starts at the present instant of `clock`.
    pub(crate) fn starting_now(clock: &dyn Clock, tick: TickDuration) -> Self {
        let mut scale = Self::starting_at(clock.now(), tick);
        let mut closest = u64::MAX;
        for _ in 0..START_READINGS {
            // In this order: `before`, the reading to store, must precede the instant.
            let Some(before) = clock.nanos() else { break };
            let start = clock.now();
            let Some(after) = clock.nanos() else { break };
            let apart = after.saturating_sub(before);
            if apart < closest {
                closest = apart;
                scale = Self { start, start_nanos: Some(before), tick };
            }
        }
        scale
    }

    pub(crate) const fn start(&self) -> Instant {
        self.start
    }

    /// Returns the first tick at or after `deadline`: 0 for an instant before the start, `u64::MAX`
    /// for a deadline out of range.
    #[inline]
    #[must_use]
    pub fn deadline_tick(&self, deadline: Instant) -> u64 {
        self.round_up(self.nanos_since_start(deadline))
    }

    /// Returns the nanoseconds from the start to the present time of `clock`, the clock of the
    /// scale, or up to a millisecond more; `None` if out of range.
    #[inline]
    pub(crate) fn since_start(&self, clock: &dyn Clock) -> Option<u64> {
        match self.start_nanos {
            Some(start) => clock.late_nanos().map(|now| now.saturating_sub(start)),
            None => self.nanos_since_start(clock.now()),
        }
    }

    /// Returns the first tick at or after `delay`, counted from `since_start`, nanoseconds since
    /// the start. [`NEVER`] if out of range.
    #[inline]
    pub(crate) fn tick_after(&self, since_start: Option<u64>, delay: Duration) -> u64 {
        let sum = since_start.zip(whole_nanos(delay));
        self.round_up(sum.and_then(|(now, delay)| now.checked_add(delay)))
    }

    /// Returns the first tick at or after a deadline. **The only place where a deadline is
    /// rounded.** Rounds up: rounding down would fire up to a tick early.
    #[inline]
    fn round_up(&self, nanos: Option<u64>) -> u64 {
        match nanos.map(|nanos| self.tick.divide(nanos)) {
            Some((tick, 0)) => tick,
            Some((tick, _)) => tick + 1,
            None => NEVER,
        }
    }

    /// Returns the last tick reached at `now`: 0 for an instant before the start, and at most
    /// `u64::MAX - 1`. Rounds down, which also prevents early timeouts.
    #[must_use]
    pub fn elapsed_ticks(&self, now: Instant) -> u64 {
        let nanos = self.nanos_since_start(now).unwrap_or(NEVER);
        self.tick.divide(nanos).0.min(NEVER - 1)
    }

    /// Returns the instant of the last tick reached at `now`; the start, if `now` is before the
    /// start.
    pub(crate) fn last_tick(&self, now: Instant) -> Instant {
        self.instant(self.elapsed_ticks(now)).unwrap_or(now)
    }

    /// Returns the nanoseconds from `tick` to `now`; zero if `now` is before `tick`.
    pub(crate) fn nanos_after(&self, tick: u64, now: Instant) -> u64 {
        let now = self.nanos_since_start(now).unwrap_or(u64::MAX);
        now.saturating_sub(tick.saturating_mul(self.tick.nanos.get()))
    }

    /// Returns the instant of `tick`; `None` if out of range, also of an `Instant`.
    pub(crate) fn instant(&self, tick: u64) -> Option<Instant> {
        let nanos = tick.checked_mul(self.tick.nanos.get()).filter(|_| tick != NEVER)?;
        self.start.checked_add(Duration::from_nanos(nanos))
    }

    /// Returns the time from `now` to `tick`: zero if `tick` is reached, and `None` if `tick` is
    /// out of range and never reached. A loop which sleeps for this time finds the tick among the
    /// [elapsed](Self::elapsed_ticks) ticks.
    #[must_use]
    pub fn time_until(&self, tick: u64, now: Instant) -> Option<Duration> {
        Some(self.instant(tick)?.saturating_duration_since(now))
    }

    /// Returns the nanoseconds from the start to `instant`; `None` if out of range.
    #[inline]
    fn nanos_since_start(&self, instant: Instant) -> Option<u64> {
        whole_nanos(instant.saturating_duration_since(self.start))
    }
}

/// Returns the duration in nanoseconds; `None` if out of range of a `u64`.
#[inline]
fn whole_nanos(duration: Duration) -> Option<u64> {
    duration.as_secs().checked_mul(1_000_000_000)?.checked_add(duration.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::clock::SystemClock;

    fn scale(tick: Duration) -> TickScale {
        TickScale::new(SystemClock.now(), tick).unwrap()
    }

    fn after(scale: &TickScale, now: Instant, delay: Duration) -> u64 {
        scale.tick_after(scale.nanos_since_start(now), delay)
    }

    #[test]
    fn a_deadline_rounds_up_to_a_tick_and_the_present_rounds_down() {
        let scale = scale(Duration::from_millis(10));
        let at = |nanos| scale.start + Duration::from_nanos(nanos);
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
            assert_eq!(scale.deadline_tick(at(nanos)), deadline, "deadline {nanos} ns");
            assert_eq!(scale.elapsed_ticks(at(nanos)), elapsed, "now {nanos} ns");
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
        assert_eq!(after(&scale, scale.start, Duration::MAX), NEVER);
        assert_eq!(after(&scale, far, Duration::ZERO), NEVER);
        let last = Duration::from_nanos(u64::MAX);
        assert_eq!(after(&scale, scale.start + last, Duration::from_nanos(1)), NEVER);
        let coarse = TickScale::starting_at(scale.start, TickDuration::from_nanos(NonZeroU64::MAX));
        assert_eq!(coarse.instant(2), None);
        assert_eq!(coarse.deadline_tick(far), NEVER);
        assert_eq!(after(&coarse, scale.start, last), 1);
        assert_eq!(coarse.instant(1), Some(scale.start + last));
    }

    #[test]
    fn a_delay_and_its_deadline_have_the_same_tick() {
        for tick in [1, 3, 1_000_000, 10_000_001] {
            let scale = scale(Duration::from_nanos(tick));
            for (since, delay) in [(0, 0), (0, 1), (1, 999_999), (5_000_000_001, 2_999_999_999)] {
                let now = scale.start + Duration::from_nanos(since);
                let delay = Duration::from_nanos(delay);
                assert_eq!(after(&scale, now, delay), scale.deadline_tick(now + delay));
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
