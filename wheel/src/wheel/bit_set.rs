//! A bit set of small numbers.

use alloc::vec::Vec;

/// The bits of a word.
pub(super) const BITS: usize = u64::BITS as usize;

/// A set of numbers below a limit of up to some ten thousand. A search reads a word per 64 numbers
/// passed.
///
/// The words have cache lines of their own. A timer allocates wheels for different threads
/// consecutively. In small allocations, the words of a wheel share a cache line with data which
/// different threads read all the time: measured, scheduling on two threads then took twice as long
/// in a tenth of the runs.
#[derive(Debug)]
pub(super) struct BitSet(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
struct Line([u64; WORDS_PER_LINE]);

const WORDS_PER_LINE: usize = 16;

impl BitSet {
    /// An empty set with no room.
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Makes room for the numbers below `count`.
    pub(super) fn grow(&mut self, count: usize) {
        let lines = count.div_ceil(BITS * WORDS_PER_LINE).max(self.0.len());
        self.0.resize(lines, Line([0; WORDS_PER_LINE]));
    }

    /// Adds `number`, which must be below a `count` passed to [`grow`](Self::grow).
    pub(super) fn insert(&mut self, number: usize) {
        *self.word_mut(number / BITS) |= 1 << (number % BITS);
    }

    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        *self.word_mut(number / BITS) &= !(1 << (number % BITS));
    }

    /// The lowest number from `start` on, else the lowest of all; `None` if the set is empty.
    pub(super) fn next_from(&self, start: usize) -> Option<usize> {
        let first = start / BITS;
        let rest = self.word(first) >> (start % BITS);
        if rest != 0 {
            return Some(start + rest.trailing_zeros() as usize);
        }
        // The first word is searched again at the end, for numbers below `start`.
        let mut words = (first + 1..self.0.len() * WORDS_PER_LINE).chain(0..=first);
        let word = words.find(|word| self.word(*word) != 0)?;
        Some(word * BITS + self.word(word).trailing_zeros() as usize)
    }

    fn word(&self, word: usize) -> u64 {
        self.0[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE]
    }

    fn word_mut(&mut self, word: usize) -> &mut u64 {
        &mut self.0[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(count: usize) -> BitSet {
        let mut bits = BitSet::new();
        bits.grow(count);
        bits
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn next_from_finds_bits_within_and_across_words_and_wraps() {
        for count in [1, 2, 64, 128, 4096, 8192, 1 << 16, 1 << 20] {
            let mut bits = bits(count);
            assert_eq!(bits.next_from(0), None);
            let spots =
                [0, 1, 63, 64, 65, 4095, 4096, 8191, 40_000, 65_535, 262_143, 262_144, 900_000];
            let spots: Vec<usize> = spots.into_iter().filter(|spot| *spot < count).collect();
            for spot in &spots {
                bits.insert(*spot);
            }
            let starts = (0..count).step_by(7.max(count / 9000)).chain(spots.clone());
            for start in starts {
                let expected = spots.iter().find(|spot| **spot >= start).or(spots.first());
                assert_eq!(bits.next_from(start).as_ref(), expected, "{count} from {start}");
            }
            for spot in &spots {
                bits.remove(*spot);
                assert_ne!(bits.next_from(*spot), Some(*spot));
            }
            assert_eq!(bits.next_from(count - 1), None);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_set_keeps_its_numbers_when_it_grows() {
        let mut bits = bits(100);
        bits.insert(3);
        bits.insert(5);
        bits.grow(1 << 25);
        bits.insert((1 << 25) - 1);
        assert_eq!(bits.next_from(4), Some(5));
        assert_eq!(bits.next_from(6), Some((1 << 25) - 1));
        bits.remove((1 << 25) - 1);
        assert_eq!(bits.next_from(6), Some(3));
    }
}
