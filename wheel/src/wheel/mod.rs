//! The wheel: plain data, advanced by the caller.
//!
//! # Invariants
//!
//! * `cursor <= now`, and `cursor < u64::MAX`. Every entry due at or before `cursor` has been
//!   taken. Except at the end of time, `cursor` and `now` differ only while an advance is
//!   unfinished, and then `next_due` is at most `now`.
//! * An inserted entry is due after `cursor`, and after `now` except at the end of time. So an
//!   advance ends, however many entries are inserted during the advance.
//! * A due tick consists of a [round and a bucket](rounds). The [`buckets`] have a list for the
//!   current round of each bucket: the entries due within a lap, from tick `cursor + 1` on. All
//!   entries of a list are due at once, and are not inspected before.
//! * An entry linked further ahead is in the [later rounds](rounds), under its round and bucket,
//!   and stays there until due. All entries of such a list were inserted before all entries in the
//!   bucket of the same tick, because the cursor only moves forward and the lap only gets longer.
//!   So taking the later rounds first, then the bucket, preserves the order of insertion.
//! * The entries inserted last are in the [insert buffer](buffer), and in no list. The buffer is
//!   flushed in the order of insertion when full, and before the cursor moves. So buffered entries
//!   were inserted after all entries in the lists.
//! * A cancelled entry leaves the slab at once. The slot stays linked, in the [cancel
//!   buffer](buffer), until the buffer is full, the wheel is empty, or the cursor moves. Until then
//!   the slot is not allocated again, and a walk along a list skips the slot.
//! * A lap is a round, or a power of two of rounds: with many entries there are more buckets, and
//!   the rounds stay the same. A lap never gets shorter.
//! * The work of a call does not grow with the number of pending entries, except for the search in
//!   the later rounds. Pending entries are never moved or copied: slots are in chunks and lists in
//!   pages, and only the addresses of chunks and pages move. Empty chunks are released a few at a
//!   time.

mod bit_set;
mod buckets;
mod buffer;
mod free_slots;
mod list;
mod rounds;
mod slab;

#[cfg(feature = "std")]
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use self::buckets::Buckets;
use self::buffer::Buffer;
use self::list::List;
use self::rounds::{LaterRounds, bucket, rounds_until};
use self::slab::{DueSlot, Links, Slab};
use crate::error::BuildError;

pub use self::slab::Key;

/// The most buckets a wheel can have: 2^24.
pub const TICKS_PER_WHEEL_MAX: usize = 1 << 24;

/// A hashed timing wheel with rounds: entries and their due ticks.
///
/// Created by [`new`](Self::new).
///
/// A wheel is plain data, without a thread or a clock. The caller defines the meaning of a tick and
/// advances the wheel. For a timer with a thread, see `HashedWheelTimer` and `BatchTimer`.
///
/// An entry is in the bucket *due tick mod number of buckets*, in the round *due tick / number of
/// buckets*. An entry due more than a lap ahead waits for its round of the bucket. This is scheme 6
/// of Varghese and Lauck, *Hashed and Hierarchical Timing Wheels* (1987), known from Netty's
/// `HashedWheelTimer`. Unlike Netty's, this wheel walks no list before the due tick and skips empty
/// buckets: a million pending entries cost nothing, and a gap of hours is a single step.
///
/// * [`insert`](Self::insert) and [`cancel`](Self::cancel) take constant time within a lap, and
///   within twice as many ticks as entries are pending, up to 2^24. Further ahead, the time is
///   logarithmic in the number of distinct due ticks there. This is the amortized cost: one call in
///   64 links the buffered entries. No call takes longer because the wheel grows or releases
///   memory: pending entries are never moved.
/// * Entries are taken in the order of their due ticks, and entries of the same tick in the order
///   of insertion or rescheduling.
/// * Ticks are `u64`. All values are usable, including `u64::MAX`.
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
    insert_buffer: Buffer,
    cancel_buffer: Buffer,
    buckets: Buckets,
    later_rounds: LaterRounds,
    /// The number of buckets at creation, a power of two.
    bucket_count: usize,
    /// The last tick up to which all due entries have been taken.
    cursor: u64,
    /// The tick to which the wheel was advanced last.
    now: u64,
    /// The ticks for which a chunk stays empty before the memory of the chunk is released.
    release_delay: u64,
}

