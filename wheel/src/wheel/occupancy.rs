//! Which buckets hold anything: a bit for each, so that empty ones are jumped over and never visited.

use std::ops::{Index, IndexMut};

const BITS: usize = u64::BITS as usize;

/// A set of bucket numbers on two levels: a bit for each bucket, and a bit for each word of those.
#[derive(Debug)]
pub(super) struct Occupancy {
    words: Words,
    /// Bit i says that word i is not zero.
    summary: Words,
}

impl Occupancy {
    pub(super) fn new(buckets: usize) -> Self {
        let words = buckets.div_ceil(BITS);
        Self { words: Words::new(words), summary: Words::new(words.div_ceil(BITS)) }
    }

    pub(super) fn set(&mut self, bucket: usize) {
        let word = bucket / BITS;
        self.words[word] |= 1 << (bucket % BITS);
        self.summary[word / BITS] |= 1 << (word % BITS);
    }

    pub(super) fn clear(&mut self, bucket: usize) {
        let word = bucket / BITS;
        self.words[word] &= !(1 << (bucket % BITS));
        if self.words[word] == 0 {
            self.summary[word / BITS] &= !(1 << (word % BITS));
        }
    }

    /// The first occupied bucket from `start` on, or else, round the wheel, the first of all.
    pub(super) fn next_from(&self, start: usize) -> Option<usize> {
        let word = start / BITS;
        let rest = self.words[word] >> (start % BITS);
        if rest != 0 {
            return Some(start + rest.trailing_zeros() as usize);
        }
        // The buckets of this word that come before `start` are the last of all in wheel order. A search from 0
        // finds them too, as nothing else is left by then.
        let word = self.first_word(word + 1).or_else(|| self.first_word(0))?;
        Some(word * BITS + self.words[word].trailing_zeros() as usize)
    }

    /// The first word from `start` on that is not zero.
    fn first_word(&self, start: usize) -> Option<usize> {
        let mut block = start / BITS;
        let mut rest = self.summary.get(block)? & (u64::MAX << (start % BITS));
        while rest == 0 {
            block += 1;
            rest = self.summary.get(block)?;
        }
        Some(block * BITS + rest.trailing_zeros() as usize)
    }
}

/// Words of bits, in cache lines of their own.
///
/// A timer makes all its wheels one after the other, and each of them belongs to other threads. In plain small
/// allocations the words of one wheel come to share a cache line with what other threads read all the time; measured,
/// scheduling on two threads then takes twice as long in one run out of ten.
#[derive(Debug)]
struct Words(Box<[Line]>);

#[derive(Clone, Copy, Debug)]
#[repr(align(128))]
struct Line([u64; WORDS_PER_LINE]);

const WORDS_PER_LINE: usize = 16;

impl Words {
    /// `count` words at least, all zero.
    fn new(count: usize) -> Self {
        let line = Line([0; WORDS_PER_LINE]);
        Self(vec![line; count.div_ceil(WORDS_PER_LINE)].into_boxed_slice())
    }

    /// None beyond the last line.
    fn get(&self, word: usize) -> Option<u64> {
        Some(self.0.get(word / WORDS_PER_LINE)?.0[word % WORDS_PER_LINE])
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

    #[test]
    fn the_next_bucket_is_found_round_the_wheel() {
        for buckets in [1, 2, 64, 128, 4096, 8192, 1 << 16] {
            let mut occupancy = Occupancy::new(buckets);
            assert_eq!(occupancy.next_from(0), None);
            let spots = [0, 1, 63, 64, 65, 4095, 4096, 8191, 40_000, 65_535];
            let spots: Vec<usize> = spots.into_iter().filter(|spot| *spot < buckets).collect();
            for spot in &spots {
                occupancy.set(*spot);
            }
            for start in (0..buckets).step_by(7).chain(spots.clone()) {
                let expected = spots.iter().find(|spot| **spot >= start).or(spots.first());
                assert_eq!(occupancy.next_from(start).as_ref(), expected, "{buckets} from {start}");
            }
            for spot in &spots {
                occupancy.clear(*spot);
                assert_ne!(occupancy.next_from(*spot), Some(*spot));
            }
            assert_eq!(occupancy.next_from(buckets - 1), None);
        }
    }
}
