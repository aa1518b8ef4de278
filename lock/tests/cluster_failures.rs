//! Nodes of a cluster that die: what is kept, how long it takes, and how often anybody asks.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::slots::{
    builder_of, calls, client_of, cluster, home, name_at, owner_of, start, wait_for_a_listener,
};
use common::{SOON, TIMEOUT, built, now, pause, timed, wait_for_a_waiter};
use wheellock::{Credentials, Error, LostReason};
use wheellock_fixture::{Cluster, ClusterBuilder, Server, wait_until};

/// Nodes that are missed soon, although nobody could take their places.
fn quick_to_miss() -> ClusterBuilder {
    cluster().node_timeout(Duration::from_millis(1500))
}

/// Waits until a replica has what its master has.
fn wait_for_copies(cluster: &Cluster, master: &Server) {
    let size = || master.command(&["DBSIZE"]).integer();
    wait_until("the replicas have it all", SOON, || {
        let of = |replica: &Server| replica.command(&["DBSIZE"]).integer();
        cluster.replicas_of(master).iter().all(|replica| of(replica) == size())
    });
}

#[test]
fn when_a_master_dies_its_replica_keeps_the_holds_and_the_waiters_get_their_turn() {
    let cluster = start(3, 1);
    let lease = Duration::from_secs(12);
    let (holder, waiter) = (built(builder_of(&cluster).watchdog_lease(lease)), client_of(&cluster));
    let names: Vec<String> = (0..30).map(|number| format!("kept:{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| holder.lock(name).lock().unwrap()).collect();
    let (slot, old) = (cluster.slot_of(&names[0]), home(&cluster, &names[0]));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // Each call ends in bounded time while nobody serves the slot.
            loop {
                match waiter.lock(&names[0]).lock() {
                    Ok(guard) => return guard.unlock().unwrap(),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        });
        wait_for_a_waiter(&waiter);
        wait_for_a_listener(&cluster, &names[0]);
        wait_for_copies(&cluster, &old);
        old.kill();
        let new = cluster.wait_for_another_master(&old, slot);
        let renewed = holder.stats().renewed;
        wait_until("all are renewed", SOON, || {
            holder.stats().renewed >= renewed + u64::try_from(names.len()).unwrap()
        });
        for (name, guard) in names.iter().zip(&guards) {
            assert!(guard.is_held(), "{name}");
            assert_eq!(owner_of(&cluster, name).as_deref(), Some(guard.owner()), "{name}");
        }
        assert!(new.command(&["DBSIZE"]).integer() > 0);
        wait_for_a_listener(&cluster, &names[0]);
        for guard in guards {
            guard.unlock().unwrap();
        }
        waiting.join().unwrap();
    });
    assert_eq!(holder.stats().lost, 0);
}

#[test]
fn a_hold_with_a_lease_of_its_own_is_told_that_its_key_is_gone() {
    let cluster = start(1, 0);
    let client = built(builder_of(&cluster).foreign_watchdog(Duration::from_secs(1)));
    let guard = client.lock("a").with_lease(Duration::from_secs(600)).lock().unwrap();
    // As a master does not know it that was a replica when it was granted.
    home(&cluster, "a").command(&["DEL", "a"]);
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    assert!(!guard.is_held());
}

#[test]
fn a_waiter_hears_of_a_release_at_the_master_that_was_promoted_by_hand() {
    let cluster = start(2, 1);
    let (holder, waiter) = (client_of(&cluster), client_of(&cluster));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").lock().unwrap().unlock().unwrap());
        wait_for_a_waiter(&waiter);
        wait_for_a_listener(&cluster, "a");
        cluster.fail_over(&home(&cluster, "a"));
        wait_for_a_listener(&cluster, "a");
        let ((), took) = timed(|| {
            guard.unlock().unwrap();
            waiting.join().unwrap();
        });
        assert!(took < common::slots::AT_ONCE, "{took:?}");
    });
    assert_eq!(holder.stats().lost, 0);
}

#[test]
fn a_node_that_serves_nothing_any_more_is_let_go() {
    let cluster = start(2, 1);
    let client = client_of(&cluster);
    let guard = client.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock("a").lock().unwrap().unlock().unwrap());
        wait_for_a_listener(&cluster, "a");
        let old = home(&cluster, "a");
        let connected = || {
            let list = |kind: &str| old.command(&["CLIENT", "LIST", "TYPE", kind]).text();
            let normal = list("normal");
            // Without the connection that asks.
            let others = normal.lines().filter(|line| !line.contains("cmd=client")).count();
            others + list("pubsub").lines().count()
        };
        assert!(connected() >= 2, "a caller's and the one that listens");
        cluster.fail_over(&old);
        guard.unlock().unwrap();
        waiting.join().unwrap();
        wait_until("nobody is connected to it", SOON * 2, || connected() == 0);
    });
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn while_a_part_of_the_cluster_is_down_calls_end_in_bounded_time_and_the_rest_works() {
    let cluster = quick_to_miss().argument("--cluster-require-full-coverage", "no").start(3, 0);
    let client = built(builder_of(&cluster).command_timeout(TIMEOUT));
    let [dead, alive, _] = &cluster.nodes()[..] else { panic!("three nodes") };
    let (lost, kept) = (name_at(&cluster, dead), name_at(&cluster, alive));
    dead.kill();
    for _ in 0..3 {
        let (error, took) = timed(|| client.lock(&lost).lock().unwrap_err());
        assert!(error.is_retryable() && took < TIMEOUT * 4, "{error} after {took:?}");
        client.lock(&kept).lock().unwrap().unlock().unwrap();
    }
    dead.start_again();
    wait_until("it works again", SOON, || {
        client.lock(&lost).lock().is_ok_and(|guard| guard.unlock().is_ok())
    });
}

