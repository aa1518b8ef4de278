//! Deadlocks among threads of several clients, found in the clients' records and the owners of the
//! locks.
//!
//! A thread that has waited for a second lists its wait and the names of its holds. A renewal
//! thread writes the wait into the client's record. Upon the reply one of the waiting threads
//! searches all waits for a cycle, so no extra thread is needed. Only a new wait can complete a
//! cycle. If two waits complete a cycle together, the client of the later record finds the cycle,
//! so one search for each write is enough. A cycle counts when several searches have seen the
//! cycle.
//!
//! A wait is stuck if a stuck thread holds the lock. A hold counts if a thread has the hold, as the
//! thread cannot release the hold during the wait, and if the hold is renewed: any other hold ends
//! by itself. Any thread may release a sendable guard, the hold of a named owner, or a permit, so
//! these holds never count.
//!
//! A graph of the server alone would not do: an owner names its client, not its thread. A lock
//! manager with all waits would cost each wait a request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::core::client_core::ClientCore;
use crate::error::{Error, truncated};
use crate::events::report::Warning;
use crate::hold::long_waits::LOOK_INTERVAL;
use crate::model::name::LockName;
use crate::model::owner::OwnerText;
use crate::model::sync::{Mutex, TimedMutex};
use crate::model::wait::WaitSpec;
use crate::model::wait_graph::{LockOwner, LongWait, Need, WaitGraph, WaitId};
use crate::ops::client_record::{ReadClientRecord, client_record_key};
use crate::ops::inspect::Inspect;
use crate::ops::long_waits::decode;
use crate::ops::operation::Operation;
use crate::ops::recognize::Content;
use crate::ops::revoke::Revoke;
use crate::ops::{KEPT, WRITE};
use crate::store::retry::{RetryLimit, RetryPolicy, map_failure};

/// The longest time of one search. The searching thread is late for its own wait meanwhile.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// How many searches have to confirm a cycle before its report.
///
/// A search confirms only if each record is newer than the record read by the search before. A
/// client composes a record after the answer to the record before. So the record read by the third
/// confirmation was composed after the end of the first search, and the record read by the first
/// search before: all waits of the cycle existed at one instant, however late the records were. No
/// clock and no delay takes part.
const LOOKS_BEFORE_REPORT: u32 = 3;
/// How many searches have to confirm a cycle before a wait of the cycle ends: by then all clients
/// of the cycle have reported the cycle.
const LOOKS_BEFORE_END: u32 = 5;

/// The largest numbers of clients and locks that a waiting thread reads.
const MOST: MostRead = MostRead { clients: 64, locks: 256 };

/// The largest numbers of clients and locks to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MostRead {
    pub(crate) clients: usize,
    pub(crate) locks: usize,
}

/// The state of one client's searches for deadlocks.
#[derive(Debug, Default)]
pub(crate) struct DeadlockDetector {
    /// Locked by the searching thread.
    looking: TimedMutex,
    /// The cycles seen by the last search, by the number of the own wait.
    seen: Mutex<BTreeMap<u64, SeenCycle>>,
}

/// A cycle seen by a search.
#[derive(Debug)]
struct SeenCycle {
    cycle: Vec<WaitId>,
    /// The last search which has seen the cycle.
    last: Arc<Look>,
    /// How many later searches have confirmed the cycle.
    confirmed: u32,
}

/// The content of one search: waits, owners and clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    pub(crate) graph: WaitGraph,
    /// The label of each client, and when its record was written.
    pub(crate) clients: BTreeMap<String, (String, i64)>,
    /// Whether the limits have left out clients or locks.
    pub(crate) is_partial: bool,
}

