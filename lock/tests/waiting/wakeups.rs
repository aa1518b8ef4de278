//! How threads wait for a lock on a real server: woken by the release, in order, on time, and
//! without needless commands.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use hashed_wheel::Parker;
use parking_lot::Mutex;
use wheellock::{Client, Clock, Error, LockGuard, LostReason, OnDeadlock, SystemClock, Wait};
use wheellock_fixture::{Fault, Proxy, Request, Server, wait_until};

use crate::common::expected::lost;
use crate::common::{LIMIT, built, ended, now, without_polls};
use crate::waiting_threads::{
    IN_TIME, POLL_BOUND, connect, listeners, scripts, start, take, wait_for_the_head,
    wait_for_waiters,
};

const SECOND: Duration = Duration::from_secs(1);
/// The command timeout where a call hangs.
const PATIENT: Duration = Duration::from_secs(12);

fn since(start: Instant) -> Duration {
    now().saturating_duration_since(start)
}

/// A client whose calls hang for long.
fn patient(url: &str) -> Client {
    built(Client::builder().url(url).command_timeout(PATIENT).on_deadlock(OnDeadlock::Ignore))
}

/// Teaches the server every script, so that from now on each try and each release is one call.
fn teach(server: &Server, client: &Client) {
    let (lock, rival) = (client.lock("the scripts"), connect(server));
    for _ in 0..2 {
        let guard = lock.lock().unwrap();
        assert!(rival.lock("the scripts").try_lock().unwrap().is_none());
        guard.unlock().unwrap();
    }
}

fn middle(mut measured: Vec<Duration>) -> Duration {
    measured.sort_unstable();
    measured[measured.len() / 2]
}

/// Whether a request takes a lock: a script with one key and three arguments, of which the last is
/// the default lease.
fn is_acquire(request: &Request) -> bool {
    request.name().starts_with("EVAL")
        && request.argument(2) == "1"
        && request.arguments.len() == 7
        && request.argument(6) == "30000"
}

fn is_cancelled(outcome: &Result<Option<LockGuard>, Error>) -> bool {
    matches!(outcome, Err(Error::Cancelled { .. }))
}

#[test]
fn a_release_wakes_the_waiter_within_milliseconds() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    let mut delays = Vec::new();
    for round in 0..21 {
        let name = format!("round {round}");
        let guard = holder.lock(&name).lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiting = start(scope, || take(&waiter, &name));
            wait_for_the_head(&server, &waiter, &name, before);
            let released_at = now();
            guard.unlock().unwrap();
            let owned_at = ended(&waiter, waiting);
            delays.push(owned_at.saturating_duration_since(released_at));
        });
    }
    delays.sort_unstable();
    // Not the usual one: that is what the machine makes of it while it does much else.
    let fast = delays[2];
    assert!(fast < Duration::from_millis(100), "even a fast hand-over takes {fast:?}");
}

#[test]
fn a_thread_that_waits_alone_asks_twice_before_it_sleeps() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    teach(&server, &holder);
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_the_head(&server, &waiter, "a", before);
        guard.unlock().unwrap();
        ended(&waiter, waiting);
    });
    // It was refused before it joined the queue and when it listened, and then granted. Two
    // releases.
    assert_eq!(scripts(&server) - before, 3 + 2);
}

