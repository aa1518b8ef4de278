//! How readers and writers wait on a real server, and what is left after lost replies and
//! processes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::expected;
use crate::common::{LIMIT, ProxiedServer, SOON, built, ended, now, timed, without_polls};
use crossbeam_channel::{Receiver, Sender, bounded};
use hashed_wheel::Parker;
use wheellock::{Client, Clock, Error, Lock, OnDeadlock, SystemClock, Wait};
use wheellock_fixture::{Fault, Request, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn connect(server: &Server) -> Client {
    // What the server runs is counted.
    built(Client::builder().url(&server.url()).on_deadlock(OnDeadlock::Ignore))
}

fn read(client: &Client) -> Lock {
    client.read_write_lock("a").read_lock()
}

fn write(client: &Client) -> Lock {
    client.read_write_lock("a").write_lock()
}

fn scripts(server: &Server) -> u64 {
    server.command_calls("evalsha") + server.command_calls("eval")
}

/// How many clients listen.
fn listeners(server: &Server) -> i64 {
    server.command(&["PUBSUB", "NUMSUB", "redisson_rwlock:{a}"]).array()[1].integer()
}

fn wait_for_waiters(server: &Server, clients: &[(&Client, usize)]) {
    for (client, count) in clients {
        wait_until("they wait", SOON, || client.stats().waiters == *count);
    }
    let all = i64::try_from(clients.len()).unwrap();
    wait_until("they listen", SOON, || listeners(server) == all);
}

/// Waits until so many threads, each the first of its line, have been refused twice since there
/// were `before` scripts: once before they listened and once after. From then on it is up to a
/// message.
fn wait_until_refused(server: &Server, before: u64, threads: u64) {
    wait_until("they were refused twice", SOON, || scripts(server) >= before + 2 * threads);
}

/// Waits for a lock on a thread of its own.
fn waits<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    lock: Lock,
) -> thread::ScopedJoinHandle<'scope, ()> {
    scope.spawn(move || lock.lock().unwrap().unlock().unwrap())
}

#[test]
fn release_of_a_write_or_read_lock_wakes_all_waiting_writers() {
    let server = Server::start();
    let url = server.url();
    let (holder, one, other) = (connect(&server), without_polls(&url), without_polls(&url));
    for held in [write(&holder), read(&holder)] {
        let guard = held.lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let writer = waits(scope, write(&one));
            let second = waits(scope, write(&other));
            wait_for_waiters(&server, &[(&one, 1), (&other, 1)]);
            wait_until_refused(&server, before, 2);
            guard.unlock().unwrap();
            ended(&one, writer);
            ended(&other, second);
        });
    }
}

#[test]
fn d9_a_writer_that_keeps_reading_wakes_waiting_readers() {
    let server = Server::start();
    let (holder, other) = (connect(&server), without_polls(&server.url()));
    let writing = write(&holder).lock().unwrap();
    let reading = read(&holder).lock().unwrap();
    let before = scripts(&server);
    thread::scope(|scope| {
        let waiter = waits(scope, read(&other));
        wait_for_waiters(&server, &[(&other, 1)]);
        wait_until_refused(&server, before, 1);
        writing.unlock().unwrap();
        ended(&other, waiter);
    });
    assert!(reading.is_held());
}

#[test]
fn a_thousand_waiting_readers_acquire_with_one_script_each() {
    const READERS: usize = 1000;
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let writing = write(&holder).lock().unwrap();
    let inside = AtomicUsize::new(0);
    let (go, gone) = bounded::<()>(0);
    thread::scope(|scope| {
        for _ in 0..READERS {
            let (lock, inside, gone) = (read(&client), &inside, gone.clone());
            let run = move || {
                let guard = lock.lock().unwrap();
                inside.fetch_add(1, Ordering::Relaxed);
                // Until the sender has gone.
                assert!(gone.recv().is_err());
                guard.unlock().unwrap();
            };
            let thread = thread::Builder::new().stack_size(128 * 1024);
            drop(thread.spawn_scoped(scope, run).unwrap());
        }
        wait_for_waiters(&server, &[(&client, READERS)]);
        let before = scripts(&server);
        let released = now();
        writing.unlock().unwrap();
        wait_until("all are in", LIMIT, || inside.load(Ordering::Relaxed) == READERS);
        let took = now().saturating_duration_since(released);
        // One script lets the writer go. Renewals of what is held come every ten seconds, and polls
        // once a second: a slow machine takes several, and may add a hundred scripts for each. A
        // defect would add thousands.
        let ran = scripts(&server) - before;
        let most = u64::try_from(READERS).unwrap() + 10 + 100 * took.as_secs();
        assert!(ran <= most, "{ran} scripts in {took:?}");
        assert!(took < LIMIT / 2, "{took:?}");
        drop(go);
    });
    assert!(write(&holder).try_lock().unwrap().is_some(), "all have gone");
}

