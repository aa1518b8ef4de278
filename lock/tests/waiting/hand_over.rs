//! A lock that goes from thread to thread of a client without the server.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a helper that fails is a test that fails, and a panic is tested"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use parking_lot::Mutex;
use wheellock::{Client, Error, Guard, Lock, LockGuard, LostReason, Memory, Wait};
use wheellock_fixture::{Fault, Server, wait_until};

use crate::common::in_memory::InMemory;
use crate::common::{LIMIT, ProxiedServer, SOON, Script, built, ended, pause};

const SECOND: Duration = Duration::from_secs(1);

/// A client in memory whose time stands still: the number of hand-overs is limited, and no waiter
/// is asking just when a hold could be handed to it, because it polls.
fn in_memory() -> (InMemory, Client) {
    let setup = InMemory::new();
    let client = setup.client();
    (setup, client)
}

/// A client in memory whose time passes, for threads that are never all asleep.
fn in_memory_in_time() -> (Memory, Client) {
    let memory = Memory::new();
    let client = another(&memory);
    (memory, client)
}

fn another(memory: &Memory) -> Client {
    built(Client::builder().in_memory(memory))
}

/// A client that hands over for long, as a busy machine takes its time.
fn slow(server: &Server) -> Client {
    built(Client::builder().url(&server.url()).hand_over_budget(SECOND))
}

fn wait_for_waiters(client: &Client, count: usize) {
    wait_until("the threads wait", LIMIT, || client.stats().waiters == count);
}

/// A thread that waits for the lock, behind so many others, until its time is over.
fn gives_up_behind(setup: &InMemory, client: &Client, waiters: usize) {
    let limit = Duration::from_millis(50);
    thread::scope(|scope| {
        let late = scope.spawn(|| client.lock("a").try_lock_for(limit).unwrap().is_some());
        wait_for_waiters(client, waiters + 1);
        setup.clock.advance(limit);
        assert!(!late.join().unwrap());
    });
}

/// A thread that waits for a lock and holds it until it is told to go on.
struct Holder<'scope> {
    client: Client,
    thread: thread::ScopedJoinHandle<'scope, Result<(), Error>>,
    /// The owner, once it has the lock.
    has: Receiver<String>,
    go_on: Sender<()>,
}

impl<'scope> Holder<'scope> {
    fn start<G: Guard + 'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        client: &Client,
        lock: Lock<G>,
        owner: fn(&G) -> String,
    ) -> Self {
        let ((tell, has), (go_on, told)) = (bounded(1), bounded::<()>(1));
        let thread = scope.spawn(move || {
            let guard = lock.lock()?;
            tell.send(owner(&guard)).unwrap();
            // Ends with a message, or with the test.
            let _ended = told.recv();
            guard.check()?;
            drop(guard);
            Ok(())
        });
        Self { client: client.clone(), thread, has, go_on }
    }

    /// Of a plain lock, behind so many other waiters.
    fn behind(
        scope: &'scope thread::Scope<'scope, '_>,
        client: &Client,
        name: &str,
        waiters: usize,
    ) -> Self {
        let owner = |guard: &LockGuard| guard.owner().to_owned();
        let holder = Self::start(scope, client, client.lock(name), owner);
        wait_for_waiters(client, waiters + 1);
        holder
    }

    fn owner(&self) -> String {
        self.has.recv_timeout(LIMIT).unwrap_or_else(|_| {
            // Its thread would wait for ever, and the test with it.
            self.client.shutdown(Duration::ZERO);
            panic!("the thread has not got the lock");
        })
    }

    fn end(self) -> Result<(), Error> {
        drop(self.go_on);
        ended(&self.client, self.thread)
    }
}

// What it is.

#[test]
fn the_next_thread_gets_the_hold_without_a_command_of_either() {
    let server = Server::start();
    let client = slow(&server);
    let commands = || server.command_calls("evalsha") + server.command_calls("eval");
    // On a machine that stands still for a second, the lock is released on the server.
    wait_until("a hold was handed over in time", LIMIT, || {
        let guard = client.lock("a").lock().unwrap();
        let owner = guard.owner().to_owned();
        thread::scope(|scope| {
            let next = Holder::behind(scope, &client, "a", 0);
            let (handed, before) = (client.stats().hand_overs, commands());
            guard.unlock().unwrap();
            let was_handed = next.owner() == owner;
            assert_eq!(was_handed, client.stats().hand_overs == handed + 1);
            assert!(!was_handed || commands() == before, "a command was sent");
            let fields = server.command(&["HGETALL", "a"]).texts();
            assert!(!was_handed || fields == [owner.as_str(), "1"], "{fields:?}");
            next.end().unwrap();
            was_handed
        })
    });
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
    assert_eq!(client.stats().held, 0);
}

