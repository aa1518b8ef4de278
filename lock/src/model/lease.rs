//! The arithmetic of leases: how long a holder may trust a lease, and when a renewal is due. Pure;
//! time is an argument.
//!
//! A lease counts from *before* its request was sent, on the holder's clock. The server counts from
//! the arrival of the request, which is later. So if both clocks run at the same rate, the holder's
//! validity ends first. The drift margin covers different rates.

use std::time::{Duration, Instant};

use crate::error::Error;

/// How long a hold lasts without a renewal, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lease {
    millis: u64,
}

/// The shortest lease. A shorter lease leaves nothing after drift and the round trip.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest lease, a hundred years. Redis adds the wall clock to a lease, and `Instant` the time
/// since boot; both sums stay far from overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The default lease of a watched hold: Redisson's `lockWatchdogTimeout`, renewed every ten
/// seconds. The locks of a dead process are free after thirty seconds.
pub(crate) const DEFAULT: Lease = Lease { millis: 30_000 };

impl Lease {
    /// Makes a lease of whole milliseconds. Returns [`Error::InvalidLease`] as
    /// [`named`](Self::named) does.
    pub(crate) fn new(lease: Duration) -> Result<Self, Error> {
        Self::named("lease", lease)
    }

    /// Makes a lease, or another time which the server counts as a lease. `what` is the name in an
    /// error.
    ///
    /// Returns [`Error::InvalidLease`] for less than 10 ms or more than a hundred years.
    pub(crate) fn named(what: &str, lease: Duration) -> Result<Self, Error> {
        let reason = if lease < SHORTEST {
            format!("the shortest {what} is {SHORTEST:?}")
        } else if lease > LONGEST {
            format!("the longest {what} is a hundred years")
        } else {
            // A fraction of a millisecond cannot be sent, so validity does not include the fraction
            // either.
            return Ok(Self { millis: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX) });
        };
        Err(Error::InvalidLease { lease, reason })
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }

    pub(crate) fn millis(self) -> u64 {
        self.millis
    }

    /// Returns the lease in milliseconds, as a signed number like the server's. The longest lease
    /// fits.
    pub(crate) fn millis_i64(self) -> i64 {
        i64::try_from(self.millis).unwrap_or(i64::MAX)
    }

    /// Returns the longest lease with a validity of at most `left`: another request for such a
    /// lease prolongs nothing.
    pub(crate) fn covering(left: Duration) -> Self {
        // First the drift's 2 ms, then its hundredth.
        let millis = (left.as_millis() + 2) * 100 / 99;
        Self { millis: u64::try_from(millis).unwrap_or(u64::MAX) }
    }

    /// Returns the end of the validity of a lease granted to a request sent at `sent_at`.
    pub(crate) fn valid_until(self, sent_at: Instant) -> Instant {
        sent_at + self.duration().saturating_sub(self.drift())
    }

    /// Returns the least remaining validity of a watched hold while each renewal is answered in
    /// time: the validity minus a third of the lease.
    pub(crate) fn least_remaining(self) -> Duration {
        self.duration().saturating_sub(self.drift()).saturating_sub(self.duration() / 3)
    }

    /// Returns the margin for drift, one hundredth and 2 ms: the difference in rate of two clocks,
    /// and Redis's rounding to whole milliseconds.
    fn drift(self) -> Duration {
        self.duration() / 100 + Duration::from_millis(2)
    }

    /// Returns the longest time from one request to the next renewal: two ticks less than a third
    /// of the lease, so the renewal reaches the server before the third is over.
    pub(crate) fn renewal_interval(self, tick: Duration) -> Duration {
        (self.duration() / 3).saturating_sub(tick * 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::clock::origin;

    #[test]
    fn a_lease_out_of_bounds_is_refused_by_its_length() {
        for wrong in [Duration::ZERO, Duration::from_millis(9), LONGEST * 2, Duration::MAX] {
            let error = Lease::new(wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidLease { lease, .. } if lease == wrong));
        }
        assert!(Lease::new(SHORTEST).is_ok());
        assert!(Lease::new(LONGEST).is_ok());
    }

    proptest! {
        #[test]
        fn lease_covering_a_remainder_ends_no_later_than_the_remainder(micros in 1_u64..1_000_000_000_000) {
            let (left, sent_at) = (Duration::from_micros(micros), origin());
            let again = Lease::covering(left).valid_until(sent_at);
            prop_assert!(again <= sent_at + left);
            prop_assert!(again + Duration::from_millis(3) > sent_at + left);
        }

        #[test]
        fn a_holder_stops_believing_before_the_server_does(
            millis in 10_u64..=3_153_600_000_000,
            sent_after in 0_u64..1_000_000,
            trip in 0_u64..1_000_000,
        ) {
            let lease = Lease::new(Duration::from_millis(millis)).unwrap();
            let sent_at = origin() + Duration::from_nanos(sent_after);
            let arrived = sent_at + Duration::from_nanos(trip);
            prop_assert!(lease.valid_until(sent_at) < arrived + lease.duration());
            prop_assert!(lease.valid_until(sent_at) > sent_at);
        }
    }
}