#[test]
fn a_waiter_asks_the_server_no_more_than_once_per_poll_bound() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (holder, waiter) = (connect(&server), Client::connect(&proxy.url()).unwrap());
    teach(&server, &holder);
    let guard = holder.lock("a").lock().unwrap();
    let tries = proxy.on(is_acquire, Fault::PassOn).always();
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_waiters(&server, &waiter, "a", 1);
        let (before, start) = (tries.hits(), now());
        let mut asked = 0;
        wait_until("two poll bounds have passed and it has asked twice", LIMIT, || {
            asked = tries.hits() - before;
            since(start) >= POLL_BOUND * 5 / 2 && asked >= 2
        });
        // The try that follows the subscription may still have been on its way.
        let most = usize::try_from(since(start).as_secs()).unwrap() + 1 + 1;
        assert!(asked <= most, "{asked} tries in {:?}", since(start));
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn a_lost_message_costs_at_most_the_poll_bound() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (holder, waiter) = (connect(&server), Client::connect(&proxy.url()).unwrap());
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    thread::scope(|scope| {
        let waiting = start(scope, || take(&waiter, "a"));
        wait_for_the_head(&server, &waiter, "a", before);
        proxy.lose_messages(true);
        let released_at = now();
        guard.unlock().unwrap();
        let delay = waiting.join().unwrap().saturating_duration_since(released_at);
        assert!(delay < POLL_BOUND + IN_TIME, "{delay:?}");
    });
}

#[test]
fn waiter_acquires_at_lease_end_without_waiting_for_poll_bound() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let lease = Duration::from_millis(1_100);
    let mut delays = Vec::new();
    for _ in 0..3 {
        let taken_at = now();
        let guard = holder.lock("a").with_lease(lease).lock().unwrap();
        let next = waiter.lock("a").lock().unwrap();
        delays.push(since(taken_at));
        assert!(!guard.is_held());
        assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
        assert!(next.is_held());
        next.unlock().unwrap();
    }
    delays.sort_unstable();
    assert!(delays[0] + Duration::from_millis(1) >= lease, "{delays:?}");
    // The poll bound alone would ask at 1 s and at 2 s. Not the slowest: that is what the machine
    // makes of it while it does much else.
    assert!(delays[0] < POLL_BOUND * 2, "{delays:?}");
}

/// What a crowd did.
struct Crowd {
    took: Duration,
    /// Tries to take the lock, all of them.
    tries: u64,
    /// Connections that listened while all waited.
    listeners: i64,
}

/// Lets so many threads of each client wait for one lock, then releases it. Each counts, without an
/// atomic step, and releases.
fn crowd(clients: usize, threads: usize) -> Crowd {
    let server = Server::start();
    let holder = connect(&server);
    teach(&server, &holder);
    // Each release is one on the server.
    let builder = Client::builder().url(&server.url()).hand_over_budget(Duration::ZERO);
    let builder = builder.on_deadlock(OnDeadlock::Ignore);
    let clients: Vec<Client> = (0..clients).map(|_| builder.clone().build().unwrap()).collect();
    let counter = AtomicU64::new(0);
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    let begun = now();
    let mut listening = 0;
    thread::scope(|scope| {
        let waiting: Vec<_> = clients
            .iter()
            .flat_map(|client| (0..threads).map(move |_| client))
            .map(|client| {
                let counter = &counter;
                start(scope, move || {
                    let guard = client.lock("a").lock().unwrap();
                    // Two steps: without exclusion a count is lost.
                    let seen = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    assert!(guard.is_held());
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.unlock().unwrap();
                })
            })
            .collect();
        for client in &clients {
            wait_for_waiters(&server, client, "a", threads);
        }
        let all = i64::try_from(clients.len()).unwrap();
        wait_until("every client listens", LIMIT, || listeners(&server, "a") >= all);
        listening = listeners(&server, "a");
        guard.unlock().unwrap();
        for thread in waiting {
            thread.join().unwrap();
        }
    });
    let took = since(begun);
    let all = u64::try_from(clients.len() * threads).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), all, "two were inside at once");
    let releases = all + 1;
    Crowd { took, tries: scripts(&server) - before - releases, listeners: listening }
}

#[test]
fn thousand_threads_share_subscription_and_try_once_per_release() {
    let crowd = crowd(1, 1000);
    assert_eq!(crowd.listeners, 1);
    let releases = 1001;
    // The first in line tries once before it subscribes; then when the subscription is live; then
    // for each message, and for each poll bound.
    let most = 1 + 1 + releases + crowd.took.as_secs() + 1;
    assert!(crowd.tries <= most, "{} tries in {:?}", crowd.tries, crowd.took);
}

