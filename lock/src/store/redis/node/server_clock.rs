//! An estimate of the server's time, learnt from the server's replies.
//!
//! A not-after is a moment by the server's clock. An estimate behind the clock costs a retry: the
//! server refuses the command as late, and the refusal has the server's time. An estimate ahead of
//! the clock would let in, unnoticed, a copy that arrives after the end of its attempt. So the
//! estimate is a lower bound.
//!
//! The time is learnt at each connect, from each refusal of a late copy, and from the replies to
//! renewals and releases. A reply with the time bounds the offset between the two clocks: the
//! server read its clock not before the request was sent, and not after the reply was received. An
//! estimate within these bounds stays; any other estimate becomes the lower bound. Between readings
//! the estimate falls behind at least as fast as two clocks drift apart. So the estimate is ahead
//! by a round trip at most, unless the server's clock was set back since the last reading.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use hashed_wheel::Clock;

use crate::model::sync::SystemClock;
use crate::ops::value::ServerTime;

/// The offset of the server's clock from the local clock.
#[derive(Debug)]
pub(crate) struct ServerClock {
    origin: Instant,
    /// In milliseconds, at the origin. Decreases with time, see [`MILLIS_PER_DRIFT`].
    offset: AtomicI64,
}

/// Milliseconds in which the estimate falls behind by one millisecond. A quartz drifts by at most a
/// tenth of a millisecond per second, and two quartzes are involved. For a call with a timeout of 3
/// s, the first refusal due to this rate comes after four hours without a reading.
const MILLIS_PER_DRIFT: i64 = 5_000;

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self { origin: SystemClock.now(), offset: AtomicI64::new(0) }
    }

    /// Learns the server's time from the reply to a request that was not sent before `sent_at`.
    /// Call as soon as the reply is received.
    pub(crate) fn learn(&self, server: ServerTime, sent_at: Instant) {
        self.learn_between(server, sent_at, SystemClock.now());
    }

    /// Corrects the offset by the server's time, which the server read between `sent_at` and
    /// `received_at`. An offset within the bounds stays.
    fn learn_between(&self, server: ServerTime, sent_at: Instant, received_at: Instant) {
        // All readings are cut to whole milliseconds, so each may be too small by up to 1.
        let (sent, received) = (self.since(sent_at), self.since(received_at).saturating_add(1));
        let lowest = server.0.saturating_sub(received);
        let highest = server.0.saturating_add(1).saturating_sub(sent);
        let drift = received / MILLIS_PER_DRIFT;
        // Relaxed: no other data depends on the offset. If two readings race, the next reading
        // corrects the result.
        let _always_updates =
            self.offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |offset| {
                let present = offset.saturating_sub(drift);
                let stays = (lowest..=highest).contains(&present);
                Some(if stays { offset } else { lowest.saturating_add(drift) })
            });
    }

    /// Returns a lower bound of the server's time at `instant` of the local clock.
    pub(crate) fn at(&self, instant: Instant) -> ServerTime {
        let since = self.since(instant);
        let offset = self.offset.load(Ordering::Relaxed).saturating_sub(since / MILLIS_PER_DRIFT);
        ServerTime(since.saturating_add(offset))
    }

    /// Returns the milliseconds from the origin to `instant`. Zero for an earlier time.
    fn since(&self, instant: Instant) -> i64 {
        let since = instant.saturating_duration_since(self.origin);
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);
    const TRIP: Duration = Duration::from_millis(10);

    /// A server whose clock was `offset` ahead of ours at the start, and the estimate of it.
    struct SimulatedServer {
        clock: ServerClock,
        offset: i64,
    }

    impl SimulatedServer {
        fn new(offset: i64) -> Self {
            Self { clock: ServerClock::new(), offset }
        }

        /// The server's time after `own` by our clock.
        fn time(&self, own: Duration) -> i64 {
            self.clock.since(self.clock.origin + own) + self.offset
        }

        /// A reply to a request that was sent after `own`. The server read its clock after
        /// `percent` of the round trip.
        fn reply(&self, own: Duration, trip: Duration, percent: u32) {
            let sent = self.clock.origin + own;
            let read = self.time(own + trip * percent / 100);
            self.clock.learn_between(ServerTime(read), sent, sent + trip);
        }

        /// By how many milliseconds the estimate is ahead.
        fn ahead(&self, own: Duration) -> i64 {
            self.clock.at(self.clock.origin + own).0 - self.time(own)
        }
    }

    #[test]
    fn server_clock_estimate_is_never_ahead_at_any_reading_point() {
        for offset in [-1_000_000, 0, 1_700_000_000_000] {
            for percent in [0, 1, 50, 99, 100] {
                let server = SimulatedServer::new(offset);
                for second in 1..100 {
                    let trip = TRIP * (1 + second * 7 % 50);
                    server.reply(SECOND * second, trip, percent);
                    let ahead = server.ahead(SECOND * second);
                    assert!((-501..=0).contains(&ahead), "{percent}: {ahead}");
                }
            }
        }
    }

    #[test]
    fn a_slow_reply_does_not_replace_a_better_estimate() {
        let server = SimulatedServer::new(5_000);
        server.reply(SECOND, TRIP, 50);
        let before = server.ahead(SECOND);
        server.reply(SECOND * 4, SECOND * 2, 0);
        assert!(server.ahead(SECOND * 4) >= before - 2, "{before}");
    }

    #[test]
    fn a_clock_that_was_set_is_followed_with_the_next_reply() {
        let mut server = SimulatedServer::new(1_000_000);
        server.reply(SECOND, TRIP, 50);
        server.offset -= 5_000;
        assert!(server.ahead(SECOND) > 4_900);
        server.reply(SECOND * 2, TRIP, 50);
        assert!((-11..=0).contains(&server.ahead(SECOND * 2)));
        server.offset += 5_000;
        server.reply(SECOND * 3, TRIP, 50);
        assert!((-11..=0).contains(&server.ahead(SECOND * 3)));
    }

    #[test]
    fn drift_between_readings_does_not_bring_the_estimate_ahead() {
        let mut server = SimulatedServer::new(1_000_000);
        server.reply(SECOND, TRIP, 100);
        for hour in 1..100 {
            // 150 parts in a million.
            server.offset -= 540;
            assert!(server.ahead(HOUR * hour) <= 0, "after {hour} hours");
        }
        server.reply(HOUR * 100, TRIP, 50);
        assert!((-11..=0).contains(&server.ahead(HOUR * 100)));
    }

    #[test]
    fn no_time_of_a_server_overflows() {
        let clock = ServerClock::new();
        for server in [i64::MIN, i64::MAX, -1, i64::MAX, i64::MIN, 0] {
            clock.learn_between(ServerTime(server), clock.origin, clock.origin + HOUR);
            let _any = clock.at(clock.origin + HOUR);
        }
    }
}
