//! Mean round trip time, and the timeout of one attempt. Pure.

use std::time::Duration;

use crate::model::lease::Lease;

/// The mean round trip time, in which each new value counts for an eighth.
#[derive(Debug, Default)]
pub(crate) struct MeanRoundTrip {
    nanos: u64,
}

impl MeanRoundTrip {
    /// Adds a round trip time to the mean. The first value is the mean.
    pub(crate) fn observe(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos = match self.nanos {
            0 => took,
            mean => mean - mean / 8 + took / 8,
        };
    }

    /// Returns the timeout of one attempt at renewals: a tenth of the shortest lease, but at least
    /// four round trips and 250 ms, and never more than 3 s, `command_timeout` or the lease itself.
    ///
    /// Holds that end sooner do not shorten the timeout: giving up an attempt costs all other
    /// attempts the connection, while a late reply costs nothing.
    pub(crate) fn attempt_timeout(&self, shortest: Lease, command_timeout: Duration) -> Duration {
        const SLOW: Duration = Duration::from_millis(250);
        const MAX: Duration = Duration::from_secs(3);
        let patient = (self.mean() * 4).max(SLOW);
        let timeout = (shortest.duration() / 10).max(patient).min(MAX);
        timeout.min(command_timeout).min(shortest.duration())
    }

    /// Returns the mean, or zero before the first value.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_its_values_and_forgets_a_single_one() {
        let mut round_trip = MeanRoundTrip::default();
        assert_eq!(round_trip.mean(), Duration::ZERO);
        round_trip.observe(Duration::from_millis(8));
        assert_eq!(round_trip.mean(), Duration::from_millis(8));
        round_trip.observe(Duration::from_millis(16));
        assert_eq!(round_trip.mean(), Duration::from_millis(9));
        (0..100).for_each(|_| round_trip.observe(Duration::from_millis(100)));
        assert!(round_trip.mean() > Duration::from_millis(99));
    }

    #[test]
    fn attempt_timeout_is_at_most_the_command_timeout_and_lease() {
        let millis = Duration::from_millis;
        let lease = |length| Lease::new(length).unwrap();
        let mut round_trip = MeanRoundTrip::default();
        let timeout = |round_trip: &MeanRoundTrip, shortest, command| {
            round_trip.attempt_timeout(lease(millis(shortest)), millis(command)).as_millis()
        };
        assert_eq!(timeout(&round_trip, 20_000, 60_000), 2_000);
        assert_eq!(timeout(&round_trip, 90_000, 60_000), 3_000);
        assert_eq!(timeout(&round_trip, 1_000, 60_000), 250);
        assert_eq!(timeout(&round_trip, 200, 60_000), 200);
        assert_eq!(timeout(&round_trip, 1_000, 100), 100);
        round_trip.observe(millis(200));
        assert_eq!(timeout(&round_trip, 1_000, 60_000), 800);
        assert_eq!(timeout(&round_trip, 1_000, 100), 100);
    }
}