impl<T> Wheel<T> {
    /// Creates an empty wheel at tick 0, with `buckets` rounded up to a power of two.
    ///
    /// A bucket takes 8 bytes, in pages of 512 buckets; a page without pending entries takes no
    /// memory. More buckets make a lap longer, and inserting within a lap is cheaper. A wheel with
    /// many entries lengthens the lap: with `n` entries pending, inserting within `2 * n` ticks is
    /// as cheap as within a lap, for at most 34 bytes per entry, whatever the number of buckets.
    ///
    /// Memory for entries is allocated in chunks of 4096 entries. [`advance`](Self::advance) frees
    /// empty chunks, a few per call, and retains the last empty chunk.
    ///
    /// # Errors
    ///
    /// [`BuildError::TicksPerWheel`] (permanent), if `buckets` is zero or more than
    /// [`TICKS_PER_WHEEL_MAX`].
    pub fn new(buckets: usize) -> Result<Self, BuildError> {
        Ok(Self::with_bucket_count(Self::bucket_count(buckets)?))
    }

    /// Creates an empty wheel with a number of buckets returned by
    /// [`bucket_count`](Self::bucket_count).
    pub(crate) fn with_bucket_count(bucket_count: usize) -> Self {
        Self {
            slab: Slab::new(),
            insert_buffer: Buffer::new(),
            cancel_buffer: Buffer::new(),
            buckets: Buckets::new(bucket_count),
            later_rounds: LaterRounds::new(),
            bucket_count,
            cursor: 0,
            now: 0,
            release_delay: 0,
        }
    }

    /// Retains the memory of empty chunks for this many ticks, at most twice as many.
    #[cfg(feature = "std")]
    #[must_use]
    pub(crate) const fn release_delay(mut self, ticks: u64) -> Self {
        self.release_delay = ticks;
        self
    }

    /// The number of buckets of a wheel created with `buckets`, or the error of [`new`](Self::new).
    pub(crate) fn bucket_count(buckets: usize) -> Result<usize, BuildError> {
        if (1..=TICKS_PER_WHEEL_MAX).contains(&buckets) {
            Ok(buckets.next_power_of_two())
        } else {
            Err(BuildError::TicksPerWheel(buckets))
        }
    }

