//! Round and bucket: how the wheel spells a tick (DESIGN: buckets).
//!
//! The number of buckets is a power of two. So the lower bits of a tick are its bucket, and the
//! upper bits are its round: how many times the wheel has passed all buckets before. Written side
//! by side the two are the tick itself, and round by round, bucket by bucket is the order of time.

/// The number of buckets, by which a tick has a round and a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    bucket_bits: u32,
}

/// The round and the bucket of a tick, in one word. It is ordered by round, and then by bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RoundAndBucket(u64);

impl RoundAndBucket {
    pub(super) const fn of(tick: u64) -> Self {
        Self(tick)
    }

    pub(super) const fn tick(self) -> u64 {
        self.0
    }

    /// The round, counted from tick 0.
    pub(super) const fn round(self, rounds: Rounds) -> u64 {
        self.0 >> rounds.bucket_bits
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "less than the number of buckets, which is a usize"
    )]
    pub(super) const fn bucket(self, rounds: Rounds) -> usize {
        (self.0 & (rounds.bucket_count() as u64 - 1)) as usize
    }

    /// How many times the wheel passes this bucket, after the tick `cursor`, before this round.
    pub(super) const fn rounds_after(self, cursor: u64, rounds: Rounds) -> u64 {
        let next = Self(cursor + 1);
        // In the round of the next tick, its bucket and all behind it are still to be passed.
        let passed = if self.bucket(rounds) < next.bucket(rounds) { 1 } else { 0 };
        self.round(rounds).saturating_sub(next.round(rounds) + passed)
    }
}

impl Rounds {
    /// Of a number of buckets that is a power of two.
    pub(super) const fn new(bucket_count: usize) -> Self {
        debug_assert!(bucket_count.is_power_of_two(), "a tick's lowest bits are its bucket");
        Self { bucket_bits: bucket_count.ilog2() }
    }

    pub(super) const fn bucket_count(self) -> usize {
        1 << self.bucket_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_buckets_spell_5_as_bucket_5_of_round_0_and_17_as_bucket_1_of_round_2() {
        let rounds = Rounds::new(8);
        for (tick, round, bucket) in [(0, 0, 0), (5, 0, 5), (7, 0, 7), (8, 1, 0), (17, 2, 1)] {
            let due = RoundAndBucket::of(tick);
            assert_eq!((due.round(rounds), due.bucket(rounds)), (round, bucket), "tick {tick}");
            assert_eq!(due.tick(), tick);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn rounds_are_counted_from_the_next_pass_of_the_bucket() {
        for bucket_count in [1, 2, 8, 64] {
            let rounds = Rounds::new(bucket_count);
            for cursor in 0..200 {
                for due in cursor + 1..cursor + 300 {
                    let passes = (cursor + 1..due).filter(|tick| {
                        RoundAndBucket::of(*tick).bucket(rounds)
                            == RoundAndBucket::of(due).bucket(rounds)
                    });
                    let rounds_after = RoundAndBucket::of(due).rounds_after(cursor, rounds);
                    assert_eq!(rounds_after, passes.count() as u64, "{due} after {cursor}");
                }
            }
        }
    }
}
