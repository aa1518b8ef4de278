//! Cuts due renewals into scripts, and limits the number of scripts in flight.
//!
//! A server runs everything received from one client before it serves the next client. So another
//! client waits for the scripts sent together: about 50 us for one script of 25 keys. Each awaited
//! reply wakes both sides, which takes a fifth of the client's processor time with 100,000 holds.
//! Four scripts in one write would save most of these wakes, and let another client wait four times
//! as long. With a backlog, scripts have 100 keys, and ten are in flight.
//!
//! A script may touch the keys of one hash slot only. So in a cluster most of ten thousand holds
//! need a script each, while every script is full on a single server. Ten scripts of one key in
//! flight over a round trip of 10 ms would renew 1,000 holds a second. The number of scripts in
//! flight is therefore derived from their cost: as much as one full script, or as ten full scripts
//! with a backlog. That is 7 scripts of a single key, and about 250 with a backlog.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hold::hold::Hold;
use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::store::{HashSlot, Store};

/// A hold due for renewal.
#[derive(Clone, Debug)]
pub(crate) struct DueRenewal {
    pub(crate) hold: Arc<Hold>,
    /// When the renewal was due.
    pub(crate) at: Instant,
    /// When the hold ends without a renewal.
    pub(crate) end: Instant,
    /// The number of the hold's owner: later holds have higher numbers.
    pub(crate) number: u64,
}

impl DueRenewal {
    /// Makes a renewal of `hold`, due since `at`, whose validity ends at `end`.
    pub(crate) fn new(hold: &Arc<Hold>, at: Instant, end: Instant) -> Self {
        Self { hold: Arc::clone(hold), at, end, number: hold.owner.number() }
    }
}

/// Sorts renewals by end of validity, in coarse steps, and by owner number within a step.
///
/// If the server is slow, the renewals which can wait are sent last. Holds of neighbouring owner
/// numbers are mostly neighbours in the memory of the server and of this process, which saves the
/// server a quarter of a renewal's processor time.
pub(crate) fn sort(due: &mut [DueRenewal], lease: Lease) {
    let Some(first) = due.iter().map(|due| due.end).min() else { return };
    let step = (lease.duration() / STEPS).as_nanos().max(1);
    due.sort_unstable_by_key(|due| ((due.end - first).as_nanos() / step, due.number));
}

/// The number of steps of one lease in which `sort` compares ends of validity.
const STEPS: u32 = 4;

/// Holds whose renewals are sent in one script.
pub(crate) type RenewalBatch = Vec<DueRenewal>;

/// The maximum number of full scripts in flight with a backlog.
const BACKLOG_IN_FLIGHT: usize = 10;
/// The maximum number of full scripts in flight without a backlog, so another client waits for one
/// script at most.
const IN_FLIGHT: usize = 1;
/// The number of full scripts in one pass beyond which the pass is a backlog. A pass of a hundred
/// thousand holds has twenty.
const BACKLOG: usize = 40;
/// The cost of a script for a server beyond the cost of its keys, as a number of keys. Measured: 6
/// us for the script, and 1.6 to 2.4 us for each key.
const SCRIPT_COST: usize = 3;
/// The maximum number of scripts in flight, however small. A server answers so many scripts within
/// two milliseconds.
const MAX_IN_FLIGHT: usize = 256;

/// Returns whether `due` holds fill more than [`BACKLOG`] scripts of `keys` keys.
pub(crate) fn is_backlog(due: usize, keys: usize) -> bool {
    due > keys * BACKLOG
}

/// Cuts renewals into batches of at most `keys`, each of one hash slot and one layout. Retains the
/// order of renewals with the same hash slot and layout.
pub(crate) fn renewal_batches(
    store: &Store,
    due: Vec<DueRenewal>,
    keys: usize,
) -> VecDeque<RenewalBatch> {
    // As few scripts as possible, all of equal size, so no script is longer than necessary.
    let scripts = due.len().div_ceil(keys);
    let size = due.len().div_ceil(scripts.max(1)).max(1);
    let mut batches: Vec<RenewalBatch> = Vec::new();
    // The index of the batch being filled.
    let mut open: HashMap<(Layout, HashSlot), usize> = HashMap::new();
    // Most renewals go where the previous one went, without a lookup in the map.
    let mut last = None;
    for due in due {
        let group = (due.hold.kind.layout(), store.hash_slot(due.hold.name.as_str()));
        let mut index = match last {
            Some((known, index)) if known == group => index,
            _ => open.get(&group).copied().unwrap_or(batches.len()),
        };
        if batches.get(index).is_none_or(|batch| batch.len() == size) {
            index = batches.len();
            open.insert(group, index);
            batches.push(Vec::new());
        }
        batches[index].push(due);
        last = Some((group, index));
    }
    batches.into()
}

/// The maximum number of scripts of a pass in flight at a time, without and with a backlog.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InFlightLimit {
    size: usize,
    backlog_size: usize,
    is_backlog: bool,
}

