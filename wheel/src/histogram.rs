//! How durations are spread: a histogram of fixed size that any thread may write to.
//!
//! Each power of two of nanoseconds is cut into eight parts, so a value is known to an eighth of itself, and 512 counters
//! hold everything from a nanosecond to 584 years. Counting is one addition, and nothing is ever allocated or sorted.

use std::array;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The parts of a power of two, as a power of two itself.
const PART_BITS: u32 = 3;
const PARTS: u64 = 1 << PART_BITS;
const COUNTERS: usize = 64 << PART_BITS;

/// Counts values by their size, from any thread, without a lock.
///
/// The values are nanoseconds, or whatever whole numbers a caller likes. It takes 4 KB.
///
/// ```
/// use std::time::Duration;
/// use hashed_wheel::Histogram;
///
/// let histogram = Histogram::new();
/// histogram.record(1_000, 99);
/// histogram.record(50_000, 1);
/// let spread = histogram.spread();
/// assert_eq!(spread.count, 100);
/// assert!(spread.p99 < Duration::from_nanos(1_125));
/// assert_eq!(spread.max, Duration::from_micros(50));
/// ```
// All accesses are relaxed: these are numbers to look at, nothing follows from them.
pub struct Histogram {
    counters: Box<[AtomicU64; COUNTERS]>,
    largest: AtomicU64,
}

impl Histogram {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        let counters = Box::new(array::from_fn(|_| AtomicU64::new(0)));
        Self { counters, largest: AtomicU64::new(0) }
    }

    /// Counts `count` values of `nanos`.
    pub fn record(&self, nanos: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.counters[counter(nanos)].fetch_add(count, Ordering::Relaxed);
        if nanos > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// What was counted so far. While other threads count, the numbers are of slightly different moments.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let counts: Vec<u64> =
            self.counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect();
        let largest = self.largest.load(Ordering::Relaxed);
        let count = counts.iter().fold(0_u64, |sum, counted| sum.saturating_add(*counted));
        let at = |permille: u64| {
            // The first value at or above which this share of all lies at or below.
            let rank = (u128::from(count) * u128::from(permille)).div_ceil(1000).max(1);
            let mut seen = 0;
            let number = counts.iter().position(|counted| {
                seen += u128::from(*counted);
                seen >= rank
            });
            // Not more than the largest: the end of its part may lie beyond it.
            number.map_or(Duration::ZERO, |number| {
                Duration::from_nanos(upper_end(number).min(largest))
            })
        };
        Spread { count, p50: at(500), p99: at(990), max: Duration::from_nanos(largest) }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spread().fmt(formatter)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// What a [`Histogram`] says: how many values, and how large.
///
/// ```
/// use hashed_wheel::{Histogram, Spread};
///
/// assert_eq!(Histogram::new().spread(), Spread::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spread {
    /// How many values.
    pub count: u64,
    /// Half of them were at most this large. Known to an eighth of itself, rounded up.
    pub p50: Duration,
    /// Of a hundred, 99 were at most this large. Known to an eighth of itself, rounded up.
    pub p99: Duration,
    /// The largest of all, exactly.
    pub max: Duration,
}

#[expect(clippy::cast_possible_truncation, reason = "at most 64 times 8")]
const fn counter(nanos: u64) -> usize {
    if nanos < PARTS {
        // Below the first power that has eight parts each value has a counter of its own.
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let part = (nanos >> (power - PART_BITS)) & (PARTS - 1);
    (((power - PART_BITS + 1) as u64) * PARTS + part) as usize
}

/// The largest value that counts at this counter.
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
    fn every_value_counts_in_a_part_that_ends_at_most_an_eighth_above_it() {
        let mut values: Vec<u64> = (0..2000).collect();
        values.extend((11..64).flat_map(|power| {
            let base = 1u64 << power;
            [base - 1, base, base + 1, base + base / 3]
        }));
        values.push(u64::MAX);
        for value in values {
            let end = upper_end(counter(value));
            assert!(end >= value, "{value} counts in a part that ends at {end}");
            assert!(end - value <= value / 8, "{value} counts in a part that ends at {end}");
            assert_eq!(counter(end), counter(value));
        }
    }

    #[test]
    fn the_shares_of_a_hundred_values() {
        let histogram = Histogram::new();
        assert_eq!(histogram.spread().p99, Duration::ZERO);
        histogram.record(5, 0);
        assert_eq!(histogram.spread(), Spread::default());
        histogram.record(1000, 50);
        histogram.record(2000, 49);
        histogram.record(9000, 1);
        let spread = histogram.spread();
        assert_eq!(spread.count, 100);
        assert_eq!(spread.p50, Duration::from_nanos(upper_end(counter(1000))));
        assert_eq!(spread.p99, Duration::from_nanos(upper_end(counter(2000))));
        assert_eq!(spread.max, Duration::from_micros(9));
        histogram.record(1, u64::MAX - 100);
        histogram.record(2, 1000);
        assert_eq!(histogram.spread().count, u64::MAX);
    }
}