#[test]
fn threads_of_two_clients_all_acquire_with_a_try_per_release() {
    let crowd = crowd(2, 100);
    assert_eq!(crowd.listeners, 2);
    let releases = 201;
    let most = 2 * (1 + 1 + releases + crowd.took.as_secs() + 1);
    assert!(crowd.tries <= most, "{} tries in {:?}", crowd.tries, crowd.took);
}

#[test]
fn threads_of_one_client_hand_over_at_once() {
    let server = Server::start();
    let client = without_polls(&server.url());
    for _ in 0..5 {
        thread::scope(|scope| {
            let take = || (0..15).try_for_each(|_| client.lock("a").lock()?.unlock());
            let all: Vec<_> = (0..4).map(|_| start(scope, take)).collect();
            // Sixty hand-overs, of which not one may be left to a poll.
            for one in all {
                assert_eq!(ended(&client, one), Ok(()));
            }
        });
    }
}

#[test]
fn the_waiters_of_one_client_are_served_in_order() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let guard = holder.lock("a").lock().unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..50 {
            let (order, client) = (&order, &client);
            start(scope, move || {
                let guard = client.lock("a").lock().unwrap();
                order.lock().push(number);
                guard.unlock().unwrap();
            });
            wait_for_waiters(&server, client, "a", number + 1);
        }
        guard.unlock().unwrap();
    });
    assert_eq!(order.into_inner(), (0..50).collect::<Vec<_>>());
}

/// Measures five waits that come to nothing. Answers how late they usually end; not one may end
/// early. One without an answer does not count: a busy machine may take longer for it.
fn lateness(
    wait: Duration,
    mut run: impl FnMut(Duration) -> Result<Option<LockGuard>, Error>,
) -> Duration {
    let mut late = Vec::new();
    wait_until("five waits were answered", LIMIT, || {
        let start = now();
        match run(wait) {
            Ok(guard) => {
                assert!(guard.is_none());
                let took = since(start);
                assert!(took >= wait, "a wait of {wait:?} ended early, after {took:?}");
                late.push(took.saturating_sub(wait));
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        late.len() == 5
    });
    middle(late)
}

#[test]
fn a_timed_wait_ends_on_time() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let _guard = holder.lock("a").lock().unwrap();
    let lock = waiter.lock("a");
    for millis in [1, 20, 150, 350] {
        let wait = Duration::from_millis(millis);
        let late = lateness(wait, |wait| lock.try_lock_for(wait));
        assert!(late < Duration::from_millis(200), "try_lock_for({wait:?}) was late by {late:?}");
        let late = lateness(wait, |wait| lock.try_lock_until(now() + wait));
        assert!(late < Duration::from_millis(200), "try_lock_until({wait:?}) was late by {late:?}");
    }
}

#[test]
fn a_timed_wait_ends_on_time_behind_other_waiters() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let _guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        for _ in 0..10 {
            start(scope, || {
                let start = now();
                let wait = Duration::from_millis(700);
                assert!(waiter.lock("a").try_lock_for(wait).unwrap().is_none());
                assert!((wait..wait + IN_TIME).contains(&since(start)), "{:?}", since(start));
            });
        }
    });
}

#[test]
fn a_waiter_ends_on_time_if_the_server_hangs_while_it_waits() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), patient(&server.url()));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        // One ends between two polls, the other while a poll hangs.
        let waits = [Duration::from_millis(800), Duration::from_millis(1_500)];
        let threads = waits.map(|wait| {
            let waiter = &waiter;
            start(scope, move || {
                let start = now();
                let outcome = waiter.lock("a").try_lock_for(wait);
                let got = matches!(outcome, Ok(Some(_)));
                (wait, since(start), got)
            })
        });
        wait_for_waiters(&server, &waiter, "a", 2);
        server.pause();
        for thread in threads {
            let (wait, took, got) = thread.join().unwrap();
            assert!(!got);
            assert!(took < wait + IN_TIME, "a wait of {wait:?} took {took:?}");
        }
        server.resume();
    });
    assert!(guard.is_held());
    guard.unlock().unwrap();
    drop(waiter.lock("a").lock().unwrap());
}

