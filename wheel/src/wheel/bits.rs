//! A set of small numbers, a bit for each, in which the next number is found without a walk over those that miss.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

pub(super) const BITS: usize = u64::BITS as usize;

/// Three levels: a bit for each number, a bit for each word of those, and a bit for each word of these.
///
/// A search looks at three words at most, and at one more for each 2^18 numbers between its start and its end.
#[derive(Debug)]
pub(super) struct Bits {
    words: Words,
    /// Bit i says that word i is not zero.
    summary: Words,
    /// Bit i says that word i of the summary is not zero.
    top: Words,
}

impl Bits {
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
            self.word_is_zero(number / BITS);
        }
    }

    /// The first number from `start` on, or else, round the set, the first of all.
    pub(super) fn next_from(&self, start: usize) -> Option<usize> {
        let word = start / BITS;
        let rest = self.words[word] >> (start % BITS);
        if rest != 0 {
            return Some(start + rest.trailing_zeros() as usize);
        }
        // The numbers of this word that come before `start` are the last of all. A search from 0 finds them too, as
        // nothing else is left by then.
        let word = self.first_word(word + 1).or_else(|| self.first_word(0))?;
        Some(word * BITS + self.words[word].trailing_zeros() as usize)
    }

    /// Takes 64 numbers at once, those that are there: the first word from `start` on, or else the first of all, that
    /// is not zero.
    pub(super) fn take_word_from(&mut self, start: usize) -> Option<(usize, u64)> {
        let word = self.first_word(start).or_else(|| self.first_word(0))?;
        let bits = core::mem::take(&mut self.words[word]);
        self.word_is_zero(word);
        Some((word, bits))
    }

    fn word_is_zero(&mut self, word: usize) {
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
/// A timer makes all its wheels one after the other, and each of them belongs to other threads. In plain small
/// allocations the words of one wheel come to share a cache line with what other threads read all the time; measured,
/// scheduling on two threads then takes twice as long in one run out of ten.
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

    /// Room for `count` words at least; what is new is zero.
    fn grow(&mut self, count: usize) {
        let lines = count.div_ceil(WORDS_PER_LINE).max(self.0.len());
        self.0.reserve_exact(lines - self.0.len());
        self.0.resize(lines, Line([0; WORDS_PER_LINE]));
    }

    /// None beyond the last line.
    fn get(&self, word: usize) -> Option<u64> {
        Some(self.0.get(word / WORDS_PER_LINE)?.0[word % WORDS_PER_LINE])
    }

    /// Whether the bit is the first of its word.
    fn set(&mut self, bit: usize) -> bool {
        let word = &mut self[bit / BITS];
        let before = *word;
        *word = before | 1 << (bit % BITS);
        before == 0
    }

    /// Whether the bit was the last of its word, or none was left before.
    fn clear(&mut self, bit: usize) -> bool {
        let word = &mut self[bit / BITS];
        *word &= !(1 << (bit % BITS));
        *word == 0
    }

    /// The first bit from `start` on that is set, if it is in the same word.
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

    fn bits(count: usize) -> Bits {
        let mut bits = Bits::new();
        bits.grow(count);
        bits
    }

    #[test]
    fn the_next_number_is_found_within_a_word_across_words_and_round_the_set() {
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
    fn words_are_taken_upwards_and_round_and_a_set_that_grows_keeps_what_it_has() {
        let mut bits = bits(100);
        bits.insert(3);
        bits.insert(5);
        bits.grow(1 << 25);
        bits.insert((1 << 25) - 1);
        assert_eq!(bits.take_word_from(1), Some(((1 << 19) - 1, 1 << 63)));
        assert_eq!(bits.take_word_from(1 << 19), Some((0, 0b10_1000)));
        assert_eq!(bits.take_word_from(0), None);
        bits.insert(3);
        assert_eq!(bits.next_from(4), Some(3));
    }
}