#[test]
fn hand_over_between_sendable_and_plain_locks_updates_nesting() {
    let (setup, client) = in_memory();
    let (plain, sendable) = (client.lock("a"), client.lock("a").sendable());
    let guard = sendable.lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        // From a sendable guard to a thread, which nests.
        let (tell, has) = bounded(1);
        let (waiting, (go_on, told)) = (plain.clone(), bounded::<()>(1));
        let thread = scope.spawn(move || {
            let guard = waiting.lock().unwrap();
            assert_eq!(waiting.hold_count(), 1);
            drop(waiting.try_lock().unwrap().unwrap());
            tell.send(guard.owner().to_owned()).unwrap();
            let _ended = told.recv();
            drop(guard);
            assert!(waiting.hold_count() == 0 && waiting.try_lock().unwrap().is_none());
        });
        wait_for_waiters(&client, 1);
        drop(guard);
        assert_eq!(has.recv_timeout(LIMIT).unwrap(), owner);
        // From the thread to a sendable guard, which does not, and to another one.
        let next =
            Holder::start(scope, &client, sendable.clone(), |guard| guard.owner().to_owned());
        wait_for_waiters(&client, 1);
        let last =
            Holder::start(scope, &client, sendable.clone(), |guard| guard.owner().to_owned());
        wait_for_waiters(&client, 2);
        drop(go_on);
        assert_eq!(next.owner(), owner);
        ended(&client, thread);
        assert!(sendable.try_lock().unwrap().is_none());
        next.end().unwrap();
        assert_eq!(last.owner(), owner);
        last.end().unwrap();
    });
    assert_eq!(client.stats().hand_overs, 3);
    assert!(setup.memory.fields("a").is_empty());
}

#[test]
fn a_dropped_guard_hands_over_as_an_unlocked_one_does() {
    let (setup, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        drop(guard);
        assert_eq!(next.owner(), owner);
        next.end().unwrap();
    });
    assert!(setup.memory.fields("a").is_empty());
}

#[test]
fn non_reentrant_lock_hands_over_and_refuses_second_guard() {
    let (_world, client) = in_memory();
    let lock = client.non_reentrant_lock("a");
    let guard = lock.lock().unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let guard = lock.lock().unwrap();
            assert!(matches!(lock.lock(), Err(Error::AlreadyHeld { .. })));
            guard.unlock().unwrap();
        });
        wait_for_waiters(&client, 1);
        guard.unlock().unwrap();
        ended(&client, next);
    });
    assert_eq!(client.stats().hand_overs, 1);
}

#[test]
fn hand_over_budget_of_zero_disables_and_above_1_s_is_refused() {
    let setup = InMemory::new();
    let builder = setup.builder();
    let client = built(builder.clone().hand_over_budget(Duration::ZERO));
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        guard.unlock().unwrap();
        assert_ne!(next.owner(), owner);
        next.end().unwrap();
    });
    assert_eq!(client.stats().hand_overs, 0);
    let refused = builder.hand_over_budget(SECOND * 2).build();
    assert!(matches!(refused, Err(Error::InvalidSetting { .. })), "{refused:?}");
}

// Who gets it.

#[test]
fn a_hold_beyond_the_budget_is_released_on_the_server() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| client.lock("a").lock().and_then(LockGuard::unlock));
        wait_for_waiters(&client, 1);
        // Ten times the budget.
        pause(Duration::from_millis(50));
        guard.unlock().unwrap();
        assert_eq!(ended(&client, next), Ok(()));
    });
    assert_eq!(client.stats().hand_overs, 0);
}

