//! How many timeouts may be pending at once, counted without one number that every thread touches.
//!
//! A place is what one pending timeout takes. The shards of a timer share the free places; each shard is lent some in
//! advance, its *allowance*, which lies under the lock that the shard takes anyway. So scheduling and cancelling touch
//! nothing shared, until an allowance is used up or has grown too large.
//!
//! Every place is at every moment in exactly one of four places: with a pending timeout, in an allowance, among the
//! shared, or in the hands of a thread that carries it from one to another. So there are never more pending timeouts
//! than places.
//!
//! A small bound is not lent out: the allowances would hold most of it, and be collected again all the time.

use crate::sync::{AtomicUsize, Ordering};

/// The most places that an allowance holds. With eight shards, 512 at most are lent out.
const HELD_MAX: usize = 64;

/// Lent out is at most a half of what there is; a smaller bound is shared by all, place by place.
const LENT_FROM: usize = HELD_MAX * 8 * 2;

/// The places that the shards of one timer share.
#[derive(Debug)]
pub(crate) struct Bound {
    free: AtomicUsize,
    /// The most that an allowance holds; zero if nothing is lent out.
    held_max: usize,
}

/// The places that are lent to one shard. The shard's lock guards it.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    places: usize,
}

impl Bound {
    pub(crate) fn new(count: usize) -> Self {
        Self::lending(count, if count < LENT_FROM { 0 } else { HELD_MAX })
    }

    /// A bound of which every shard holds at most `held_max` places.
    pub(crate) fn lending(count: usize, held_max: usize) -> Self {
        Self { free: AtomicUsize::new(count), held_max }
    }

    /// Takes one place, from the allowance or, if that is empty, from the shared ones. False if there is none in
    /// either.
    pub(crate) fn take(&self, allowance: &mut Allowance) -> bool {
        if allowance.places == 0 {
            allowance.places = self.draw();
        }
        let taken = allowance.places.checked_sub(1);
        if let Some(rest) = taken {
            allowance.places = rest;
        }
        taken.is_some()
    }

    /// Puts places back into the allowance, and what is too much for it to the shared ones.
    pub(crate) fn put(&self, allowance: &mut Allowance, count: usize) {
        allowance.places += count;
        if allowance.places > self.held_max {
            // Half of it stays: there is as far to go to the next exchange whichever way it goes.
            let rest = self.held_max / 2;
            self.share(allowance.places - rest);
            allowance.places = rest;
        }
    }

    /// Empties an allowance: a place for the caller, if there is one, and the others to the shared ones.
    pub(crate) fn collect(&self, allowance: &mut Allowance) -> bool {
        let places = std::mem::take(&mut allowance.places);
        if places > 1 {
            self.share(places - 1);
        }
        places > 0
    }

    /// Whether places lie in allowances, to be collected.
    pub(crate) const fn is_lent(&self) -> bool {
        self.held_max > 0
    }

    /// Takes shared places: half a full allowance, or less if few are left, so that the other shards find some too.
    ///
    /// Relaxed, here and below: the number protects nothing but itself.
    fn draw(&self) -> usize {
        let chunk = |free: usize| (free / 16).clamp(1, (self.held_max / 2).max(1)).min(free);
        let take = |free| (free > 0).then(|| free - chunk(free));
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_or(0, chunk)
    }

    fn share(&self, count: usize) {
        self.free.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    impl Bound {
        fn free(&self) -> usize {
            self.free.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn every_place_is_used_and_none_twice() {
        for count in [1, 10, LENT_FROM - 1, LENT_FROM, 5000] {
            let bound = Bound::new(count);
            let mut allowances = [Allowance::default(), Allowance::default()];
            let mut taken = 0;
            while bound.take(&mut allowances[taken % 2]) {
                taken += 1;
            }
            // The other allowance may hold a few.
            let [first, second] = &mut allowances;
            for allowance in [first, second] {
                while bound.take(allowance) {
                    taken += 1;
                }
            }
            assert_eq!(taken, count);
        }
    }

    #[test]
    fn a_small_bound_lends_nothing_out() {
        let bound = Bound::new(LENT_FROM - 1);
        let mut allowance = Allowance::default();
        assert!(!bound.is_lent());
        assert!(bound.take(&mut allowance));
        assert_eq!((bound.free(), allowance.places), (LENT_FROM - 2, 0));
        bound.put(&mut allowance, 1);
        assert_eq!((bound.free(), allowance.places), (LENT_FROM - 1, 0));
    }

    #[test]
    fn an_allowance_exchanges_half_of_it_at_its_edges() {
        let bound = Bound::new(10_000);
        let mut allowance = Allowance::default();
        assert!(bound.take(&mut allowance));
        assert_eq!((bound.free(), allowance.places), (10_000 - 32, 31));
        bound.put(&mut allowance, 33);
        assert_eq!((bound.free(), allowance.places), (10_000 - 32, HELD_MAX));
        bound.put(&mut allowance, 1);
        assert_eq!((bound.free(), allowance.places), (10_000 + 1, 32));
        bound.put(&mut allowance, 1000);
        assert_eq!(allowance.places, 32);
    }

    #[test]
    fn collecting_empties_an_allowance_and_keeps_one() {
        let bound = Bound::new(10_000);
        let mut allowance = Allowance::default();
        assert!(!bound.collect(&mut allowance));
        bound.put(&mut allowance, 5);
        assert!(bound.collect(&mut allowance));
        assert_eq!((bound.free(), allowance.places), (10_004, 0));
    }
}
