//! The round trip of a connection: how short it is, and what follows from that (DESIGN: shared
//! connection).

use std::time::Duration;

/// Below this round trip one batch is in flight at a time: waiting for the next batch costs less
/// than many small writes. Above it, each call is written as it comes.
const SHORT_ROUND_TRIP: Duration = Duration::from_micros(150);

/// The shortest round trip, as far as calls that were nearly alone show it.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    shortest: Option<Duration>,
    calls: u32,
}

/// By how much a longer measurement makes the shortest round trip longer.
const MORE_PER_SAMPLE: Duration = Duration::from_nanos(500);

/// One of this many calls is measured while the round trip is known to be short.
const CALLS_PER_SAMPLE: u32 = 16;

/// How long, and how many round trips, a call may be without any reply before others use another
/// connection. Short scripts take far less, so either the server hangs, and a new connection is no
/// better, or only this connection does.
pub(crate) const MAX_SILENCE: Duration = Duration::from_millis(250);
const SILENT_ROUND_TRIPS: u32 = 4;

impl RoundTrip {
    /// After how long without any reply the connection counts as silent.
    pub(crate) fn longest_silence(&self) -> Duration {
        MAX_SILENCE.max(self.shortest.unwrap_or_default() * SILENT_ROUND_TRIPS)
    }

    pub(crate) fn is_short(&self) -> bool {
        self.shortest.is_some_and(|shortest| shortest < SHORT_ROUND_TRIP)
    }

    /// Whether a call that begins now is to be measured.
    pub(crate) fn is_due(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        !self.is_short() || self.calls.is_multiple_of(CALLS_PER_SAMPLE)
    }

    /// Takes in a measurement. One that is longer counts little, however long it is: the thread or
    /// the server may have waited for a processor, as most do while many threads want one.
    pub(crate) fn add(&mut self, sample: Duration) {
        let longest = self.shortest.map(|shortest| shortest + MORE_PER_SAMPLE);
        self.shortest = longest.map(|longest| longest.min(sample)).or(Some(sample));
    }

    /// Sets the round trip to zero, as of a connection so near that nothing is nearer.
    #[cfg(test)]
    pub(crate) fn set_short(&mut self) {
        self.shortest = Some(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_micros(60);
    const FAR: Duration = Duration::from_micros(500);

    #[test]
    fn calls_that_wait_for_a_processor_do_not_make_a_short_round_trip_long() {
        let mut round_trip = RoundTrip::default();
        assert!(!round_trip.is_short(), "it is not known");
        round_trip.add(NEAR);
        for _ in 0..100 {
            round_trip.add(Duration::from_secs(1));
        }
        assert!(round_trip.is_short());
    }

    #[test]
    fn a_round_trip_that_stays_longer_is_known_after_a_while() {
        let mut round_trip = RoundTrip::default();
        round_trip.add(NEAR);
        for _ in 0..200 {
            round_trip.add(FAR);
        }
        assert!(!round_trip.is_short());
    }

    #[test]
    fn until_it_is_short_every_call_is_measured() {
        let mut round_trip = RoundTrip::default();
        round_trip.add(FAR);
        assert!((0..100).all(|_| round_trip.is_due()));
        round_trip.add(NEAR);
        assert_eq!((0..160).filter(|_| round_trip.is_due()).count(), 10);
    }
}
