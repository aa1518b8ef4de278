//! Waits that end by themselves, very many waits, a distant server, a client that falls silent.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use wheellock::{Client, Lock, OnDeadlock};
use wheellock_fixture::{Proxy, Server, wait_until};

use crate::common::{LIMIT, SOON, built, pause};
use crate::{client, cross, cycles, failed};

const SECOND: Duration = Duration::from_secs(1);

fn scripts(server: &Server) -> u64 {
    server.command_calls("evalsha")
}

#[test]
fn a_lock_that_nobody_renews_ends_by_itself_and_is_in_no_cycle() {
    let server = Server::start();
    let clients = ["one", "other"].map(|label| client(&server, label, OnDeadlock::Fail));
    let lease = SECOND * 5;
    let pairs = [
        (clients[0].lock("a").with_lease(lease), clients[0].lock("b")),
        (clients[1].lock("b"), clients[1].lock("a")),
    ];
    assert_eq!(failed(&cross(&pairs)), 0);
    // Not reentrant: the thread waits for the end of its own lease.
    let simple = clients[0].simple_lock("c").with_lease(lease);
    let _held = simple.lock().unwrap();
    assert!(simple.try_lock_for(SOON * 6).unwrap().is_some());
    assert_eq!(clients.each_ref().map(|client| cycles(client).len()), [0, 0]);
}

/// Two threads of a client wait for each other, and one of the waits fails.
fn is_found(client: &Client) {
    let [a, b] = ["a", "b"].map(|name| client.lock(name));
    assert_eq!(failed(&cross(&[(a.clone(), b.clone()), (b, a)])), 1);
}

#[test]
fn a_cycle_beside_many_waits_that_come_and_go_is_found() {
    let server = Server::start();
    let client = client(&server, "busy", OnDeadlock::Fail);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Each of them waits for more than a second, and then the next does.
        for _ in 0..50 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let guard = client.lock("hot").lock().unwrap();
                    pause(Duration::from_millis(30));
                    guard.unlock().unwrap();
                }
            });
        }
        is_found(&client);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn cycle_beyond_record_capacity_is_found_once_room_is_free() {
    let server = Server::start();
    let client = client(&server, "many", OnDeadlock::Fail);
    let held = client.lock("hot").lock().unwrap();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| client.lock("hot").lock().unwrap().unlock().unwrap());
        }
        let record = format!("wheellock_client:{}", client.id());
        let named = || server.command(&["HSTRLEN", &record, "waits"]).integer();
        wait_until("all are named", LIMIT, || named() > 64 * 30);
        let crossing = scope.spawn(|| is_found(&client));
        wait_until("the two wait as well", LIMIT, || client.stats().waiters == 66);
        pause(SECOND * 2);
        held.unlock().unwrap();
        crossing.join().unwrap();
    });
}

#[test]
fn a_ring_of_six_clients_at_a_distance_is_found() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    proxy.delay_requests(Duration::from_millis(40));
    let build = |number: usize| {
        let builder = Client::builder().url(&proxy.url()).on_deadlock(OnDeadlock::Fail);
        built(builder.label(&format!("client {number}")))
    };
    let clients: Vec<Client> = (0..6).map(build).collect();
    let lock = |at: usize, of: usize| clients[at].lock(&format!("lock-{}", of % 6));
    let pairs: Vec<(Lock, Lock)> = (0..6).map(|at| (lock(at, at), lock(at, at + 1))).collect();
    assert_eq!(failed(&cross(&pairs)), 1);
}

#[test]
fn a_part_of_a_cycle_leads_to_the_whole_of_it() {
    let server = Server::start();
    let clients = ["one", "two", "three"].map(|label| client(&server, label, OnDeadlock::Warn));
    let observer = built(Client::builder().url(&server.url()));
    let lock = |at: usize, of: usize| clients[at].lock(&format!("lock-{}", of % 3));
    let pairs: Vec<(Lock, Lock)> = (0..3).map(|at| (lock(at, at), lock(at, at + 1))).collect();
    thread::scope(|scope| {
        let crossing = scope.spawn(|| cross(&pairs));
        wait_until("all have reported it", LIMIT, || {
            clients.iter().all(|client| cycles(client).len() == 1)
        });
        for graph in [
            observer.wait_graph("lock-0").unwrap(),
            observer.wait_graph_of(vec![observer.status("lock-0").unwrap()]).unwrap(),
        ] {
            assert_eq!((graph.locks.len(), graph.waits.len(), graph.cycles.len()), (1, 3, 1));
        }
        assert!(observer.lock("lock-0").force_unlock().unwrap());
        assert_eq!(failed(&crossing.join().unwrap()), 0);
    });
}

#[test]
fn who_may_not_write_a_record_does_not_look() {
    let server = Server::start();
    let keys = ["~a", "~redisson_lock__channel:*", "~wheellock_request:*", "allchannels", "+@all"];
    server.command(
        &[&["ACL", "SETUSER", "user", "on", ">password", "resetkeys"], &keys[..]].concat(),
    );
    let holder = client(&server, "holder", OnDeadlock::Warn);
    let held = holder.lock("a").lock().unwrap();
    let url = format!("redis://user:password@{}/", server.address());
    let waiter = built(Client::builder().url(&url));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").lock().unwrap().unlock().unwrap());
        wait_until("the record was refused", LIMIT, || !waiter.warnings().is_empty());
        let before = scripts(&server);
        pause(SECOND * 3);
        let ran = scripts(&server) - before;
        // A try in a second, the holder's renewals and its record.
        assert!(ran <= 10, "{ran} scripts in 3 s");
        held.unlock().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn a_wait_does_not_fail_for_a_client_that_is_silent() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let fails = client(&server, "one", OnDeadlock::Fail);
    let other = built(Client::builder().url(&proxy.url()).label("other"));
    let both = Barrier::new(2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let _a = fails.lock("a").lock().unwrap();
            both.wait();
            fails.lock("b").lock().map(drop)
        });
        let silent = scope.spawn(|| {
            let b = other.lock("b").lock().unwrap();
            both.wait();
            // No grant: a refusal, or an error if the last try was under way when the proxy stopped.
            assert!(!matches!(other.lock("a").try_lock_for(SECOND * 2), Ok(Some(_))));
            // Nobody knows that this thread waits no longer.
            pause(SECOND * 3);
            proxy.hold_all(false);
            drop(b);
        });
        let record = format!("wheellock_client:{}", other.id());
        wait_until("the other is named", LIMIT, || {
            !server.command(&["HGET", &record, "waits"]).is_nil()
        });
        proxy.hold_all(true);
        silent.join().unwrap();
        assert!(waiting.join().unwrap().is_ok());
    });
    assert_eq!(cycles(&fails).len(), 0);
}