#[test]
fn waiters_poll_once_a_second() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let _writing = write(&holder).lock().unwrap();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(read(&client).try_lock_for(SECOND * 3).unwrap().is_none()));
            scope.spawn(|| assert!(write(&client).try_lock_for(SECOND * 3).unwrap().is_none()));
        }
        wait_until("they wait", SOON, || client.stats().waiters == 40);
        let before = scripts(&server);
        let start = now();
        wait_until("they have gone", SOON, || client.stats().waiters == 0);
        // Two lines, each with one that asks, and each reader asks once at first.
        let seconds = now().saturating_duration_since(start).as_secs() + 1;
        let ran = scripts(&server) - before;
        assert!(ran <= 2 * seconds + 30, "{ran} scripts in {seconds} s");
    });
    wait_until("there is no subscriber", SOON, || listeners(&server) == 0);
}

#[test]
fn writers_of_two_clients_hand_over_with_few_scripts() {
    const EACH: u64 = 200;
    let server = Server::start();
    let clients = [connect(&server), connect(&server)];
    let before = scripts(&server);
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..EACH {
                        write(client).lock().unwrap().unlock().unwrap();
                    }
                });
            }
        }
    });
    // Of four, one gets in; a second client is refused, sometimes twice, as a writer's end is two
    // messages.
    let ran = scripts(&server) - before;
    assert!(ran <= 4 * EACH * 4, "{ran} scripts for {} holds", 4 * EACH);
}

#[test]
fn cancelled_reader_consumes_no_message_of_a_waiting_writer() {
    let server = Server::start();
    let (holder, client) = (connect(&server), without_polls(&server.url()));
    let writing = write(&holder).lock().unwrap();
    thread::scope(|scope| {
        let waiter = waits(scope, write(&client));
        wait_for_waiters(&server, &[(&client, 1)]);
        let (cancel, cancelled) = bounded(1);
        let reader = scope.spawn({
            let lock = read(&client);
            move || lock.try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop)
        });
        wait_for_waiters(&server, &[(&client, 2)]);
        cancel.send(()).unwrap();
        let cancelled = expected::cancelled("a");
        assert_eq!(ended(&client, reader), cancelled);
        writing.unlock().unwrap();
        ended(&client, waiter);
    });
}

#[test]
fn shutdown_wakes_read_write_waiters_and_releases_holds() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let writing = write(&holder).lock().unwrap();
    let reading = read(&holder).lock().unwrap();
    thread::scope(|scope| {
        let waiters =
            [read(&client), write(&client)].map(|lock| scope.spawn(move || lock.lock().map(drop)));
        wait_for_waiters(&server, &[(&client, 2)]);
        client.shutdown(SECOND);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(Error::Shutdown));
        }
    });
    let report = holder.shutdown(SECOND);
    assert_eq!((report.released, report.unreleased.len()), (2, 0));
    assert!(!writing.is_held() && !reading.is_held());
    assert_eq!(server.size(), 0);
}

/// One of the scripts, for the lock `a`.
fn script(setup: &ProxiedServer, source: &str) -> impl Fn(&Request) -> bool + Send + use<> {
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(source)]).text();
    move |request| matches!(request.name().as_str(), "EVALSHA") && request.argument(1) == hash
}

const READ: &str = include_str!("../../src/ops/scripts/read_acquire.lua");
const READ_RECOUNT: &str = include_str!("../../src/ops/scripts/read_set_count.lua");
const READ_RELEASE: &str = include_str!("../../src/ops/scripts/read_release.lua");
const WRITE: &str = include_str!("../../src/ops/scripts/write_acquire.lua");
const WRITE_RELEASE: &str = include_str!("../../src/ops/scripts/write_release.lua");

#[test]
fn an_acquire_whose_reply_is_lost_counts_once() {
    for (source, lock) in [(READ, read as fn(&Client) -> Lock), (WRITE, write)] {
        let setup = ProxiedServer::new();
        let client = setup.patient();
        let aim = setup.proxy.on(script(&setup, source), Fault::ResetBeforeReply);
        let guard = lock(&client).lock().unwrap();
        aim.wait_for_hit(SOON);
        assert!(setup.hash("a").iter().any(|(_, value)| value == "1"), "{:?}", setup.hash("a"));
        assert_eq!(setup.hash("a").len(), 2);
        guard.unlock().unwrap();
        wait_until("nothing is left", SOON, || setup.server.size() == 0);
    }
}