impl InFlightLimit {
    /// Makes a limit without a backlog for scripts with these numbers of keys. A full script has
    /// `keys`.
    pub(crate) fn new(sizes: impl ExactSizeIterator<Item = usize>, keys: usize) -> Self {
        let scripts = sizes.len();
        let cost: usize = sizes.map(|size| size + SCRIPT_COST).sum();
        // How many of the scripts cost as much as one full script.
        let for_one = ((keys + SCRIPT_COST) * scripts).checked_div(cost).unwrap_or(1).max(1);
        let as_much_as = |full: usize| (full * for_one).min(MAX_IN_FLIGHT);
        let (size, backlog_size) = (as_much_as(IN_FLIGHT), as_much_as(BACKLOG_IN_FLIGHT));
        Self { size, backlog_size, is_backlog: false }
    }

    /// Returns the time to send `scripts` if each group of `size` scripts waits for the replies to
    /// the previous group.
    pub(crate) fn time_for(&self, scripts: usize, round_trip: Duration) -> Duration {
        let groups = scripts.div_ceil(self.size);
        round_trip.saturating_mul(u32::try_from(groups).unwrap_or(u32::MAX))
    }

    /// Switches to the limit for a backlog, for good.
    pub(crate) fn raise(&mut self) {
        self.is_backlog = true;
    }

    /// Returns the maximum number of scripts in flight from now on.
    pub(crate) fn size(&self) -> usize {
        if self.is_backlog { self.backlog_size } else { self.size }
    }

    /// Returns the number of scripts still in flight at which more scripts are sent. With a backlog
    /// the server always has some scripts to run.
    pub(crate) fn refill_at(&self) -> usize {
        if self.is_backlog { self.backlog_size / 2 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::model::clock::origin;
    use crate::model::kind::Kind;
    use crate::model::name::LockName;
    use crate::model::owner::{ClientId, LocalHolder};
    use crate::ops::by_kind::HoldId;
    use crate::store::Memory;
    use crate::store::listener::NoListener;

    const LEASE: Duration = Duration::from_secs(20);

    /// A hold that ends `end` seconds from now.
    fn due(client: &ClientId, end: u64) -> DueRenewal {
        let (now, lease) = (origin(), Lease::new(LEASE).unwrap());
        let (kind, name) = (Kind::Reentrant, LockName::parse("a").unwrap());
        let id = HoldId { kind, name, owner: client.next_owner() };
        let hold = Hold::new(id, LocalHolder::current_thread(), lease, true, now, None);
        DueRenewal::new(&Arc::new(hold), now, now + Duration::from_secs(end))
    }

    #[test]
    fn scripts_are_few_of_equal_size_and_never_too_long() {
        let store = Store::memory(&Memory::new(), Weak::<NoListener>::new());
        let client = ClientId::random();
        for (holds, sizes) in [
            (0, vec![]),
            (1, vec![1]),
            (25, vec![25]),
            (26, vec![13, 13]),
            (37, vec![19, 18]),
            (200, vec![25; 8]),
        ] {
            let all = (0..holds).map(|_| due(&client, 20)).collect();
            let batches = renewal_batches(&store, all, 25);
            assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{holds}");
        }
    }

    #[test]
    fn what_is_due_is_sorted_by_its_coarse_end_and_then_by_its_age() {
        let client = ClientId::random();
        // In the order of their age. A step is a quarter of the lease.
        let mut all: Vec<DueRenewal> = [14, 11, 16, 19, 10].map(|end| due(&client, end)).into();
        all.reverse();
        sort(&mut all, Lease::new(LEASE).unwrap());
        let numbers: Vec<u64> = all.iter().map(|due| due.number).collect();
        assert_eq!(numbers, [1, 2, 5, 3, 4]);
    }

    fn windows(sizes: &[usize], keys: usize) -> [usize; 2] {
        let mut limit = InFlightLimit::new(sizes.iter().copied(), keys);
        let normal = limit.size();
        assert_eq!(limit.refill_at(), 0);
        limit.raise();
        assert_eq!(limit.refill_at(), limit.size() / 2);
        [normal, limit.size()]
    }

    #[test]
    fn one_full_script_is_in_flight_and_ten_in_a_backlog() {
        for (keys, size) in
            [(25, 25), (25, 21), (100, 100), (100, 91), (5, 5), (1, 1), (1000, 1000)]
        {
            assert_eq!(windows(&[size; 60], keys), [1, 10], "{size} of {keys}");
        }
        assert_eq!(windows(&[], 25), [1, 10]);
    }

    #[test]
    fn tiny_scripts_are_as_many_as_cost_the_server_the_same() {
        assert_eq!(windows(&[1; 60], 25), [7, 70]);
        assert_eq!(windows(&vec![1; 2500], 100), [25, 250]);
        // A full one among many that are not.
        let mut sizes = [1; 100];
        sizes[0] = 25;
        assert_eq!(windows(&sizes, 25), [6, 60]);
    }

    #[test]
    fn thousands_of_scripts_take_under_250_ms_at_10_ms_latency() {
        let (scripts, round_trip) = (2500, Duration::from_millis(10));
        let mut limit = InFlightLimit::new(std::iter::repeat_n(1, scripts), 100);
        limit.raise();
        let half = limit.size() - limit.refill_at();
        let waits = u32::try_from(scripts.div_ceil(half)).unwrap();
        assert!(round_trip * waits < Duration::from_millis(250), "{waits}");
    }
}