    /// Adds an entry due at the tick `deadline`, or at the next tick if `deadline` is not after
    /// [`now`](Self::now), and returns the entry's key.
    ///
    /// # Panics
    ///
    /// If no slot is free for a further entry: with nearly 2^32 entries pending, which take more
    /// than 100 GB.
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let due = self.due(deadline);
        if self.insert_buffer.is_full() {
            self.flush_buffers();
        }
        let key = self.slab.insert(due, value, Links::buffered(self.insert_buffer.len()));
        self.insert_buffer.push((due, key.index()));
        key
    }

    /// Removes the entry and returns the value; `None` if the entry is no longer pending.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "cancels wait for memory, and the processor looks ahead only so many instructions"
    )]
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let (entry, links) = self.slab.remove(key)?;
        let slot = (entry.due, key.index());
        if let Some(position) = links.buffer_position() {
            self.free_buffered(position, key.index());
        } else if self.is_empty() || self.cancel_buffer.is_full() {
            self.flush_before(slot);
        } else {
            self.cancel_buffer.push(slot);
        }
        Some(entry.value)
    }

    /// Cancels the pending entries of `keys`, and appends the values to `cancelled`.
    ///
    /// The first pass over all keys makes no decision depending on memory, so the processor fetches
    /// the slots of many keys at once, where a single cancel waits for the slot: 89 ns per cancel
    /// instead of 96.
    #[cfg(feature = "std")]
    pub(crate) fn cancel_many(
        &mut self,
        keys: impl Iterator<Item = Key> + Clone,
        cancelled: &mut Vec<T>,
    ) {
        let pending = keys.clone().filter(|key| self.slab.entry(*key).is_some()).count();
        cancelled.reserve(pending);
        for key in keys {
            cancelled.extend(self.cancel(key));
        }
    }

    /// The number of chunks of slots, including chunks without memory.
    #[cfg(feature = "std")]
    pub(crate) fn chunk_count(&self) -> usize {
        self.slab.chunk_count()
    }

    /// Cancels every entry in the chunk `number`, and appends the values to `cancelled`.
    #[cfg(feature = "std")]
    pub(crate) fn cancel_chunk(&mut self, number: usize, cancelled: &mut Vec<T>) {
        let keys = self.slab.keys_in_chunk(number);
        self.cancel_many(keys.into_iter(), cancelled);
    }

    /// Changes the deadline of the entry to the tick `deadline`. Returns `true` if the entry is
    /// pending and has the new deadline, and `false` if the entry is no longer pending.
    ///
    /// As after [`insert`](Self::insert), the entry is due at the next tick if `deadline` is not
    /// after [`now`](Self::now), and comes last among the entries of the tick, even if the tick
    /// stays the same. The key stays valid.
    ///
    /// ```
    /// use hashed_wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64)?;
    /// let key = wheel.insert(10, "a lease");
    /// assert!(wheel.reschedule(key, 500));
    /// assert_eq!(wheel.deadline(key), Some(500));
    /// assert_eq!((wheel.bucket(key), wheel.round(key)), (Some(52), Some(7)));
    /// assert!(wheel.iter().eq([(key, 500, &"a lease")]));
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn reschedule(&mut self, key: Key, deadline: u64) -> bool {
        let due = self.due(deadline);
        let Some(entry) = self.slab.entry_mut(key) else {
            return false;
        };
        let before = core::mem::replace(&mut entry.due, due);
        let links = self.slab.links(key.index());
        if let Some(position) = links.buffer_position() {
            self.insert_buffer.remove(position);
        } else {
            self.unlink(before, key.index(), links);
        }
        self.push_to_buffer(due, key.index());
        true
    }

    /// Advances to the tick `to` and passes every entry due by then to `take`, with the due tick.
    /// Returns `true` if no more entries are due, and `false` if the limit has left due entries.
    ///
    /// At most `limit` entries are taken. The remaining entries stay pending, and the next call
    /// takes these entries first, with the same tick or a later tick. A `to` before
    /// [`now`](Self::now) counts as `now`: the wheel never goes back.
    ///
    /// Entries inserted between such calls are due after `to`, so the calls come to an end.
    ///
    /// ```
    /// use hashed_wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64)?;
    /// for number in 0..5 {
    ///     wheel.insert(10, number);
    /// }
    /// let mut taken = Vec::new();
    /// // Two at a time, to allow for work in between.
    /// while !wheel.advance(10, 2, |_, number| taken.push(number)) {
    ///     assert_eq!(wheel.next_due(), Some(10));
    /// }
    /// assert_eq!(taken, [0, 1, 2, 3, 4]);
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn advance(&mut self, to: u64, limit: usize, mut take: impl FnMut(u64, T)) -> bool {
        // Before the cursor moves: the buffers must hold no tick passed by the cursor, and the
        // lists no cancelled slot.
        self.flush_buffers();
        self.now = self.now.max(to);
        let mut left = limit;
        while left > 0 {
            let Some(due) = self.next_due().filter(|due| *due <= self.now) else { break };
            // No entry is due before `due`, so none is passed over. The cursor stops before `due`:
            // if the limit is reached, the rest of the list is still to be taken.
            self.cursor = self.cursor.max(due.saturating_sub(1));
            // A later round is due: the tick is within the lap now, so the list moves to the front
            // of the bucket's list.
            if let Some((due, list)) = self.later_rounds.take_first(due) {
                self.buckets.push_front(&mut self.slab, due, list);
            }
            left -= self.buckets.drain(&mut self.slab, due, left, &mut take);
        }
        // Skips the ticks up to `now`, at which no entry is due.
        let finished = self.next_due().is_none_or(|due| due > self.now);
        if finished {
            self.cursor = self.now.min(u64::MAX - 1);
        }
        self.slab.release_chunks(self.now, self.release_delay);
        finished
    }

    /// Returns the lowest tick at which an entry is due; `None` if no entry is pending.
    ///
    /// The tick is exact, and at most [`now`](Self::now) only if [`advance`](Self::advance) reached
    /// the limit. The call takes constant time: at most the 128 buffered entries are inspected, and
    /// none right after `advance`.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let first = self.cursor + 1;
        let mut near = self.buckets.next_from(first);
        // Skips lists with cancelled slots only, at most as many as the cancel buffer holds.
        while let Some(tick) = near.filter(|tick| !self.has_pending(self.buckets.list(*tick))) {
            near = self.buckets.next_after(tick, first);
        }
        let mut later = self.later_rounds.iter().filter(|(_, list)| self.has_pending(*list));
        let far = later.next().map(|(due, _)| due);
        near.into_iter().chain(far).chain(self.insert_buffer.ticks()).min()
    }

    /// Returns the tick to which the wheel was last advanced; 0 before the first advance.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of pending entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns whether no entry is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next tick at which [`advance`](Self::advance) has work: due entries, or memory to
    /// release.
    #[cfg(feature = "std")]
    pub(crate) fn next_work(&self) -> Option<u64> {
        self.next_due().into_iter().chain(self.next_release()).min()
    }

    /// Whether [`advance`](Self::advance) must be called soon to schedule the release of memory.
    #[cfg(feature = "std")]
    pub(crate) fn has_new_empty_chunks(&self) -> bool {
        self.slab.has_new_empty_chunks()
    }

    /// The tick at which [`advance`](Self::advance) has memory to release or to inspect. The tick
    /// is [`now`](Self::now) if the last call released as much as a call may.
    #[cfg(feature = "std")]
    fn next_release(&self) -> Option<u64> {
        let tick = self.slab.next_release()?;
        Some(tick.max(self.now))
    }

    /// Moves out all memory, for the caller to drop without a lock. Only for a wheel which is empty
    /// and never used again: old keys could name new entries.
    #[cfg(feature = "std")]
    pub(crate) fn retire(&mut self) -> Self {
        debug_assert!(self.is_empty(), "only an empty wheel is retired");
        let retired = Self {
            slab: Slab::new(),
            insert_buffer: Buffer::new(),
            cancel_buffer: Buffer::new(),
            buckets: Buckets::new(1),
            later_rounds: LaterRounds::new(),
            ..*self
        };
        core::mem::replace(self, retired)
    }

    /// Whether there is no slot for a further entry.
    #[cfg(feature = "std")]
    pub(crate) fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    /// Returns the value of the entry; `None` if the entry is no longer pending.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slab.entry(key).map(|entry| &entry.value)
    }

    /// Returns the value of the entry, mutably; `None` if the entry is no longer pending.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slab.entry_mut(key).map(|entry| &mut entry.value)
    }

    /// Returns the due tick of the entry; `None` if the entry is no longer pending.
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<u64> {
        self.slab.entry(key).map(|entry| entry.due.get())
    }

    /// Returns the bucket of the entry, which is the due tick modulo the number of buckets; `None`
    /// if the entry is no longer pending.
    #[must_use]
    pub fn bucket(&self, key: Key) -> Option<usize> {
        Some(bucket(self.deadline(key)?, self.bucket_count))
    }

    /// Returns how many times the wheel passes the entry's bucket before the entry is due: 0 if due
    /// at the next pass. `None` if the entry is no longer pending.
    ///
    /// The count starts at [`now`](Self::now), or, if [`advance`](Self::advance) reached the limit,
    /// at the tick where the advance stopped.
    #[must_use]
    pub fn round(&self, key: Key) -> Option<u64> {
        Some(rounds_until(self.deadline(key)?, self.cursor, self.bucket_count))
    }

    /// Returns the number of buckets: the number given to [`new`](Self::new), rounded up to a power
    /// of two.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.bucket_count
    }

    /// Returns an iterator over the pending entries, as key, due tick and value, in no particular
    /// order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        self.slab.iter()
    }

    /// The due tick of an entry with this deadline: after `now`, except at the end of time.
    pub(crate) fn due(&self, deadline: u64) -> NonZeroU64 {
        let next = NonZeroU64::MIN.saturating_add(self.now);
        NonZeroU64::new(deadline).map_or(next, |deadline| deadline.max(next))
    }

    /// Adds an entry which is in no list to the insert buffer. Flushes a full buffer first.
    #[inline]
    fn push_to_buffer(&mut self, due: NonZeroU64, index: u32) {
        if self.insert_buffer.is_full() {
            self.flush_buffers();
        }
        let position = self.insert_buffer.push((due, index));
        *self.slab.links_mut(index) = Links::buffered(position);
    }

    /// Unlinks the cancelled slots, and links the buffered entries.
    fn flush_buffers(&mut self) {
        self.flush_cancelled();
        for position in 0..self.insert_buffer.len() {
            if let Some((due, index)) = self.insert_buffer.at(position) {
                self.link(due, index);
            }
        }
        self.insert_buffer.clear();
    }

    /// Links an entry which is in no list, as the last entry of the tick `due`.
    fn link(&mut self, due: NonZeroU64, index: u32) {
        let due = due.get();
        let ahead = due - self.cursor;
        if ahead > self.buckets.lap() && !self.lengthen(ahead) {
            self.later_rounds.push_back(&mut self.slab, due, index);
        } else {
            self.buckets.push_back(&mut self.slab, due, index);
        }
    }

    /// Whether the list has a pending entry, and not only cancelled slots.
    fn has_pending(&self, list: List) -> bool {
        list.iter(&self.slab).any(|index| self.slab.is_pending(index))
    }

    /// Frees a cancelled slot at `position` of the insert buffer. The slot is in no list, so the
    /// slot is free at once.
    #[inline(never)]
    fn free_buffered(&mut self, position: usize, index: u32) {
        self.insert_buffer.remove(position);
        self.slab.free(index);
        if self.is_empty() && !self.cancel_buffer.is_empty() {
            self.flush_cancelled();
        }
    }

    /// Flushes the cancel buffer, then adds a slot. Called if the buffer is full, or the wheel has
    /// no entry left.
    #[inline(never)]
    fn flush_before(&mut self, slot: DueSlot) {
        self.flush_cancelled();
        self.cancel_buffer.push(slot);
        if self.is_empty() {
            // The next call may be late: until then, cancelled slots must retain no memory.
            self.flush_cancelled();
        }
    }

    /// Unlinks and frees the cancelled slots.
    #[inline(never)]
    fn flush_cancelled(&mut self) {
        for position in 0..self.cancel_buffer.len() {
            if let Some((due, index)) = self.cancel_buffer.at(position) {
                let links = self.slab.free(index);
                self.unlink(due, index, links);
            }
        }
        self.cancel_buffer.clear();
    }

    /// Unlinks a slot of the tick `due` from the list, given the slot's `links`.
    #[inline]
    fn unlink(&mut self, due: NonZeroU64, index: u32, links: Links) {
        // Inside a list, only the links of the neighbours change. At an end, the list must be
        // known: an entry linked into a later round is still there, even if the tick is within the
        // lap by now. The ends of the bucket's list decide.
        if !links.unlink(&mut self.slab)
            && !self.buckets.unlink(&mut self.slab, due.get(), index, links)
        {
            self.later_rounds.unlink(&mut self.slab, due.get(), links);
        }
    }

    /// Makes the lap long enough for an entry due `ahead` ticks ahead. Returns false, without any
    /// effect, if `ahead` is too far for the number of entries.
    ///
    /// Entries in the later rounds stay there until due, even entries within the new lap.
    fn lengthen(&mut self, ahead: u64) -> bool {
        // At most four buckets of 8 bytes per entry after rounding up. Lengthening is rare: the lap
        // at least doubles each time, and the number of entries must have grown before.
        let most = (2 * self.slab.len()).min(TICKS_PER_WHEEL_MAX);
        let fits = usize::try_from(ahead).ok().filter(|ahead| *ahead <= most);
        if let Some(ahead) = fits {
            self.buckets.lengthen(ahead.next_power_of_two(), self.cursor + 1);
        }
        fits.is_some()
    }
}