#[test]
fn threads_get_the_lock_in_the_order_in_which_they_came() {
    let (_world, client) = in_memory();
    let order = Mutex::new(Vec::new());
    let guard = client.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let start = |number: usize| {
            let (order, client) = (&order, &client);
            let thread = scope.spawn(move || {
                let guard = client.lock("a").lock().unwrap();
                order.lock().push(number);
                guard.unlock().unwrap();
            });
            wait_for_waiters(client, number + 1);
            thread
        };
        let threads: Vec<_> = (0..50).map(start).collect();
        guard.unlock().unwrap();
        for thread in threads {
            ended(&client, thread);
        }
    });
    assert_eq!(order.into_inner(), (0..50).collect::<Vec<_>>());
    assert_eq!(client.stats().hand_overs, 50);
}

/// Lets many threads of each client lock and unlock, and finds two that are inside at once.
fn crowd(clients: &[Client], threads: usize, rounds: usize) {
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in clients {
            for _ in 0..threads {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let guard = client.lock("a").lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                        assert!(guard.is_held());
                        assert_eq!(client.lock("a").hold_count(), 1);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                    }
                });
            }
        }
    });
    for client in clients {
        let stats = client.stats();
        assert!(stats.hand_overs > 0);
        assert_eq!((stats.held, stats.waiters, stats.lost), (0, 0, 0));
    }
}

#[test]
fn sixty_four_threads_are_never_inside_at_once() {
    let server = Server::start();
    let connect = || Client::connect(&server.url()).unwrap();
    crowd(&[connect()], 64, 100);
    crowd(&[connect(), connect()], 32, 50);
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}

#[test]
fn sixty_four_threads_are_never_inside_at_once_in_memory() {
    let (memory, client) = in_memory_in_time();
    crowd(&[client, another(&memory)], 32, 100);
    assert!(memory.fields("a").is_empty());
}

#[test]
fn another_client_has_its_turn_beside_threads_that_never_pause() {
    let server = Server::start();
    let (busy, other) = (Client::connect(&server.url()).unwrap(), server.url());
    let other = Client::connect(&other).unwrap();
    beside(&busy, &other);
    let (memory, busy) = in_memory_in_time();
    beside(&busy, &another(&memory));
}

/// Acquires a lock a few times beside threads of another client.
fn beside(busy: &Client, other: &Client) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    busy.lock("a").lock().unwrap().unlock().unwrap();
                }
            });
        }
        wait_until("the others hand over", LIMIT, || busy.stats().hand_overs > 100);
        for _ in 0..10 {
            let guard = other.lock("a").try_lock_for(LIMIT).unwrap();
            guard.unwrap().unlock().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_first_waiter_of_another_kind_is_not_skipped() {
    let (_world, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let fenced = client.fenced_lock("a");
        let first = Holder::start(scope, &client, fenced, |guard| guard.owner().to_owned());
        wait_for_waiters(&client, 1);
        let second = Holder::behind(scope, &client, "a", 1);
        guard.unlock().unwrap();
        assert_ne!(first.owner(), owner);
        assert_eq!(second.has.try_recv(), Err(TryRecvError::Empty));
        first.end().unwrap();
        second.owner();
        second.end().unwrap();
    });
    assert_eq!(client.stats().hand_overs, 0);
}

#[test]
fn waiter_for_second_name_on_channel_blocks_no_hand_over() {
    let (_world, client) = in_memory();
    let (guard, other) = (client.lock("a").lock().unwrap(), client.lock("{a}").lock().unwrap());
    let owners = [guard.owner().to_owned(), other.owner().to_owned()];
    thread::scope(|scope| {
        let first = Holder::behind(scope, &client, "{a}", 0);
        let second = Holder::behind(scope, &client, "a", 1);
        guard.unlock().unwrap();
        assert_eq!(second.owner(), owners[0], "each name has a queue of its own");
        other.unlock().unwrap();
        assert_eq!(first.owner(), owners[1]);
        first.end().unwrap();
        second.end().unwrap();
    });
    assert_eq!(client.stats().hand_overs, 2);
}

