//! The wait graph: which threads wait for which owners, across processes.
//!
//! Owners on the server name the client and not the thread, so the edges come from the clients'
//! records. The alternative, a lock manager with all waits, would cost each wait a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::admin::locks::{KeyPages, Locks};
use crate::admin::status::LockStatus;
use crate::core::client_core::ClientCore;
use crate::core::deadlock::{Look, MostRead, describe, has_same_holds, is_written_anew, read};
use crate::error::Error;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
use crate::model::sync::{Parker, pass_until};
use crate::model::wait::WaitSpec;
use crate::model::wait_graph::{LockOwner, LongWait, Need, WaitId};
use crate::ops::client_record::client_record_key;
use crate::ops::revoke::Revoke;
use crate::store::retry::RetryLimit;

/// The maximum number of records and locks read for a graph.
const MOST: MostRead = MostRead { clients: 1_000, locks: 10_000 };

/// How long the clients have to rewrite their records before the last reading.
const FRESH_WITHIN: Duration = Duration::from_secs(1);
/// The pause between two readings of the records.
const BETWEEN_TWO_READINGS: Duration = Duration::from_millis(100);

/// A wait graph: locks, the threads that wait for the locks, and the deadlocks among these threads.
///
/// Returned by [`Client::wait_graph`](crate::Client::wait_graph) and
/// [`Client::wait_graph_of`](crate::Client::wait_graph_of). The graph is read lock by lock, and not
/// at one instant.
///
/// ```
/// use wheellock::Client;
///
/// let client = Client::in_memory();
/// let _held = client.lock("orders:42").lock()?;
/// let graph = client.wait_graph("orders:*")?;
/// assert_eq!(graph.locks[0].name, "orders:42");
/// assert!(graph.waits.is_empty() && graph.cycles.is_empty());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WaitGraph {
    /// The locks whose names match the pattern, or the locks given to
    /// [`wait_graph_of`](crate::Client::wait_graph_of).
    pub locks: Vec<LockStatus>,
    /// The threads which have waited for more than a second, for any of `locks` or while holding
    /// such a lock, and all threads of `cycles`. Each client lists at most 64 threads, and a client
    /// which [ignores](crate::OnDeadlock::Ignore) deadlocks none. Other waiters, such as
    /// Redisson's, only count in the [`waiters`](LockStatus::waiters) of each lock.
    pub waits: Vec<LongWaiter>,
    /// The deadlocks among the threads of `waits`. Each deadlock was seen twice.
    pub cycles: Vec<WaitCycle>,
    /// Whether all locks and clients were read. `false` if a limit of 10,000 locks or 1,000 clients
    /// was reached, or if the server's user may not read a key: a wait or a deadlock may be
    /// missing.
    pub is_complete: bool,
}

/// A thread that has waited for more than a second.
///
/// In [`WaitGraph::waits`].
///
/// ```
/// use wheellock::Client;
///
/// for wait in Client::in_memory().wait_graph("*")?.waits {
///     println!("{} of {:?} waits for {}", wait.thread, wait.label, wait.lock);
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LongWaiter {
    /// The identity of the thread's client, as from [`Client::id`](crate::Client::id).
    pub client: String,
    /// The number of the wait. A thread has a new number in each wait; `client` and `number`
    /// together identify a wait.
    pub number: u64,
    /// The [label](crate::ClientBuilder::label) of the thread's client.
    pub label: Option<String>,
    /// The name of the thread. Empty if the thread has no name.
    pub thread: String,
    /// The full name of the awaited lock, semaphore or latch.
    pub lock: String,
    /// The full names of the locks that the thread holds during the wait, at most 16. Only renewed
    /// holds of the thread itself are listed: a hold with a separate
    /// [lease](crate::Lock::with_lease) ends without the thread, and any thread may release a
    /// [sendable](crate::Lock::sendable) guard, a guard of a [named
    /// owner](crate::Lock::with_owner), or a permit.
    pub holds: Vec<String>,
    /// The owners of the awaited lock which have to release the lock first: all owners, or for a
    /// reader the writer. Empty for a semaphore or a latch.
    pub waits_for: Vec<WaitEdge>,
}

