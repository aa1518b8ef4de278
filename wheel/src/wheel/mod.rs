//! The wheel itself: plain data that moves when it is told to.
//!
//! Invariants.
//!
//! * `hand <= now`. Everything that is due at or before `hand` has been taken. The two differ only while a turn is
//!   unfinished, and `next_due` is then at most `now`.
//! * Whatever is inserted is due after `now`, so a turn has an end however much is inserted while it lasts.
//! * A bucket holds what is due within one lap of the hand: ticks from `hand + 1` to `hand + buckets`. Each bucket
//!   stands for exactly one of these ticks, so all of it is due at once and nothing in it is looked at before.
//! * What was further away when it was inserted stands in [`rounds`], and stays there. All of it under a tick came
//!   before all in the bucket of that tick, as the hand only moves forward: first one, then the other is the order of
//!   insertion.

mod bucket;
mod occupancy;
mod rounds;
mod slab;
pub(crate) mod tick;

use std::fmt;

use self::bucket::Bucket;
use self::occupancy::Occupancy;
use self::rounds::Rounds;
use self::slab::Slab;
use crate::error::BuildError;

pub use self::slab::Key;

/// The most buckets a wheel can have: 2^24.
pub const TICKS_PER_WHEEL_MAX: usize = 1 << 24;

/// A hashed timing wheel with rounds: what is due when, counted in ticks.
///
/// It is plain data. It has no thread and no clock; what a tick is and when it has come, its owner decides. For a
/// timer that runs by itself see [`HashedWheelTimer`](crate::HashedWheelTimer) and [`BatchTimer`](crate::BatchTimer).
///
/// An entry stands in the bucket *due tick mod number of buckets*. What is due more than a lap ahead waits for a later
/// round of its bucket. This is scheme 6 of Varghese and Lauck, *Hashed and Hierarchical Timing Wheels* (1987), which
/// Netty's `HashedWheelTimer` made known. It differs in what a turn costs: no entry is visited before it is due, and
/// the hand jumps over empty buckets, so holding a million entries costs nothing and a gap of hours is one step.
///
/// * [`insert`](Self::insert) and [`cancel`](Self::cancel) take constant time within a lap, logarithmic time in the
///   number of distinct due ticks beyond it.
/// * Entries are taken in the order of their due ticks, and those of one tick in the order in which they were inserted
///   or rescheduled.
/// * Ticks are `u64`, and all of them are usable, `u64::MAX` included.
///
/// ```
/// use hashed_wheel::Wheel;
///
/// let mut wheel = Wheel::new(8)?;
/// let first = wheel.insert(5, "first");
/// let second = wheel.insert(17, "second");
/// assert_eq!((wheel.bucket(first), wheel.round(first)), (Some(5), Some(0)));
/// assert_eq!((wheel.bucket(second), wheel.round(second)), (Some(1), Some(2)));
///
/// let mut due = Vec::new();
/// wheel.advance(16, usize::MAX, |tick, value| due.push((tick, value)));
/// assert_eq!(due, [(5, "first")]);
/// assert_eq!(wheel.next_due(), Some(17));
/// assert_eq!(wheel.cancel(second), Some("second"));
/// assert!(wheel.is_empty());
/// # Ok::<(), hashed_wheel::BuildError>(())
/// ```
pub struct Wheel<T> {
    slab: Slab<T>,
    buckets: Box<[Bucket]>,
    occupancy: Occupancy,
    rounds: Rounds,
    hand: u64,
    now: u64,
}

impl<T> Wheel<T> {
    /// An empty wheel at tick 0, with `buckets` rounded up to a power of two.
    ///
    /// A bucket takes 8 bytes. More buckets make laps longer, and what is due within a lap is cheaper to insert.
    ///
    /// # Errors
    ///
    /// [`BuildError::TicksPerWheel`], permanent: no bucket, or more than [`TICKS_PER_WHEEL_MAX`].
    pub fn new(buckets: usize) -> Result<Self, BuildError> {
        let count = Self::bucket_count(buckets)?;
        Ok(Self {
            slab: Slab::new(),
            buckets: vec![Bucket::EMPTY; count].into_boxed_slice(),
            occupancy: Occupancy::new(count),
            rounds: Rounds::new(),
            hand: 0,
            now: 0,
        })
    }

    /// How many buckets a wheel has for which `buckets` are asked.
    pub(crate) fn bucket_count(buckets: usize) -> Result<usize, BuildError> {
        if (1..=TICKS_PER_WHEEL_MAX).contains(&buckets) {
            Ok(buckets.next_power_of_two())
        } else {
            Err(BuildError::TicksPerWheel(buckets))
        }
    }

