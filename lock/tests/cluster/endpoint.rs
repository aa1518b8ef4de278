//! One endpoint before a hidden cluster, as managed services have it: nobody is redirected, a
//! script may touch one slot only, and the commands about the server are refused.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::slots::Lent;
use crate::common::takings::{KINDS, make_semaphores};
use crate::common::user::user_url;
use crate::common::{SOON, built, ended, now, pause, settle, wait_for_a_waiter, without_polls};
use wheellock::{Client, Error, LockGuard, ManualClock, RunOutcome, Warning};
use wheellock_fixture::{Endpoint, Server, wait_until};

/// The commands that services refuse: one by one, and all.
const REFUSED: [&[&str]; 6] = [
    &[],
    &["CLUSTER"],
    &["INFO"],
    &["CLIENT"],
    &["CONFIG"],
    &["CLUSTER", "INFO", "CLIENT", "CONFIG"],
];

/// The server's time goes on while a clock stands. On a busy machine it takes half a minute to
/// acquire and to renew thousands of locks.
const LEASE: Duration = Duration::from_secs(600);

/// A cluster and its endpoint, of which the endpoint ends first.
fn hidden() -> (Endpoint, Lent) {
    let cluster = Lent::take();
    (Endpoint::start(&cluster), cluster)
}

fn client_of(endpoint: &Endpoint) -> Client {
    built(Client::builder().url(&user_url(&endpoint.url())))
}

/// A client whose clock is moved by hand.
fn client_on(url: &str, clock: &ManualClock) -> Client {
    let builder = Client::builder().url(url).clock(Arc::new(clock.clone()));
    built(builder.watchdog_lease(LEASE))
}

/// Lets the renewals of a third of the lease become due, and waits for them. On a busy machine an
/// attempt may be given up, after three seconds of real time: it is made again when time passes.
fn renew(client: &Client, clock: &ManualClock, holds: u64) {
    let renewed = client.stats().renewed;
    clock.jump(LEASE / 3);
    let end = now() + SOON * 12;
    while client.stats().renewed < renewed + holds && now() < end {
        pause(Duration::from_millis(10));
        clock.advance(Duration::from_millis(100));
    }
    let stats = client.stats();
    assert_eq!(stats.lost, 0, "{stats:?}");
    assert!(stats.renewed >= renewed + holds, "{stats:?}");
}

#[test]
fn renewals_are_grouped_by_slot_after_the_first_refusal() {
    const SLOTS: usize = 100;
    const IN_EACH: usize = 30;
    const HOLDS: u64 = (SLOTS * IN_EACH) as u64;
    let (endpoint, _cluster) = hidden();
    let clock = ManualClock::new();
    let url = user_url(&endpoint.url());
    let client = client_on(&url, &clock);
    // Neighbours in time are in different slots.
    let name = |number: usize| format!("{{{}}}:{}", number % SLOTS, number / SLOTS);
    let guards: Vec<LockGuard> =
        (0..SLOTS * IN_EACH).map(|number| client.lock(&name(number)).lock().unwrap()).collect();

    // Scripts that were in flight together are refused, and no other.
    renew(&client, &clock, HOLDS);
    let refused = endpoint.cross_slot_refusals();
    assert!((1..=10).contains(&refused), "{refused}");

    // From then on the holds of a slot share a request, in each of the few turns that it takes.
    let sent = endpoint.requests("EVALSHA");
    renew(&client, &clock, HOLDS);
    assert_eq!(endpoint.cross_slot_refusals(), refused);
    let sent = endpoint.requests("EVALSHA") - sent;
    assert!(sent < SLOTS * IN_EACH / 3, "{sent} requests");

    let stats = client.stats();
    assert_eq!((stats.unanswered_renewals, stats.renewal_retries), (0, 0), "{stats:?}");
    assert!(guards.iter().all(LockGuard::is_held));
    let is_refusal = |warning: &Warning| matches!(warning, Warning::RenewalsRefused { .. });
    assert!(!client.warnings().iter().any(is_refusal));
}