/// An owner of an awaited lock, with the wait that keeps the owner from releasing the lock.
///
/// In [`LongWaiter::waits_for`].
///
/// ```
/// use wheellock::Client;
///
/// let waits = Client::in_memory().wait_graph("*")?.waits;
/// assert!(waits.iter().flat_map(|wait| &wait.waits_for).all(|edge| !edge.is_possible));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WaitEdge {
    /// The owner, as returned by [`LockGuard::owner`](crate::LockGuard::owner).
    pub owner: String,
    /// The positions in [`WaitGraph::waits`] of the waits which keep the owner from releasing the
    /// lock: the wait of the owner's thread, or all possible waits if
    /// [`is_possible`](Self::is_possible). Empty if no wait of the owner's client is in the graph,
    /// as for Redisson.
    pub waits: Vec<usize>,
    /// Whether `waits` are only possible waits. No wait of the owner's client
    /// [lists](LongWaiter::holds) the hold, so `waits` are all waits of this client in the graph:
    /// the owner's thread may also be at work, or another thread may release the lock, as for a
    /// [sendable](crate::Lock::sendable) guard. `false` if `waits` is empty.
    pub is_possible: bool,
}

/// A deadlock: a cycle of threads, each of which waits for a lock that the next thread holds.
///
/// In [`WaitGraph::cycles`].
///
/// ```
/// use wheellock::Client;
///
/// for cycle in Client::in_memory().wait_graph("*")?.cycles {
///     eprintln!("{}", cycle.description);
/// }
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WaitCycle {
    /// The positions in [`WaitGraph::waits`] of the waits in the cycle. The thread of each wait
    /// waits for the thread of the next, and the last for the first.
    pub waits: Vec<usize>,
    /// The cycle as a sentence: which thread of which client waits for which lock.
    pub description: String,
}

/// Reads the locks whose names match `pattern` and the records of all clients, up to [`MOST`], and
/// returns their wait graph.
pub(crate) fn wait_graph(core: &Arc<ClientCore>, pattern: &str) -> Result<WaitGraph, Error> {
    let core = core.running()?;
    let (mut locks, mut is_complete) = (Vec::new(), true);
    let mut scan = Locks::new(Arc::clone(&core), pattern.to_owned());
    for status in scan.by_ref() {
        if locks.len() >= MOST.locks {
            is_complete = false;
            break;
        }
        locks.push(status?);
    }
    is_complete &= scan.unreadable() == 0;
    let mut clients = BTreeSet::new();
    let prefix = client_record_key("");
    let mut pages = KeyPages::new(&core, format!("{prefix}*"));
    while let Some(page) = pages.next(&core) {
        let keys = page?.into_iter();
        clients.extend(keys.filter_map(|key| key.strip_prefix(&*prefix).map(str::to_owned)));
        if clients.len() > MOST.clients {
            break;
        }
    }
    let mut graph = wait_graph_of(&core, locks, clients)?;
    graph.is_complete &= is_complete;
    Ok(graph)
}

