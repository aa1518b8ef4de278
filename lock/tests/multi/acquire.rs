//! Several locks as one: all or nothing, in any order, on one server or several.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::expected::lost;
use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{SLACK, SOON, Script, TIMEOUT, built, pause, settle, timed};
use crossbeam_channel::{TryRecvError, bounded};
use wheellock::{AnyLock, Client, Error, Lock, LostReason, MultiLock, Wait};
use wheellock_fixture::{Fault, Proxy, Server, wait_until};

const LEASE: Duration = Duration::from_secs(30);

fn over(client: &Client, locks: &[Lock]) -> MultiLock {
    let locks: Vec<&dyn AnyLock> = locks.iter().map(|lock| lock as &dyn AnyLock).collect();
    client.multi_lock(&locks)
}

fn locks(client: &Client, names: &[&str]) -> Vec<Lock> {
    names.iter().map(|name| client.lock(name)).collect()
}

/// A number that is only right if no other thread writes between a read and a write.
#[derive(Default)]
struct Plain(AtomicU64);

impl Plain {
    fn increment(&self) {
        let seen = self.0.load(Ordering::Relaxed);
        thread::yield_now();
        self.0.store(seen + 1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Threads that each take the locks of one of the multi-locks again and again, and count.
fn all_count(multi_locks: &[MultiLock], rounds: u64) {
    let counter = Plain::default();
    let (over, all_over) = bounded(multi_locks.len());
    thread::scope(|scope| {
        for multi_lock in multi_locks {
            let (counter, over) = (&counter, over.clone());
            scope.spawn(move || {
                for _ in 0..rounds {
                    let guard = multi_lock.try_lock_for(Duration::from_secs(60)).unwrap().unwrap();
                    counter.increment();
                    guard.unlock().unwrap();
                }
                over.send(()).unwrap();
            });
        }
        for _ in multi_locks {
            all_over.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    });
    assert_eq!(counter.value(), rounds * multi_locks.len() as u64);
}

on_both_stores! {
    fn all_are_taken_and_all_are_released(setup: &TestStore) {
        let client = setup.client();
        let guard = over(&client, &locks(&client, &["c", "a", "b"])).lock().unwrap();
        assert_eq!(guard.names(), ["a", "b", "c"]);
        assert!(guard.is_held() && guard.check().is_ok());
        assert!(["a", "b", "c"].iter().all(|name| setup.is_there(name)));
        let left = guard.remaining();
        assert!(left > LEASE * 9 / 10 && left < LEASE, "{left:?}");
        guard.unlock().unwrap();
        assert!(!["a", "b", "c"].iter().any(|name| setup.is_there(name)));
    }

    fn nothing_is_left_of_a_try_that_failed(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let _held = rival.lock("b").lock().unwrap();
        let both = over(&client, &locks(&client, &["a", "b", "c"]));
        let wait = Duration::from_millis(700);
        for waits in [false, true] {
            // On a machine that stands still for a moment, a release is left to the background.
            wait_until("it is released in time", SOON, || {
                if waits {
                    let (none, took) = timed(|| both.try_lock_for(wait).unwrap());
                    assert!(none.is_none());
                    assert!(took >= wait * 49 / 50 && took < wait + SLACK, "{took:?}");
                } else {
                    assert!(both.try_lock().unwrap().is_none());
                }
                assert_eq!(client.stats().held, 0);
                let is_released = client.stats().queued_releases == 0;
                settle(&client);
                assert!(!setup.is_there("a") && !setup.is_there("c"));
                is_released
            });
        }
    }

    fn one_of_them_alone_excludes_all_of_them_and_is_excluded(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let guard = over(&client, &locks(&client, &["a", "b"])).lock().unwrap();
        assert!(rival.lock("a").try_lock().unwrap().is_none());
        assert!(rival.lock("b").try_lock().unwrap().is_none());
        drop(guard);
        settle(&client);
        assert!(rival.lock("a").try_lock().unwrap().is_some());
    }

    fn threads_that_name_the_same_locks_in_any_order_all_get_them(setup: &TestStore) {
        let (one, other) = (setup.client(), setup.client());
        let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]];
        let all: Vec<MultiLock> = [&one, &other]
            .iter()
            .flat_map(|client| orders.map(|names| over(client, &locks(client, &names))))
            .collect();
        all_count(&all, 40);
        assert_eq!((one.stats().held, other.stats().held), (0, 0));
    }

    fn waiting_for_one_lock_does_not_keep_the_others(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let held = rival.lock("b").lock().unwrap();
        let both = over(&client, &locks(&client, &["a", "b"]));
        thread::scope(|scope| {
            let (got, has_got) = bounded(1);
            let waiter = scope.spawn(move || {
                let guard = both.lock().unwrap();
                got.send(()).unwrap();
                guard.unlock().unwrap();
            });
            wait_until("it waits", SOON, || client.stats().waiters > 0);
            // A thread that wants only the free one gets it repeatedly.
            for _ in 0..3 {
                let free = rival.lock("a").try_lock_for(SOON).unwrap().unwrap();
                assert_eq!(has_got.try_recv(), Err(TryRecvError::Empty));
                drop(free);
                pause(Duration::from_millis(150));
            }
            assert!(!setup.is_there("a"), "it is not held while another is waited for");
            drop(held);
            has_got.recv_timeout(Duration::from_millis(800)).unwrap();
            waiter.join().unwrap();
        });
    }

    fn a_thread_nests_all_of_them(setup: &TestStore) {
        let client = setup.client();
        let both = over(&client, &locks(&client, &["a", "b"]));
        let outer = both.lock().unwrap();
        let inner = both.try_lock().unwrap().unwrap();
        assert_eq!(client.lock("a").hold_count(), 2);
        assert!(both.is_held_by_current_thread());
        inner.unlock().unwrap();
        assert!(outer.is_held() && setup.is_there("a"));
        outer.unlock().unwrap();
        assert!(!setup.is_there("a") && !setup.is_there("b"));
        assert!(!both.is_held_by_current_thread());
    }

    fn a_lock_that_is_named_twice_is_taken_once(setup: &TestStore) {
        let client = setup.client();
        let simple = client.simple_lock("s");
        let twice = client.multi_lock(&[&client.lock("a"), &simple, &client.lock("a"), &simple]);
        let guard = twice.lock().unwrap();
        assert_eq!(guard.names(), ["a", "s"]);
        assert_eq!(client.lock("a").hold_count(), 1);
        guard.unlock().unwrap();
        assert!(!client.lock("a").is_locked().unwrap() && !simple.is_locked().unwrap());
    }

    fn locks_of_every_kind_may_be_among_them(setup: &TestStore) {
        let client = setup.client();
        let (fenced, spin) = (client.fenced_lock("f"), client.spin_lock("p"));
        let owned = client.lock("o").with_owner("task");
        let all = client.multi_lock(&[&spin, &owned, &client.simple_lock("s"), &fenced]);
        let guard = all.lock().unwrap();
        assert_eq!(guard.names(), ["f", "o", "p", "s"]);
        assert_eq!(guard.tokens(), [Some(fenced.last_token().unwrap()), None, None, None]);
        assert_eq!((owned.hold_count(), spin.hold_count()), (1, 1));
        assert_eq!(client.lock("o").hold_count(), 0, "its owner holds it, and not the thread");
    }

    fn all_of_one_owner_are_released_by_another_thread(setup: &TestStore) {
        let client = setup.client();
        let all = locks(&client, &["a", "b"]);
        let owned = over(&client, &all).with_owner("task");
        let guard = owned.lock().unwrap();
        assert!(owned.is_held_by_current_thread() && !over(&client, &all).is_held_by_current_thread());
        assert!(over(&client, &all).try_lock().unwrap().is_none());
        let inner = thread::scope(|scope| scope.spawn(|| owned.lock().unwrap()).join().unwrap());
        assert_eq!(all[0].clone().with_owner("task").hold_count(), 2);
        thread::scope(|scope| scope.spawn(|| guard.unlock()).join().unwrap()).unwrap();
        assert!(inner.is_held());
        drop(inner);
        assert!(all.iter().all(|lock| !lock.is_locked().unwrap()));
    }

    fn only_the_first_loss_is_reported(setup: &TestStore) {
        let client = setup.client();
        let all = locks(&client, &["a", "b", "c"]);
        let guard = over(&client, &all).lock().unwrap();
        let told = guard.lost().clone();
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        assert!(all[1].force_unlock().unwrap());
        assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Deleted));
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), Duration::ZERO);
        let lost = lost("b", LostReason::Deleted);
        assert_eq!(guard.check(), lost.clone());
        // If the background has not released it yet.
        let _forced = all[0].force_unlock().unwrap();
        assert_eq!(guard.unlock().map_err(|error| matches!(error, Error::Lost { .. })), Err(true));
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
        wait_until("what was not lost is released", SOON, || !setup.is_there("c"));
    }

    fn a_release_is_no_loss(setup: &TestStore) {
        let client = setup.client();
        let guard = over(&client, &locks(&client, &["a", "b"])).lock().unwrap();
        let told = guard.lost().clone();
        guard.unlock().unwrap();
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    }

    fn a_cancelled_wait_leaves_nothing(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let _held = rival.lock("b").lock().unwrap();
        let both = over(&client, &locks(&client, &["a", "b"]));
        let (cancel, cancelled) = bounded(1);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| both.try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop));
            wait_until("it waits", SOON, || client.stats().waiters > 0);
            cancel.send(()).unwrap();
            let error = waiter.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Cancelled { .. }), "{error}");
        });
        assert!(!setup.is_there("a"));
    }

    fn d11_rounds_that_failed_do_not_multiply_the_lease(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let lease = Duration::from_secs(10);
        let both = over(&client, &locks(&client, &["a", "b"])).with_lease(lease);
        for _ in 0..3 {
            let held = rival.lock("b").lock().unwrap();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let guard = both.lock().unwrap();
                    for name in ["a", "b"] {
                        let left = setup.time_to_live(name).unwrap();
                        assert!(left <= lease && left > lease / 2, "{left:?}");
                    }
                    assert!(guard.remaining() < lease);
                });
                wait_until("it waits", SOON, || client.stats().waiters > 0);
                pause(Duration::from_millis(150));
                drop(held);
                waiter.join().unwrap();
            });
        }
    }

    fn wrong_lists_are_errors_and_nothing_is_taken(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let wrong = |multi_lock: MultiLock| {
            let error = multi_lock.try_lock_for(Duration::from_secs(1)).unwrap_err();
            assert_eq!(multi_lock.try_lock().unwrap_err(), error);
            assert_eq!(multi_lock.lock().unwrap_err(), error);
            error
        };
        assert!(matches!(wrong(client.multi_lock(&[])), Error::InvalidSetting { .. }));
        assert!(matches!(wrong(client.multi_lock(&[&client.lock("a"), &client.lock("")])), Error::InvalidName { .. }));
        let error = wrong(client.multi_lock(&[&client.lock("a"), &other.lock("a")]));
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
        let error = wrong(client.multi_lock(&[&client.lock("a"), &client.lock("a").with_owner("x")]));
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
        let short = over(&client, &locks(&client, &["a", "b"])).with_lease(Duration::from_millis(1));
        assert!(matches!(wrong(short), Error::InvalidLease { .. }));
        setup.put_text("z");
        assert!(matches!(wrong(over(&client, &locks(&client, &["a", "z"]))), Error::WrongType { .. }));
        assert!(!setup.is_there("a"));
    }

    fn a_shut_down_client_among_them_leaves_nothing_of_the_others(setup: &TestStore) {
        let (client, gone) = (setup.client(), setup.client());
        let both = client.multi_lock(&[&client.lock("a"), &gone.lock("b")]);
        gone.shutdown(SOON);
        assert_eq!(both.lock().unwrap_err(), Error::Shutdown);
        assert!(!setup.is_there("a"));
    }

    fn a_shutdown_counts_each_of_its_locks_as_released(setup: &TestStore) {
        let names: Vec<String> = (0..50).map(|number| format!("{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for _ in 0..20 {
            let client = setup.client();
            let guard = over(&client, &locks(&client, &names)).lock().unwrap();
            let report = client.shutdown(SOON);
            assert_eq!((report.released, report.unreleased), (names.len(), Vec::new()));
            assert_eq!(guard.lost().try_recv(), Ok(LostReason::Shutdown));
            assert_eq!(client.stats().lost, 0);
            assert!(names.iter().all(|name| !setup.is_there(name)));
        }
    }
}

