//! Cluster nodes that fail: what is kept, how long it takes, and how often the slot map is queried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::slots::{
    builder_of, calls, client_of, cluster, elsewhere, home, name_at, owner_of, start,
    wait_for_a_listener, without_polls_of,
};
use crate::common::{
    LIMIT, SOON, TIMEOUT, built, ended, now, pause, settle, timed, wait_for_a_waiter,
};
use wheellock::{Credentials, Error, LostReason, ManualClock, Warning};
use wheellock_fixture::{Cluster, ClusterBuilder, Server, wait_until};

/// Nodes that count as failed soon, although no replica could take their places.
fn quick_to_miss() -> ClusterBuilder {
    cluster().node_timeout(Duration::from_millis(1500))
}

/// Waits until a replica has what its master has.
fn wait_for_copies(cluster: &Cluster, master: &Server) {
    let size = || master.size();
    wait_until("the replicas have it all", SOON, || {
        let of = |replica: &Server| replica.size();
        cluster.replicas_of(master).iter().all(|replica| of(replica) == size())
    });
}

#[test]
fn replica_of_dead_master_keeps_holds_and_serves_waiters() {
    let cluster = start(3, 1);
    let lease = Duration::from_secs(12);
    let (holder, waiter) = (built(builder_of(&cluster).watchdog_lease(lease)), client_of(&cluster));
    let names: Vec<String> = (0..30).map(|number| format!("kept:{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| holder.lock(name).lock().unwrap()).collect();
    let (slot, old) = (cluster.slot_of(&names[0]), home(&cluster, &names[0]));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // Each call ends in bounded time while no node serves the slot.
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
        assert!(new.size() > 0);
        wait_for_a_listener(&cluster, &names[0]);
        for guard in guards {
            guard.unlock().unwrap();
        }
        waiting.join().unwrap();
    });
    assert_eq!(holder.stats().lost, 0);
}

#[test]
fn releases_before_a_failover_hold_at_the_promoted_replica() {
    let cluster = start(3, 1);
    let client = client_of(&cluster);
    let old = Arc::clone(&cluster.nodes()[0]);
    let name = name_at(&cluster, &old);
    let (slot, tag) = (cluster.slot_of(&name), format!("{{{name}}}"));
    let names: Vec<String> = (0..50).map(|number| format!("{tag}:{number}")).collect();
    let elsewhere = elsewhere(&cluster, &name);
    let stays = name_at(&cluster, &elsewhere);
    let release = |name: &str| {
        let guard = client.lock(name).lock().unwrap();
        let owner = guard.owner().to_owned();
        guard.unlock().unwrap();
        owner
    };
    // Released before its shortest time: it must not be freed.
    let kept = [format!("{tag}:kept"), format!("{tag}:dropped")];
    let keepers = kept.each_ref().map(|name| {
        let lock = client.lock(name).with_min_hold(Duration::from_secs(600));
        let guard = lock.lock().unwrap();
        let owner = guard.owner().to_owned();
        if name.ends_with("kept") {
            guard.unlock().unwrap();
        } else {
            drop(guard);
        }
        owner
    });
    settle(&client);
    let owners: Vec<String> = names.iter().map(|name| release(name)).collect();
    let its = release(&stays);
    let revive = |server: &Server, name: &str, owner: &str| {
        wait_until("it may be written to", SOON, || {
            !server.command(&["HSET", name, owner, "1"]).is_error()
        });
        server.command(&["PEXPIRE", name, "600000"]);
    };
    old.kill();
    let new = cluster.wait_for_another_master(&old, slot);
    // As if it had not heard of it. The client has had no reason to look for it so far.
    for (name, owner) in names.iter().zip(&owners) {
        revive(&new, name, owner);
    }
    for (name, owner) in kept.iter().zip(&keepers) {
        revive(&new, name, owner);
    }
    revive(&elsewhere, &stays, &its);
    assert!(client.lock(&format!("{tag}:x")).lock().is_ok());
    wait_until("all is released", SOON, || {
        names.iter().all(|name| new.command(&["EXISTS", name]).integer() == 0)
    });
    for (name, owner) in kept.iter().zip(&keepers) {
        assert_eq!(new.command(&["HEXISTS", name, owner]).integer(), 1, "{name}");
    }
    // Of a node that goes on nothing is released again.
    assert_eq!(elsewhere.command(&["EXISTS", &stays]).integer(), 1);
    assert_eq!(client.stats().abandoned_releases, 0);
}

#[test]
fn holds_are_renewed_at_a_promoted_replica_without_a_pause() {
    let cluster = start(3, 1);
    let clock = ManualClock::new();
    let client = built(builder_of(&cluster).clock(Arc::new(clock.clone())));
    let old = Arc::clone(&cluster.nodes()[0]);
    let name = name_at(&cluster, &old);
    let guard = client.lock(&name).lock().unwrap();
    wait_for_copies(&cluster, &old);
    old.kill();
    // The renewal at a third of the lease, after which there is a pause of more than two seconds.
    clock.advance(Duration::from_millis(10_050));
    assert_eq!((client.stats().renewed, client.stats().unanswered_renewals), (0, 1));
    let new = cluster.wait_for_another_master(&old, cluster.slot_of(&name));
    let mut ticks = 0;
    wait_until("it is renewed", SOON * 2, || {
        clock.advance(Duration::from_millis(1));
        ticks += 1;
        client.stats().renewed > 0
    });
    assert!(ticks < 2000, "{ticks} ms");
    assert!(guard.is_held() && new.command(&["PTTL", &name]).integer() > 25_000);
}

