//! Finds deadlocks in a graph of waits and owners: pure rules, without a server or a clock.
//!
//! A wait is *stuck* if a stuck thread holds the lock. The stuck waits are left when every other
//! wait is assumed to end (a reduction of the graph, after Holt).
//!
//! A graph on the server alone would not do: owners name the client, and not the thread. A lock
//! manager with all waits would cost each wait a request.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A long wait, as listed in the record of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LongWait {
    pub(crate) id: WaitId,
    /// When the wait began, by the server's clock in ms.
    pub(crate) since: i64,
    /// Whether the wait ends with an error when chosen as the last wait of a cycle.
    pub(crate) may_fail: bool,
    /// The owners which block the wait.
    pub(crate) need: Need,
    pub(crate) name: String,
    /// The name of the thread.
    pub(crate) thread: String,
    /// The thread's holds, which the thread cannot release during the wait.
    pub(crate) holds: Vec<ThreadHold>,
}

/// A client and the number of one of its waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaitId {
    pub(crate) client: String,
    pub(crate) number: u64,
}

/// The owners which must release a lock before a wait for the lock can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Every owner.
    Exclusive,
    /// The writer.
    Shared,
    /// Any owner: a permit.
    Any,
}

/// A hold of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadHold {
    /// The number of the owner.
    pub(crate) number: u64,
    pub(crate) name: String,
}

/// An owner of a lock, as on the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockOwner {
    /// The text of the owner, without the mark of a writer.
    pub(crate) owner: String,
    pub(crate) is_reader: bool,
}

/// The waits of several clients, and the owners of the awaited locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitGraph {
    pub(crate) waits: BTreeMap<WaitId, LongWait>,
    pub(crate) owners: BTreeMap<String, Vec<LockOwner>>,
}

/// The stuck waits of a graph: for each the stuck waits whose threads hold the awaited lock.
#[derive(Debug)]
pub(crate) struct StuckWaits<'a> {
    graph: &'a WaitGraph,
    blocked_by: BTreeMap<&'a WaitId, BTreeSet<&'a WaitId>>,
}

impl WaitGraph {
    /// Returns the stuck waits. Only holds of threads count. Any thread may release the other
    /// holds: sendable guards, holds of named owners, and permits.
    pub(crate) fn stuck(&self) -> StuckWaits<'_> {
        // 1. Which thread has which hold, by the thread's wait.
        let mut holder_of: BTreeMap<(String, &str), &WaitId> = BTreeMap::new();
        for (id, wait) in &self.waits {
            for hold in &wait.holds {
                holder_of.insert((format!("{}:{}", id.client, hold.number), &hold.name), id);
            }
        }
        // 2. The blocking waits of each wait, and the reverse.
        let mut blocked_by: BTreeMap<&WaitId, BTreeSet<&WaitId>> = BTreeMap::new();
        let mut blocks: BTreeMap<&WaitId, Vec<&WaitId>> = BTreeMap::new();
        for (id, wait) in &self.waits {
            let owners = self.owners.get(&wait.name).into_iter().flatten();
            let is_blocking = |owner: &&LockOwner| match wait.need {
                Need::Exclusive => true,
                Need::Shared => !owner.is_reader,
                Need::Any => false,
            };
            let holder = |owner: &LockOwner| holder_of.get(&(owner.owner.clone(), &*wait.name));
            let holders: BTreeSet<&WaitId> =
                owners.filter(is_blocking).filter_map(holder).copied().collect();
            for holder in &holders {
                blocks.entry(holder).or_default().push(id);
            }
            blocked_by.insert(id, holders);
        }
        // 3. A wait without stuck blockers can end, and then the waits blocked by this wait alone.
        let is_free = |(id, holders): (&&'_ WaitId, &BTreeSet<&WaitId>)| {
            holders.is_empty().then(|| (*id).clone())
        };
        let mut ends: Vec<WaitId> = blocked_by.iter().filter_map(is_free).collect();
        while let Some(ended) = ends.pop() {
            blocked_by.remove(&ended);
            for waiter in blocks.get(&ended).into_iter().flatten() {
                if let Some(holders) = blocked_by.get_mut(waiter) {
                    holders.remove(&ended);
                    if holders.is_empty() {
                        ends.push((*waiter).clone());
                    }
                }
            }
        }
        StuckWaits { graph: self, blocked_by }
    }
}

impl<'a> StuckWaits<'a> {
    pub(crate) fn waits(&self) -> impl Iterator<Item = &'a WaitId> + '_ {
        self.blocked_by.keys().copied()
    }