#[test]
fn locks_of_several_servers_in_any_order_are_had_by_all() {
    let servers = [Server::start(), Server::start()];
    let clients: Vec<[Client; 2]> = (0..2)
        .map(|_| [0, 1].map(|server: usize| Client::connect(&servers[server].url()).unwrap()))
        .collect();
    let all: Vec<MultiLock> = clients
        .iter()
        .flat_map(|[one, other]| {
            [
                over(one, &[one.lock("z"), other.lock("a")]),
                over(other, &[other.lock("a"), one.lock("z")]),
            ]
        })
        .collect();
    all_count(&all, 40);
}

#[test]
fn acquires_without_a_common_order_do_not_deadlock() {
    let server = Server::start();
    let port = server.address().port();
    let [number, name] = ["127.0.0.1", "localhost"]
        .map(|host| Client::connect(&format!("redis://{host}:{port}/")).unwrap());
    // By the servers' addresses the one takes `a` first, and the other `b`.
    let one = over(&number, &[number.lock("a"), name.lock("b")]);
    let other = over(&name, &[name.lock("a"), number.lock("b")]);
    all_count(&[one.clone(), other.clone(), one, other], 20);
}

#[test]
fn waiting_for_a_missing_lock_asks_the_server_seldom() {
    let server = Server::start();
    let [client, rival] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let held = rival.lock("b").lock().unwrap();
    let both = over(&client, &locks(&client, &["a", "b", "c"]));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(both.lock().unwrap()));
        wait_until("it waits", SOON, || client.stats().waiters > 0);
        pause(Duration::from_millis(200));
        let before = server.command_calls("evalsha");
        let (asked, took) = timed(|| {
            pause(Duration::from_secs(2));
            server.command_calls("evalsha") - before
        });
        // A wait of more than a second is named in the client's record, and its client looks for a
        // deadlock: the record, the owners, and the record of the holder's client.
        let looks = 3;
        assert!(
            u128::from(asked) <= took.as_millis() / 500 + 1 + looks,
            "{asked} scripts in {took:?}"
        );
        drop(held);
        waiter.join().unwrap();
    });
}