#[test]
fn only_plain_watched_holds_of_threads_are_handed_over() {
    type Hold = fn(&Client) -> Box<dyn FnOnce()>;
    let holds: [(&str, Hold); 6] = [
        ("leased", |client| {
            let guard = client.lock("a").with_lease(SECOND * 60).lock().unwrap();
            Box::new(move || guard.unlock().unwrap())
        }),
        ("nested with a longer lease", |client| {
            let guard = client.lock("a").lock().unwrap();
            drop(client.lock("a").with_lease(SECOND * 60).lock().unwrap());
            Box::new(move || guard.unlock().unwrap())
        }),
        ("with a token", |client| {
            let guard = client.lock("a").lock().unwrap();
            drop(client.fenced_lock("a").lock().unwrap());
            Box::new(move || guard.unlock().unwrap())
        }),
        ("of a named owner", |client| {
            let guard = client.lock("a").with_owner("one").lock().unwrap();
            Box::new(move || guard.unlock().unwrap())
        }),
        ("fenced", |client| {
            let guard = client.fenced_lock("a").lock().unwrap();
            Box::new(move || guard.unlock().unwrap())
        }),
        ("of several locks", |client| {
            let guard = client.multi_lock(&[&client.lock("a"), &client.lock("b")]).lock().unwrap();
            Box::new(move || guard.unlock().unwrap())
        }),
    ];
    for (kind, hold) in holds {
        let (setup, client) = in_memory();
        let end = hold(&client);
        let owner = setup.memory.fields("a")[0].0.clone();
        thread::scope(|scope| {
            let next = Holder::behind(scope, &client, "a", 0);
            end();
            assert_ne!(next.owner(), owner, "{kind}");
            next.end().unwrap();
        });
        assert_eq!(client.stats().hand_overs, 0, "{kind}");
        assert!(setup.memory.fields("a").is_empty(), "{kind}");
    }
}

#[test]
fn dropped_guard_without_hand_over_lets_next_thread_try_at_once() {
    let (_world, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    // A hold with a longer lease is released on the server.
    drop(client.lock("a").with_lease(SECOND * 60).lock().unwrap());
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        drop(guard);
        assert_ne!(next.owner(), owner);
        next.end().unwrap();
    });
    assert_eq!(client.stats().hand_overs, 0);
}

#[test]
fn waiters_with_lease_owner_or_several_locks_get_no_hand_over() {
    type Take = fn(&Client);
    let takes: [(&str, Take); 3] = [
        ("leased", |client| drop(client.lock("a").with_lease(SECOND).lock().unwrap())),
        ("of a named owner", |client| drop(client.lock("a").with_owner("one").lock().unwrap())),
        ("of several locks", |client| {
            drop(client.multi_lock(&[&client.lock("a"), &client.lock("b")]).lock().unwrap());
        }),
    ];
    for (kind, take) in takes {
        let (setup, client) = in_memory();
        let guard = client.lock("a").lock().unwrap();
        thread::scope(|scope| {
            let next = scope.spawn(|| take(&client));
            wait_for_waiters(&client, 1);
            guard.unlock().unwrap();
            ended(&client, next);
        });
        assert_eq!(client.stats().hand_overs, 0, "{kind}");
        assert!(setup.memory.fields("a").is_empty(), "{kind}");
    }
}

#[test]
fn a_nested_hold_is_handed_over_with_its_last_guard() {
    let (setup, client) = in_memory();
    let lock = client.lock("a");
    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    let owner = outer.owner().to_owned();
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        inner.unlock().unwrap();
        assert_eq!((lock.hold_count(), next.has.try_recv()), (1, Err(TryRecvError::Empty)));
        assert_eq!(setup.memory.fields("a"), [(owner.clone(), "1".to_owned())]);
        outer.unlock().unwrap();
        assert_eq!(next.owner(), owner);
        next.end().unwrap();
    });
}

// What each holder sees.

#[test]
fn each_holder_sees_its_own_hold() {
    let (_world, client) = in_memory();
    let lock = client.lock("a");
    let guard = lock.lock().unwrap();
    let lost = guard.lost().clone();
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let guard = lock.lock().unwrap();
            assert!(lock.is_held_by_current_thread());
            assert_eq!(lock.hold_count(), 1);
            let nested = lock.lock().unwrap();
            assert_eq!(lock.hold_count(), 2);
            nested.unlock().unwrap();
            assert!(guard.remaining() >= SECOND * 19);
            assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Empty));
            guard.unlock().unwrap();
        });
        wait_for_waiters(&client, 1);
        guard.unlock().unwrap();
        assert!(!lock.is_held_by_current_thread());
        assert_eq!(lock.hold_count(), 0);
        ended(&client, next);
    });
    assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected), "released, not lost");
    assert_eq!((client.stats().hand_overs, client.stats().lost), (1, 0));
}