#[test]
fn holds_of_every_kind_are_renewed() {
    let (endpoint, _cluster) = hidden();
    let lease = Duration::from_secs(6);
    let client = built(Client::builder().url(&user_url(&endpoint.url())).watchdog_lease(lease));
    for name in ["permits-1", "permits-2"] {
        client.expirable_semaphore(name).set_permits(1).unwrap();
    }
    let locks = ["1", "2"].map(|number| {
        let name = |kind: &str| format!("{kind}-{number}");
        (
            client.lock(&name("lock")).lock().unwrap(),
            client.fair_lock(&name("fair")).lock().unwrap(),
            client.fenced_lock(&name("fenced")).lock().unwrap(),
            client.simple_lock(&name("simple")).lock().unwrap(),
            client.read_write_lock(&name("read")).read_lock().lock().unwrap(),
            client.read_write_lock(&name("write")).write_lock().lock().unwrap(),
            client.expirable_semaphore(&name("permits")).watched().acquire().unwrap(),
        )
    });
    // Longer than any lease.
    wait_until("all were renewed four times", SOON * 3, || client.stats().renewed >= 14 * 4);
    assert_eq!((client.stats().lost, client.stats().unanswered_renewals), (0, 0));
    for (lock, fair, fenced, simple, read, write, permit) in locks {
        lock.unlock().unwrap();
        fair.unlock().unwrap();
        fenced.unlock().unwrap();
        simple.unlock().unwrap();
        read.unlock().unwrap();
        write.unlock().unwrap();
        permit.release().unwrap();
    }
}

#[test]
fn everything_works_whatever_the_endpoint_refuses() {
    for refused in REFUSED {
        let (endpoint, _cluster) = hidden();
        endpoint.refuse(refused);
        let client = client_of(&endpoint);
        make_semaphores(&client);
        for kind in KINDS {
            assert_eq!((kind.take)(&client), Ok(true), "{} without {refused:?}", kind.word);
        }
        settle(&client);
        assert_eq!(endpoint.cross_slot_refusals(), 0, "without {refused:?}");
        // The first request for several names tells the client that the server separates slots.
        let (a, b) = (client.lock("multi:a"), client.lock("multi:b"));
        for _ in 0..2 {
            let guard = client.multi_lock(&[&a, &b]).lock().unwrap();
            assert!(a.is_locked().unwrap() && b.is_locked().unwrap());
            guard.unlock().unwrap();
        }
        assert_eq!(endpoint.cross_slot_refusals(), 1, "without {refused:?}");
        let ran = client.job("job").run_once("today", |_| Ok::<_, Error>(())).unwrap();
        assert!(matches!(ran, RunOutcome::Ran(())));
        let campaign = client.leader_election("leader").campaign().unwrap();
        let term = campaign.next_term().unwrap();
        assert!(client.leader_election("leader").leader().unwrap().is_some());
        term.resign().unwrap();
        let latch = client.count_down_latch("latch");
        assert!(latch.try_set_count(1).unwrap());
        latch.count_down().unwrap();
        assert!(latch.wait_for(SOON).unwrap());
        let forced = client.lock("forced").lock().unwrap();
        assert_eq!(client.status("forced").unwrap().holders.len(), 1);
        assert!(client.lock("forced").force_unlock().unwrap());
        drop(forced);
        client.ping().unwrap();
        settle(&client);
        assert_eq!(endpoint.cross_slot_refusals(), 1, "without {refused:?}");
        assert!(client.warnings().is_empty());
    }
}

#[test]
fn waiters_are_woken_by_messages() {
    let (endpoint, cluster) = hidden();
    endpoint.refuse(&["CLUSTER", "INFO", "CLIENT", "CONFIG"]);
    let holder = client_of(&endpoint);
    // The guide's user may not ask for subscriptions.
    let observer = built(Client::builder().url(&endpoint.url()));
    let mut counted = HashSet::new();
    // Names at all nodes: a message is published at the node of the lock.
    for number in 0..9 {
        let name = |kind: &str| format!("{kind}:{number}");
        let url = user_url(&endpoint.url());

        let client = without_polls(&url);
        let guard = holder.lock(&name("lock")).lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock(&name("lock")).lock().unwrap().unlock());
            wait_for_a_waiter(&client);
            let channel = format!("redisson_lock__channel:{{{}}}", name("lock"));
            wait_until("a node has its subscription", SOON, || {
                let nodes = cluster.nodes().into_iter();
                let at = |node: Arc<Server>| node.command(&["PUBSUB", "NUMSUB", &channel]);
                nodes.map(|node| at(node).array()[1].integer()).sum::<i64>() == 1
            });
            counted.extend(observer.lock(&name("lock")).waiters().unwrap().elsewhere);
            drop(guard);
            ended(&client, waiter).unwrap();
        });

        let reader = holder.read_write_lock(&name("rw")).read_lock().lock().unwrap();
        thread::scope(|scope| {
            let lock = client.read_write_lock(&name("rw"));
            let waiter = scope.spawn(move || lock.write_lock().lock().unwrap().unlock());
            wait_for_a_waiter(&client);
            reader.unlock().unwrap();
            ended(&client, waiter).unwrap();
        });

        let (semaphore, free) = (holder.semaphore(&name("permits")), name("permits"));
        assert!(semaphore.try_set_permits(1).unwrap());
        let permit = semaphore.acquire(1).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.semaphore(&free).acquire(1)?.release());
            wait_for_a_waiter(&client);
            permit.release().unwrap();
            ended(&client, waiter).unwrap();
        });

        let latch = holder.count_down_latch(&name("latch"));
        assert!(latch.try_set_count(1).unwrap());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.count_down_latch(&name("latch")).wait());
            wait_for_a_waiter(&client);
            latch.count_down().unwrap();
            ended(&client, waiter).unwrap();
        });
    }
    // A lock counts the subscriptions at its own node, and all are at one node.
    assert_eq!(counted, HashSet::from([0, 1]));
}