#[test]
fn member_expired_before_last_grant_fails_multi_acquire() {
    // The server's own address must come before that of the proxy before it.
    let in_order = |setup: &crate::common::ProxiedServer| {
        setup.server.address().port() < setup.proxy.address().port()
    };
    let setup = std::iter::repeat_with(crate::common::ProxiedServer::new).find(in_order).unwrap();
    let short = Duration::from_millis(100);
    let locks = [setup.rival().lock("a").with_lease(short), setup.patient().lock("b")];
    setup.on(Script::Acquire, "b", Fault::DelayRequest(short * 3));
    let error = over(&setup.rival(), &locks).try_lock().unwrap_err();
    let expired = lost("a", LostReason::Expired);
    assert_eq!(error, expired);
    setup.wait_until_gone("a");
    setup.wait_until_gone("b");
}

#[test]
fn d11_all_are_released_also_when_one_release_fails() {
    let servers = [Server::start(), Server::start()];
    let clients: Vec<Client> = servers
        .iter()
        .map(|server| built(Client::builder().url(&server.url()).command_timeout(TIMEOUT)))
        .collect();
    for dead in [0, 1] {
        let guard =
            over(&clients[0], &[clients[0].lock("a"), clients[1].lock("b"), clients[0].lock("c")])
                .lock()
                .unwrap();
        servers[dead].kill();
        let (result, took) = timed(|| guard.unlock());
        let error = result.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(took < TIMEOUT * 4 + SLACK, "{took:?}");
        let left: &[&str] = if dead == 0 { &["b"] } else { &["a", "c"] };
        for name in left {
            let gone = servers[1 - dead].command(&["EXISTS", name]).integer() == 0;
            assert!(gone, "{name} is released although another could not be");
        }
        servers[dead].start_again();
    }
}

