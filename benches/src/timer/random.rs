//! The random numbers of every workload: xorshift64*, as in the Java program.

use std::time::Duration;

/// A generator with its state.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform between two numbers of seconds, in steps of a microsecond at least.
    pub(crate) fn delay(&mut self, from: u64, to: u64) -> Duration {
        let micros = (to - from) * 1_000_000;
        // 24 random bits times at most 32 bits: the product fits into 64.
        Duration::from_micros(from * 1_000_000 + (((self.next() >> 40) * micros) >> 24))
    }

    /// A number below `count`, which is not zero.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        usize::try_from((self.next() >> 32) % count).unwrap_or(0)
    }

    /// Puts a list in random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for length in (2..=list.len()).rev() {
            let other = self.below(length);
            list.swap(length - 1, other);
        }
    }
}
