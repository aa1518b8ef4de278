//! A forked client in a cluster: the child opens its own connections to the nodes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::common::forked::Child;
use crate::common::slots::{
    AT_ONCE, builder_of, client_of, elsewhere, home, name_at, owner_of, start, wait_for_a_listener,
};
use crate::common::{built, timed, wait_for_a_waiter};
use crate::ran_in_a_child;
use wheellock::{Client, Error, LockGuard, LostReason};
use wheellock_fixture::{Cluster, wait_until};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(9);

/// The connections of the clients to all nodes.
fn connections(cluster: &Cluster) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for node in cluster.nodes() {
        let clients = node.command(&["CLIENT", "LIST"]).text();
        let ours = clients.lines().filter(|line| line.contains(" user=family "));
        let id = |line: &str| line.split(' ').next().unwrap().to_owned();
        found.extend(ours.map(|line| format!("{} {}", node.address(), id(line))));
    }
    found
}

/// What the child has inherited, and what it does with it and without it.
fn live_in_a_fork(client: &Client, parents: &str, held: Vec<LockGuard>, own: &[String]) {
    assert_ne!(client.id(), parents);
    for guard in held {
        let name = guard.name();
        assert!(!guard.is_held() && !client.lock(&name).is_held_by_current_thread());
        assert!(client.lock(&name).try_lock().unwrap().is_none());
        let forked = Error::Lost { name, reason: LostReason::Forked };
        assert_eq!(guard.check(), Err(forked.clone()));
        assert_eq!(guard.unlock(), Err(forked));
    }
    let guards: Vec<_> = own.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    assert!(guards.iter().all(|guard| guard.owner().starts_with(&client.id())));
    // Whose slot goes to another node while it waits.
    client.lock("child's").lock().unwrap().unlock().unwrap();
    wait_until("its holds are renewed", SOON, || client.stats().renewed >= 2 * own.len() as u64);
    assert!(guards.iter().all(LockGuard::is_held));
    for guard in guards {
        guard.unlock().unwrap();
    }
}

#[test]
fn a_forked_client_connects_to_the_nodes_and_leaves_the_parents_holds_alone() {
    if ran_in_a_child(a_forked_client_connects_to_the_nodes_and_leaves_the_parents_holds_alone) {
        return;
    }
    let cluster = start(3, 0);
    let masters = cluster.masters();
    let client = built(builder_of(&cluster).watchdog_lease(LEASE));
    let rival = client_of(&cluster);
    let names: Vec<String> = masters.iter().map(|node| name_at(&cluster, node)).collect();
    let own: Vec<String> = names.iter().map(|name| format!("{{{name}}}:own")).collect();
    let held: Vec<_> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    let [parents, childs] = ["parent's", "child's"].map(|name| rival.lock(name).lock().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock("parent's").lock().unwrap().unlock());
        wait_for_a_waiter(&client);
        wait_for_a_listener(&cluster, "parent's");
        // It has every connection that it needs then.
        wait_until("all are renewed", SOON, || client.stats().renewed >= 6);
        let (before, made) = (connections(&cluster), client.stats().connections_made);
        let owners = || names.iter().map(|name| owner_of(&cluster, name)).collect::<Vec<_>>();
        let owned = owners();

        let mut inherited = Some(held);
        let id = client.id();
        let child = Child::doing(SOON, || {
            live_in_a_fork(&client, &id, inherited.take().unwrap(), &own);
        });
        let held = inherited.unwrap();
        wait_for_a_listener(&cluster, "child's");
        for name in &own {
            assert!(
                owner_of(&cluster, name).is_some_and(|owner| !owner.starts_with(&id)),
                "{name}"
            );
        }
        let with_the_child = connections(&cluster);
        assert!(with_the_child.is_superset(&before), "{before:?} {with_the_child:?}");
        // The callers' own at each node, and one that listens.
        assert!(with_the_child.len() > before.len() + masters.len(), "{with_the_child:?}");
        let new = elsewhere(&cluster, "child's");
        cluster.move_slot(cluster.slot_of("child's"), &new);
        wait_for_a_listener(&cluster, "child's");
        assert_eq!(home(&cluster, "child's").address(), new.address());
        childs.unlock().unwrap();
        child.wait();

        assert_eq!((owners(), client.stats().connections_made), (owned, made));
        assert!(connections(&cluster).is_superset(&before));
        let ((), took) = timed(|| {
            parents.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert!(took < AT_ONCE, "{took:?}");
        let renewed = client.stats().renewed;
        wait_until("all are renewed again", SOON, || client.stats().renewed >= renewed + 6);
        assert!(held.iter().all(LockGuard::is_held));
        for guard in held {
            assert!(guard.lost().try_recv().is_err());
            guard.unlock().unwrap();
        }
    });
    assert!(masters.iter().all(|node| node.size() == 0));
}
