//! A histogram of durations, of fixed size, for concurrent writers.
//!
//! Each power of two of nanoseconds is divided into eight parts, so a value is rounded by at most
//! an eighth, and 512 counters cover all values from a nanosecond to 584 years. Recording is one
//! addition, without allocating or sorting.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of parts of a power of two, as an exponent of two.
const PART_BITS: u32 = 3;
const PARTS: u64 = 1 << PART_BITS;
const COUNTERS: usize = 64 << PART_BITS;

/// Counts values by their size, from any thread, without a lock.
///
/// Created by [`new`](Self::new).
///
/// The values are nanoseconds, or any other whole numbers. A histogram takes 4 KB.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::Histogram;
///
/// let histogram = Histogram::new();
/// histogram.record(1_000, 99);
/// histogram.record(50_000, 1);
/// let summary = histogram.summary();
/// assert_eq!(summary.count, 100);
/// assert!(summary.p99 < Duration::from_nanos(1_125));
/// assert_eq!(summary.max, Duration::from_micros(50));
/// ```
// All accesses are relaxed: the counters are figures only; no other memory depends on the values.
pub struct Histogram {
    counters: Box<[AtomicU64; COUNTERS]>,
    largest: AtomicU64,
}

impl Histogram {
    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let counters = Box::new(array::from_fn(|_| AtomicU64::new(0)));
        Self { counters, largest: AtomicU64::new(0) }
    }

    /// Records the value `nanos`, in nanoseconds or any other unit, `count` times.
    pub fn record(&self, nanos: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.counters[counter(nanos)].fetch_add(count, Ordering::Relaxed);
        if nanos > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Returns a summary of the values recorded so far. While other threads record, the figures are
    /// of slightly different moments.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let counts: Vec<u64> =
            self.counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect();
        let largest = self.largest.load(Ordering::Relaxed);
        let count = counts.iter().fold(0_u64, |sum, counted| sum.saturating_add(*counted));
        let at = |permille: u64| {
            // The smallest counter which, with all lower counters, has this share of the values.
            let rank = (u128::from(count) * u128::from(permille)).div_ceil(1000).max(1);
            let mut seen = 0;
            let number = counts.iter().position(|counted| {
                seen += u128::from(*counted);
                seen >= rank
            });
            // The end of the last part may be above the largest value.
            number.map_or(Duration::ZERO, |number| {
                Duration::from_nanos(upper_end(number).min(largest))
            })
        };
        Summary { count, p50: at(500), p99: at(990), max: Duration::from_nanos(largest) }
    }

    /// Returns the values recorded so far, smallest first, each with a count. Values are rounded
    /// up, by at most an eighth. Counts only grow, so the difference of two calls gives the values
    /// recorded between the calls.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hashed_wheel::Histogram;
    ///
    /// let histogram = Histogram::new();
    /// histogram.record(5, 2);
    /// histogram.record(1_000, 1);
    /// let counts: Vec<(Duration, u64)> = histogram.counts().collect();
    /// assert_eq!(counts, [(Duration::from_nanos(5), 2), (Duration::from_nanos(1_023), 1)]);
    /// ```
    pub fn counts(&self) -> impl Iterator<Item = (Duration, u64)> + use<'_> {
        self.counters.iter().enumerate().filter_map(|(number, counter)| {
            let count = counter.load(Ordering::Relaxed);
            (count > 0).then(|| (Duration::from_nanos(upper_end(number)), count))
        })
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(formatter)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// A summary of a [`Histogram`]: the number of values, and their sizes. Without values, all fields
/// are zero.
///
/// Returned by [`Histogram::summary`]; also [`Statistics::lateness`](crate::Statistics::lateness).
///
/// ```
/// use hashed_wheel::{Histogram, Summary};
///
/// assert_eq!(Histogram::new().summary(), Summary::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The number of values.
    pub count: u64,
    /// The median: half of the values are at most this large. Rounded up, by at most an eighth.
    pub p50: Duration,
    /// The 99th percentile: 99 of 100 values are at most this large. Rounded up, by at most an
    /// eighth.
    pub p99: Duration,
    /// The largest value, exactly.
    pub max: Duration,
}

/// The number of the counter for a value.
#[expect(clippy::cast_possible_truncation, reason = "at most 64 times 8")]
const fn counter(nanos: u64) -> usize {
    if nanos < PARTS {
        // Each value below the first power with eight parts has its own counter.
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let part = (nanos >> (power - PART_BITS)) & (PARTS - 1);
    (((power - PART_BITS + 1) as u64) * PARTS + part) as usize
}

/// The largest value of a counter.
const fn upper_end(counter: usize) -> u64 {
    let counter = counter as u64;
    if counter < PARTS {
        return counter;
    }
    let shift = counter / PARTS - 1;
    let part = counter % PARTS;
    ((PARTS + part) << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn every_counter_ends_at_most_an_eighth_above_its_values() {
        let mut values: Vec<u64> = (0..2000).collect();
        values.extend((11..64).flat_map(|power| {
            let base = 1u64 << power;
            [base - 1, base, base + 1, base + base / 3]
        }));
        values.push(u64::MAX);
        for value in values {
            let end = upper_end(counter(value));
            assert!(end >= value, "the counter of {value} ends at {end}");
            assert!(end - value <= value / 8, "the counter of {value} ends at {end}");
            assert_eq!(counter(end), counter(value));
        }
    }

    #[test]
    fn the_summary_of_a_hundred_values() {
        let histogram = Histogram::new();
        assert_eq!(histogram.summary().p99, Duration::ZERO);
        histogram.record(5, 0);
        assert_eq!(histogram.summary(), Summary::default());
        histogram.record(1000, 50);
        histogram.record(2000, 49);
        histogram.record(9000, 1);
        let summary = histogram.summary();
        assert_eq!(summary.count, 100);
        assert_eq!(summary.p50, Duration::from_nanos(upper_end(counter(1000))));
        assert_eq!(summary.p99, Duration::from_nanos(upper_end(counter(2000))));
        assert_eq!(summary.max, Duration::from_micros(9));
        histogram.record(1, u64::MAX - 100);
        histogram.record(2, 1000);
        assert_eq!(histogram.summary().count, u64::MAX);
    }
}
