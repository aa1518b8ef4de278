//! Random numbers that follow from a seed, so that a schedule can be repeated.

use std::time::Duration;

/// A row of numbers (xorshift64*).
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Another row of the same seed.
    pub(crate) fn row(seed: u64, number: u64) -> Self {
        Self::new(seed ^ number.wrapping_add(1).wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    pub(crate) fn pick(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    /// One in so many.
    pub(crate) fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.pick(last + 1));
        }
    }
}

#[test]
fn a_seed_gives_the_same_numbers_again_and_another_one_others() {
    let numbers = |seed| {
        let mut dice = Dice::new(seed);
        (0..8).map(|_| dice.below(1000)).collect::<Vec<_>>()
    };
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
}