#[test]
fn a_server_that_hangs_does_not_keep_the_locks_of_another() {
    let servers = [Server::start(), Server::start()];
    let patience = Duration::from_secs(1);
    let clients: Vec<Client> = servers
        .iter()
        .map(|server| built(Client::builder().url(&server.url()).command_timeout(patience)))
        .collect();
    for hung in [0, 1] {
        let guard =
            over(&clients[0], &[clients[0].lock("a"), clients[1].lock("b")]).lock().unwrap();
        servers[hung].pause();
        let well = &servers[1 - hung];
        let name = if hung == 0 { "b" } else { "a" };
        let ((), took) = timed(|| {
            thread::scope(|scope| {
                let watch = scope.spawn(move || {
                    let ((), gone) = timed(|| {
                        wait_until("the other is free", SOON, || {
                            well.command(&["EXISTS", name]).integer() == 0
                        });
                    });
                    assert!(gone < patience, "{gone:?}");
                });
                drop(guard);
                watch.join().unwrap();
            });
        });
        assert!(took < patience + SLACK, "{took:?}");
        servers[hung].resume();
        let hung_name = if hung == 0 { "a" } else { "b" };
        wait_until("it is released in the background", SOON, || {
            servers[hung].command(&["EXISTS", hung_name]).integer() == 0
        });
    }
}

