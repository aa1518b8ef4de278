//! Renewals in a cluster: each master has its own thread, so that a hanging master affects only its
//! own holds; holds and pending releases follow their slots.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::slots::{Lent, builder_of, cluster, elsewhere, home, name_at, owner_of, start};
use crate::common::{SLACK, SOON, built, now, pause, timed};
use wheellock::{Client, LockGuard, LostReason, ManualClock};
use wheellock_fixture::{Cluster, Fault, Proxy, Request, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// So many locks of one master.
fn take_at(client: &Client, cluster: &Cluster, master: &Server, count: usize) -> Vec<LockGuard> {
    let tag = name_at(cluster, master);
    (0..count).map(|number| client.lock(&format!("{{{tag}}}:{number}")).lock().unwrap()).collect()
}

#[test]
fn a_hanging_master_delays_nothing_at_the_others() {
    const LEASE: Duration = Duration::from_secs(9);
    // Nobody is to take it for dead.
    let cluster = cluster().node_timeout(SECOND * 60).start(3, 0);
    let client = built(builder_of(&cluster).watchdog_lease(LEASE));
    let [hung, well, other] = &cluster.nodes()[..] else { panic!("three nodes") };
    let stuck = take_at(&client, &cluster, hung, 100);
    let mut free = take_at(&client, &cluster, well, 100);
    free.extend(take_at(&client, &cluster, other, 100));
    let fresh = name_at(&cluster, other);
    hung.pause();
    let paused = now();
    let mut least = LEASE;
    while stuck.iter().any(LockGuard::is_held) {
        assert!(now() - paused < LEASE, "a hold is valid without an answer");
        least = free.iter().map(LockGuard::remaining).min().unwrap().min(least);
        let (result, took) = timed(|| client.lock(&fresh).lock().unwrap().unlock());
        result.unwrap();
        // Whoever waits for the one that hangs waits for three seconds.
        assert!(took < SECOND * 2, "{took:?}");
        pause(SECOND / 20);
    }
    // A third of the lease is over when they are renewed.
    assert!(least + SLACK > LEASE * 2 / 3, "{least:?}");
    assert!(free.iter().all(LockGuard::is_held));
    for guard in &stuck {
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::ServerUnreachable));
    }
    assert_eq!(client.stats().lost, 100);
    hung.resume();
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    for guard in &stuck {
        assert_eq!(owner_of(&cluster, &guard.name()), None, "{}", guard.name());
    }
}