/// Shows the number of pending entries, and the next due tick.
impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Wheel")
            .field("now", &self.now)
            .field("len", &self.len())
            .field("buckets", &self.bucket_count)
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(feature = "std")]
mod tests {
    use alloc::collections::BTreeMap;

    use super::buckets::PAGE;
    use super::free_slots::CHUNK;
    use super::slab::{RELEASED_MAX, TOUCHED};
    use super::*;

    /// What one call may touch, however many entries are pending: the buffered entries and their
    /// neighbours, the entries it takes, a page that is split, and the slots of the few chunks that
    /// it releases and of one that it opens.
    const TOUCHED_MAX: usize = 64 * 8 + 2 * PAGE + (RELEASED_MAX + 1) * CHUNK;

    /// Pseudorandom numbers, the same in each run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, count: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % count
        }
    }

    /// Checks that what the call touches is within the bound.
    fn bounded<R>(call: impl FnOnce() -> R) -> R {
        TOUCHED.set(0);
        let result = call();
        assert!(TOUCHED.get() <= TOUCHED_MAX, "{} touched", TOUCHED.get());
        result
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn the_work_of_a_call_does_not_grow_with_what_is_pending() {
        let mut random = Random(1);
        for (buckets, span) in [(1, 1000), (8, 100_000), (64, 300_000), (4096, 10_000_000)] {
            let mut wheel = Wheel::new(buckets).unwrap();
            let mut keys = Vec::new();
            for value in 0..40_000_u64 {
                let due = wheel.now() + 1 + random.below(span);
                keys.push(bounded(|| wheel.insert(due, value)));
                if value % 3 == 0 {
                    let to = wheel.now() + random.below(4);
                    bounded(|| wheel.advance(to, 16, |_, _| {}));
                }
            }
            assert!(wheel.buckets.lap() > wheel.buckets() as u64, "it has grown");
            while let Some(key) = keys.pop() {
                if keys.len() % 2 == 0 {
                    let due = wheel.now() + 1 + random.below(span);
                    bounded(|| wheel.reschedule(key, due));
                }
                let at = random.below(keys.len() as u64 + 1);
                let key =
                    usize::try_from(at).map_or(key, |at| keys.get(at).copied().unwrap_or(key));
                bounded(|| wheel.cancel(key));
            }
            while bounded(|| !wheel.advance(u64::MAX, 16, |_, _| {})) {}
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_wheel_that_becomes_empty_releases_its_memory() {
        let mut wheel = Wheel::new(512).unwrap();
        let mut random = Random(1);
        for takes in [false, true] {
            let keys: Vec<Key> = (0..100_000_u64)
                .map(|value| wheel.insert(wheel.now() + 1 + random.below(200_000), value))
                .collect();
            assert!(wheel.slab.chunks() >= 100_000 / CHUNK);
            assert!(wheel.buckets.pages() > 100);
            if takes {
                while !wheel.advance(1_000_000, 1000, |_, _| {}) {}
            } else {
                for key in keys {
                    wheel.cancel(key);
                }
            }
            while let Some(tick) = wheel.next_work() {
                wheel.advance(tick, usize::MAX, |_, _| {});
            }
            assert_eq!(wheel.slab.chunks(), 1);
            assert!(wheel.buckets.pages() <= 16, "{} pages", wheel.buckets.pages());
        }
    }

    #[test]
    fn the_last_cancel_frees_all_slots_that_were_cancelled() {
        let mut wheel = Wheel::new(8).unwrap();
        // Two chunks, and not a multiple of what the cancel buffer holds.
        let keys: Vec<Key> = (0..CHUNK + 2).map(|value| wheel.insert(5, value)).collect();
        // Links them, so that a cancel goes through the buffer.
        wheel.advance(1, 0, |_, _| {});
        for key in keys {
            assert_eq!(wheel.next_work(), Some(5), "an entry is pending");
            assert!(wheel.cancel(key).is_some());
        }
        assert!(wheel.next_work().is_some(), "the chunks are empty, so one can be released");
        wheel.advance(2, 0, |_, _| {});
        assert_eq!(wheel.slab.chunks(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn an_empty_wheel_has_no_pages_and_no_chunks() {
        let mut wheel: Wheel<u64> = Wheel::new(TICKS_PER_WHEEL_MAX).unwrap();
        assert_eq!((wheel.slab.chunks(), wheel.buckets.pages()), (0, 0));
        wheel.insert(7, 7);
        wheel.advance(7, usize::MAX, |_, _| {});
        let retired = wheel.retire();
        assert_eq!((retired.slab.chunks(), retired.buckets.pages()), (1, 1));
        assert_eq!((wheel.slab.chunks(), wheel.buckets.pages(), wheel.buckets.lap()), (0, 0, 1));
        assert_eq!((wheel.now(), wheel.buckets()), (7, TICKS_PER_WHEEL_MAX));
    }

    /// A wheel that fills and empties over and over, so that it opens and releases chunks and pages
    /// many times, compared with a sorted map.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes under Miri")]
    fn a_wheel_that_fills_and_empties_behaves_like_a_sorted_map() {
        for seed in 1..40 {
            let mut random = Random(seed);
            let mut wheel = Wheel::new(1 << random.below(10)).unwrap();
            let span = 1 << (4 + random.below(14));
            let mut model = BTreeMap::new();
            let mut places = BTreeMap::new();
            let mut keys: Vec<Key> = Vec::new();
            for number in 0..8000_u64 {
                let filling = number / 1000 % 2 == 0;
                match random.below(16) {
                    kind if kind < if filling { 12 } else { 2 } => {
                        let due = wheel.now() + 1 + random.below(span);
                        let key = wheel.insert(due, number);
                        assert!(
                            places.insert(key, (due, number)).is_none(),
                            "no key is used twice"
                        );
                        model.insert((due, number), key);
                        keys.push(key);
                    }
                    2..14 if !keys.is_empty() => {
                        // Some keys are of removed entries.
                        let at = random.below(keys.len() as u64);
                        let at = usize::try_from(at).unwrap();
                        let key = keys[at];
                        let pending = model.remove(&places[&key]).map(|_| places[&key].1);
                        assert_eq!(wheel.cancel(key), pending);
                        if number % 4 > 0 {
                            keys.swap_remove(at);
                        }
                    }
                    14 if !keys.is_empty() => {
                        let at = random.below(keys.len() as u64);
                        let key = keys[usize::try_from(at).unwrap()];
                        let due = wheel.now() + 1 + random.below(span);
                        let pending = places.get(&key).and_then(|place| model.remove(place));
                        assert_eq!(wheel.reschedule(key, due), pending.is_some());
                        if pending.is_some() {
                            // It is behind all others now, so its value becomes the latest number.
                            wheel.get_mut(key).map(|value| *value = number).unwrap();
                            places.insert(key, (due, number));
                            model.insert((due, number), key);
                        }
                    }
                    _ => {
                        let to = wheel.now() + random.below(span / 40 + 2);
                        let mut due = Vec::new();
                        wheel.advance(to, 20, |tick, value| due.push((tick, value)));
                        let mut expected = Vec::new();
                        let first = |model: &BTreeMap<(u64, u64), Key>| {
                            model.keys().next().copied().filter(|(due, _)| *due <= to)
                        };
                        while let Some(position) = first(&model).filter(|_| expected.len() < 20) {
                            expected.push(position);
                            model.remove(&position);
                        }
                        assert_eq!(due, expected);
                    }
                }
                let next = model.first_key_value().map(|((due, _), _)| *due);
                assert_eq!((wheel.len(), wheel.next_due()), (model.len(), next));
            }
            let mut listed: Vec<_> =
                wheel.iter().map(|(key, due, value)| ((due, *value), key)).collect();
            listed.sort_unstable();
            assert!(listed.into_iter().eq(model.clone()));
            let mut due = Vec::new();
            assert!(wheel.advance(u64::MAX, usize::MAX, |tick, value| due.push((tick, value))));
            assert!(due.into_iter().eq(model.into_keys()));
        }
    }
}