#[test]
fn max_hold_and_long_hold_report_restart_at_each_hand_over() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let builder = setup.builder().max_hold(SECOND * 120);
    let client =
        built(builder.on_long_hold(SECOND * 70, move |held| tell.send(held.held_for()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let (second, third) =
            (Holder::behind(scope, &client, "a", 0), Holder::behind(scope, &client, "a", 1));
        setup.clock.advance(SECOND * 60);
        guard.unlock().unwrap();
        assert_eq!(second.owner(), owner);
        // 140 s after the grant, 80 s after the hand-over.
        setup.clock.advance(SECOND * 80);
        assert_eq!(client.stats().lost, 0);
        let reports: Vec<Duration> = told.try_iter().collect();
        assert!(matches!(reports[..], [held] if held < SECOND * 81), "{reports:?}");
        // Renewals are left out from now on, and the next holder would go without.
        setup.clock.advance(SECOND * 25);
        second.end().unwrap();
        assert_ne!(third.owner(), owner);
        third.end().unwrap();
    });
}

#[test]
fn loss_is_reported_to_present_holder_and_next_thread_acquires() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let client = built(setup.builder().on_lost(move |lost| tell.send(lost.clone()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let (second, third) =
            (Holder::behind(scope, &client, "a", 0), Holder::behind(scope, &client, "a", 1));
        setup.clock.advance(SECOND * 5);
        guard.unlock().unwrap();
        assert_eq!(second.owner(), owner);
        setup.memory.delete("a");
        // The renewal answers that it is gone, or that the third has taken it: that one polls.
        setup.clock.advance(SECOND * 6);
        assert_ne!(third.owner(), owner);
        let lost = told.recv_timeout(SOON).unwrap();
        assert_eq!(lost.owner(), owner);
        assert!([LostReason::Deleted, LostReason::TakenOver].contains(&lost.reason()));
        assert!(lost.held_for() < SECOND * 7, "{:?}", lost.held_for());
        assert!(matches!(second.end(), Err(Error::Lost { .. })));
        third.end().unwrap();
    });
    assert_eq!((client.stats().lost, told.len()), (1, 0));
}

#[test]
fn waiter_behind_lost_holder_acquires_when_loss_is_found() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND);
    let guard = client.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let second = Holder::behind(scope, &client, "a", 0);
        setup.memory.delete("a");
        // The renewal after a third of the lease finds that, long before the waiter polls.
        setup.clock.advance(SECOND / 2);
        assert_ne!(second.owner(), guard.owner());
        second.end().unwrap();
    });
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
}

#[test]
fn lease_expired_during_process_pause_is_not_handed_over() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let (second, third) =
            (Holder::behind(scope, &client, "a", 0), Holder::behind(scope, &client, "a", 1));
        guard.unlock().unwrap();
        assert_eq!(second.owner(), owner);
        setup.clock.jump(SECOND * 31);
        assert!(matches!(second.end(), Err(Error::Lost { .. })));
        assert_ne!(third.owner(), owner);
        third.end().unwrap();
    });
    assert!(setup.memory.fields("a").is_empty());
}

// Ends.

#[test]
fn forced_release_ends_current_hold_and_next_thread_acquires() {
    let (_world, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let (second, third) =
            (Holder::behind(scope, &client, "a", 0), Holder::behind(scope, &client, "a", 1));
        guard.unlock().unwrap();
        assert_eq!(second.owner(), owner);
        assert!(client.lock("a").force_unlock().unwrap());
        assert_ne!(third.owner(), owner);
        assert!(matches!(second.end(), Err(Error::Lost { .. })));
        third.end().unwrap();
    });
}

#[test]
fn nothing_is_handed_over_while_a_forced_release_is_under_way() {
    let setup = ProxiedServer::new();
    let client = built(setup.builder().command_timeout(SECOND * 30).hand_over_budget(SECOND));
    // A hold is taken, and its release forced, whose answer is held back.
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    let hold_back = setup.proxy.on(setup.is(Script::ForceRelease, "a"), Fault::HoldReply);
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        let forced = scope.spawn(|| client.lock("a").force_unlock().unwrap());
        hold_back.wait_for_hit(LIMIT);
        // The release is answered after the forced one, on the same connection.
        scope.spawn(|| {
            wait_until("the hold is over", LIMIT, || client.stats().held == 0);
            hold_back.deliver();
        });
        // It was lost, which the server says.
        drop(guard);
        assert_ne!(next.owner(), owner);
        forced.join().unwrap();
        next.end().ok();
    });
    assert_eq!(client.stats().hand_overs, 0);
}

