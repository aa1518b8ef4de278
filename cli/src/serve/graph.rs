//! The wait graph: clients and locks as nodes, holds and waits as edges.
//!
//! The page draws this value and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use wheellock::{LockStatus, LongWaiter, WaitCycle};

/// The most locks in the graph. A larger picture is unreadable.
const MOST_LOCKS: usize = 40;
const MOST_CLIENTS_OF_A_LOCK: usize = 8;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// The number of locks with waiters that are not in the graph.
    left_out: usize,
    /// A sentence for each deadlock, with the threads involved.
    pub(crate) deadlocks: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Node {
    kind: NodeKind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum NodeKind {
    Client,
    Lock,
    /// Several clients, known only by number.
    Clients,
}

/// An edge between two nodes, given by their indices in `nodes`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Edge {
    from: usize,
    to: usize,
    kind: EdgeKind,
    /// Whether the edge is a part of a cycle, that is, of a deadlock.
    cycle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum EdgeKind {
    /// From a lock to a client.
    Holds,
    /// From a client to a lock.
    Waits,
}

/// Whether the lock has known waiters.
fn is_waited_for(status: &LockStatus) -> bool {
    status.waiters.elsewhere.unwrap_or(0) > 0
}

impl Graph {
    /// Builds the graph of all locks with waiters, with their holders, waiters and deadlocks.
    pub(crate) fn of(locks: &[LockStatus], waits: &[LongWaiter], cycles: &[WaitCycle]) -> Self {
        let mut graph = Self::default();
        // 1. The locks, beginning with the locks of deadlocks.
        let in_cycles = cycles.iter().flat_map(|cycle| &cycle.waits);
        let in_cycles: BTreeSet<&str> =
            in_cycles.filter_map(|wait| waits.get(*wait)).map(|wait| wait.lock.as_str()).collect();
        let is_in_cycle = |status: &&LockStatus| in_cycles.contains(status.name.as_str());
        let is_drawn = |status: &&LockStatus| is_waited_for(status) || is_in_cycle(status);
        let mut waited_for: Vec<&LockStatus> = locks.iter().filter(is_drawn).collect();
        waited_for.sort_by_key(|status| !is_in_cycle(status));
        graph.left_out = waited_for.len().saturating_sub(MOST_LOCKS);
        let (mut clients, mut names) = (BTreeMap::new(), BTreeMap::new());
        for status in waited_for.into_iter().take(MOST_LOCKS) {
            let lock = graph.add(status, waits, &mut clients);
            names.insert(status.name.as_str(), lock);
        }
        // 2. The deadlocks: from the client of each wait to the lock, and to the client of the next
        // wait.
        for cycle in cycles {
            let of = |wait: &usize| {
                let wait = waits.get(*wait)?;
                Some((*clients.get(&wait.client)?, *names.get(wait.lock.as_str())?))
            };
            let next = cycle.waits.iter().cycle().skip(1);
            for (wait, next) in cycle.waits.iter().zip(next) {
                if let (Some((client, lock)), Some((next, _))) = (of(wait), of(next)) {
                    graph.mark(client, lock);
                    graph.mark(lock, next);
                }
            }
            graph.deadlocks.push(cycle.description.clone());
        }
        graph
    }

    /// Adds a lock with its holders and waiters, and returns the index of the lock's node.
    fn add(
        &mut self,
        status: &LockStatus,
        waits: &[LongWaiter],
        clients: &mut BTreeMap<String, usize>,
    ) -> usize {
        let lock = self.node(NodeKind::Lock, &status.name);
        for holder in status.holders.iter().take(MOST_CLIENTS_OF_A_LOCK) {
            let to = self.client(&holder.owner, holder.label.as_deref(), clients);
            self.edge(lock, to, EdgeKind::Holds);
        }
        let queued = status.waiters.queue.iter().map(|waiter| (&waiter.owner, &waiter.label));
        let long = waits.iter().filter(|wait| wait.lock == status.name);
        let long = long.map(|wait| (&wait.client, &wait.label));
        let mut named = BTreeSet::new();
        for (owner, label) in long.chain(queued).take(MOST_CLIENTS_OF_A_LOCK) {
            let from = self.client(owner, label.as_deref(), clients);
            self.edge(from, lock, EdgeKind::Waits);
            named.insert(from);
        }
        let unnamed = status.waiters.elsewhere.unwrap_or(0).saturating_sub(named.len());
        if unnamed > 0 {
            let from = self.node(NodeKind::Clients, &format!("{unnamed} waiting"));
            self.edge(from, lock, EdgeKind::Waits);
        }
        lock
    }

    fn client(
        &mut self,
        owner: &str,
        label: Option<&str>,
        clients: &mut BTreeMap<String, usize>,
    ) -> usize {
        // An owner is the UUID of a client, a colon, and a number.
        let client = owner.split(':').next().unwrap_or(owner);
        if let Some(known) = clients.get(client) {
            return *known;
        }
        let place = self.node(NodeKind::Client, label.unwrap_or(client));
        clients.insert(client.to_owned(), place);
        place
    }

    fn node(&mut self, kind: NodeKind, text: &str) -> usize {
        // The page shows a part of a long name, and a name may have 64 KiB.
        let text = text.chars().take(200).collect();
        self.nodes.push(Node { kind, text });
        self.nodes.len() - 1
    }

    /// Marks an edge as a part of a cycle.
    fn mark(&mut self, from: usize, to: usize) {
        let of_cycle = |edge: &&mut Edge| (edge.from, edge.to) == (from, to);
        self.edges.iter_mut().filter(of_cycle).for_each(|edge| edge.cycle = true);
    }

    fn edge(&mut self, from: usize, to: usize, kind: EdgeKind) {
        let edge = Edge { from, to, kind, cycle: false };
        if !self.edges.contains(&edge) {
            self.edges.push(edge);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use wheellock::Client;

    use super::*;

    #[test]
    fn waiters_and_holders_are_connected_by_the_lock() {
        let client = Client::in_memory();
        let _guard = client.lock("a").lock().unwrap();
        let mut status = client.status("a").unwrap();
        let of = |status: &LockStatus| Graph::of(slice::from_ref(status), &[], &[]);
        assert!(of(&status).nodes.is_empty(), "nobody waits");
        status.waiters.elsewhere = Some(3);
        let graph = of(&status);
        let kinds: Vec<_> = graph.nodes.iter().map(|node| node.kind).collect();
        assert_eq!(kinds, [NodeKind::Lock, NodeKind::Client, NodeKind::Clients]);
        assert_eq!(graph.nodes[2].text, "3 waiting");
        let edges: Vec<_> = graph.edges.iter().map(|edge| (edge.from, edge.to)).collect();
        assert_eq!(edges, [(0, 1), (2, 0)]);
    }

    #[test]
    fn a_client_is_one_node_and_the_graph_is_bounded() {
        let client = Client::in_memory();
        let _guard = client.lock("a").lock().unwrap();
        let mut status = client.status("a").unwrap();
        status.waiters.elsewhere = Some(1);
        let graph = Graph::of(&vec![status; MOST_LOCKS + 5], &[], &[]);
        let clients = graph.nodes.iter().filter(|node| node.kind == NodeKind::Client).count();
        assert_eq!((clients, graph.left_out), (1, 5));
    }
}
