//! Limits and cancels of every call that has one, at servers that are stopped before it begins and
//! in the middle.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::thread;
use std::time::Duration;

use crate::common::takings::taken;
use crate::common::{SOON, built, timed};
use crossbeam_channel::{Receiver, bounded};
use wheellock::{Client, Error, LockStatus, RunOutcome, Wait};
use wheellock_fixture::{Fault, Proxy, Request, Server, wait_until};

/// A call that runs outside of its caller's limit takes this long, or longer.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_millis(200);
/// What a busy machine may add.
const BUSY: Duration = Duration::from_millis(2500);

/// A client of each server, all of which are stopped.
type Clients = [Client; 3];

/// Whether the call got what it waited for.
type Call = fn(&Clients, &LockStatus, Wait<'_>) -> Result<bool, Error>;

/// Every public call with a limit and a cancel.
const CALLS: [(&str, Call); 17] = [
    ("lock", |[one, ..], _, wait| Ok(one.lock("lock").try_lock_with(wait)?.is_some())),
    ("sendable", |[one, ..], _, wait| {
        Ok(one.lock("lock").sendable().try_lock_with(wait)?.is_some())
    }),
    ("non reentrant", |[one, ..], _, wait| {
        Ok(one.non_reentrant_lock("lock").try_lock_with(wait)?.is_some())
    }),
    ("fenced", |[one, ..], _, wait| Ok(one.fenced_lock("lock").try_lock_with(wait)?.is_some())),
    ("spin", |[one, ..], _, wait| Ok(one.spin_lock("lock").try_lock_with(wait)?.is_some())),
    ("fair", |[one, ..], _, wait| Ok(one.fair_lock("fair").try_lock_with(wait)?.is_some())),
    ("simple", |[one, ..], _, wait| Ok(one.simple_lock("simple").try_lock_with(wait)?.is_some())),
    ("read", |[one, ..], _, wait| {
        Ok(one.read_write_lock("rw").read_lock().try_lock_with(wait)?.is_some())
    }),
    ("write", |[one, ..], _, wait| {
        Ok(one.read_write_lock("rw").write_lock().try_lock_with(wait)?.is_some())
    }),
    ("red", |clients, _, wait| Ok(Client::red_lock(clients, "red").try_lock_with(wait)?.is_some())),
    ("multi", |[one, two, _], _, wait| {
        let (first, second) = (one.lock("multi"), two.lock("multi"));
        Ok(one.multi_lock(&[&first, &second]).try_lock_with(wait)?.is_some())
    }),
    ("semaphore", |[one, ..], _, wait| {
        one.semaphore("semaphore").try_acquire_with(1, wait).map(taken)
    }),
    ("permit", |[one, ..], _, wait| {
        Ok(one.expirable_semaphore("permits").watched().try_acquire_with(wait)?.is_some())
    }),
    ("permits", |[one, ..], _, wait| {
        Ok(one.expirable_semaphore("permits").try_acquire_many_with(2, wait)?.is_some())
    }),
    ("latch", |[one, ..], _, wait| one.count_down_latch("latch").wait_with(wait)),
    ("job", |[one, ..], _, wait| {
        let outcome = one.job("job").run_once_with("slot", wait, |_| Ok::<_, Error>(()))?;
        Ok(!matches!(outcome, RunOutcome::RunningElsewhere))
    }),
    ("next change", |[one, ..], before, wait| Ok(one.next_change(before, wait)?.is_some())),
];

fn connect(servers: &[Server; 3]) -> Clients {
    let builder = Client::builder().command_timeout(COMMAND_TIMEOUT);
    servers.each_ref().map(|server| built(builder.clone().url(&server.url())))
}

/// Holds all that [`CALLS`] wait for, until the guards are dropped and `done` has lost its sender.
fn hold_all(clients: &Clients, done: Receiver<()>) -> impl Send + use<> {
    let one = clients[0].clone();
    one.count_down_latch("latch").try_set_count(1).unwrap();
    let (began, has_begun) = bounded(1);
    let job = one.job("job");
    let run = move || {
        job.run_once("slot", |_| {
            began.send(()).unwrap();
            done.recv().unwrap_err();
            Err::<(), _>("it failed")
        })
    };
    let running = thread::Builder::new().spawn(run).unwrap();
    has_begun.recv_timeout(SOON).unwrap();
    (
        one.lock("lock").sendable().lock().unwrap(),
        one.fair_lock("fair").sendable().lock().unwrap(),
        one.simple_lock("simple").sendable().lock().unwrap(),
        one.read_write_lock("rw").write_lock().sendable().lock().unwrap(),
        Client::red_lock(clients, "red").sendable().lock().unwrap(),
        one.lock("multi").sendable().lock().unwrap(),
        running,
    )
}

fn pause_all(servers: &[Server; 3]) {
    servers.iter().for_each(Server::pause);
}

/// Makes each call on a thread of its own, with clients of its own. `first` runs before the calls
/// and `meanwhile` when all have begun. Panics unless each ends within `longest`, as `is_right`
/// wants it.
fn call_each(
    servers: &[Server; 3],
    wait: Wait<'_>,
    first: impl FnOnce(),
    meanwhile: impl FnOnce(),
    longest: Duration,
    is_right: fn(&Result<bool, Error>) -> bool,
) {
    let clients: Vec<Clients> = CALLS.iter().map(|_| connect(servers)).collect();
    // Of a name that no call holds or waits for.
    let before = clients[0][0].status("watched").unwrap();
    first();
    let wrong: Vec<String> = thread::scope(|scope| {
        let (begin, has_begun) = bounded(CALLS.len());
        let make = |(name, call): (&'static str, Call), clients| {
            let (begin, before) = (begin.clone(), &before);
            let run = move || {
                begin.send(()).unwrap();
                timed(|| call(clients, before, wait))
            };
            (name, scope.spawn(run))
        };
        let calls: Vec<_> =
            CALLS.into_iter().zip(&clients).map(|(call, clients)| make(call, clients)).collect();
        for _ in CALLS {
            has_begun.recv_timeout(SOON).unwrap();
        }
        meanwhile();
        let ended = calls.into_iter().map(|(name, call)| (name, call.join().unwrap()));
        ended
            .filter(|(_, (outcome, took))| *took >= longest || !is_right(outcome))
            .map(|(name, (outcome, took))| format!("{name}: {outcome:?} after {took:?}"))
            .collect()
    });
    servers.iter().for_each(Server::resume);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Waits until so many of the calls wait for messages.
fn wait_until_some_wait(servers: &[Server; 3]) {
    wait_until("some wait", SOON, || {
        servers[0].command(&["PUBSUB", "CHANNELS", "*"]).array().len() >= 5
    });
}

fn is_unanswered(outcome: &Result<bool, Error>) -> bool {
    outcome.as_ref().is_err_and(Error::is_retryable)
}

fn is_cancelled(outcome: &Result<bool, Error>) -> bool {
    matches!(outcome, Err(Error::Cancelled { .. }))
}

/// Runs the calls while others hold all that they wait for.
fn call_each_while_held(
    wait: Wait<'_>,
    first: impl FnOnce(&[Server; 3]),
    meanwhile: impl FnOnce(&[Server; 3]),
    longest: Duration,
    is_right: fn(&Result<bool, Error>) -> bool,
) {
    let servers = [(); 3].map(|()| Server::start());
    let holders = connect(&servers);
    let (done, until_done) = bounded(0);
    let held = hold_all(&holders, until_done);
    let (first, meanwhile) = (|| first(&servers), || meanwhile(&servers));
    call_each(&servers, wait, first, meanwhile, longest, is_right);
    drop((done, held));
}

#[test]
fn a_limit_holds_at_a_server_that_is_stopped_before() {
    let wait = Wait::at_most(LIMIT);
    call_each_while_held(wait, pause_all, |_| {}, LIMIT + BUSY, is_unanswered);
}

#[test]
fn a_limit_holds_at_a_server_that_is_stopped_in_the_middle() {
    let meanwhile = |servers: &[Server; 3]| {
        wait_until_some_wait(servers);
        pause_all(servers);
    };
    let limit = Duration::from_secs(2);
    let is_right = |outcome: &_| is_unanswered(outcome) || *outcome == Ok(false);
    call_each_while_held(Wait::at_most(limit), |_| {}, meanwhile, limit + BUSY, is_right);
}

#[test]
fn a_cancel_before_a_call_at_a_stopped_server_is_seen() {
    let (cancel, cancelled) = bounded(1);
    cancel.send(()).unwrap();
    let wait = Wait::forever().or_cancelled(&cancelled);
    call_each_while_held(wait, pause_all, |_| {}, BUSY, is_cancelled);
}

#[test]
fn a_cancel_takes_one_command_timeout_at_a_stopped_server() {
    let (cancel, cancelled) = bounded(1);
    let wait = Wait::forever().or_cancelled(&cancelled);
    let send = |_: &[Server; 3]| cancel.send(()).unwrap();
    call_each_while_held(wait, pause_all, send, COMMAND_TIMEOUT + BUSY, is_cancelled);
}

#[test]
fn cancelled_wait_at_stopped_server_ends_within_command_timeout() {
    let (cancel, cancelled) = bounded(1);
    let wait = Wait::forever().or_cancelled(&cancelled);
    let meanwhile = |servers: &[Server; 3]| {
        wait_until_some_wait(servers);
        pause_all(servers);
        cancel.send(()).unwrap();
    };
    call_each_while_held(wait, |_| {}, meanwhile, COMMAND_TIMEOUT + BUSY, is_cancelled);
}

#[test]
fn a_job_ends_in_time_if_the_server_stops_once_it_has_the_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let builder = Client::builder().command_timeout(COMMAND_TIMEOUT);
    let client = built(builder.url(&proxy.url()));
    let begins = |request: &Request| request.contains("wheellock_job_token");
    let begin = proxy.on(begins, Fault::SwallowRequest).always();
    let limit = Duration::from_secs(1);
    thread::scope(|scope| {
        let run = || timed(|| client.job("job").run_once_with("slot", limit, |_| Ok::<_, ()>(())));
        let running = scope.spawn(run);
        begin.wait_for_hit(SOON);
        proxy.hold_all(true);
        let (outcome, took) = running.join().unwrap();
        assert!(outcome.is_err_and(|error| error.is_retryable()));
        assert!(took < limit + BUSY, "{took:?}");
        proxy.hold_all(false);
    });
    wait_until("the lock is released", SOON, || {
        server.command(&["KEYS", "wheellock_job_lock*"]).array().is_empty()
    });
}

#[test]
fn thread_of_named_owner_keeps_own_timeout_while_first_acquires() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let builder = Client::builder().command_timeout(COMMAND_TIMEOUT);
    let client = built(builder.url(&proxy.url()));
    let lock = client.lock("a").with_owner("task");
    let (cancel, cancelled) = bounded(1);
    let is_try = |request: &Request| request.name().starts_with("EVAL");
    let ask = proxy.on(is_try, Fault::SwallowRequest).always();
    thread::scope(|scope| {
        let first = scope.spawn(|| lock.try_lock_with(Wait::forever().or_cancelled(&cancelled)));
        ask.wait_for_hit(SOON);
        let (second, took) = timed(|| lock.try_lock_for(LIMIT));
        assert!(second.is_err_and(|error| error.is_retryable()));
        assert!(took < COMMAND_TIMEOUT, "{took:?}");
        cancel.send(()).unwrap();
        assert!(matches!(first.join().unwrap(), Err(Error::Cancelled { .. })));
    });
}
