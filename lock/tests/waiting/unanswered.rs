//! What a timed wait returns while the server does not answer: `None` means that the server said so
//! since the wait began; otherwise there is an error.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::takings::taken;
use crate::common::{LIMIT, SOON, built, now, timed, wait_for_a_waiter};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, OnDeadlock, SystemClock, Wait};
use wheellock_fixture::{Server, wait_until};

const WAIT: Duration = Duration::from_millis(600);
const THREADS: usize = 20;

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()).on_deadlock(OnDeadlock::Ignore))
}

/// What becomes of a timed wait: whether it was granted, or the error.
type Waits = fn(&Client) -> Result<bool, Error>;

/// Each way of waiting in a line.
const WAYS: [(&str, Waits); 9] = [
    ("lock", |client| Ok(client.lock("lock").try_lock_for(WAIT)?.is_some())),
    ("until", |client| Ok(client.lock("lock").try_lock_until(now() + WAIT)?.is_some())),
    ("cancel", |client| {
        let (_cancel, cancelled) = bounded(1);
        Ok(client
            .lock("lock")
            .try_lock_with(Wait::at_most(WAIT).or_cancelled(&cancelled))?
            .is_some())
    }),
    ("fair", |client| Ok(client.fair_lock("fair").try_lock_for(WAIT)?.is_some())),
    ("spin", |client| Ok(client.spin_lock("spin").try_lock_for(WAIT)?.is_some())),
    ("read", |client| Ok(client.read_write_lock("rw").read_lock().try_lock_for(WAIT)?.is_some())),
    ("multi", |client| {
        let (a, b) = (client.lock("multi a"), client.lock("multi b"));
        Ok(client.multi_lock(&[&a, &b]).try_lock_for(WAIT)?.is_some())
    }),
    ("semaphore", |client| client.semaphore("semaphore").try_acquire_for(1, WAIT).map(taken)),
    ("latch", |client| client.count_down_latch("latch").wait_for(WAIT)),
];

/// Lets many threads wait at the same moment. Answers what became of each.
fn together(client: &Client, waits: Waits) -> Vec<Result<bool, Error>> {
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let wait = || {
            start.wait();
            waits(client)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn queued_waiters_do_not_mistake_a_silent_server_for_a_holder() {
    for (way, waits) in WAYS {
        let server = Server::start();
        let client = connect(&server);
        server.pause();
        for outcome in together(&client, waits) {
            assert!(outcome.as_ref().is_err_and(Error::is_retryable), "{way}: {outcome:?}");
        }
        server.resume();
    }
}

/// How much later than it says a call may end, as the front page of the docs has it.
const LATEST: Duration = Duration::from_millis(100);

/// Once late because the machine was busy is not a defect, and three times is.
fn assert_punctual(what: &str, limit: Duration, call: impl Fn()) {
    let late = || timed(&call).1.saturating_sub(limit);
    let runs = [late(), late(), late()];
    assert!(runs.iter().min() <= Some(&LATEST), "{what} is late by {runs:?}");
}

#[test]
fn no_call_is_late_by_more_than_is_promised_at_a_hung_server() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    for (way, waits) in WAYS {
        let server = Server::start();
        let client = connect(&server);
        server.pause();
        assert_punctual(way, WAIT, || assert!(waits(&client).is_err(), "{way}"));
        server.resume();
    }
    // Of several servers, one has granted and the others hang.
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = servers.each_ref().map(connect);
    servers[1].pause();
    servers[2].pause();
    let (a, b) = (clients[0].lock("a"), clients[1].lock("b"));
    let multi = clients[0].multi_lock(&[&a, &b]);
    assert_punctual("a multi lock", WAIT, || assert!(multi.try_lock_for(WAIT).is_err()));
    let red = Client::red_lock(&clients, "red");
    assert_punctual("a red lock", WAIT, || assert!(red.try_lock_for(WAIT).is_err()));
    // What has no limit of its own has twice the command timeout.
    let hasty = built(Client::builder().url(&servers[0].url()).command_timeout(TIMEOUT));
    let lock = hasty.lock("a");
    servers[0].pause();
    let calls: [(&str, &dyn Fn() -> bool); 3] = [
        ("try_lock", &|| lock.try_lock().is_err()),
        ("is_locked", &|| lock.is_locked().is_err()),
        ("ping", &|| hasty.ping().is_err()),
    ];
    for (call, fails) in calls {
        assert_punctual(call, TIMEOUT * 2, || assert!(fails(), "{call}"));
    }
    servers.iter().for_each(Server::resume);
}

#[test]
fn queued_waiters_do_not_mistake_a_dead_server_for_a_holder() {
    for (way, waits) in WAYS {
        let server = Server::start();
        let client = connect(&server);
        server.kill();
        for outcome in together(&client, waits) {
            assert!(outcome.as_ref().is_err_and(Error::is_retryable), "{way}: {outcome:?}");
        }
    }
}

#[test]
fn an_unreachable_in_memory_store_is_an_error_for_every_waiter() {
    for (way, waits) in WAYS {
        let setup = InMemory::new();
        let client = built(setup.builder().clock(std::sync::Arc::new(SystemClock)));
        setup.memory.set_unreachable(true);
        for outcome in together(&client, waits) {
            assert!(outcome.as_ref().is_err_and(Error::is_retryable), "{way}: {outcome:?}");
        }
    }
}

#[test]
fn a_waiter_behind_a_sleeping_one_sees_the_server_fail_in_time() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| client.lock("a").lock().map(drop));
        wait_for_a_waiter(&client);
        // Shorter than the time between two polls, and long enough for a busy machine.
        let wait = Duration::from_millis(900);
        for _ in 0..3 {
            let outcome = client.lock("a").try_lock_for(wait);
            assert!(matches!(outcome, Ok(None)), "{outcome:?}");
        }
        // Right after a poll of the sleeping waiter.
        let asked = || server.command_calls("evalsha") + server.command_calls("eval");
        // Its client may read the reply so late that the reply belongs to the next wait.
        wait_until("a wait sees the server fail", LIMIT, || {
            let before = asked();
            wait_until("it asks", SOON, || asked() > before);
            server.pause();
            let outcome = client.lock("a").try_lock_for(wait);
            server.resume();
            match outcome {
                Err(error) if error.is_retryable() => true,
                Ok(None) => false,
                other => panic!("{other:?}"),
            }
        });
        guard.unlock().unwrap();
        drop(first.join().unwrap());
    });
}