    /// Returns the waits whose threads hold the lock awaited by `id`.
    fn holders(&self, id: &WaitId) -> impl Iterator<Item = &'a WaitId> + '_ {
        self.blocked_by.get(id).into_iter().flatten().copied()
    }

    /// Returns the shortest cycle with this wait: each wait waits for the next, and the last for
    /// the first. Returns `None` if the wait is in no cycle.
    pub(crate) fn cycle_of(&self, id: &WaitId) -> Option<Vec<&'a WaitId>> {
        let (first, _) = self.blocked_by.get_key_value(id)?;
        // Breadth first, in the order of the waits: equal graphs have equal cycles.
        let mut came_from: BTreeMap<&WaitId, &'a WaitId> = BTreeMap::new();
        let mut queue = VecDeque::from([*first]);
        while let Some(at) = queue.pop_front() {
            for next in self.holders(at) {
                if next == *first {
                    let mut cycle = vec![at];
                    while let Some(before) = cycle.last().and_then(|last| came_from.get(last)) {
                        cycle.push(*before);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if let Entry::Vacant(entry) = came_from.entry(next) {
                    entry.insert(at);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Returns the waits of all cycles which share a wait with the cycles of `id`, directly or
    /// through more cycles.
    pub(crate) fn entangled_with(&self, id: &WaitId) -> BTreeSet<&'a WaitId> {
        let entangled = self.reachable(id).into_iter();
        entangled.filter(|other| self.reachable(other).contains(id)).collect()
    }

    /// Returns the wait which ends: the last to begin among the waits
    /// [entangled](Self::entangled_with) with `id` which may fail. Returns `None` if none of the
    /// waits may fail.
    pub(crate) fn victim_of(&self, id: &WaitId) -> Option<&'a WaitId> {
        let waits = self.entangled_with(id).into_iter().filter_map(|id| self.graph.waits.get(id));
        let victim = waits.filter(|wait| wait.may_fail).max_by_key(|wait| (wait.since, &wait.id));
        victim.map(|wait| &wait.id)
    }

    /// Returns the waits for which a wait waits, directly or indirectly.
    fn reachable(&self, id: &WaitId) -> BTreeSet<&'a WaitId> {
        let (mut found, mut open) = (BTreeSet::new(), self.holders(id).collect::<VecDeque<_>>());
        while let Some(at) = open.pop_front() {
            if found.insert(at) {
                open.extend(self.holders(at));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u64) -> WaitId {
        WaitId { client: "client".to_owned(), number }
    }

    /// Wait `number` is for `name`, and its thread holds `held`, whose owners have the same numbers
    /// as the names.
    fn wait(number: u64, name: u64, need: Need, held: &[u64]) -> LongWait {
        let of_number = |number: &u64| ThreadHold { number: *number, name: number.to_string() };
        LongWait {
            id: id(number),
            since: i64::try_from(number).unwrap(),
            may_fail: true,
            need,
            name: name.to_string(),
            thread: String::new(),
            holds: held.iter().map(of_number).collect(),
        }
    }

    fn graph(waits: Vec<LongWait>) -> WaitGraph {
        let mut owners: BTreeMap<String, Vec<LockOwner>> = BTreeMap::new();
        for hold in waits.iter().flat_map(|wait| &wait.holds) {
            let owner = LockOwner { owner: format!("client:{}", hold.number), is_reader: false };
            owners.entry(hold.name.clone()).or_default().push(owner);
        }
        WaitGraph { waits: waits.into_iter().map(|wait| (wait.id.clone(), wait)).collect(), owners }
    }

    #[test]
    fn mutual_waiters_form_a_cycle_without_the_waiter_behind() {
        use Need::Exclusive;
        let graph = graph(vec![
            wait(1, 20, Exclusive, &[10]),
            wait(2, 10, Exclusive, &[20]),
            wait(3, 10, Exclusive, &[30]),
            wait(4, 40, Exclusive, &[]),
        ]);
        let stuck: Vec<_> = graph.stuck().waits().cloned().collect();
        assert_eq!(stuck, [id(1), id(2), id(3)]);
        assert_eq!(graph.stuck().cycle_of(&id(1)), Some(vec![&id(1), &id(2)]));
        assert_eq!(graph.stuck().cycle_of(&id(2)), Some(vec![&id(2), &id(1)]));
        assert_eq!((graph.stuck().cycle_of(&id(3)), graph.stuck().cycle_of(&id(4))), (None, None));
        assert_eq!([1, 2].map(|number| graph.stuck().victim_of(&id(number))), [Some(&id(2)); 2]);
    }

    #[test]
    fn of_two_cycles_with_a_common_wait_one_wait_ends() {
        use Need::Exclusive;
        // Two readers wait for the writer of another lock, who waits for both.
        let mut graph = graph(vec![
            wait(1, 20, Need::Shared, &[10]),
            wait(2, 10, Exclusive, &[20]),
            wait(3, 20, Need::Shared, &[11]),
        ]);
        let readers =
            [10, 11].map(|number| LockOwner { owner: format!("client:{number}"), is_reader: true });
        graph.owners.insert("10".to_owned(), readers.into());
        graph.waits.get_mut(&id(3)).unwrap().holds[0].name = "10".to_owned();
        assert_eq!([1, 2, 3].map(|number| graph.stuck().victim_of(&id(number))), [Some(&id(3)); 3]);
        assert_eq!(graph.stuck().cycle_of(&id(2)).map(|cycle| cycle.len()), Some(2));
        assert!(graph.stuck().entangled_with(&id(1)).into_iter().eq(&[1, 2, 3].map(id)));
    }

    #[test]
    fn a_thread_that_waits_for_its_own_hold_is_a_cycle() {
        let graph = graph(vec![wait(1, 10, Need::Exclusive, &[10])]);
        assert_eq!(graph.stuck().cycle_of(&id(1)), Some(vec![&id(1)]));
    }

    #[test]
    fn readers_wait_only_for_writers_and_permit_waits_form_no_cycle() {
        let mut readers =
            graph(vec![wait(1, 20, Need::Shared, &[10]), wait(2, 10, Need::Exclusive, &[20])]);
        assert!(readers.stuck().cycle_of(&id(1)).is_some());
        for owner in readers.owners.get_mut("20").unwrap() {
            owner.is_reader = true;
        }
        assert!(readers.stuck().waits().next().is_none());
        let permits =
            graph(vec![wait(1, 20, Need::Any, &[10]), wait(2, 10, Need::Exclusive, &[20])]);
        assert!(permits.stuck().waits().next().is_none());
    }

    #[test]
    fn a_hold_that_the_server_does_not_have_blocks_nobody() {
        let mut graph =
            graph(vec![wait(1, 20, Need::Exclusive, &[10]), wait(2, 10, Need::Exclusive, &[20])]);
        graph.owners.remove("20");
        assert!(graph.stuck().waits().next().is_none());
    }

    #[test]
    fn who_may_not_fail_is_no_victim() {
        let mut graph =
            graph(vec![wait(1, 20, Need::Exclusive, &[10]), wait(2, 10, Need::Exclusive, &[20])]);
        graph.waits.get_mut(&id(2)).unwrap().may_fail = false;
        assert_eq!(graph.stuck().victim_of(&id(2)), Some(&id(1)));
        graph.waits.get_mut(&id(1)).unwrap().may_fail = false;
        assert_eq!(graph.stuck().victim_of(&id(2)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Beside a search that follows every path.
        #[test]
        fn a_wait_is_in_a_cycle_exactly_if_a_path_leads_back_to_it(
            waits in prop::collection::vec((0..8_u64, prop::collection::vec(0..8_u64, 0..3)), 1..8)
        ) {
            // A lock has one holder at most.
            let mut free: BTreeSet<u64> = (0..8).collect();
            let waits: Vec<LongWait> = (0..).zip(&waits).map(|(number, (name, held))| {
                let held: Vec<u64> = held.iter().copied().filter(|lock| free.remove(lock)).collect();
                wait(number, *name, Need::Exclusive, &held)
            }).collect();
            let next = |at: &LongWait| {
                let holds = |wait: &&LongWait| wait.holds.iter().any(|hold| hold.name == at.name);
                waits.iter().find(holds)
            };
            let graph = graph(waits.clone());
            for first in &waits {
                let path: Vec<&LongWait> =
                    std::iter::successors(next(first), |at| next(at)).take(waits.len()).collect();
                let cycle = graph.stuck().cycle_of(&first.id);
                prop_assert_eq!(cycle.is_some(), path.iter().any(|at| at.id == first.id));
                for pair in cycle.iter().flat_map(|cycle| cycle.windows(2)) {
                    prop_assert_eq!(&next(&graph.waits[pair[0]]).unwrap().id, pair[1]);
                }
            }
        }
    }
}