/// Searches for deadlocks of this client's threads, unless another thread does. Ends within the
/// wait, or when `has_work()` is true. Another thread repeats an unfinished search. If the server
/// does not answer, the tries of the wait report the failure.
pub(crate) fn look_for_deadlocks(
    core: &ClientCore,
    wait: WaitSpec<'_>,
    has_work: &dyn Fn() -> bool,
) {
    let (detector, waits) = (&core.deadlocks, &core.holds.long_waits);
    let begun = core.now();
    let Some(_looking) = detector.looking.try_lock_for(Duration::ZERO) else {
        return waits.look_at(begun + LOOK_INTERVAL);
    };
    // 1. The dependencies of this client's waits.
    let own_client = core.id.to_string();
    let end = begun + LONGEST_LOOK;
    let end = wait.deadline.map_or(end, |deadline| deadline.min(end));
    let wait = WaitSpec { deadline: Some(end), ..wait };
    let policy = || {
        let now = core.now();
        (now < end && !has_work()).then(|| core.policy_at(now, wait, RetryLimit::One))
    };
    let (own, written) = waits.own(&own_client);
    let label = core.watchdog.context.client.label.to_string();
    let start = Look {
        clients: BTreeMap::from([(own_client.clone(), (label, written))]),
        ..Look::default()
    };
    let look = match read(core, start, own, [], MOST, policy) {
        Ok(Some(look)) => Arc::new(look),
        Err(error) if !error.is_retryable() => return,
        // After a rest as long as the search.
        Ok(None) | Err(_) => {
            let took = core.now().saturating_duration_since(begun);
            return waits.look_at(core.now() + took.max(LOOK_INTERVAL));
        }
    };
    // 2. A search confirms a cycle of the search before, if the waits and holds are the same, and
    //    each record was written in between.
    let (mut seen, mut clients) = (BTreeMap::new(), BTreeSet::new());
    let mut seen_before = std::mem::take(&mut *detector.seen.lock());
    let stuck = look.graph.stuck();
    for id in stuck.waits().filter(|id| id.client == own_client) {
        let Some(cycle) = stuck.cycle_of(id) else { continue };
        let is_same = |before: &SeenCycle| {
            before.cycle.iter().eq(cycle.iter().copied())
                && has_same_holds(&before.last, &look, &cycle)
        };
        let before = seen_before.remove(&id.number).filter(is_same);
        let confirmed = match &before {
            Some(before) => {
                before.confirmed + u32::from(is_written_anew(&before.last, &look, &cycle))
            }
            None => 0,
        };
        // 3. All clients of the cycles write their records again, and search again.
        if confirmed >= LOOKS_BEFORE_REPORT {
            report(core, &look, &cycle, id, confirmed);
        }
        let ends_wait = core.waits.settings.waits_may_fail;
        if confirmed < if ends_wait { LOOKS_BEFORE_END } else { LOOKS_BEFORE_REPORT } {
            // A client may be in a cycle that is not the shortest.
            clients.extend(stuck.entangled_with(id).into_iter().map(|id| id.client.clone()));
        }
        // Without a newer record the next search compares with the search before.
        let last = match before {
            Some(before) if before.confirmed == confirmed => before.last,
            _ => Arc::clone(&look),
        };
        let cycle = cycle.into_iter().cloned().collect();
        seen.insert(id.number, SeenCycle { cycle, last, confirmed });
    }
    *detector.seen.lock() = seen;
    if clients.is_empty() {
        return;
    }
    for client in clients.iter().filter(|client| **client != own_client) {
        let Some(policy) = policy() else { break };
        // The next search repeats a lost message.
        drop(ask(core, &Revoke::name_waits(client_record_key(client)), &LockName::any(), &policy));
    }
    core.watchdog.record.name_waits();
    waits.look_at(core.now() + LOOK_INTERVAL);
}

/// Reads the owners of the locks of `waits`, the waits of `clients` and of the owners' clients, and
/// so on, and returns `look` with these. Beyond `most` the result is partial. Returns `None` if
/// `policy` allows no further call.
pub(crate) fn read<'a>(
    core: &ClientCore,
    mut look: Look,
    waits: Vec<LongWait>,
    clients: impl IntoIterator<Item = String>,
    most: MostRead,
    policy: impl Fn() -> Option<RetryPolicy<'a>>,
) -> Result<Option<Look>, Error> {
    let (mut waits, mut clients): (_, VecDeque<String>) = (waits, clients.into_iter().collect());
    loop {
        // 1. The owners of the awaited locks.
        for wait in waits {
            let is_read = look.graph.owners.contains_key(&wait.name) || wait.need == Need::Any;
            if !is_read && look.graph.owners.len() >= most.locks {
                look.is_partial = true;
            } else if !is_read && let Ok(name) = LockName::parse(&wait.name) {
                let Some(allowed) = policy() else { return Ok(None) };
                let owners = match ask(core, &Inspect::owners(&name), &name, &allowed) {
                    Err(error) if error.is_unreadable_key() => {
                        look.is_partial = true;
                        Vec::new()
                    }
                    inspected => owners_of(inspected?.content),
                };
                let of_owners = owners.iter().filter_map(|owner| OwnerText::parse(&owner.owner));
                clients.extend(of_owners.map(|owner| owner.client.to_owned()));
                look.graph.owners.insert(wait.name.clone(), owners);
            }
            look.graph.waits.insert(wait.id.clone(), wait);
        }
        // 2. The waits of the next client.
        let is_new = |client: &String| !look.clients.contains_key(client);
        let Some(client) = clients.pop_front() else { return Ok(Some(look)) };
        waits = Vec::new();
        if !is_new(&client) {
            continue;
        }
        if look.clients.len() >= most.clients {
            look.is_partial = true;
            return Ok(Some(look));
        }
        let Some(allowed) = policy() else { return Ok(None) };
        let record = match ask(
            core,
            &ReadClientRecord(client_record_key(&client)),
            &LockName::any(),
            &allowed,
        ) {
            // Another program's key.
            Err(Error::WrongType { .. }) => None,
            Err(error) if error.is_unreadable_key() => {
                look.is_partial = true;
                None
            }
            record => record?,
        };
        let (mut label, mut written) = (String::new(), 0);
        if let Some(record) = record {
            waits = decode(&client, &record.waits, record.written);
            (label, written) = (record.label, record.written);
        }
        look.clients.insert(client, (label, written));
    }
}