#[test]
fn a_fair_lock_is_handed_over_in_order() {
    let (endpoint, _cluster) = hidden();
    let holder = client_of(&endpoint);
    let guard = holder.fair_lock("line").lock().unwrap();
    let clients = [(); 3].map(|()| without_polls(&user_url(&endpoint.url())));
    let (sender, order) = crossbeam_channel::unbounded();
    thread::scope(|scope| {
        let mut waiters = Vec::new();
        for (place, client) in clients.iter().enumerate() {
            let sender = sender.clone();
            waiters.push(scope.spawn(move || {
                let guard = client.fair_lock("line").lock().unwrap();
                sender.send(place).unwrap();
                guard.unlock()
            }));
            let queued = || holder.fair_lock("line").waiters().unwrap().queue.len();
            wait_until("it is in the queue", SOON, || queued() == place + 1);
            wait_for_a_waiter(client);
        }
        guard.unlock().unwrap();
        for (client, waiter) in clients.iter().zip(waiters) {
            ended(client, waiter).unwrap();
        }
    });
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_name_whose_keys_are_in_several_slots_is_named() {
    let (endpoint, _cluster) = hidden();
    let client = client_of(&endpoint);
    let error = client.fair_lock("a{b").lock().unwrap_err();
    assert!(matches!(&error, Error::InvalidName { name, .. } if name == "a{b"), "{error:?}");
    assert!(!error.is_retryable());
}

#[test]
fn a_list_has_the_locks_of_one_node() {
    let (endpoint, _cluster) = hidden();
    let client = built(Client::builder().url(&endpoint.url()));
    let names: Vec<String> = (0..100).map(|number| format!("listed:{number}")).collect();
    let _held: Vec<LockGuard> =
        names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    let listed = client.locks("listed:*").map(|status| status.map(|status| status.name));
    let listed: Vec<String> = listed.collect::<Result<_, _>>().unwrap();
    assert!(!listed.is_empty() && listed.len() < names.len(), "{}", listed.len());
    assert!(listed.iter().all(|name| names.contains(name)));
    for name in &names {
        assert_eq!(client.status(name).unwrap().holders.len(), 1);
    }
}

#[test]
fn closed_connections_are_made_again() {
    let (endpoint, _cluster) = hidden();
    let client = client_of(&endpoint);
    let guard = client.lock("held").lock().unwrap();
    for _ in 0..5 {
        endpoint.close_connections();
        client.lock("a").lock().unwrap().unlock().unwrap();
    }
    guard.unlock().unwrap();
}

#[test]
fn endpoint_with_cluster_report_accepts_cluster_clients() {
    let (endpoint, _cluster) = hidden();
    endpoint.show_cluster(true);
    let url = user_url(&endpoint.cluster_url());
    let (client, other) = (built(Client::builder().url(&url)), without_polls(&url));
    let guard = client.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock("a").lock().unwrap().unlock());
        wait_for_a_waiter(&other);
        guard.unlock().unwrap();
        ended(&other, waiter).unwrap();
    });
    // As a single server it is not taken, unless a client of a cluster cannot be either.
    let single = || Client::builder().url(&user_url(&endpoint.url())).build();
    assert!(matches!(single(), Err(Error::InvalidUrl { .. })));
    endpoint.refuse(&["CLUSTER"]);
    single().unwrap().lock("a").lock().unwrap().unlock().unwrap();
}
