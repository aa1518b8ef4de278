//! How what is due is cut into scripts, and how many of them go together.
//!
//! A script may touch the keys of one slot only. So of ten thousand holds in a cluster most go in scripts of their own,
//! and on a single server a script is as full as it may be. How many are under way at a time is therefore counted in
//! what they cost the server, and not in scripts: as much as so many full ones.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::renewer::Due;
use crate::kind::Layout;
use crate::store::{Part, Store};

/// Holds whose renewals go in one script.
pub(super) type Batch = Vec<Due>;

/// Full scripts that are under way at a time, when there is something to catch up with.
const IN_FLIGHT: usize = 10;
/// Full scripts that go together otherwise, when all before them are answered.
const TOGETHER: usize = 4;
/// More scripts than these are something to catch up with: a turn of a hundred thousand holds has twenty.
const MANY: usize = 40;
/// What a script costs a server beyond its keys, in keys. Measured: 6 us, and 2.4 us for each key.
const SCRIPT: usize = 3;
/// More scripts than these are never under way, however small. They are answered within two milliseconds.
const MOST: usize = 256;

/// Whether so many holds are more than a turn should have, if a script has up to `keys`.
pub(super) fn is_behind(due: usize, keys: usize) -> bool {
    due > keys * MANY
}

/// Cuts what is due in pieces of `keys` at most, each of what one script may touch, and of one layout.
pub(super) fn in_batches(store: &Store, due: Vec<Due>, keys: usize) -> VecDeque<Batch> {
    // As few as that takes, and of equal size: no script is longer than it must be.
    let scripts = due.len().div_ceil(keys);
    let size = due.len().div_ceil(scripts.max(1)).max(1);
    let mut batches: Vec<Batch> = Vec::new();
    // Whichever is being filled.
    let mut open: HashMap<(Layout, Part), usize> = HashMap::new();
    for due in due {
        let alike = (due.hold.kind.layout(), store.part_of(due.hold.name.as_str()));
        let batch = open.get(&alike).copied().unwrap_or(batches.len());
        if batch == batches.len() || batches[batch].len() == size {
            open.insert(alike, batches.len());
            batches.push(vec![due]);
        } else {
            batches[batch].push(due);
        }
    }
    batches.into()
}

/// How many scripts of a turn are under way at a time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pace {
    together: usize,
    in_flight: usize,
    hurries: bool,
}

impl Pace {
    /// Of scripts with so many keys each, which may have up to `keys`.
    pub(super) fn of(sizes: impl ExactSizeIterator<Item = usize>, keys: usize) -> Self {
        let scripts = sizes.len();
        let cost: usize = sizes.map(|size| size + SCRIPT).sum();
        // How many of them cost as much as one full script.
        let for_one = ((keys + SCRIPT) * scripts).checked_div(cost).unwrap_or(1).max(1);
        let as_much_as = |full: usize| (full * for_one).min(MOST);
        Self { together: as_much_as(TOGETHER), in_flight: as_much_as(IN_FLIGHT), hurries: false }
    }

    /// How long so many scripts take if none is sent before all those that went together are answered.
    pub(super) fn in_groups(&self, scripts: usize, round_trip: Duration) -> Duration {
        let groups = scripts.div_ceil(self.together);
        round_trip.saturating_mul(u32::try_from(groups).unwrap_or(u32::MAX))
    }

    /// There is something to catch up with, or answers are slow.
    pub(super) fn hurry(&mut self) {
        self.hurries = true;
    }

    pub(super) fn at_once(&self) -> usize {
        if self.hurries { self.in_flight } else { self.together }
    }

    /// With how many still under way more are sent. A server that is behind is not left dry.
    pub(super) fn refill_at(&self) -> usize {
        if self.hurries { self.in_flight / 2 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(sizes: &[usize], keys: usize) -> [usize; 2] {
        let mut pace = Pace::of(sizes.iter().copied(), keys);
        let together = pace.at_once();
        assert_eq!(pace.refill_at(), 0);
        pace.hurry();
        assert_eq!(pace.refill_at(), pace.at_once() / 2);
        [together, pace.at_once()]
    }

    #[test]
    fn of_full_scripts_four_go_together_and_ten_are_in_flight_when_there_is_no_time() {
        for (keys, size) in
            [(25, 25), (25, 21), (100, 100), (100, 91), (5, 5), (1, 1), (1000, 1000)]
        {
            assert_eq!(pace(&[size; 60], keys), [4, 10], "{size} of {keys}");
        }
        assert_eq!(pace(&[], 25), [4, 10]);
    }

    #[test]
    fn of_tiny_scripts_as_many_go_as_cost_the_server_the_same() {
        assert_eq!(pace(&[1; 60], 25), [28, 70]);
        assert_eq!(pace(&vec![1; 2500], 100), [100, 250]);
        // A full one among many that are not.
        let mut sizes = [1; 100];
        sizes[0] = 25;
        assert_eq!(pace(&sizes, 25), [24, 60]);
    }

    #[test]
    fn thousands_of_tiny_scripts_cross_a_long_way_in_a_quarter_of_a_second() {
        let (scripts, round_trip) = (2500, Duration::from_millis(10));
        let mut pace = Pace::of(std::iter::repeat_n(1, scripts), 100);
        pace.hurry();
        let half = pace.at_once() - pace.refill_at();
        let waits = u32::try_from(scripts.div_ceil(half)).unwrap();
        assert!(round_trip * waits < Duration::from_millis(250), "{waits}");
    }
}
