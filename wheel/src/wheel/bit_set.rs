//! A set of small numbers, one bit each, that finds the next number without a walk over the gaps.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// The bits of a word.
pub(super) const BITS: usize = u64::BITS as usize;

/// Three levels: a bit for each number, a bit for each word of those bits, and a bit for each word
/// of the second level.
///
/// A search reads at most three words, and one more for each 2^18 numbers that it passes.
#[derive(Debug)]
pub(super) struct BitSet {
    words: Words,
    /// Bit i says that word i is not zero.
    summary: Words,
    /// Bit i says that word i of the summary is not zero.
    top: Words,
}

impl BitSet {
    /// An empty set with no room.
    pub(super) const fn new() -> Self {
        Self { words: Words::new(), summary: Words::new(), top: Words::new() }
    }

    /// Makes room for the numbers below `count`.
    pub(super) fn grow(&mut self, count: usize) {
        let words = count.div_ceil(BITS);
        let summary = words.div_ceil(BITS);
        self.words.grow(words);
        self.summary.grow(summary);
        self.top.grow(summary.div_ceil(BITS));
    }

    /// Adds a number for which there is room.
    pub(super) fn insert(&mut self, number: usize) {
        if self.words.set(number) && self.summary.set(number / BITS) {
            self.top.set(number / BITS / BITS);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        if self.words.clear(number) {
            self.clear_word(number / BITS);
        }
    }

    /// The first number from `start` on. If there is none, the first number of all.
    pub(super) fn next_from(&self, start: usize) -> Option<usize> {
        let word = start / BITS;
        let rest = self.words[word] >> (start % BITS);
        if rest != 0 {
            return Some(start + rest.trailing_zeros() as usize);
        }
        // The numbers of this word below `start` come last. A search from 0 finds them too: when it
        // gets to this word, nothing else is left.
        let word = self.first_word(word + 1).or_else(|| self.first_word(0))?;
        Some(word * BITS + self.words[word].trailing_zeros() as usize)
    }

    /// Notes that a word has become zero.
    fn clear_word(&mut self, word: usize) {
        if self.summary.clear(word) {
            self.top.clear(word / BITS);
        }
    }

    /// The first word from `start` on that is not zero.
    fn first_word(&self, start: usize) -> Option<usize> {
        self.summary.first_in_word(start).or_else(|| {
            let block = start / BITS + 1;
            let block = self.top.first_in_word(block).or_else(|| {
                let top = (block / BITS + 1..).map_while(|word| Some((word, self.top.get(word)?)));
                let (word, bits) = top.into_iter().find(|(_, bits)| *bits != 0)?;
                Some(word * BITS + bits.trailing_zeros() as usize)
            })?;
            Some(block * BITS + self.summary[block].trailing_zeros() as usize)
        })
    }
}

/// Words of bits, in cache lines of their own.
///
/// A timer allocates its wheels one after the other, and each is used by other threads. In small
/// allocations, words of one wheel share a cache line with data that other threads read all the
/// time: measured, scheduling on two threads then took twice as long in one run out of ten.
#[derive(Debug)]
struct Words(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
struct Line([u64; WORDS_PER_LINE]);

const WORDS_PER_LINE: usize = 16;

impl Words {
    const fn new() -> Self {
        Self(Vec::new())
    }

    /// Makes room for at least `count` words. New words are zero.
    fn grow(&mut self, count: usize) {
        let lines = count.div_ceil(WORDS_PER_LINE).max(self.0.len());
        self.0.reserve_exact(lines - self.0.len());
        self.0.resize(lines, Line([0; WORDS_PER_LINE]));
    }

    /// The word; `None` beyond the last line.
    fn get(&self, word: usize) -> Option<u64> {
        Some(self.0.get(word / WORDS_PER_LINE)?.0[word % WORDS_PER_LINE])
    }

    /// Sets a bit. True if it is the first in its word.
    fn set(&mut self, bit: usize) -> bool {
        let word = &mut self[bit / BITS];
        let before = *word;
        *word = before | 1 << (bit % BITS);
        before == 0
    }

    /// Clears a bit. True if its word is zero now.
    fn clear(&mut self, bit: usize) -> bool {
        let word = &mut self[bit / BITS];
        *word &= !(1 << (bit % BITS));
        *word == 0
    }

    /// The first set bit from `start` on within the word of `start`.
    fn first_in_word(&self, start: usize) -> Option<usize> {
        let rest = self.get(start / BITS)? >> (start % BITS);
        (rest != 0).then(|| start + rest.trailing_zeros() as usize)
    }
}

impl Index<usize> for Words {
    type Output = u64;

    fn index(&self, word: usize) -> &u64 {
        &self.0[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE]
    }
}

impl IndexMut<usize> for Words {
    fn index_mut(&mut self, word: usize) -> &mut u64 {
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
    fn next_from_finds_numbers_within_a_word_across_words_and_wraps_around() {
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