#[test]
fn a_cluster_that_is_down_is_an_error_that_passes_within_a_bound() {
    let cluster = quick_to_miss().start(3, 0);
    // Of its tries the last has most of it left for the answer.
    let timeout = Duration::from_millis(550);
    let client = built(builder_of(&cluster).command_timeout(timeout));
    let [dead, alive, _] = &cluster.nodes()[..] else { panic!("three nodes") };
    let name = name_at(&cluster, alive);
    dead.kill();
    wait_until("the cluster is down", SOON, || {
        alive.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail")
    });
    let (error, took) = timed(|| client.lock(&name).lock().unwrap_err());
    assert!(matches!(&error, Error::Refused { code, .. } if code == "CLUSTERDOWN"), "{error}");
    assert!(error.is_retryable() && took < timeout * 4, "{took:?}");
    dead.start_again();
    wait_until("the cluster is up", SOON, || {
        client.lock(&name).lock().is_ok_and(|guard| guard.unlock().is_ok())
    });
}

#[test]
fn a_dead_node_makes_nobody_ask_in_a_hurry() {
    let cluster = quick_to_miss().argument("--cluster-require-full-coverage", "no").start(3, 0);
    let holder = built(builder_of(&cluster).watchdog_lease(Duration::from_secs(60)));
    let waiter = client_of(&cluster);
    // Whose calls end soon, and who call again at once.
    let caller = built(builder_of(&cluster).command_timeout(TIMEOUT));
    let stop = AtomicBool::new(false);
    let [dead, alive, _] = &cluster.nodes()[..] else { panic!("three nodes") };
    let (lost, kept) = (name_at(&cluster, dead), name_at(&cluster, alive));
    let guards = [&lost, &kept].map(|name| holder.lock(name).lock().unwrap());
    thread::scope(|scope| {
        let waiting: Vec<_> = [&lost, &kept]
            .map(|name| {
                scope.spawn(|| waiter.lock(name).try_lock_for(Duration::from_secs(6)).map(drop))
            })
            .into();
        wait_until("both wait", SOON, || waiter.stats().waiters == 2);
        dead.kill();
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(caller.lock(&lost).try_lock().is_err());
                }
            });
        }
        pause(Duration::from_secs(1));
        let commands = ["cluster|slots", "evalsha", "eval", "auth", "time", "ssubscribe", "ping"];
        let counts = || commands.map(|command| calls(&cluster, command));
        let (before, begun) = (counts(), now());
        pause(Duration::from_secs(3));
        let (after, took) = (counts(), now() - begun);
        stop.store(true, Ordering::Relaxed);
        let seconds = took.as_secs() + 1;
        for ((command, before), after) in commands.into_iter().zip(before).zip(after) {
            let each_second = (after - before) / seconds;
            assert!(each_second <= 6, "{command}: {} in {took:?}", after - before);
        }
        assert!(after[0] > before[0], "nobody looks for a new master: {before:?} {after:?}");
        for waiting in waiting {
            drop(waiting.join().unwrap());
        }
    });
    drop(guards);
}

#[test]
fn while_no_credentials_come_few_wait_for_them_however_often_the_cluster_is_looked_at() {
    let cluster = quick_to_miss().argument("--cluster-require-full-coverage", "no").start(3, 0);
    let (end, hang) = crossbeam_channel::bounded::<()>(0);
    let (hangs, asking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let credentials = {
        let (hangs, asking) = (Arc::clone(&hangs), Arc::clone(&asking));
        move || {
            asking.fetch_add(1, Ordering::SeqCst);
            if hangs.load(Ordering::SeqCst) {
                // Until the other end is dropped.
                hang.recv().ok();
            }
            asking.fetch_sub(1, Ordering::SeqCst);
            Ok(Credentials::new("default", "any"))
        }
    };
    let client = built(builder_of(&cluster).credentials(credentials).command_timeout(TIMEOUT));
    let [dead, ..] = &cluster.nodes()[..] else { panic!("three nodes") };
    let lost = name_at(&cluster, dead);
    client.lock(&lost).lock().unwrap().unlock().unwrap();
    hangs.store(true, Ordering::SeqCst);
    dead.kill();
    let begun = now();
    while now() - begun < Duration::from_secs(4) {
        assert!(client.lock(&lost).try_lock().is_err());
    }
    // For each node one who has a command for it, and one who asks it who serves what.
    let asking = asking.load(Ordering::SeqCst);
    assert!((1..=6).contains(&asking), "{asking}");
    drop(end);
}

#[test]
fn a_node_that_hangs_costs_the_callers_of_others_nothing() {
    let cluster = cluster().node_timeout(Duration::from_secs(60)).start(3, 0);
    let client = client_of(&cluster);
    let [hung, alive, _] = &cluster.nodes()[..] else { panic!("three nodes") };
    let (stuck, free) = (name_at(&cluster, hung), name_at(&cluster, alive));
    client.lock(&stuck).lock().unwrap().unlock().unwrap();
    client.lock(&free).lock().unwrap().unlock().unwrap();
    hung.pause();
    thread::scope(|scope| {
        let stuck: Vec<_> =
            (0..20).map(|_| scope.spawn(|| client.lock(&stuck).try_lock().map(drop))).collect();
        wait_until("they are stuck", SOON, || client.stats().connections_made > 3);
        for _ in 0..50 {
            let (result, took) = timed(|| client.lock(&free).lock().unwrap().unlock());
            result.unwrap();
            // Whoever waits for the one that hangs waits for three seconds.
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
        hung.resume();
        for stuck in stuck {
            stuck.join().unwrap().unwrap();
        }
    });
}
