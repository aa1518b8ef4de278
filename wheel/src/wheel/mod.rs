//! The wheel itself: plain data that moves when it is told to.
//!
//! Invariants.
//!
//! * `hand <= now`, and `hand < u64::MAX`. Everything that is due at or before `hand` has been taken. Apart from the
//!   end of time the two differ only while a turn is unfinished, and `next_due` is then at most `now`.
//! * Whatever is inserted is due after `hand`, and after `now` except at the end of time, so a turn has an end however
//!   much is inserted while it lasts.
//! * The [`table`] holds what is due within one lap of it: ticks from `hand + 1` to `hand + lap`. Each list in it stands
//!   for exactly one of these ticks, so all of it is due at once and nothing in it is looked at before.
//! * What was further away when it was inserted stands in [`rounds`], and stays there until it is due or the table gets
//!   longer. All of it under a tick came before all in the table under that tick, as the hand only moves forward: first
//!   one, then the other is the order of insertion.
//! * What came last is [`fresh`] and in neither of them. It goes there, in the order of insertion, before the hand moves
//!   and when there is no room for more; so all of it came after everything in the lists.
//! * What was cancelled is out of the slab at once, and out of its list before the hand moves, and before too much of it
//!   is [`gone`]. Until then its slot is not let again, and who looks along a list steps over it.
//! * A lap of the table is one of the wheel or a power of two of them, and never gets shorter. Only what the public
//!   calls name by bucket and round goes by the number of buckets that was asked for.

mod bits;
mod free;
mod fresh;
mod gone;
mod list;
mod rounds;
mod slab;
mod table;

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use self::fresh::Fresh;
use self::gone::Gone;
use self::list::List;
use self::rounds::Rounds;
use self::slab::{Links, Slab};
use self::table::Table;
use crate::error::BuildError;

pub use self::slab::Key;

/// The most buckets a wheel can have: 2^24.
pub const TICKS_PER_WHEEL_MAX: usize = 1 << 24;

/// A hashed timing wheel with rounds: what is due when, counted in ticks.
///
/// It is plain data. It has no thread and no clock; what a tick is and when it has come, its owner decides. For a
/// timer that runs by itself see `HashedWheelTimer` and `BatchTimer`.
///
/// An entry stands in the bucket *due tick mod number of buckets*. What is due more than a lap ahead waits for a later
/// round of its bucket. This is scheme 6 of Varghese and Lauck, *Hashed and Hierarchical Timing Wheels* (1987), which
/// Netty's `HashedWheelTimer` made known. It differs in what a turn costs: no list is walked before it is due, and
/// the hand jumps over empty buckets, so holding a million entries costs nothing and a gap of hours is one step.
///
/// * [`insert`](Self::insert) and [`cancel`](Self::cancel) take constant time within a lap, and within twice as many
///   ticks as there are entries pending, up to 2^24; beyond these, logarithmic time in the number of distinct due ticks
///   there. That is the mean: one call in 64 sorts in what the others left, and a wheel that grows moves what it has.
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
    fresh: Fresh,
    gone: Gone,
    table: Table,
    rounds: Rounds,
    /// A power of two, as is the lap of the table, which is no shorter.
    buckets: usize,
    hand: u64,
    now: u64,
}

