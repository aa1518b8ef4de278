//! How many timeouts may be pending at once, counted without one number that every thread changes.
//!
//! A pending timeout takes one unit of capacity. The shards of a timer share the free units; each
//! shard takes some in advance, its *allowance*, which is under the lock that the shard takes
//! anyway. So scheduling and cancelling change nothing shared, until an allowance is used up or has
//! grown too large (DESIGN: shards).
//!
//! Every unit is at every moment in exactly one of four places: with a pending timeout, in an
//! allowance, among the shared units, or with a thread that moves it from one to another. So there
//! are never more pending timeouts than units.
//!
//! A small capacity has no allowances: they would hold most of it, and be reclaimed all the time.

use crate::time::sync::{AtomicUsize, Ordering};

/// The most units in an allowance. With eight shards, at most 512 are in allowances.
const ALLOWANCE_MAX: usize = 64;

/// The least capacity with allowances: these hold at most half of it.
const ALLOWANCES_FROM: usize = ALLOWANCE_MAX * 8 * 2;

/// The units that the shards of one timer share.
#[derive(Debug)]
pub(crate) struct Capacity {
    free: AtomicUsize,
    /// The most units in an allowance; zero if there are no allowances.
    allowance_max: usize,
}

/// The units that one shard has taken in advance. The shard's lock guards it.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    units: usize,
}

impl Capacity {
    pub(crate) fn new(count: usize) -> Self {
        let allowance_max = if count < ALLOWANCES_FROM { 0 } else { ALLOWANCE_MAX };
        Self::with_allowances(count, allowance_max)
    }

    /// A capacity with at most `allowance_max` units in each allowance.
    pub(crate) fn with_allowances(count: usize, allowance_max: usize) -> Self {
        Self { free: AtomicUsize::new(count), allowance_max }
    }

    /// Takes one unit, from the allowance or, if that is empty, from the shared ones. False if both
    /// are empty.
    pub(crate) fn take(&self, allowance: &mut Allowance) -> bool {
        if allowance.units == 0 {
            allowance.units = self.take_shared();
        }
        let taken = allowance.units.checked_sub(1);
        if let Some(rest) = taken {
            allowance.units = rest;
        }
        taken.is_some()
    }

    /// Returns units to the allowance, and what is too much for it to the shared ones.
    pub(crate) fn give_back(&self, allowance: &mut Allowance, count: usize) {
        allowance.units += count;
        if allowance.units > self.allowance_max {
            // Half of it stays, so that the next exchange is equally far in both directions.
            let rest = self.allowance_max / 2;
            self.give_back_shared(allowance.units - rest);
            allowance.units = rest;
        }
    }

    /// Empties an allowance: one unit for the caller, if there is one, and the others to the shared
    /// ones.
    pub(crate) fn reclaim(&self, allowance: &mut Allowance) -> bool {
        let units = std::mem::take(&mut allowance.units);
        if units > 1 {
            self.give_back_shared(units - 1);
        }
        units > 0
    }

    /// Whether there are allowances to reclaim.
    pub(crate) const fn has_allowances(&self) -> bool {
        self.allowance_max > 0
    }

    /// Takes shared units: half a full allowance, or fewer if few are left, so that other shards
    /// find some too.
    ///
    /// Relaxed, here and below: the number protects nothing but itself.
    fn take_shared(&self) -> usize {
        let portion = |free: usize| (free / 16).clamp(1, (self.allowance_max / 2).max(1)).min(free);
        let take = |free| (free > 0).then(|| free - portion(free));
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).map_or(0, portion)
    }

    fn give_back_shared(&self, count: usize) {
        self.free.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use super::*;

    impl Capacity {
        fn free(&self) -> usize {
            self.free.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn every_unit_is_taken_once() {
        for count in [1, 10, ALLOWANCES_FROM - 1, ALLOWANCES_FROM, 5000] {
            let capacity = Capacity::new(count);
            let mut allowances = [Allowance::default(), Allowance::default()];
            let mut taken = 0;
            while capacity.take(&mut allowances[taken % 2]) {
                taken += 1;
            }
            // The other allowance may hold a few.
            let [first, second] = &mut allowances;
            for allowance in [first, second] {
                while capacity.take(allowance) {
                    taken += 1;
                }
            }
            assert_eq!(taken, count);
        }
    }

    #[test]
    fn a_small_capacity_has_no_allowances() {
        let capacity = Capacity::new(ALLOWANCES_FROM - 1);
        let mut allowance = Allowance::default();
        assert!(!capacity.has_allowances());
        assert!(capacity.take(&mut allowance));
        assert_eq!((capacity.free(), allowance.units), (ALLOWANCES_FROM - 2, 0));
        capacity.give_back(&mut allowance, 1);
        assert_eq!((capacity.free(), allowance.units), (ALLOWANCES_FROM - 1, 0));
    }

    #[test]
    fn an_allowance_exchanges_half_of_itself_when_empty_or_full() {
        let capacity = Capacity::new(10_000);
        let mut allowance = Allowance::default();
        assert!(capacity.take(&mut allowance));
        assert_eq!((capacity.free(), allowance.units), (10_000 - 32, 31));
        capacity.give_back(&mut allowance, 33);
        assert_eq!((capacity.free(), allowance.units), (10_000 - 32, ALLOWANCE_MAX));
        capacity.give_back(&mut allowance, 1);
        assert_eq!((capacity.free(), allowance.units), (10_000 + 1, 32));
        capacity.give_back(&mut allowance, 1000);
        assert_eq!(allowance.units, 32);
    }

    #[test]
    fn reclaim_empties_an_allowance_and_keeps_one_unit() {
        let capacity = Capacity::new(10_000);
        let mut allowance = Allowance::default();
        assert!(!capacity.reclaim(&mut allowance));
        capacity.give_back(&mut allowance, 5);
        assert!(capacity.reclaim(&mut allowance));
        assert_eq!((capacity.free(), allowance.units), (10_004, 0));
    }
}