    /// Adds an entry that is due at `deadline`, or at the next tick if that is not after [`now`](Self::now).
    ///
    /// # Panics
    ///
    /// If 2^32 - 1 entries are pending, which takes more than 130 GB.
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let key = self.slab.insert(self.due(deadline), value);
        self.link(key.index());
        key
    }

    /// Takes the entry out and gives it back; none if it is not pending any more.
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let index = self.slab.index(key)?;
        self.unlink(index);
        self.slab.remove(index)
    }

    /// Makes the entry due at another tick, by the rule of [`insert`](Self::insert): at the next tick if `deadline` is
    /// not after [`now`](Self::now), and behind all others of its tick, even if the tick is the one it had. False if
    /// the entry is not pending any more. The key stays good.
    pub fn reschedule(&mut self, key: Key, deadline: u64) -> bool {
        let Some(index) = self.slab.index(key) else {
            return false;
        };
        self.unlink(index);
        self.slab.slot_mut(index).due = self.due(deadline);
        self.link(index);
        true
    }

    /// Moves to the tick `to` and hands everything that is due by then to `take`, each with the tick at which it was
    /// due. Returns whether that was all.
    ///
    /// At most `limit` entries are taken. If more are due, the rest stays pending; the next call takes up where this
    /// one stopped, with the same tick or a later one. A `to` before [`now`](Self::now) counts as now: the wheel never
    /// turns back.
    ///
    /// What is inserted between such calls is due after `to`, so the calls come to an end.
    pub fn advance(&mut self, to: u64, limit: usize, mut take: impl FnMut(u64, T)) -> bool {
        self.now = self.now.max(to);
        for _ in 0..limit {
            let Some((due, value)) = self.take_due() else {
                break;
            };
            take(due, value);
        }
        let finished = self.next_due().is_none_or(|due| due > self.now);
        if finished {
            self.hand = self.now;
        }
        finished
    }

    /// The lowest tick at which an entry is due, exactly; none if nothing is pending.
    ///
    /// It is at most [`now`](Self::now) only if [`advance`](Self::advance) reached its limit.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        match (self.next_within_lap(), self.rounds.first()) {
            (Some(near), Some(far)) => Some(near.min(far)),
            (near, far) => near.or(far),
        }
    }

    /// The tick to which the wheel was moved last.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// How many entries are pending.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether nothing is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the memory of the slots back. For a wheel that is empty and takes nothing in any more: keys that it has
    /// handed out could come to name something else.
    pub(crate) fn retire(&mut self) {
        debug_assert!(self.is_empty(), "only an empty wheel is retired");
        self.slab = Slab::new();
    }

    /// Whether [`insert`](Self::insert) would panic.
    pub(crate) fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    /// The entry, while it is pending.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slab.value(self.slab.index(key)?)
    }

    /// The entry, while it is pending, to be changed.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slab.value_mut(self.slab.index(key)?)
    }

    /// The tick at which the entry is due, while it is pending.
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<u64> {
        Some(self.slab.slot(self.slab.index(key)?).due)
    }

    /// The bucket in which the entry stands: its due tick modulo the number of buckets.
    #[must_use]
    pub fn bucket(&self, key: Key) -> Option<usize> {
        Some(self.bucket_of(self.deadline(key)?))
    }

    /// How often the hand passes the entry's bucket before the entry is due: 0 if it is due at the next pass.
    ///
    /// While a turn is unfinished, the hand stands where the turn stopped, not at [`now`](Self::now).
    #[must_use]
    pub fn round(&self, key: Key) -> Option<u64> {
        let ahead = self.deadline(key)?.saturating_sub(self.hand).saturating_sub(1);
        Some(ahead / self.lap())
    }

    /// The number of buckets.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Everything pending with its key and its due tick, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        self.slab.iter()
    }

    /// The tick at which something with this deadline is due: never one that has come already.
    fn due(&self, deadline: u64) -> u64 {
        deadline.max(self.now.saturating_add(1))
    }

    /// Takes the first entry that is due at or before `now`.
    fn take_due(&mut self) -> Option<(u64, T)> {
        let due = self.next_due().filter(|due| *due <= self.now)?;
        // Nothing is due before, so nothing is passed over. Not `due` itself: more may stand there.
        self.hand = self.hand.max(due.saturating_sub(1));
        let index = self.rounds.front(due).or_else(|| self.buckets[self.bucket_of(due)].front())?;
        self.unlink(index);
        Some((due, self.slab.remove(index)?))
    }

    fn link(&mut self, index: u32) {
        let due = self.slab.slot(index).due;
        if self.is_within_lap(due) {
            let bucket = self.bucket_of(due);
            self.buckets[bucket].push_back(&mut self.slab, index);
            self.occupancy.set(bucket);
        } else {
            self.rounds.push_back(&mut self.slab, index);
        }
    }

    fn unlink(&mut self, index: u32) {
        // An entry that was far away when it came is still in the rounds, though its tick may be within the lap by
        // now. Which list it is in matters only at an end of the list, and the end tells.
        let bucket = self.bucket_of(self.slab.slot(index).due);
        let list = &mut self.buckets[bucket];
        if list.has_at_an_end(index) {
            list.unlink(&mut self.slab, index);
            if list.is_empty() {
                self.occupancy.clear(bucket);
            }
        } else if self.slab.slot(index).has_neighbours_on_both_sides() {
            bucket::join_neighbours(&mut self.slab, index);
        } else {
            self.rounds.unlink(&mut self.slab, index);
        }
    }

    /// The lowest tick of a bucket that holds anything.
    fn next_within_lap(&self) -> Option<u64> {
        // The hand is at the last tick only if no tick is left for a bucket to stand for.
        let first = self.hand.checked_add(1)?;
        let start = self.bucket_of(first);
        let bucket = self.occupancy.next_from(start)?;
        let ahead = bucket.wrapping_sub(start) & (self.buckets.len() - 1);
        // No overflow: a bucket is filled only with ticks that exist.
        Some(first + ahead as u64)
    }

    /// False for a tick that has come, as happens at the very last one.
    fn is_within_lap(&self, due: u64) -> bool {
        due > self.hand && due - self.hand <= self.lap()
    }

    const fn lap(&self) -> u64 {
        self.buckets.len() as u64
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is less than the number of buckets, which is a usize"
    )]
    const fn bucket_of(&self, tick: u64) -> usize {
        (tick & (self.lap() - 1)) as usize
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Wheel")
            .field("now", &self.now)
            .field("len", &self.len())
            .field("buckets", &self.buckets())
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}