impl<T> Wheel<T> {
    /// An empty wheel at tick 0, with `buckets` rounded up to a power of two.
    ///
    /// A bucket takes 8 bytes. More buckets make laps longer, and what is due within a lap is cheaper to insert. A wheel
    /// that holds much sees to that itself: with `n` entries pending, what is due within `2 * n` ticks is as cheap as
    /// within a lap, whatever the number of buckets, for 32 bytes per entry at most.
    ///
    /// # Errors
    ///
    /// [`BuildError::TicksPerWheel`], permanent: no bucket, or more than [`TICKS_PER_WHEEL_MAX`].
    pub fn new(buckets: usize) -> Result<Self, BuildError> {
        let buckets = Self::bucket_count(buckets)?;
        Ok(Self {
            slab: Slab::new(),
            fresh: Fresh::new(),
            gone: Gone::new(),
            table: Table::new(buckets),
            rounds: Rounds::new(),
            buckets,
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
    /// If it [is full](Self::is_full).
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let due = self.due(deadline);
        let key = self.slab.insert(due, value);
        self.welcome(due, key.index());
        key
    }

    /// Takes the entry out and gives it back; none if it is not pending any more.
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let (tenant, links) = self.slab.remove(key)?;
        if let Some(place) = links.fresh_place() {
            self.fresh.remove(place);
            self.slab.vacate(key.index());
        } else {
            if self.gone.is_full() {
                self.close_gaps();
            }
            self.gone.push((tenant.due, key.index()));
        }
        Some(tenant.value)
    }

    /// Makes the entry due at another tick, by the rule of [`insert`](Self::insert): at the next tick if `deadline` is
    /// not after [`now`](Self::now), and behind all others of its tick, even if the tick is the one it had. False if
    /// the entry is not pending any more. The key stays good.
    ///
    /// ```
    /// use hashed_wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64)?;
    /// let key = wheel.insert(10, "a lease");
    /// assert!(wheel.reschedule(key, 500));
    /// assert_eq!((wheel.deadline(key), wheel.bucket(key), wheel.round(key)), (Some(500), Some(52), Some(7)));
    /// assert!(wheel.iter().eq([(key, 500, &"a lease")]));
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn reschedule(&mut self, key: Key, deadline: u64) -> bool {
        let due = self.due(deadline);
        let Some(tenant) = self.slab.tenant_mut(key) else {
            return false;
        };
        let before = core::mem::replace(&mut tenant.due, due);
        self.close_gap(before, key.index());
        self.welcome(due, key.index());
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
    ///
    /// ```
    /// use hashed_wheel::Wheel;
    ///
    /// let mut wheel = Wheel::new(64)?;
    /// for number in 0..5 {
    ///     wheel.insert(10, number);
    /// }
    /// let mut taken = Vec::new();
    /// // Two at a time, with a look at the sockets between.
    /// while !wheel.advance(10, 2, |_, number| taken.push(number)) {
    ///     assert_eq!(wheel.next_due(), Some(10));
    /// }
    /// assert_eq!(taken, [0, 1, 2, 3, 4]);
    /// # Ok::<(), hashed_wheel::BuildError>(())
    /// ```
    pub fn advance(&mut self, to: u64, limit: usize, mut take: impl FnMut(u64, T)) -> bool {
        self.settle();
        self.now = self.now.max(to);
        let mut left = limit;
        while left > 0
            && let Some(due) = self.next_due().filter(|due| *due <= self.now)
        {
            // Nothing is due before, so nothing is passed over. Not `due` itself: more may stand there.
            self.hand = self.hand.max(due.saturating_sub(1));
            // Its tick is within the lap now.
            if let Some((tick, list)) = self.rounds.take_first(due) {
                self.table.push_front(&mut self.slab, tick, list);
            }
            left -= self.table.drain(&mut self.slab, due, left, &mut take);
        }
        let finished = self.next_due().is_none_or(|due| due > self.now);
        if finished {
            self.hand = self.now.min(u64::MAX - 1);
        }
        finished
    }

    /// The lowest tick at which an entry is due, exactly; none if nothing is pending.
    ///
    /// It is at most [`now`](Self::now) only if [`advance`](Self::advance) reached its limit. It takes constant time: it
    /// looks at 128 entries at most, those that came or were cancelled since they were last sorted in, and right after
    /// `advance` at none of them.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let first = self.hand + 1;
        let mut near = self.table.next_from(first);
        // Among those that are stepped over there are no more than have gone of late.
        while let Some(tick) = near.filter(|tick| !self.has_any(self.table.list(*tick))) {
            near = self.table.next_after(tick, first);
        }
        let far = self.rounds.iter().find(|(_, list)| self.has_any(*list)).map(|(tick, _)| tick);
        near.into_iter().chain(far).chain(self.fresh.ticks()).min()
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

    /// Gives the memory of the entries back. For a wheel that is empty and takes nothing in any more: keys that it has
    /// handed out could come to name something else.
    #[cfg(feature = "std")]
    pub(crate) fn retire(&mut self) {
        debug_assert!(self.is_empty(), "only an empty wheel is retired");
        self.slab = Slab::new();
        self.gone = Gone::new();
        self.rounds = Rounds::new();
        self.table = Table::new(self.buckets);
    }

    /// Whether there is no slot for one more entry: with 2^32 - 66 pending at the earliest, which takes more than 100 GB.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    /// The entry, while it is pending.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slab.tenant(key).map(|tenant| &tenant.value)
    }

    /// The entry, while it is pending, to be changed.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slab.tenant_mut(key).map(|tenant| &mut tenant.value)
    }

    /// The tick at which the entry is due, while it is pending.
    #[must_use]
    pub fn deadline(&self, key: Key) -> Option<u64> {
        self.slab.tenant(key).map(|tenant| tenant.due.get())
    }

    /// The bucket in which the entry stands: its due tick modulo the number of buckets.
    #[must_use]
    pub fn bucket(&self, key: Key) -> Option<usize> {
        usize::try_from(self.deadline(key)? % self.buckets as u64).ok()
    }

    /// How often the hand passes the entry's bucket before the entry is due: 0 if it is due at the next pass.
    ///
    /// While a turn is unfinished, the hand stands where the turn stopped, not at [`now`](Self::now).
    #[must_use]
    pub fn round(&self, key: Key) -> Option<u64> {
        let ahead = self.deadline(key)?.saturating_sub(self.hand).saturating_sub(1);
        Some(ahead / self.buckets as u64)
    }