#[test]
fn holds_of_node_restarted_empty_are_verified_before_renewal() {
    let cluster = start(1, 0);
    let clock = ManualClock::new();
    let lease = Duration::from_secs(600);
    let builder = builder_of(&cluster).watchdog_lease(lease);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guard = client.lock("a").lock().unwrap();
    // From the first renewal on the thread of this node looks whether it is there.
    clock.advance(lease / 3);
    assert_eq!(client.stats().renewed, 1);
    let node = home(&cluster, "a");
    node.restart();
    wait_until("it serves again", SOON, || !node.command(&["DEL", "b"]).is_error());
    let mut seconds = 0;
    wait_until("it is told", SOON * 2, || {
        clock.advance(Duration::from_secs(1));
        seconds += 1;
        !guard.is_held()
    });
    assert!(seconds < 150, "{seconds} s");
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Deleted));
}

#[test]
fn a_leased_hold_whose_key_is_gone_is_reported_lost() {
    let cluster = start(1, 0);
    let client = built(builder_of(&cluster).foreign_watchdog(Duration::from_secs(1)));
    let guard = client.lock("a").with_lease(Duration::from_secs(600)).lock().unwrap();
    // As a master does not know it that was a replica when it was granted.
    home(&cluster, "a").command(&["DEL", "a"]);
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
    assert!(!guard.is_held());
}

#[test]
fn a_waiter_is_woken_by_a_release_at_a_manually_promoted_master() {
    let cluster = start(2, 1);
    let (holder, waiter) = (client_of(&cluster), without_polls_of(&cluster));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").lock()?.unlock());
        wait_for_a_waiter(&waiter);
        wait_for_a_listener(&cluster, "a");
        cluster.fail_over(&home(&cluster, "a"));
        wait_for_a_listener(&cluster, "a");
        guard.unlock().unwrap();
        assert_eq!(ended(&waiter, waiting), Ok(()));
    });
    assert_eq!(holder.stats().lost, 0);
}

#[test]
fn connections_to_a_node_without_slots_are_closed() {
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
        wait_until("no client is connected to it", SOON * 2, || connected() == 0);
    });
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn partial_cluster_outage_bounds_calls_and_healthy_nodes_serve() {
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
fn a_cluster_that_is_down_is_a_transient_error_in_bounded_time() {
    let cluster = quick_to_miss().start(3, 0);
    // Of its tries the last has most of it left for the answer, which a busy machine may cut off.
    let timeout = Duration::from_millis(550);
    let client = built(builder_of(&cluster).command_timeout(timeout));
    let [dead, alive, _] = &cluster.nodes()[..] else { panic!("three nodes") };
    let name = name_at(&cluster, alive);
    dead.kill();
    wait_until("the cluster is down", SOON, || {
        alive.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:fail")
    });
    wait_until("a call is told why", SOON, || {
        let (error, took) = timed(|| client.lock(&name).lock().unwrap_err());
        assert!(error.is_retryable() && took < timeout * 4, "{took:?}");
        matches!(&error, Error::Refused { code, .. } if code == "CLUSTERDOWN")
    });
    dead.start_again();
    wait_until("the cluster is up", SOON, || {
        client.lock(&name).lock().is_ok_and(|guard| guard.unlock().is_ok())
    });
}

#[test]
fn cluster_master_that_writes_without_replicas_is_a_warning() {
    // On a busy machine no replica takes over.
    let cluster = cluster().node_timeout(LIMIT).start(2, 1);
    let masters = cluster.masters();
    for master in &masters {
        let has_come = || master.command(&["INFO", "replication"]).text().contains("state=online");
        wait_until("the replica has come", LIMIT, has_come);
    }
    let is_told = || {
        let client = built(builder_of(&cluster).command_timeout(LIMIT));
        let is_it = |warning: &Warning| matches!(warning, Warning::WritesWithoutReplicas);
        client.warnings().iter().any(is_it)
    };
    // One such master is enough.
    for master in &masters {
        assert!(is_told());
        master.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    assert!(!is_told());
}

#[test]
fn a_dead_node_causes_no_busy_loop_of_refreshes() {
    let cluster = quick_to_miss().argument("--cluster-require-full-coverage", "no").start(3, 0);
    let holder = built(builder_of(&cluster).watchdog_lease(Duration::from_secs(60)));
    let waiter = client_of(&cluster);
    // Their calls end soon, and they call again at once.
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
        assert!(after[0] > before[0], "no client looks for a new master: {before:?} {after:?}");
        for waiting in waiting {
            drop(waiting.join().unwrap());
        }
    });
    drop(guards);
}

#[test]
fn few_threads_wait_for_a_credentials_callback_that_hangs() {
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
    // For each node one with a command for it, and one with a slot map query.
    let asking = asking.load(Ordering::SeqCst);
    assert!((1..=6).contains(&asking), "{asking}");
    drop(end);
}

#[test]
fn a_hanging_node_does_not_delay_calls_to_other_nodes() {
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