#[test]
fn ten_thousand_holds_in_all_slots_are_renewed_in_time() {
    const MANY: usize = 10_000;
    // The server's time goes on while the clock stands. On a busy machine it takes half a minute to
    // acquire and to renew all of them.
    const LEASE: Duration = Duration::from_secs(600);
    let cluster = Lent::take();
    let clock = ManualClock::new();
    let builder = builder_of(&cluster).clock(Arc::new(clock.clone()));
    let client = built(builder.watchdog_lease(LEASE));
    let guards: Vec<_> =
        (0..MANY).map(|number| client.lock(&format!("many:{number}")).lock().unwrap()).collect();
    let asked = || cluster.nodes().iter().map(|node| node.command_calls("evalsha")).collect();
    let before: Vec<u64> = asked();
    // All at once: nothing is worse.
    let ((), took) = timed(|| clock.jump(LEASE / 3));
    // On this clock no time passes meanwhile.
    let end = now() + SOON * 6;
    while client.stats().renewed < MANY as u64 && now() < end {
        pause(Duration::from_millis(10));
    }
    let behind = guards.iter().filter(|guard| guard.remaining() < LEASE * 9 / 10).count();
    let stats = client.stats();
    assert_eq!(behind, 0, "after {took:?}: {stats:?}");
    assert_eq!((stats.renewed, stats.lost, stats.unanswered_renewals), (MANY as u64, 0, 0));
    let after: Vec<u64> = asked();
    for (before, after) in before.iter().zip(&after) {
        let scripts = usize::try_from(after - before).unwrap();
        // A third of them, in scripts of one slot each: hardly more than one key.
        assert!((MANY / 3 / 2..MANY / 3 * 3 / 2).contains(&scripts), "{scripts}");
    }
    // Afterwards they are spread.
    clock.advance(LEASE * 2);
    assert!(guards.iter().all(LockGuard::is_held));
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn the_holds_of_a_slot_that_has_moved_are_renewed_where_it_is() {
    let cluster = Lent::take();
    let clock = ManualClock::new();
    let client = built(builder_of(&cluster).clock(Arc::new(clock.clone())));
    let guards: Vec<_> =
        (0..60).map(|number| client.lock(&format!("{{a}}:{number}")).lock().unwrap()).collect();
    let target = elsewhere(&cluster, "{a}");
    cluster.move_slot(cluster.slot_of("{a}"), &target);
    for guard in &guards {
        target.command(&["PEXPIRE", &guard.name(), "20000"]);
    }
    // The first script is sent on; from then on they go there at once.
    clock.advance(LEASE / 3);
    for guard in &guards {
        let left = target.command(&["PTTL", &guard.name()]).integer();
        assert!(left > 25_000, "{left}");
    }
    let renewed = client.stats().renewed;
    assert!(renewed >= 60);
    assert_eq!(home(&cluster, "{a}").address(), target.address());
    clock.advance(LEASE * 2);
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(client.stats().renewed >= renewed + 300);
    assert_eq!((client.stats().lost, client.stats().unanswered_renewals), (0, 0));
}

#[test]
fn a_pending_release_of_a_dead_master_is_sent_to_its_successor() {
    let cluster = start(3, 1);
    let client = built(builder_of(&cluster).command_timeout(SECOND / 4));
    let first = &cluster.nodes()[0];
    let name = name_at(&cluster, first);
    let slot = cluster.slot_of(&name);
    let guard = client.lock(&name).lock().unwrap();
    let size = |server: &Server| server.size();
    wait_until("the replica has it", SOON, || {
        cluster.replicas_of(first).iter().all(|replica| size(replica) == size(first))
    });
    first.kill();
    drop(guard);
    wait_until("the release is queued", SOON, || client.stats().queued_releases == 1);
    let successor = cluster.wait_for_another_master(first, slot);
    assert_eq!(successor.command(&["EXISTS", &name]).integer(), 1, "it is not released yet");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(successor.command(&["EXISTS", &name]).integer(), 0);
    assert_eq!(client.stats().abandoned_releases, 0);
}

#[test]
fn a_redirected_renewal_is_no_clock_jump() {
    // Two addresses of one node, as far as the client knows two nodes.
    let cluster = Cluster::start(1, 0);
    let node = &cluster.nodes()[0];
    let [here, there] = [(), ()].map(|()| Proxy::start(node.address()));
    let port = here.address().port();
    let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    let asks = |request: &Request| request.name() == "CLUSTER";
    here.on(asks, Fault::AnswerInstead(slots.clone().into_bytes())).always();
    there.on(asks, Fault::AnswerInstead(slots.into_bytes())).always();
    let url = format!("redis-cluster://{}", here.address());
    let client = built(Client::builder().url(&url).watchdog_lease(SECOND * 3 / 2));
    let guards = ["a", "b"].map(|name| client.lock(name).lock().unwrap());
    let renew = node
        .command(&[
            "SCRIPT",
            "LOAD",
            &crate::common::code(include_str!("../../src/ops/scripts/renew.lua")),
        ])
        .text();
    let renews_b = move |request: &Request| {
        request.arguments.get(1).is_some_and(|hash| *hash == renew.as_bytes())
            && request.arguments.contains(&b"b".to_vec())
    };
    // The slot of `b` is on its way to a node whose clock is a minute ahead.
    let sent_on = format!("-ASK {} {}\r\n", cluster.slot_of("b"), there.address());
    here.on(renews_b.clone(), Fault::AnswerInstead(sent_on.into_bytes())).always();
    let time = node.command(&["TIME"]).texts()[0].parse::<u64>().unwrap() + 60;
    let renewed = format!("*2\r\n:{time}000\r\n:1\r\n");
    let ahead = there.on(renews_b, Fault::AnswerInstead(renewed.into_bytes())).always();
    ahead.wait_for_hits(3, SOON);
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(client.warnings().is_empty());
}