#[test]
fn try_lock_neither_waits_nor_subscribes() {
    let server = Server::start();
    let (holder, other) = (connect(&server), connect(&server));
    let guard = holder.lock("a").lock().unwrap();
    let start = now();
    for _ in 0..100 {
        assert!(other.lock("a").try_lock().unwrap().is_none());
        assert!(other.lock("a").try_lock_for(Duration::ZERO).unwrap().is_none());
    }
    assert!(since(start) < SECOND * 40, "200 tries took {:?}", since(start));
    assert_eq!(server.command_calls("subscribe"), 0);
    guard.unlock().unwrap();
    assert!(other.lock("a").try_lock().unwrap().is_some());
}

/// A thread that waits until it is cancelled, in each of the ways.
fn wait_for_cancel(client: &Client, cancel: &Receiver<()>, timed: bool) {
    let lock = client.lock("a");
    let wait = if timed { Wait::at_most(LIMIT) } else { Wait::forever() };
    let outcome = lock.try_lock_with(wait.or_cancelled(cancel));
    assert!(is_cancelled(&outcome), "{outcome:?}");
}

#[test]
fn a_message_or_a_dropped_sender_wakes_and_cancels_every_waiter() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    let guard = holder.lock("a").lock().unwrap();
    let by_message: fn(Sender<()>) = |sender| {
        sender.send(()).unwrap();
        // The sender lives on: it is the message that cancels.
        std::mem::forget(sender);
    };
    let by_drop: fn(Sender<()>) = |sender| drop(sender);
    for cancel in [by_message, by_drop] {
        let (sender, receiver) = bounded(1);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|number| {
                    let (waiter, receiver) = (&waiter, &receiver);
                    start(scope, move || wait_for_cancel(waiter, receiver, number % 2 == 0))
                })
                .collect();
            wait_for_waiters(&server, &waiter, "a", 6);
            cancel(sender);
            for thread in threads {
                ended(&waiter, thread);
            }
            // It stays cancelled: the message was not taken.
            let (waiter, receiver) = (&waiter, &receiver);
            for timed in [true, false] {
                let late = start(scope, move || wait_for_cancel(waiter, receiver, timed));
                ended(waiter, late);
            }
        });
    }
    assert_eq!(waiter.stats().waiters, 0);
    assert!(guard.is_held());
}

#[test]
fn one_message_cancels_all_waiters_that_share_the_channel() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let _guard = holder.lock("a").lock().unwrap();
    // The message comes while the threads are on their way into the wait.
    for _ in 0..50 {
        let (sender, receiver) = bounded(1);
        thread::scope(|scope| {
            for number in 0..4 {
                let (waiter, receiver) = (&waiter, &receiver);
                start(scope, move || wait_for_cancel(waiter, receiver, number % 2 == 0));
            }
            sender.send(()).unwrap();
        });
        assert_eq!(receiver.len(), 1, "the message was taken");
    }
}

#[test]
fn a_cancelled_head_hands_on() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    let (sender, receiver) = bounded(1);
    thread::scope(|scope| {
        let head = start(scope, || wait_for_cancel(&waiter, &receiver, false));
        wait_for_the_head(&server, &waiter, "a", before);
        let next = start(scope, || take(&waiter, "a"));
        wait_for_waiters(&server, &waiter, "a", 2);
        sender.send(()).unwrap();
        ended(&waiter, head);
        guard.unlock().unwrap();
        ended(&waiter, next);
    });
}

