//! How long a round trip takes of late.

use std::time::Duration;

/// A mean in which each new value counts for an eighth.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    nanos: u64,
}

impl RoundTrip {
    pub(super) fn learn(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos = match self.nanos {
            0 => took,
            mean => mean - mean / 8 + took / 8,
        };
    }

    /// Zero before the first.
    pub(super) fn recent(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_it_learns_and_forgets_a_single_one() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.recent(), Duration::ZERO);
        round_trip.learn(Duration::from_millis(8));
        assert_eq!(round_trip.recent(), Duration::from_millis(8));
        round_trip.learn(Duration::from_millis(16));
        assert_eq!(round_trip.recent(), Duration::from_millis(9));
        (0..100).for_each(|_| round_trip.learn(Duration::from_millis(100)));
        assert!(round_trip.recent() > Duration::from_millis(99));
    }
}
