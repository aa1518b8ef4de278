//! Deadlocks: threads of several clients that wait for each other are found, and nothing else is.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed unwrap is a failed test, so is another outcome, and a run tells its seed"
)]

#[path = "../common/mod.rs"]
mod common;

mod hard_cases;
mod processes;
mod random_runs;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, ended, now, pause, wait_for_a_waiter};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, Lock, OnDeadlock, Wait, Warning};
use wheellock_fixture::{Server, wait_until};

/// The cycles that a client has reported.
fn cycles(client: &Client) -> Vec<String> {
    let cycle = |warning| match warning {
        Warning::Deadlock { cycle, .. } => Some(cycle),
        _ => None,
    };
    client.warnings().into_iter().filter_map(cycle).collect()
}

/// Acquires the first lock of each pair on a thread of its own, and then the second. Returns what the
/// second acquire of each thread said.
fn cross(pairs: &[(Lock, Lock)]) -> Vec<Result<(), Error>> {
    let all_have_one = Barrier::new(pairs.len());
    thread::scope(|scope| {
        let run = |(first, second): &(Lock, Lock)| {
            let _first = first.lock().unwrap();
            all_have_one.wait();
            second
                .try_lock_for(SOON * 6)
                .map(|guard| assert!(guard.is_some(), "it waits no longer"))
        };
        let threads = pairs.iter().map(|pair| {
            let thread = thread::Builder::new().name("locker".to_owned());
            thread.spawn_scoped(scope, move || run(pair)).unwrap()
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn failed(results: &[Result<(), Error>]) -> usize {
    let is_deadlock = |result: &&Result<(), Error>| match result {
        Ok(()) => false,
        Err(Error::Deadlock { .. }) => true,
        Err(error) => panic!("{error}"),
    };
    results.iter().filter(is_deadlock).count()
}

on_all_stores! {
    fn one_wait_of_a_cycle_fails_and_the_others_go_on(setup: &TestStore) {
        for threads in [2, 4] {
            let build = |number: usize| {
                let builder = setup.builder().on_deadlock(OnDeadlock::Fail);
                built(builder.label(&format!("client {number}")))
            };
            let clients: Vec<Client> = (0..threads).map(build).collect();
            let pairs: Vec<(Lock, Lock)> = clients.iter().enumerate().map(|(number, client)| {
                let next = (number + 1) % threads;
                (client.lock(&format!("lock-{number}")), client.lock(&format!("lock-{next}")))
            }).collect();
            let began = now();
            let results = cross(&pairs);
            assert_eq!(failed(&results), 1, "{results:?}");
            assert!(now() - began < SOON * 3, "{:?}", now() - began);
            // A client that was kept from its processor finds that the cycle has ended. The client of
            // the wait that failed has reported the cycle, and mostly the others have.
            let reported: Vec<Vec<String>> = clients.iter().map(cycles).collect();
            let place = results.iter().position(Result::is_err).unwrap();
            assert_eq!(reported[place].len(), 1, "{reported:?}");
            for cycles in reported.iter().filter(|cycles| !cycles.is_empty()) {
                assert_eq!(cycles.len(), 1, "{cycles:?}");
                for number in 0..threads {
                    assert!(cycles[0].contains(&format!("\"client {number}\"")), "{cycles:?}");
                    assert!(cycles[0].contains(&format!("\"lock-{number}\"")), "{cycles:?}");
                }
            }
        }
    }
}

fn is_in_the_graph(setup: &TestStore) {
    let clients = ["one", "other"].map(|label| built(setup.builder().label(label)));
    // The user of the other clients may not list locks.
    let observer = built(match setup {
        TestStore::Memory(_) => setup.builder(),
        TestStore::Redis(server) => Client::builder().url(&server.url()),
        TestStore::Cluster(cluster) => Client::builder().url(&cluster.url()),
        // Behind one address the keys of one server are found.
        TestStore::Endpoint(..) => unreachable!(),
    });
    let [a, b] = ["a", "b"].map(|name| clients.each_ref().map(|client| client.lock(name)));
    let reader = clients[0].read_write_lock("c").read_lock().sendable().lock().unwrap();
    let writer = clients[1].read_write_lock("c").write_lock();
    thread::scope(|scope| {
        let pairs = [(a[0].clone(), b[0].clone()), (b[1].clone(), a[1].clone())];
        let crossing = thread::Builder::new().spawn_scoped(scope, move || cross(&pairs)).unwrap();
        let wait = || writer.lock().map(drop);
        let waiting =
            thread::Builder::new().name("writer".to_owned()).spawn_scoped(scope, wait).unwrap();
        let graph = || observer.wait_graph("*").unwrap();
        wait_until("the graph has the cycle and the writer", SOON * 6, || {
            let graph = graph();
            graph.cycles.len() == 1 && graph.waits.len() == 3
        });
        let graph = graph();
        assert!(graph.is_complete);
        let of = |lock: &str| {
            let at = graph.waits.iter().position(|wait| wait.lock == lock).unwrap();
            (at, &graph.waits[at])
        };
        let ((at_b, of_one), (at_a, of_other), (_, of_writer)) = (of("b"), of("a"), of("c"));
        assert_eq!(
            (of_one.label.as_deref(), of_one.holds.as_slice()),
            (Some("one"), &["a".to_owned()][..])
        );
        assert_eq!(
            (of_one.waits_for.len(), of_one.waits_for[0].waits.as_slice()),
            (1, &[at_a][..])
        );
        assert_eq!(of_other.waits_for[0].waits, [at_b]);
        assert!(!of_one.waits_for[0].is_possible && !of_other.waits_for[0].is_possible);
        // Nobody knows which thread has the sendable guard.
        assert_eq!(of_writer.thread, "writer");
        assert!(of_writer.waits_for[0].is_possible, "{of_writer:?}");
        let mut cycle = graph.cycles[0].waits.clone();
        cycle.sort_unstable();
        let mut both = [at_a, at_b];
        both.sort_unstable();
        assert_eq!(cycle, both);
        // Of one lock: the wait for it, and the wait of its holder.
        let part = observer.wait_graph("a").unwrap();
        assert_eq!((part.locks.len(), part.waits.len(), part.cycles.len()), (1, 2, 1));
        let known = observer.wait_graph_of(vec![observer.status("b").unwrap()]).unwrap();
        assert_eq!((known.locks.len(), known.waits.len(), known.cycles.len()), (1, 2, 1));
        assert!(observer.lock("a").force_unlock().unwrap());
        reader.unlock().unwrap();
        crossing.join().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_graph_has_the_waits_their_owners_and_the_cycles() {
    for setup in [TestStore::in_memory(), TestStore::on_a_server(), TestStore::in_a_cluster()] {
        is_in_the_graph(&setup);
    }
}

fn client(server: &Server, label: &str, on_deadlock: OnDeadlock) -> Client {
    built(Client::builder().url(&server.url()).label(label).on_deadlock(on_deadlock))
}

#[test]
fn threads_of_one_client_and_a_thread_alone_are_found_too() {
    let server = Server::start();
    let client = client(&server, "one", OnDeadlock::Fail);
    let [a, b] = ["a", "b"].map(|name| client.lock(name));
    assert_eq!(failed(&cross(&[(a.clone(), b.clone()), (b.clone(), a.clone())])), 1);
    // One warning for both threads.
    assert_eq!(cycles(&client).len(), 1, "{:?}", cycles(&client));
    // A guard of no thread, while this thread has the lock.
    let _held = a.lock().unwrap();
    let result = client.lock("a").sendable().try_lock_for(SOON * 6);
    let Err(error @ Error::Deadlock { .. }) = result else { panic!("{result:?}") };
    assert!(error.is_retryable() && error.to_string().contains("deadlock"), "{error}");
    assert_eq!(cycles(&client).len(), 2);
}

#[test]
fn readers_and_a_writer_of_two_locks_are_found() {
    let server = Server::start();
    let clients = ["one", "other"].map(|label| client(&server, label, OnDeadlock::Fail));
    let [a, b] =
        ["a", "b"].map(|name| clients.each_ref().map(|client| client.read_write_lock(name)));
    let pairs = [(a[0].read_lock(), b[0].write_lock()), (b[1].read_lock(), a[1].write_lock())];
    let results = cross(&pairs);
    assert_eq!(failed(&results), 1, "{results:?}");
}

#[test]
fn without_the_setting_a_cycle_is_reported_and_the_waits_go_on() {
    let server = Server::start();
    let clients = ["one", "other"].map(|label| client(&server, label, OnDeadlock::Warn));
    let ignores = client(&server, "third", OnDeadlock::Ignore);
    let [a, b] = ["a", "b"].map(|name| clients.each_ref().map(|client| client.lock(name)));
    thread::scope(|scope| {
        let pairs = [(a[0].clone(), b[0].clone()), (b[1].clone(), a[1].clone())];
        let waiting = thread::Builder::new().spawn_scoped(scope, move || cross(&pairs)).unwrap();
        let are_told = || clients.iter().all(|client| cycles(client).len() == 1);
        wait_until("both have reported it", SOON * 6, are_told);
        assert_eq!(clients.each_ref().map(|client| client.stats().waiters), [1, 1]);
        // Two looks later it is not reported again.
        pause(Duration::from_secs(1));
        assert!(are_told());
        // An operator ends it.
        assert!(ignores.lock("a").force_unlock().unwrap());
        let results = waiting.join().unwrap();
        assert_eq!(failed(&results), 0, "{results:?}");
    });
    assert_eq!(cycles(&ignores).len(), 0);
}

#[test]
fn who_ignores_deadlocks_is_in_none() {
    let server = Server::start();
    let fails = client(&server, "one", OnDeadlock::Fail);
    let ignores = client(&server, "other", OnDeadlock::Ignore);
    let (a, b) = (fails.lock("a"), fails.lock("b"));
    let held = a.lock().unwrap();
    thread::scope(|scope| {
        let other = || {
            let _b = ignores.lock("b").lock().unwrap();
            assert!(ignores.lock("a").lock().is_ok());
        };
        let other = thread::Builder::new().spawn_scoped(scope, other).unwrap();
        wait_until("the other waits", SOON, || ignores.stats().waiters == 1);
        // Longer than it takes to find a cycle.
        assert!(b.try_lock_for(Duration::from_secs(4)).unwrap().is_none());
        held.unlock().unwrap();
        other.join().unwrap();
    });
    assert_eq!((cycles(&fails).len(), cycles(&ignores).len()), (0, 0));
}

#[test]
fn waits_of_less_than_a_second_leave_nothing_on_the_server() {
    let server = Server::start();
    let clients = ["one", "other"].map(|label| client(&server, label, OnDeadlock::Warn));
    let held = clients[0].lock("a").lock().unwrap();
    let record = format!("wheellock_client:{}", clients[1].id());
    assert!(clients[1].lock("a").try_lock_for(Duration::from_millis(500)).unwrap().is_none());
    assert_eq!(server.command(&["EXISTS", &record]).integer(), 0);
    // A longer one is named while it lasts, and not afterwards.
    let waits = || !server.command(&["HGET", &record, "waits"]).is_nil();
    thread::scope(|scope| {
        let wait = || clients[1].lock("a").lock().map(drop);
        let waiting = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        wait_until("the wait is named", SOON, waits);
        held.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
    wait_until("it is named no longer", SOON, || !waits());
}

#[test]
fn record_is_written_again_if_the_write_without_waits_failed() {
    let setup = InMemory::new();
    let (other, client) = (setup.client(), setup.client());
    let _held = other.lock("a").lock().unwrap();
    let record = format!("wheellock_client:{}", client.id());
    let names_waits = || setup.memory.fields(&record).iter().any(|(field, _)| field == "waits");
    let (cancel, cancelled) = bounded::<()>(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let wait = Wait::forever().or_cancelled(&cancelled);
            client.lock("a").try_lock_with(wait).map(drop)
        });
        wait_for_a_waiter(&client);
        // The waiting thread lists its wait, and a renewal thread writes the record.
        wait_until("the record names the wait", SOON, || {
            setup.clock.advance(Duration::from_millis(100));
            names_waits()
        });
        setup.memory.set_unreachable(true);
        drop(cancel);
        assert!(matches!(ended(&client, waiter), Err(Error::Cancelled { .. })));
    });
    // The record is written, and the write fails.
    setup.clock.advance(Duration::from_secs(1));
    assert!(names_waits());
    setup.memory.set_unreachable(false);
    setup.clock.advance(Duration::from_secs(1));
    wait_until("the record names no wait", SOON, || !names_waits());
}
