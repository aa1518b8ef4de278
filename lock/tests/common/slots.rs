//! Shared by the tests of clusters: names at a node, and queries to all nodes.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder, ManualClock};
use wheellock_fixture::{Cluster, ClusterBuilder, Server, wait_until};

use super::user::{IN_A_CLUSTER, rule_with, user_url};
use super::{SOON, built};

/// A cluster that knows the operations guide's user.
pub(crate) fn cluster() -> ClusterBuilder {
    Cluster::builder().user(&rule_with(&[IN_A_CLUSTER]))
}

/// Starts a cluster that knows the operations guide's user, with this number of masters, and of
/// replicas of each.
pub(crate) fn start(masters: u16, replicas_of_each: u16) -> Cluster {
    cluster().start(masters, replicas_of_each)
}

/// A client of the cluster, as that user.
pub(crate) fn client_of(cluster: &Cluster) -> Client {
    built(builder_of(cluster))
}

/// A client of the cluster whose time stands still. Its waiters never poll: one that goes on was
/// woken.
pub(crate) fn without_polls_of(cluster: &Cluster) -> Client {
    built(builder_of(cluster).clock(Arc::new(ManualClock::new())))
}

pub(crate) fn builder_of(cluster: &Cluster) -> ClientBuilder {
    Client::builder().url(&user_url(&cluster.url()))
}

/// The node that has a name.
pub(crate) fn home(cluster: &Cluster, name: &str) -> Arc<Server> {
    cluster.node_of(cluster.slot_of(name))
}

/// A master that does not have a name.
pub(crate) fn elsewhere(cluster: &Cluster, name: &str) -> Arc<Server> {
    let home = home(cluster, name).address();
    cluster.masters().into_iter().find(|master| master.address() != home).unwrap()
}

/// Some name that a master has.
pub(crate) fn name_at(cluster: &Cluster, master: &Server) -> String {
    let is_there = |name: &String| home(cluster, name).address() == master.address();
    (0..1_000_000).map(|number| format!("name-{number}")).find(is_there).unwrap()
}

/// How often a command was called, at all nodes together.
pub(crate) fn calls(cluster: &Cluster, command: &str) -> u64 {
    let running = cluster.nodes().into_iter().filter(|node| node.is_running());
    running.map(|node| node.command_calls(command)).sum()
}

/// The owners under a key, asked where it is.
pub(crate) fn owner_of(cluster: &Cluster, name: &str) -> Option<String> {
    home(cluster, name).command(&["HKEYS", name]).texts().pop()
}

/// A question of `PUBSUB` about the channels of a shard, or of all where a server has no others.
pub(crate) fn of_shard(node: &Server, question: &str) -> String {
    if node.predates_7() { question.to_owned() } else { format!("SHARD{question}") }
}

/// Waits until a client subscribes to a lock's channel where messages reach it: at the node of its
/// slot, or at any node of servers without channels of shards.
pub(crate) fn wait_for_a_listener(cluster: &Cluster, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    wait_until("there is a subscriber", SOON, || {
        let home = home(cluster, name);
        let question = of_shard(&home, "NUMSUB");
        let nodes = if home.predates_7() { cluster.nodes() } else { vec![home] };
        nodes.iter().any(|node| {
            let count = node.try_command(&["PUBSUB", &question, &channel]);
            count.is_ok_and(|count| count.array()[1].integer() > 0)
        })
    });
}

/// What a busy machine may take for anything that takes no time.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(850);

/// A cluster of three masters for a test that breaks nothing: empty, and used by one test after the
/// other, as a start takes seconds.
#[derive(Debug)]
pub(crate) struct Lent(Option<Cluster>);

static FREE: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());

impl Lent {
    pub(crate) fn take() -> Self {
        let free = FREE.lock().pop();
        let cluster = free.unwrap_or_else(|| start(3, 0));
        for node in cluster.nodes() {
            node.command(&["FLUSHALL"]);
        }
        Self(Some(cluster))
    }

    pub(crate) fn home(&self, key: &str) -> Arc<Server> {
        home(self, key)
    }
}

impl Deref for Lent {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        FREE.lock().extend(self.0.take());
    }
}
