//! Both sides in one cluster: the same slots, and messages that reach the other side.

use std::sync::LazyLock;
use std::thread;

use wheellock::Client;
use wheellock_fixture::{Cluster, Server, wait_until};

use crate::AT_ONCE;
use crate::kind::{Version, redisson};
use crate::peer::Peer;
use crate::shared::{LIMIT, alone, fresh, now, start};

/// The first version whose messages in a cluster are sharded. Before, no message of one side
/// reaches the other there: see the guide.
const SHARDED: Version = (3, 22);

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(3, 0));

static JAVA: LazyLock<Peer> = LazyLock::new(|| java_on(&CLUSTER));

fn java_on(cluster: &Cluster) -> Peer {
    let nodes = cluster.nodes();
    let nodes: Vec<&Server> = nodes.iter().map(|node| &**node).collect();
    Peer::start(&["cluster=1"], &nodes)
}

fn connect() -> Client {
    Client::connect(&CLUSTER.url()).unwrap()
}

fn listeners(cluster: &Cluster, channel: &str) -> i64 {
    let of = |node: &Server| node.command(&["PUBSUB", "SHARDNUMSUB", channel]).array()[1].integer();
    cluster.nodes().iter().map(|node| of(node)).sum()
}

fn wait_for_a_listener(cluster: &Cluster, channel: &str) {
    wait_until("there is a subscriber", LIMIT, || listeners(cluster, channel) > 0);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn in_a_cluster_each_side_wakes_the_other() {
    let _alone = alone();
    if redisson() < SHARDED {
        return;
    }
    let client = connect();
    let java = JAVA.thread();
    let kinds: &[_] =
        if redisson() < (4, 0) { &["lock", "write"] } else { &["lock", "fenced", "write"] };
    for kind in kinds {
        let kind = *kind;
        for _ in 0..4 {
            let open = |name: &str| match kind {
                "lock" => client.lock(name),
                "write" => client.read_write_lock(name).write_lock(),
                _ => client.non_reentrant_lock(name),
            };
            let prefix = if kind == "write" { "redisson_rwlock" } else { "redisson_lock__channel" };
            let kind = if kind == "fenced" { "nonreentrant" } else { kind };

            let name = fresh(kind);
            java.call(kind, &name, "lock");
            thread::scope(|scope| {
                let waiting = start(scope, || {
                    let guard = open(&name).lock().unwrap();
                    let at = now();
                    guard.unlock().unwrap();
                    at
                });
                wait_for_a_listener(&CLUSTER, &format!("{prefix}:{{{name}}}"));
                let released = java.send(kind, &name, "unlock").answer();
                assert!(released.said.is_ok(), "{:?}", released.said);
                let took = waiting.join().unwrap().saturating_duration_since(released.at);
                assert!(took < AT_ONCE, "{name}: Rust was woken after {took:?}");
            });

            // Another name: to the last one our client listens for some seconds more.
            let name = fresh(kind);
            let guard = open(&name).lock().unwrap();
            let waiting = java.send(kind, &name, "lock");
            wait_for_a_listener(&CLUSTER, &format!("{prefix}:{{{name}}}"));
            if kind == "write" {
                java.wait_until_asleep();
            }
            guard.unlock().unwrap();
            let released = now();
            let owned = waiting.answer();
            assert!(owned.said.is_ok(), "{:?}", owned.said);
            let took = owned.at.saturating_duration_since(released);
            assert!(took < AT_ONCE, "{name}: Java was woken after {took:?}");
            java.call(kind, &name, "unlock");
        }
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn in_a_cluster_semaphores_and_latches_wake_the_other_side() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    for _ in 0..4 {
        let name = fresh("semaphore");
        let semaphore = client.semaphore(&name);
        semaphore.try_set_permits(0).unwrap();
        let waiting = java.send("semaphore", &name, "acquire");
        wait_for_a_listener(&CLUSTER, &format!("redisson_sc:{{{name}}}"));
        semaphore.release(1).unwrap();
        assert!(waiting.answer().said.is_ok());

        let name = fresh("latch");
        let latch = client.count_down_latch(&name);
        latch.try_set_count(1).unwrap();
        let waiting = java.send("latch", &name, "await");
        wait_for_a_listener(&CLUSTER, &format!("redisson_countdownlatch__channel__{{{name}}}"));
        latch.count_down().unwrap();
        assert!(waiting.answer().said.is_ok());
    }
}