#[test]
fn short_waits_together_cost_the_server_few_tries() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let _guard = holder.lock("lock").lock().unwrap();
    let before = server.command_calls("evalsha") + server.command_calls("eval");
    let (_, waits) = WAYS[0];
    for outcome in together(&client, waits) {
        assert_eq!(outcome, Ok(false));
    }
    let tries = server.command_calls("evalsha") + server.command_calls("eval") - before;
    // The first waiter when it came and when it subscribed, and one try for all the others.
    assert!(tries <= 6, "{tries}");
}

#[test]
fn short_timed_wait_behind_waiter_times_out_without_error() {
    let server = Server::start();
    let (holder, client) = (connect(&server), connect(&server));
    let guard = holder.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| client.lock("a").lock().map(drop));
        wait_for_a_waiter(&client);
        let mut answered = 0;
        for _ in 0..100 {
            match client.lock("a").try_lock_for(Duration::from_millis(1)) {
                Ok(None) => answered += 1,
                Ok(Some(_)) => panic!("it is held"),
                // A busy machine may take longer than that for an answer.
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        assert!(answered > 50, "{answered}");
        guard.unlock().unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn in_memory_a_try_waits_for_no_release_that_was_tried_in_vain() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    drop(guard);
    // The time of the test stands still. A renewal thread tries once, and then waits for a later time.
    setup.clock.wait_until_idle();
    assert_eq!(client.stats().queued_releases, 1);
    setup.memory.set_unreachable(false);
    let (tell, told) = bounded(1);
    let trying = client.clone();
    let attempt = move || drop(tell.send(trying.lock("a").try_lock().map(|guard| guard.is_some())));
    thread::Builder::new().name("try".to_owned()).spawn(attempt).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(Ok(false)));
    assert_eq!(client.stats().queued_releases, 1);
    setup.clock.advance(SOON);
    wait_until("the release is sent again", SOON, || client.stats().queued_releases == 0);
    assert!(client.lock("a").try_lock().unwrap().is_some());
}
