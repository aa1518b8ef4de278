//! Ten thousand locks in a cluster that is resharded and fails over: the cluster keeps all of them.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::slots::{builder_of, calls, start};
use crate::common::{SOON, built, now, pause};
use wheellock::LockGuard;
use wheellock_fixture::{Cluster, Reply, Server, wait_until};

const LOCKS: usize = 10_000;
const LEASE: Duration = Duration::from_secs(15);

/// Every key of the cluster with its owner and its time to live.
fn everything(cluster: &Cluster) -> HashMap<String, (String, i64)> {
    let mut all = HashMap::new();
    for master in cluster.masters() {
        let mut connection = master.connection();
        for key in connection.command(&["KEYS", "*"]).texts() {
            if key.starts_with("wheellock_client:") {
                continue;
            }
            let owners = connection.command(&["HKEYS", &key]);
            let left = connection.command(&["PTTL", &key]);
            if let (Reply::Array(owners), Reply::Integer(left)) = (owners, left) {
                all.insert(key, (owners[0].text(), left));
            }
        }
    }
    all
}

/// Waits until the replicas have what their masters have.
fn wait_for_copies(cluster: &Cluster, master: &Server) {
    let size = |server: &Server| server.size();
    wait_until("the replicas have it all", SOON, || {
        cluster.replicas_of(master).iter().all(|replica| size(replica) == size(master))
    });
}

#[test]
fn ten_thousand_holds_survive_resharding_failovers_and_new_node() {
    let cluster = start(3, 1);
    let client = built(builder_of(&cluster).watchdog_lease(LEASE));
    let names: Vec<String> = (0..LOCKS).map(|number| format!("many:{number}")).collect();
    let guards: Vec<LockGuard> =
        names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    let begun = now();
    let first = cluster.nodes()[0].clone();
    // A failover by hand loses nothing.
    cluster.fail_over(&first);
    let added = cluster.add_master();
    for slot in (0..16_384).step_by(40) {
        cluster.move_slot(slot, &added);
    }
    // One that is sudden loses what was not copied.
    let second = cluster.nodes()[1].clone();
    wait_for_copies(&cluster, &second);
    let slot = (0..16_384).find(|slot| cluster.node_of(*slot).address() == second.address());
    second.kill();
    let third = cluster.wait_for_another_master(&second, slot.unwrap());
    assert_ne!(third.address(), second.address());
    for slot in (7..16_384).step_by(40) {
        // Right after an election the nodes refuse for a moment.
        wait_until("the slot moves", SOON, || cluster.try_move_slot(slot, &added).is_ok());
    }
    // Long enough that none of them would still be there if it had not been renewed.
    while now() - begun < LEASE * 2 {
        pause(Duration::from_millis(100));
    }
    let kept = everything(&cluster);
    let mut lost = 0;
    for (name, guard) in names.iter().zip(&guards) {
        match kept.get(name) {
            Some((owner, left)) => {
                assert_eq!(owner, guard.owner());
                assert!(guard.is_held(), "{name} was kept for {left} ms more, and is lost");
            }
            None => lost += 1,
        }
    }
    let stats = client.stats();
    assert_eq!(u64::try_from(lost).unwrap(), stats.lost, "{stats:?}");
    assert!(lost < LOCKS / 100, "{lost} of {LOCKS} were not kept");
    assert!(added.size() > 100);
    let asked = calls(&cluster, "cluster|slots");
    drop(guards);
    wait_until("all are released", SOON * 3, || client.stats().queued_releases == 0);
    assert_eq!(everything(&cluster).len(), 0);
    // The map is asked for at most twenty times in a second, by the fixture's own looks too.
    let seconds = (now() - begun).as_secs() + 1;
    assert!(asked / seconds < 25, "{asked} times in {seconds} s");
}