#[test]
fn cancelled_or_timed_out_waiter_leaves_queue_at_once() {
    let (setup, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    let (cancel, cancelled) = bounded::<()>(0);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let wait = Wait::forever().or_cancelled(&cancelled);
            client.lock("a").try_lock_with(wait).map(|guard| guard.is_some())
        });
        wait_for_waiters(&client, 1);
        let third = Holder::behind(scope, &client, "a", 1);
        assert_eq!(client.lock("a").hold_count(), 1);
        gives_up_behind(&setup, &client, 2);
        drop(cancel);
        assert!(matches!(ended(&client, first), Err(Error::Cancelled { .. })));
        wait_for_waiters(&client, 1);
        guard.unlock().unwrap();
        assert_eq!(third.owner(), owner);
        third.end().unwrap();
    });
}

#[test]
fn threads_that_give_up_while_a_hold_comes_to_them_lose_nothing() {
    let server = Server::start();
    storm(&Client::connect(&server.url()).unwrap());
    wait_until("the lock is free", LIMIT, || server.command(&["EXISTS", "a"]).integer() == 0);
    let (memory, client) = in_memory_in_time();
    storm(&client);
    wait_until("the lock is free", LIMIT, || memory.fields("a").is_empty());
}

/// Half of the threads give up when their time is over or they are cancelled, all the time.
fn storm(client: &Client) {
    let inside = AtomicU64::new(0);
    let got = AtomicU64::new(0);
    let (cancels, cancelled): (Vec<_>, Vec<_>) = (0..4).map(|_| bounded::<()>(1)).unzip();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..16_usize {
            let (cancelled, inside, got) = (&cancelled, &inside, &got);
            scope.spawn(move || {
                for round in 0..300_u64 {
                    let micros = (round * 37 + thread as u64 * 11) % 400;
                    let wait = match thread % 4 {
                        0 => Wait::forever().or_cancelled(&cancelled[thread / 4]),
                        1 => Wait::at_most(Duration::from_micros(micros)),
                        _ => Wait::forever(),
                    };
                    let guard = match client.lock("a").try_lock_with(wait) {
                        Ok(Some(guard)) => guard,
                        // An answer does not come in microseconds.
                        Ok(None) | Err(Error::Cancelled { .. } | Error::Unreachable { .. }) => {
                            // The message is for one wait.
                            let _taken = cancelled[thread / 4].try_recv();
                            continue;
                        }
                        Err(Error::OutcomeUnknown { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    assert!(guard.is_held());
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    got.fetch_add(1, Ordering::Relaxed);
                    drop(guard);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for cancel in &cancels {
                    let _full = cancel.try_send(());
                }
                thread::yield_now();
            }
        });
        wait_until("the patient threads are done", LIMIT, || {
            got.load(Ordering::Relaxed) >= 8 * 300
        });
        stop.store(true, Ordering::Relaxed);
    });
    let stats = client.stats();
    assert_eq!((stats.waiters, stats.lost), (0, 0));
    wait_until("nothing is held", LIMIT, || client.stats().held == 0);
}

#[test]
fn a_shutdown_ends_the_holder_and_the_line() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let started = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    match client.lock("a").lock().and_then(LockGuard::unlock) {
                        Ok(()) => {
                            started.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Shutdown | Error::Lost { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        wait_until("they hand over", LIMIT, || client.stats().hand_overs > 100);
        let report = client.shutdown(LIMIT);
        assert!(report.unreleased.is_empty(), "{report:?}");
    });
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
    assert_eq!(client.stats().held, 0);
}

#[test]
fn panicking_thread_hands_over_and_forgotten_guard_keeps_lock() {
    let (setup, client) = in_memory();
    let guard = client.lock("a").lock().unwrap();
    let owner = guard.owner().to_owned();
    thread::scope(|scope| {
        let next = Holder::behind(scope, &client, "a", 0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard;
            panic!("as it is meant to");
        }));
        assert!(panicked.is_err());
        assert_eq!(next.owner(), owner);
        next.end().unwrap();
    });
    std::mem::forget(client.lock("a").lock().unwrap());
    gives_up_behind(&setup, &client, 0);
    assert_eq!(setup.memory.fields("a").len(), 1);
}