/// Sends `operation` within `policy`, and returns the reply. An error names `name`.
fn ask<O: Operation>(
    core: &ClientCore,
    operation: &O,
    name: &LockName,
    policy: &RetryPolicy<'_>,
) -> Result<O::Reply, Error> {
    let answer = core.call_with_policy_at(core.now(), operation, policy);
    map_failure(answer, operation, name).map(|answer| answer.reply)
}

/// Returns the owners in the content of a lock's key, without released holds whose key stays.
pub(crate) fn owners_of(content: Content) -> Vec<LockOwner> {
    match content {
        Content::Owners { mode, owners, .. } => {
            let is_read_write = mode.is_some();
            let owner = |(field, _): (String, u32)| {
                // A released hold whose key stays has no owner.
                if field.ends_with(KEPT) {
                    return None;
                }
                let writer = field.strip_suffix(WRITE);
                let is_reader = is_read_write && writer.is_none();
                let owner = writer.unwrap_or(&field).to_owned();
                Some(LockOwner { owner, is_reader })
            };
            owners.into_iter().filter_map(owner).collect()
        }
        Content::Simple(owner) => vec![LockOwner { owner, is_reader: false }],
        _ => Vec::new(),
    }
}

/// Whether the record of each client in a cycle was written between the searches `before` and
/// `now`.
pub(crate) fn is_written_anew(before: &Look, now: &Look, cycle: &[&WaitId]) -> bool {
    let written = |look: &Look, id: &WaitId| look.clients.get(&id.client).map(|(_, at)| *at);
    // The server's clock may have been set back.
    cycle.iter().all(|id| written(before, id) != written(now, id))
}

/// Whether each wait of a cycle is for a hold of the next thread, and both searches have the hold.
pub(crate) fn has_same_holds(before: &Look, now: &Look, cycle: &[&WaitId]) -> bool {
    let next = cycle.iter().cycle().skip(1);
    cycle.iter().zip(next).all(|(id, next)| {
        let blocking = |look: &Look| blocking_owners(&look.graph, id, next);
        !blocking(before).is_disjoint(&blocking(now))
    })
}

/// Returns the owners by which the thread of the wait `next` blocks the wait `id`: holders of the
/// awaited lock that are holds of this thread.
fn blocking_owners(graph: &WaitGraph, id: &WaitId, next: &WaitId) -> BTreeSet<String> {
    let (Some(wait), Some(next)) = (graph.waits.get(id), graph.waits.get(next)) else {
        return BTreeSet::new();
    };
    let holds = next.holds.iter().filter(|hold| hold.name == wait.name);
    let held: BTreeSet<String> =
        holds.map(|hold| format!("{}:{}", next.id.client, hold.number)).collect();
    let owners = graph.owners.get(&wait.name).into_iter().flatten();
    owners.map(|owner| owner.owner.clone()).filter(|owner| held.contains(owner)).collect()
}

/// Reports a cycle, once for this client. A later call, after enough confirmations, ends the wait
/// `own` if `own` is the victim. Does nothing if a wait of this client in the cycle has ended.
fn report(core: &ClientCore, look: &Look, cycle: &[&WaitId], own: &WaitId, confirmed: u32) {
    let waits = &core.holds.long_waits;
    // A wait of this client that has ended since the search is in no cycle.
    let is_own = |id: &&&WaitId| id.client == own.client;
    let numbers: Vec<u64> = cycle.iter().filter(is_own).map(|id| id.number).collect();
    if !numbers.iter().all(|number| waits.contains(*number)) {
        return;
    }
    let cycle_text = describe(look, cycle);
    if waits.set_reported(&numbers) {
        core.events.warn(Warning::Deadlock { cycle: cycle_text });
    } else if confirmed >= LOOKS_BEFORE_END && look.graph.stuck().victim_of(own) == Some(own) {
        waits.fail(own.number, &cycle_text);
    }
}

/// Describes a cycle in a sentence: which thread of which client waits for which lock, which the
/// next thread holds.
pub(crate) fn describe(look: &Look, cycle: &[&WaitId]) -> String {
    // From the smallest wait on, so that all clients report the same text.
    let smallest = (0..cycle.len()).min_by_key(|at| cycle[*at]).unwrap_or(0);
    let waits = cycle.iter().cycle().skip(smallest).take(cycle.len());
    let parts = waits.filter_map(|id| {
        let wait = look.graph.waits.get(*id)?;
        let label = look.clients.get(&id.client).map_or("", |(label, _)| label);
        let (thread, name) = (&wait.thread, truncated(&wait.name));
        let thread =
            if thread.is_empty() { "a thread".to_owned() } else { format!("thread {thread:?}") };
        Some(format!("{thread} of {label:?} waits for {name:?}"))
    });
    let parts: Vec<String> = parts.collect();
    format!("{}, which the first holds", parts.join(", held by: "))
}
