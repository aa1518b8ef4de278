//! Who waits for whom, as clients, locks, and what connects them.
//!
//! The page draws this value and nothing else, so another source of edges, such as one that knows
//! cycles, changes no drawing.

use std::collections::BTreeMap;

use serde::Serialize;
use wheellock::LockStatus;

/// More cannot be read in a picture.
const MOST_LOCKS: usize = 40;
const MOST_CLIENTS_OF_A_LOCK: usize = 8;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// How many locks with waiters are not in the graph.
    left_out: usize,
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
    /// Several clients of which only the number is known.
    Clients,
}

/// From one node to another, by their places in the list.
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

impl Graph {
    /// The locks that somebody waits for, with their holders and waiters.
    pub(crate) fn of(locks: &[&LockStatus]) -> Self {
        let mut graph = Self::default();
        let mut clients = BTreeMap::new();
        let is_waited_for = |status: &&&LockStatus| status.waiters.elsewhere.unwrap_or(0) > 0;
        for (place, status) in locks.iter().filter(is_waited_for).enumerate() {
            if place < MOST_LOCKS {
                graph.add(status, &mut clients);
            } else {
                graph.left_out += 1;
            }
        }
        graph
    }

    fn add(&mut self, status: &LockStatus, clients: &mut BTreeMap<String, usize>) {
        let lock = self.node(NodeKind::Lock, &status.name);
        for holder in status.holders.iter().take(MOST_CLIENTS_OF_A_LOCK) {
            let to = self.client(&holder.owner, holder.label.as_deref(), clients);
            self.edge(lock, to, EdgeKind::Holds);
        }
        let queue = &status.waiters.queue;
        for waiter in queue.iter().take(MOST_CLIENTS_OF_A_LOCK) {
            let from = self.client(&waiter.owner, waiter.label.as_deref(), clients);
            self.edge(from, lock, EdgeKind::Waits);
        }
        let named = queue.len().min(MOST_CLIENTS_OF_A_LOCK);
        let unnamed = status.waiters.elsewhere.unwrap_or(0).saturating_sub(named);
        if unnamed > 0 {
            let from = self.node(NodeKind::Clients, &format!("{unnamed} waiting"));
            self.edge(from, lock, EdgeKind::Waits);
        }
    }

    fn client(
        &mut self,
        owner: &str,
        label: Option<&str>,
        clients: &mut BTreeMap<String, usize>,
    ) -> usize {
        // An owner is the UUID of a client, and a number.
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

    fn edge(&mut self, from: usize, to: usize, kind: EdgeKind) {
        let edge = Edge { from, to, kind, cycle: false };
        if !self.edges.contains(&edge) {
            self.edges.push(edge);
        }
    }
}

#[cfg(test)]
mod tests {
    use wheellock::Client;

    use super::*;

    #[test]
    fn waiters_and_holders_are_connected_by_the_lock() {
        let client = Client::in_memory();
        let _guard = client.lock("a").lock().unwrap();
        let mut status = client.status("a").unwrap();
        assert!(Graph::of(&[&status]).nodes.is_empty(), "nobody waits");
        status.waiters.elsewhere = Some(3);
        let graph = Graph::of(&[&status]);
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
        let graph = Graph::of(&[&status; MOST_LOCKS + 5]);
        let clients = graph.nodes.iter().filter(|node| node.kind == NodeKind::Client).count();
        assert_eq!((clients, graph.left_out), (1, 5));
    }
}