/// Returns the wait graph of `locks`. Reads the records of the holders' clients and of `clients`,
/// and then the records of the clients that hold the locks awaited in these records, and so on. A
/// cycle counts if two readings show the cycle. Asks the clients in a cycle to rewrite their
/// records.
pub(crate) fn wait_graph_of(
    core: &Arc<ClientCore>,
    locks: Vec<LockStatus>,
    clients: BTreeSet<String>,
) -> Result<WaitGraph, Error> {
    let core = core.running()?;
    // 1. The waits, and the owners for which they wait.
    let holders = locks.iter().flat_map(|status| &status.holders);
    let holders = holders.filter_map(|holder| OwnerText::parse(&holder.owner));
    let clients: Vec<String> =
        holders.map(|owner| owner.client.to_owned()).chain(clients).collect();
    let read = || {
        let policy =
            || Some(core.policy_at(core.now(), WaitSpec::ONE_TRY, RetryLimit::UntilAnswered));
        let clients = clients.iter().cloned();
        read(&core, Look::default(), Vec::new(), clients, MOST, policy)
            .map(Option::unwrap_or_default)
    };
    let first = read()?;
    // 2. If there is a cycle, a second reading after the clients have rewritten their records.
    let cycles: BTreeMap<BTreeSet<WaitId>, Vec<WaitId>> = {
        let stuck = first.graph.stuck();
        let cycles = stuck.waits().filter_map(|id| stuck.cycle_of(id));
        let cloned = |cycle: Vec<&WaitId>| cycle.into_iter().cloned().collect::<Vec<_>>();
        cycles.map(cloned).map(|cycle| (cycle.iter().cloned().collect(), cycle)).collect()
    };
    let (mut look, mut found) = (first.clone(), Vec::new());
    if !cycles.is_empty() {
        let in_cycles: BTreeSet<&String> = cycles.values().flatten().map(|id| &id.client).collect();
        let mut are_asked = true;
        for client in in_cycles {
            let ask = Revoke::name_waits(client_record_key(client));
            match core.ask(&ask, &LockName::any()) {
                // A user that only reads cannot ask. Two readings a second apart are then enough: a
                // client rewrites its record as soon as a wait in the record ends.
                Err(Error::Refused { .. }) => are_asked = false,
                asked => drop(asked?),
            }
        }
        let (mut is_last, end) = (false, core.now() + FRESH_WITHIN);
        while !is_last {
            let next = core.now() + BETWEEN_TWO_READINGS;
            pass_until(&*core.clock, &Parker::new(), next, None);
            is_last = core.now() >= end;
            look = read()?;
            let stays = |cycle: &&Vec<WaitId>| {
                let cycle: Vec<&WaitId> = cycle.iter().collect();
                let is_known = !are_asked && is_last || is_written_anew(&first, &look, &cycle);
                is_known && has_same_holds(&first, &look, &cycle)
            };
            found = cycles.values().filter(stays).cloned().collect();
            is_last |= found.len() == cycles.len();
        }
    }
    // 3. The waits and cycles that concern the locks. A cycle concerns the locks with all its waits
    // if any of them does.
    let names: BTreeSet<&str> = locks.iter().map(|status| status.name.as_str()).collect();
    let names_one = |wait: &LongWait| {
        names.contains(wait.name.as_str())
            || wait.holds.iter().any(|hold| names.contains(hold.name.as_str()))
    };
    found.retain(|cycle| cycle.iter().filter_map(|id| look.graph.waits.get(id)).any(names_one));
    let in_cycles: BTreeSet<&WaitId> = found.iter().flatten().collect();
    let concerns = |wait: &&LongWait| in_cycles.contains(&wait.id) || names_one(wait);
    let waits: Vec<&LongWait> = look.graph.waits.values().filter(concerns).collect();
    let positions: BTreeMap<&WaitId, usize> =
        waits.iter().enumerate().map(|(position, wait)| (&wait.id, position)).collect();
    let position = |id: &WaitId| positions.get(id).copied();
    let cycle = |cycle: &Vec<WaitId>| {
        let description = describe(&look, &cycle.iter().collect::<Vec<_>>());
        let waits = cycle.iter().map(position).collect::<Option<_>>()?;
        Some(WaitCycle { waits, description })
    };
    let cycles = found.iter().filter_map(cycle).collect();
    let waits = waits.iter().map(|wait| waiter(&look, wait, &position)).collect();
    Ok(WaitGraph { locks, waits, cycles, is_complete: !look.is_partial })
}

/// Converts the wait `wait` of the reading `look` to the public type. `position` returns the place
/// of a wait in the graph.
fn waiter(
    look: &Look,
    wait: &LongWait,
    position: &impl Fn(&WaitId) -> Option<usize>,
) -> LongWaiter {
    let owners = look.graph.owners.get(&wait.name).into_iter().flatten();
    let blocks = |owner: &&LockOwner| wait.need != Need::Shared || !owner.is_reader;
    LongWaiter {
        client: wait.id.client.clone(),
        number: wait.id.number,
        label: look.clients.get(&wait.id.client).map(|(label, _)| label.clone()),
        thread: wait.thread.clone(),
        lock: wait.name.clone(),
        holds: wait.holds.iter().map(|hold| hold.name.clone()).collect(),
        waits_for: owners.filter(blocks).map(|owner| edge(look, wait, owner, position)).collect(),
    }
}

/// Returns the edge from `wait` to `owner`, an owner of the awaited lock, with the waits of the
/// owner's thread. If the thread is unknown, the edge has all waits of the owner's client, as
/// possible waits.
fn edge(
    look: &Look,
    wait: &LongWait,
    owner: &LockOwner,
    position: &impl Fn(&WaitId) -> Option<usize>,
) -> WaitEdge {
    let owner = owner.owner.clone();
    let client = OwnerText::parse(&owner).map(|owner| owner.client.to_owned());
    let of_client = || {
        let id = |number| client.clone().map(|client| WaitId { client, number });
        let ids = id(0).zip(id(u64::MAX));
        ids.into_iter()
            .flat_map(|(first, last)| look.graph.waits.range(first..=last))
            .map(|(_, it)| it)
    };
    let holds = |other: &&LongWait| {
        other.holds.iter().any(|hold| {
            hold.name == wait.name && owner == format!("{}:{}", other.id.client, hold.number)
        })
    };
    let certain: Vec<usize> = of_client().filter(holds).filter_map(|it| position(&it.id)).collect();
    if !certain.is_empty() {
        return WaitEdge { owner, waits: certain, is_possible: false };
    }
    let possible: Vec<usize> = of_client().filter_map(|it| position(&it.id)).collect();
    let is_possible = !possible.is_empty();
    WaitEdge { owner, waits: possible, is_possible }
}