    /// The number of buckets.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.buckets
    }

    /// Everything pending with its key and its due tick, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, u64, &T)> {
        self.slab.iter()
    }

    /// The ticks at which the first `most` entries are due, lowest first. One tick comes as often as it has entries.
    pub(crate) fn earliest(&self, most: usize) -> Vec<u64> {
        let first = self.hand + 1;
        let mut near = self.table.next_from(first);
        let mut far = self.rounds.iter().peekable();
        let mut ticks = Vec::new();
        while ticks.len() < most {
            // Of the same tick, what was far comes first. In what is told here it makes no difference.
            let from_far = far.next_if(|(tick, _)| near.is_none_or(|near| *tick < near));
            let (tick, list) = match (from_far, near) {
                (Some(tick_and_list), _) => tick_and_list,
                (None, Some(tick)) => {
                    near = self.table.next_after(tick, first);
                    (tick, self.table.list(tick))
                }
                (None, None) => break,
            };
            let pending = list.iter(&self.slab).filter(|index| self.slab.is_let(*index));
            ticks.extend(pending.take(most - ticks.len()).map(|_| tick));
        }
        ticks.extend(self.fresh.ticks());
        ticks.sort_unstable();
        ticks.truncate(most);
        ticks
    }

    /// The tick at which something with this deadline is due: never one that has come already.
    pub(crate) fn due(&self, deadline: u64) -> NonZeroU64 {
        let next = NonZeroU64::MIN.saturating_add(self.now);
        NonZeroU64::new(deadline).map_or(next, |deadline| deadline.max(next))
    }

    /// Puts an entry that stands in no list behind all others.
    #[inline]
    fn welcome(&mut self, due: NonZeroU64, index: u32) {
        if self.fresh.is_full() {
            self.settle();
        }
        let place = self.fresh.push((due, index));
        *self.slab.links_mut(index) = Links::fresh(place);
    }

    /// Takes what has gone out of its lists, and puts what is fresh into them.
    fn settle(&mut self) {
        self.close_gaps();
        for place in 0..self.fresh.len() {
            if let Some((due, index)) = self.fresh.at(place) {
                self.link(due, index);
            }
        }
        self.fresh.clear();
    }

    /// Puts an entry that stands in no list behind all others of its tick.
    fn link(&mut self, due: NonZeroU64, index: u32) {
        let due = due.get();
        let ahead = due - self.hand;
        if ahead > self.table.lap() && !self.lengthen(ahead) {
            self.rounds.push_back(&mut self.slab, due, index);
        } else {
            self.table.push_back(&mut self.slab, due, index);
        }
    }

    /// Whether anything in a list is pending.
    fn has_any(&self, list: List) -> bool {
        list.iter(&self.slab).any(|index| self.slab.is_let(index))
    }

    /// Takes what has gone out of its lists, and lets its slots.
    fn close_gaps(&mut self) {
        while let Some((due, index)) = self.gone.pop() {
            self.close_gap(due, index);
            self.slab.vacate(index);
        }
    }

    /// Takes an entry out of its list, or from among the fresh ones.
    fn close_gap(&mut self, due: NonZeroU64, index: u32) {
        let links = self.slab.links(index);
        if let Some(place) = links.fresh_place() {
            self.fresh.remove(place);
            return;
        }
        // An entry that was far away when it came is still in the rounds, though its tick may be within the lap by
        // now. Which list it is in matters only at an end of the list, and the end tells.
        if !links.close_gap(&mut self.slab)
            && !self.table.close_gap(&mut self.slab, due.get(), index, links)
        {
            self.rounds.close_gap(&mut self.slab, due.get(), links);
        }
    }

    /// Makes the table long enough for what is due in `ahead` ticks, unless that is far away for so few entries. Then
    /// it is false.
    fn lengthen(&mut self, ahead: u64) -> bool {
        let len = self.slab.len() as u64;
        // At most four lists per entry after the rounding up, of 8 bytes each. It cannot pay off often: each time, the
        // table gets twice as long at least, and the entries that allow for it must have come first.
        ahead <= 2 * len && ahead <= TICKS_PER_WHEEL_MAX as u64 && {
            self.lengthen_to(ahead);
            true
        }
    }

    #[cold]
    fn lengthen_to(&mut self, ahead: u64) {
        let Ok(len) = usize::try_from(ahead.next_power_of_two()) else {
            unreachable!("a lap is no longer than the most buckets there can be")
        };
        self.table = self.table.lengthened(len, self.hand + 1);
        let last = self.hand.saturating_add(self.table.lap());
        while let Some((tick, list)) = self.rounds.take_first(last) {
            self.table.push_front(&mut self.slab, tick, list);
        }
    }
}

/// How many of the pending entries `Debug` shows.
const SHOWN: usize = 16;

/// Shows when the first entries are due, and how many come after them. It takes the same time whatever is pending.
impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let earliest = self.earliest(SHOWN);
        formatter
            .debug_struct("Wheel")
            .field("now", &self.now)
            .field("len", &self.len())
            .field("buckets", &self.buckets())
            .field("next_due", &self.next_due())
            .field("due", &earliest)
            .field("due_later", &(self.len() - earliest.len()))
            .finish_non_exhaustive()
    }
}
