//! Detects jumps of the server's clock, by comparison with this client's clock between two
//! renewals. Pure: time is an argument.
//!
//! A script reads the server's clock at some moment between its sending and its reply, by the
//! client's clock. So the time between two such moments has a minimum and a maximum, and neither a
//! slow reply nor a local pause is taken for a jump.

use std::time::{Duration, Instant};

use crate::events::report::Warning;
use crate::ops::value::ServerTime;

/// Finds jumps of one server's clock between two readings.
#[derive(Debug, Default)]
pub(crate) struct ClockJumps {
    last: Option<Reading>,
}

/// The server's time, read at some moment between the two instants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) server: ServerTime,
    pub(crate) sent_at: Instant,
    pub(crate) answered_at: Instant,
}

/// The largest difference that is never reported. Small steps keep clocks accurate and are
/// harmless: a lease has a margin.
const MIN_JUMP: Duration = Duration::from_secs(1);

impl ClockJumps {
    /// Compares a reading with the previous reading, and remembers the new reading. Returns a
    /// warning if the two clocks differ by more than the tolerance: the greatest of a second, a
    /// twentieth of `lease`, and a hundredth of the time between. `None` for the first reading.
    pub(crate) fn observe(&mut self, lease: Duration, reading: Reading) -> Option<Warning> {
        let last = self.last.replace(reading)?;
        let at_least = millis(reading.sent_at.saturating_duration_since(last.answered_at));
        let at_most = millis(reading.answered_at.saturating_duration_since(last.sent_at));
        let counted = reading.server.0.saturating_sub(last.server.0);
        let (by, forward) = if counted > at_most {
            (counted.saturating_sub(at_most), true)
        } else {
            (at_least.saturating_sub(counted), false)
        };
        let tolerance = millis(MIN_JUMP.max(lease / 20)).max(at_most / 100);
        let by = u64::try_from(by).ok().filter(|_| by > tolerance)?;
        Some(Warning::ServerClockJumped { by: Duration::from_millis(by), forward })
    }
}

/// Returns whole milliseconds of `duration`; saturates.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(30);
    const TRIP: Duration = Duration::from_millis(100);

    /// The warning for a second reading, after `own` by the client's clock and `server`
    /// milliseconds by the server's.
    fn after(own: Duration, server: i64) -> Option<Warning> {
        let start = origin();
        let reading = |after: Duration, server| Reading {
            server: ServerTime(server),
            sent_at: start + after,
            answered_at: start + after + TRIP,
        };
        let mut jumps = ClockJumps::default();
        assert_eq!(jumps.observe(LEASE, reading(Duration::ZERO, 1_000_000)), None);
        jumps.observe(LEASE, reading(own, 1_000_000 + server))
    }

    fn jump(millis: u64, forward: bool) -> Warning {
        Warning::ServerClockJumped { by: Duration::from_millis(millis), forward }
    }

    #[test]
    fn equal_clocks_are_no_jump_at_any_point_of_the_round_trip() {
        for server in [9_900, 10_000, 10_100] {
            assert_eq!(after(SECOND * 10, server), None);
        }
    }

    #[test]
    fn a_jump_is_more_than_a_twentieth_of_the_lease() {
        // A round trip of 100 ms on either side, and 1.5 s.
        assert_eq!(after(SECOND * 10, 10_100 + 1_500), None);
        assert_eq!(after(SECOND * 10, 10_100 + 1_501), Some(jump(1_501, true)));
        assert_eq!(after(SECOND * 10, 9_900 - 1_500), None);
        assert_eq!(after(SECOND * 10, 9_900 - 1_501), Some(jump(1_501, false)));
    }

    #[test]
    fn a_jump_is_more_than_a_second_however_short_the_lease() {
        let mut jumps = ClockJumps::default();
        let now = origin();
        for (server, warning) in [(0, None), (1000, None), (2001, Some(jump(1001, true)))] {
            let reading = Reading { server: ServerTime(server), sent_at: now, answered_at: now };
            assert_eq!(jumps.observe(SECOND, reading), warning);
        }
    }

    #[test]
    fn clock_reset_to_zero_is_reported_with_the_difference() {
        assert_eq!(after(SECOND * 10, -1_000_000), Some(jump(1_009_900, false)));
    }

    #[test]
    fn after_a_long_pause_clocks_may_have_drifted_by_a_hundredth() {
        let hour = SECOND * 3600;
        assert_eq!(after(hour, 3_600_000 + 36_000), None);
        assert_eq!(after(hour, 3_600_100 + 36_002), Some(jump(36_002, true)));
    }

    #[test]
    fn a_jump_is_reported_once() {
        let mut jumps = ClockJumps::default();
        let now = origin();
        let readings = [0, 60_000, 60_000, 60_001].map(|server| Reading {
            server: ServerTime(server),
            sent_at: now,
            answered_at: now,
        });
        let warnings = readings.map(|reading| jumps.observe(LEASE, reading));
        assert_eq!(warnings, [None, Some(jump(60_000, true)), None, None]);
    }

    #[test]
    fn no_time_of_a_server_overflows() {
        let mut jumps = ClockJumps::default();
        let now = origin();
        for server in [i64::MIN, i64::MAX, i64::MIN, 0] {
            let reading = Reading { server: ServerTime(server), sent_at: now, answered_at: now };
            drop(jumps.observe(LEASE, reading));
        }
    }
}
