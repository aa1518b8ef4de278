//! Whether the server's clock was set: what it counted between two renewals, against what ours did. Pure; time is an
//! argument.
//!
//! A script read the server's clock at some moment between its sending and its answer, by ours. So of what our clock
//! counted between two such moments we know the least and the most, and a slow answer is never taken for a jump.

use std::time::{Duration, Instant};

use crate::report::Warning;
use crate::value::ServerTime;

/// What the last answered renewal told of the server's time.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    last: Option<Reading>,
}

/// The server's time, read at some moment between the two instants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) server: ServerTime,
    pub(super) sent_at: Instant,
    pub(super) answered_at: Instant,
}

/// Small steps are how clocks are kept right, and they endanger nothing: a lease has a margin.
const SMALLEST_JUMP: Duration = Duration::from_secs(1);

impl Jumps {
    /// Takes in a reading. A warning if the server's clock and ours have come apart since the last by more than clocks
    /// may: a second, a twentieth of `lease`, and a hundredth of the time between.
    pub(super) fn look(&mut self, lease: Duration, reading: Reading) -> Option<Warning> {
        let last = self.last.replace(reading)?;
        let at_least = millis(reading.sent_at.saturating_duration_since(last.answered_at));
        let at_most = millis(reading.answered_at.saturating_duration_since(last.sent_at));
        let counted = reading.server.0.saturating_sub(last.server.0);
        let (by, forward) = if counted > at_most {
            (counted.saturating_sub(at_most), true)
        } else {
            (at_least.saturating_sub(counted), false)
        };
        let tolerance = millis(SMALLEST_JUMP.max(lease / 20)).max(at_most / 100);
        let by = u64::try_from(by).ok().filter(|_| by > tolerance)?;
        Some(Warning::ServerClockJumped { by: Duration::from_millis(by), forward })
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::origin;

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(30);
    const TRIP: Duration = Duration::from_millis(100);

    /// What is said of a second reading, after `own` by our clock and `server` milliseconds by the server's.
    fn after(own: Duration, server: i64) -> Option<Warning> {
        let start = origin();
        let reading = |after: Duration, server| Reading {
            server: ServerTime(server),
            sent_at: start + after,
            answered_at: start + after + TRIP,
        };
        let mut jumps = Jumps::default();
        assert_eq!(jumps.look(LEASE, reading(Duration::ZERO, 1_000_000)), None);
        jumps.look(LEASE, reading(own, 1_000_000 + server))
    }

    fn jump(millis: u64, forward: bool) -> Warning {
        Warning::ServerClockJumped { by: Duration::from_millis(millis), forward }
    }

    #[test]
    fn clocks_that_go_together_are_no_jump_wherever_in_the_round_trip_they_were_read() {
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
        let mut jumps = Jumps::default();
        let now = origin();
        for (server, told) in [(0, None), (1000, None), (2001, Some(jump(1001, true)))] {
            let reading = Reading { server: ServerTime(server), sent_at: now, answered_at: now };
            assert_eq!(jumps.look(SECOND, reading), told);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_to_the_beginning_is_told_by_how_far() {
        assert_eq!(after(SECOND * 10, -1_000_000), Some(jump(1_009_900, false)));
    }

    #[test]
    fn after_a_long_rest_clocks_may_have_drifted_by_a_hundredth() {
        let hour = SECOND * 3600;
        assert_eq!(after(hour, 3_600_000 + 36_000), None);
        assert_eq!(after(hour, 3_600_100 + 36_002), Some(jump(36_002, true)));
    }

    #[test]
    fn a_jump_is_told_once() {
        let mut jumps = Jumps::default();
        let now = origin();
        let readings = [0, 60_000, 60_000, 60_001].map(|server| Reading {
            server: ServerTime(server),
            sent_at: now,
            answered_at: now,
        });
        let told = readings.map(|reading| jumps.look(LEASE, reading));
        assert_eq!(told, [None, Some(jump(60_000, true)), None, None]);
    }

    #[test]
    fn no_answer_of_a_server_overflows() {
        let mut jumps = Jumps::default();
        let now = origin();
        for server in [i64::MIN, i64::MAX, i64::MIN, 0] {
            let reading = Reading { server: ServerTime(server), sent_at: now, answered_at: now };
            drop(jumps.look(LEASE, reading));
        }
    }
}