#[test]
fn a_recount_whose_reply_is_lost_counts_once() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    let outer = read(&client).lock().unwrap();
    let aim = setup.proxy.on(script(&setup, READ_RECOUNT), Fault::ResetBeforeReply);
    let inner = read(&client).lock().unwrap();
    aim.wait_for_hit(SOON);
    assert!(setup.hash("a").contains(&(outer.owner().to_owned(), "2".to_owned())));
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    assert_eq!(setup.server.size(), 0);
}

#[test]
fn a_release_whose_reply_is_lost_was_done() {
    let setup = ProxiedServer::new();
    let client = setup.patient();
    for (source, lock) in [(READ_RELEASE, read(&client)), (WRITE_RELEASE, write(&client))] {
        let guard = lock.lock().unwrap();
        let aim = setup.proxy.on(script(&setup, source), Fault::ResetBeforeReply);
        assert_eq!(guard.unlock(), Ok(()));
        aim.wait_for_hit(SOON);
        assert!(!setup.exists("a"));
    }
}

#[test]
fn late_read_release_keeps_the_next_read_hold_under_write_hold() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let writing = write(&client).lock().unwrap();
    let first = read(&client).lock().unwrap();
    let aim = setup.proxy.on(script(&setup, READ_RELEASE), Fault::HoldRequest);
    first.unlock().unwrap();
    aim.wait_for_hit(SOON);
    let second = read(&client).lock().unwrap();
    drop(aim.deliver());
    writing.unlock().unwrap();
    assert!(setup.hash("a").contains(&(second.owner().to_owned(), "1".to_owned())));
    assert!(write(&setup.rival()).try_lock().unwrap().is_none());
    second.unlock().unwrap();
}

/// The system's clock. Announces that the thread `reads` is about to sleep.
#[derive(Debug)]
struct Announcing(Sender<()>);

impl Clock for Announcing {
    fn now(&self) -> Instant {
        now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        if thread::current().name() == Some("reads") {
            // If the channel is full, the thread has announced a sleep before.
            let _announced_before = self.0.try_send(());
        }
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn a_named_owner_reads_under_a_write_hold_granted_meanwhile() {
    let setup = ProxiedServer::new();
    let (sleeps, asleep) = bounded(1);
    let clock = Arc::new(Announcing(sleeps));
    let client = built(setup.builder().command_timeout(SOON).clock(clock));
    let (reader, writer) = (read(&client).with_owner("task"), write(&client).with_owner("task"));
    let grant = setup.proxy.on(script(&setup, WRITE), Fault::HoldReply);
    thread::scope(|scope| {
        let first = scope.spawn(|| writer.try_lock().unwrap());
        grant.wait_for_hit(SOON);
        let thread = thread::Builder::new().name("reads".to_owned());
        let second = thread.spawn_scoped(scope, || reader.try_lock().unwrap()).unwrap();
        // The reader sleeps only until its turn to ask the server. Before, the reader has looked
        // for a write hold of its owner, and there was none.
        asleep.recv_timeout(SOON).unwrap();
        grant.deliver();
        let writing = first.join().unwrap();
        let reading = second.join().unwrap();
        assert!(writing.is_some_and(|guard| guard.is_held()));
        assert!(reading.is_some_and(|guard| guard.is_held()));
    });
}

#[test]
fn read_acquire_arriving_after_its_release_leaves_no_reader() {
    let setup = ProxiedServer::new();
    let client = setup.retrying();
    let aim = setup.proxy.on(script(&setup, READ), Fault::HoldRequest);
    let guard = read(&client).lock().unwrap();
    aim.wait_for_hit(SOON);
    guard.unlock().unwrap();
    drop(aim.deliver());
    wait_until("nothing is left", SOON, || setup.server.size() == 0);
}

#[test]
fn lock_of_a_vanished_client_is_available_after_its_lease() {
    let setup = ProxiedServer::new();
    let dead = built(setup.builder().watchdog_lease(SECOND));
    let (reading, rival) = (read(&dead).lock().unwrap(), setup.rival());
    setup.proxy.refuse(true);
    setup.proxy.cut_all();
    let (guard, took) = timed(|| write(&rival).lock().unwrap());
    assert!(took < SOON, "{took:?}");
    assert!(!reading.is_held());
    guard.unlock().unwrap();
}