#[test]
fn a_wake_is_not_lost_with_a_waiter_that_leaves() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    for round in 0..40 {
        let name = format!("round {round}");
        let guard = holder.lock(&name).lock().unwrap();
        let before = scripts(&server);
        let (sender, receiver) = bounded(1);
        thread::scope(|scope| {
            start(scope, || {
                // It may win or leave; either way the next one is woken.
                match waiter.lock(&name).try_lock_with(Wait::forever().or_cancelled(&receiver)) {
                    Ok(guard) => guard.unwrap().unlock().unwrap(),
                    Err(error) => assert!(matches!(error, Error::Cancelled { .. }), "{error}"),
                }
            });
            wait_for_the_head(&server, &waiter, &name, before);
            let next = start(scope, || take(&waiter, &name));
            wait_for_waiters(&server, &waiter, &name, 2);
            // From before the release until well after it, in small steps.
            let canceller = start(scope, move || {
                for _ in 0..round * 50 {
                    std::hint::spin_loop();
                }
                sender.send(()).unwrap();
                sender
            });
            guard.unlock().unwrap();
            ended(&waiter, next);
            drop(canceller.join().unwrap());
        });
    }
}

#[test]
fn a_head_whose_try_fails_hands_on_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (holder, waiter) = (connect(&server), without_polls(&proxy.url()));
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    thread::scope(|scope| {
        let head = start(scope, || waiter.lock("a").lock().map(drop));
        wait_for_the_head(&server, &waiter, "a", before);
        let next = start(scope, || take(&waiter, "a"));
        wait_for_waiters(&server, &waiter, "a", 2);
        proxy.on(is_acquire, Fault::AnswerInstead(b"-BROKEN on purpose\r\n".to_vec()));
        guard.unlock().unwrap();
        let error = ended(&waiter, head).unwrap_err();
        assert!(matches!(&error, Error::Refused { code, .. } if code == "BROKEN"), "{error}");
        ended(&waiter, next);
    });
}

#[test]
fn a_head_whose_try_hangs_hands_on_after_the_poll_bound() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let (holder, waiter) = (connect(&server), patient(&proxy.url()));
    let guard = holder.lock("a").lock().unwrap();
    let before = scripts(&server);
    thread::scope(|scope| {
        let head = start(scope, || take(&waiter, "a"));
        wait_for_the_head(&server, &waiter, "a", before);
        let next: Vec<_> = (0..2)
            .map(|place| {
                let waiter = &waiter;
                let thread = start(scope, move || take(waiter, "a"));
                wait_for_waiters(&server, waiter, "a", place + 2);
                thread
            })
            .collect();
        let aim = proxy.on(is_acquire, Fault::SwallowRequest);
        let released_at = now();
        guard.unlock().unwrap();
        for thread in next {
            let delay = thread.join().unwrap().saturating_duration_since(released_at);
            // Long before the command timeout.
            assert!(delay < POLL_BOUND + IN_TIME, "{delay:?}");
        }
        assert_eq!(aim.hits(), 1);
        // The command timeout frees the head, which goes on waiting.
        head.join().unwrap();
    });
}

#[test]
fn waiters_that_give_up_leave_no_subscription_behind() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let names = ["a", "b", "c"];
    let _guards = names.map(|name| holder.lock(name).lock().unwrap());
    let (listen, listened) = bounded::<()>(0);
    thread::scope(|scope| {
        for name in names {
            let (waiter, listened) = (&waiter, &listened);
            start(scope, move || {
                let outcome =
                    waiter.lock(name).try_lock_with(Wait::forever().or_cancelled(listened));
                assert!(is_cancelled(&outcome), "{outcome:?}");
            });
            for _ in 0..5 {
                start(scope, move || {
                    let wait = Duration::from_millis(900);
                    assert!(waiter.lock(name).try_lock_for(wait).unwrap().is_none());
                });
            }
        }
        for name in names {
            wait_until("they listen", LIMIT, || listeners(&server, name) == 1);
        }
        drop(listen);
    });
    assert_eq!(waiter.stats().waiters, 0);
    wait_until("there is no subscriber", LIMIT, || {
        names.iter().all(|name| listeners(&server, name) == 0)
    });
}