#[test]
fn when_one_lock_is_lost_the_others_are_released() {
    let setup = InMemory::new();
    let client = setup.client();
    let all = locks(&client, &["a", "b", "c"]);
    let (outer, inner) = (over(&client, &all).lock().unwrap(), over(&client, &all).lock().unwrap());
    // Nested in the others' hold, and good without them.
    let alone = all[2].lock().unwrap();
    setup.memory.delete("b");
    setup.clock.advance(LEASE);
    wait_until("what was not lost is released", SOON, || setup.memory.fields("a").is_empty());
    assert_eq!(client.stats().held, 1);
    let lost = lost("b", LostReason::Deleted);
    for guard in [&outer, &inner] {
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert_eq!(guard.check(), lost.clone());
        assert_eq!(guard.names(), ["a", "b", "c"]);
    }
    let rival = setup.client().lock("a").try_lock().unwrap();
    assert!(rival.is_some());
    assert_eq!(inner.unlock(), lost.clone());
    assert_eq!(outer.unlock(), lost);
    setup.clock.advance(LEASE * 3);
    assert!(alone.is_held() && rival.unwrap().is_held());
    alone.unlock().unwrap();
    assert!(setup.memory.fields("c").is_empty());
}

#[test]
fn multi_lock_is_released_when_a_member_server_is_unreachable() {
    let (gone, well) = (InMemory::new(), InMemory::new());
    let (one, other) = (gone.client(), well.client());
    let guard = over(&one, &[one.lock("a"), other.lock("b")]).lock().unwrap();
    gone.memory.set_unreachable(true);
    gone.clock.advance(LEASE);
    wait_until("the other is released", SOON, || well.memory.fields("b").is_empty());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::ServerUnreachable));
    // The client counts it when the server's reply is there.
    wait_until("no release is queued", SOON, || other.stats().queued_releases == 0);
    assert_eq!(other.stats().held, 0);
}

#[test]
fn a_lock_that_is_given_by_two_names_of_its_server_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let urls = [server.url(), proxy.url()];
    let [one, other] = urls.map(|url| Client::connect(&url).unwrap());
    let both = over(&one, &[one.lock("a"), other.lock("a")]);
    let errors = [timed(|| both.try_lock()), timed(|| both.try_lock_for(SOON))];
    for (result, took) in errors {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { setting: "multi_lock", .. }), "{error}");
        assert!(error.to_string().contains(&proxy.address().to_string()), "{error}");
        assert!(took < SLACK, "{took:?}");
    }
    // Readers, other names and other databases exclude nobody.
    let readers = [&one, &other].map(|client| client.read_write_lock("b").read_lock());
    drop(over(&one, &readers).try_lock().unwrap().unwrap());
    let second = Client::connect(&format!("redis://{}/1", proxy.address())).unwrap();
    drop(over(&one, &[one.lock("a"), second.lock("a")]).try_lock().unwrap().unwrap());
    assert!(server.command(&["KEYS", "a"]).array().is_empty());
}