#[test]
fn shutdown_wakes_the_waiters_and_releases_what_is_held() {
    let server = Server::start();
    let (client, other) = (without_polls(&server.url()), connect(&server));
    let rival = other.lock("wanted").lock().unwrap();
    let guards = ["a", "b"].map(|name| client.lock(name).lock().unwrap());
    thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..3).map(|_| start(scope, || client.lock("wanted").lock().map(drop))).collect();
        wait_for_waiters(&server, &client, "wanted", 3);
        let start = now();
        let report = client.shutdown(LIMIT);
        assert!(since(start) < LIMIT / 2, "{:?}", since(start));
        assert_eq!(report.released, 2);
        assert!(report.unreleased.is_empty());
        for thread in waiting {
            assert_eq!(ended(&client, thread), Err(Error::Shutdown));
        }
    });
    for (guard, name) in guards.into_iter().zip(["a", "b"]) {
        assert!(!guard.is_held());
        assert_eq!(guard.lost().recv_timeout(SECOND), Ok(LostReason::Shutdown));
        let reason = LostReason::Shutdown;
        let name = name.to_owned();
        assert!(other.lock(&name).try_lock().unwrap().is_some(), "{name} is free");
        assert_eq!(guard.unlock(), lost(&name, reason));
    }
    assert_eq!(client.lock("a").try_lock().map(drop), Err(Error::Shutdown));
    assert_eq!(client.lock("a").lock().map(drop), Err(Error::Shutdown));
    // Again: nothing is left to do.
    assert_eq!(client.shutdown(SECOND).released, 0);
    assert!(rival.is_held());
    rival.unlock().unwrap();
}

/// The system's clock, which counts its readings by threads that wait.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Instant {
        if thread::current().name() == Some("waits") {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn waiting_threads_of_named_owner_sleep_while_a_thread_tries() {
    const THREADS: usize = 100;
    const TRIES: u64 = 50;
    let server = Server::start();
    let clock = Arc::new(Counting::default());
    let client = Client::builder().url(&server.url()).clock(clock.clone()).build().unwrap();
    let holder = connect(&server);
    teach(&server, &holder);
    let held = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waits = || drop(client.lock("a").with_owner("task").lock().unwrap());
        for _ in 0..THREADS {
            let thread = thread::Builder::new().name("waits".to_owned()).stack_size(128 * 1024);
            thread.spawn_scoped(scope, waits).unwrap();
        }
        wait_for_waiters(&server, &client, "a", THREADS);
        let before = clock.0.load(Ordering::SeqCst);
        for _ in 0..TRIES {
            let tries = scripts(&server);
            server.command(&["PUBLISH", "redisson_lock__channel:{a}", "0"]);
            wait_until("one has tried", LIMIT, || scripts(&server) > tries);
        }
        let readings = clock.0.load(Ordering::SeqCst) - before;
        held.unlock().unwrap();
        // A try reads it some ten times; each of the others, if it woke, once at least.
        assert!(readings < TRIES * 50, "{readings} readings");
    });
}

#[test]
fn a_dropped_client_does_not_disturb_the_waiters_of_its_clones() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), without_polls(&server.url()));
    let guard = holder.lock("a").lock().unwrap();
    let (tell, told) = unbounded();
    let lock = Arc::new(waiter.lock("a"));
    let thread = {
        let lock = Arc::clone(&lock);
        thread::Builder::new()
            .spawn(move || {
                drop(lock.lock().unwrap());
                tell.send(()).unwrap();
            })
            .unwrap()
    };
    wait_for_waiters(&server, &waiter, "a", 1);
    drop((waiter, lock));
    guard.unlock().unwrap();
    told.recv_timeout(LIMIT).unwrap();
    thread.join().unwrap();
}
