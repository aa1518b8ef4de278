//! Ends that are not clean: the last handle is dropped, a grant arrives too late, a shutdown meets
//! calls in progress.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::expected::lost;
use crate::common::{built, pause};
use crossbeam_channel::{Receiver, Sender, bounded};
use hashed_wheel::Parker;
use wheellock::{
    Client, Clock, Error, LockGuard, LostReason, ManualClock, Memory, SemaphoreGuard, SystemClock,
};
use wheellock_fixture::{Fault, Proxy, Server, wait_until};

const LIMIT: Duration = Duration::from_secs(20);

fn exists(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}

fn connect(url: &str) -> Client {
    built(Client::builder().url(url).command_timeout(Duration::from_secs(3)))
}

#[test]
fn a_pending_release_is_sent_before_the_last_handle_is_gone() {
    let server = Server::start();
    let guard = connect(&server.url()).lock("a").with_lease(LIMIT * 100).lock().unwrap();
    // The guard's one attempt meets a connection that the server has closed.
    drop(server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    drop(guard);
    assert!(!exists(&server, "a"));
}

#[test]
fn the_last_handle_waits_at_most_5_s_for_pending_releases() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&proxy.url()).unwrap();
    let guards: Vec<_> = (0..2000)
        .map(|number| client.lock(&number.to_string()).with_lease(LIMIT * 100).lock().unwrap())
        .collect();
    proxy.refuse(true);
    proxy.cut_all();
    drop(guards);
    wait_until("all releases are queued", LIMIT, || client.stats().queued_releases == 2000);
    proxy.refuse(false);
    // A hundred in each round: eight seconds for all of them. One round may last for one second.
    proxy.delay_replies(Duration::from_millis(400));
    let start = SystemClock.now();
    drop(client);
    let took = SystemClock.now() - start;
    assert!(took < Duration::from_secs(8), "{took:?}");
    let left = server.size();
    assert!((500..2000).contains(&left), "{left} are left to their leases");
}

#[test]
fn a_leased_grant_that_comes_too_late_leaves_no_key_behind() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let lease = Duration::from_secs(1);
    let lock = client.lock("a").with_lease(lease);
    server.pause();
    thread::scope(|scope| {
        let caller = scope.spawn(|| lock.lock().map(drop));
        let stopped = SystemClock.now();
        wait_until("the lease is over", LIMIT, || SystemClock.now() - stopped > lease * 6 / 5);
        server.resume();
        let error = caller.join().unwrap().unwrap_err();
        let (name, reason) = ("a".to_owned(), LostReason::Expired);
        assert_eq!(error, lost(&name, reason));
    });
    // Sooner than the server would end it, which counts from when it went on.
    wait_until("it is released", lease * 3 / 4, || !exists(&server, "a"));
}

#[test]
fn timed_wait_with_stalled_first_try_gets_lock_on_release() {
    let server = Server::start();
    let [holder, waiter] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let guard = holder.lock("a").lock().unwrap();
    server.pause();
    thread::scope(|scope| {
        let start = SystemClock.now();
        let waiting = scope
            .spawn(|| waiter.lock("a").try_lock_for(Duration::from_secs(4)).unwrap().is_some());
        wait_until("more than half of its time is over", LIMIT, || {
            SystemClock.now() - start > Duration::from_millis(2200)
        });
        server.resume();
        wait_until("it waits", LIMIT, || waiter.stats().waiters == 1);
        guard.unlock().unwrap();
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn a_shutdown_ends_a_wait_that_is_trying_to_reach_the_server() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    server.kill();
    thread::scope(|scope| {
        let caller = scope.spawn(|| client.lock("a").lock().map(drop));
        let start = SystemClock.now();
        wait_until("it has tried more than once", LIMIT, || {
            SystemClock.now() - start > Duration::from_millis(200)
        });
        client.shutdown(Duration::from_millis(100));
        assert_eq!(caller.join().unwrap(), Err(Error::Shutdown));
        // Its patience alone would have lasted six seconds.
        assert!(SystemClock.now() - start < Duration::from_secs(3));
    });
}

#[test]
fn shutdown_report_names_release_in_flight_on_second_thread() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = connect(&proxy.url());
    thread::scope(|scope| {
        let (locked, is_locked) = bounded(1);
        let (go, told) = bounded(1);
        let client = &client;
        let caller = scope.spawn(move || {
            let guard = client.lock("a").lock().unwrap();
            locked.send(()).unwrap();
            told.recv().unwrap();
            guard.unlock()
        });
        is_locked.recv().unwrap();
        let release = proxy
            .on(|request| request.contains("redisson_lock__channel"), Fault::SwallowRequest)
            .always();
        go.send(()).unwrap();
        release.wait_for_hit(LIMIT);
        let report = client.shutdown(Duration::from_millis(100));
        assert_eq!((report.released, report.unreleased), (0, vec!["a".to_owned()]));
        assert!(caller.join().unwrap().is_err());
        release.withdraw();
    });
}

/// Calls of a client that hang: what each asks of a lock that it holds, and what it is told when
/// the client is shut down.
type Call = (&'static str, fn(&Client, LockGuard) -> Result<(), Error>, fn(&Error) -> bool);

const CALLS: [Call; 9] = [
    ("lock", |client, _| client.lock("other").lock().map(drop), is_shutdown),
    ("try_lock", |client, _| client.lock("other").try_lock().map(drop), is_shutdown),
    ("try_lock_for", |client, _| client.lock("other").try_lock_for(LIMIT).map(drop), is_shutdown),
    ("fair", |client, _| client.fair_lock("other").lock().map(drop), is_shutdown),
    ("nested", |client, _| client.lock("held").lock().map(drop), is_shutdown),
    (
        "semaphore",
        |client, _| client.semaphore("s").acquire(1).map(SemaphoreGuard::forget),
        is_shutdown,
    ),
    ("unlock", |_, guard| guard.unlock(), Error::is_outcome_unknown),
    (
        "is_locked",
        |client, _| client.lock("other").is_locked().map(drop),
        Error::is_outcome_unknown,
    ),
    ("add", |client, _| client.semaphore("s").add_permits(1), Error::is_outcome_unknown),
];

fn is_shutdown(error: &Error) -> bool {
    *error == Error::Shutdown
}

#[test]
fn a_shutdown_ends_in_its_time_and_so_do_the_calls_that_hang() {
    let server = Server::start();
    thread::scope(|scope| {
        for (what, call, is_told) in CALLS {
            let server = &server;
            scope.spawn(move || {
                let proxy = Proxy::start(server.address());
                // It would be waited for twice.
                let builder = Client::builder().url(&proxy.url()).command_timeout(LIMIT);
                let client = builder.key_prefix(what).build().unwrap();
                thread::scope(|scope| {
                    let (held, is_held) = bounded(1);
                    let (go, told) = bounded(1);
                    let own = client.clone();
                    let caller = scope.spawn(move || {
                        let guard = own.lock("held").lock().unwrap();
                        held.send(()).unwrap();
                        told.recv().unwrap();
                        call(&own, guard)
                    });
                    is_held.recv().unwrap();
                    let hangs = proxy.on(|_| true, Fault::SwallowRequest).always();
                    go.send(()).unwrap();
                    hangs.wait_for_hit(LIMIT);
                    let start = SystemClock.now();
                    client.shutdown(Duration::from_millis(300));
                    let shut = SystemClock.now() - start;
                    let error = caller.join().unwrap().unwrap_err();
                    let returned = SystemClock.now() - start;
                    assert!(is_told(&error), "{what}: {error:?}");
                    assert!(shut < LIMIT / 4, "{what}: the shutdown took {shut:?}");
                    assert!(returned < LIMIT / 4, "{what}: the call took {returned:?}");
                });
                // What is queued is not waited for here.
                proxy.refuse(true);
            });
        }
    });
}

/// Shuts a client down while a call of the client hangs, runs `meanwhile`, and expects that the call
/// and the shutdown go on until the call is answered.
fn shut_down_during_a_call(meanwhile: fn(&Client)) {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = Client::builder().url(&proxy.url()).command_timeout(LIMIT).build().unwrap();
    let held = proxy.on(|request| request.name() == "EXISTS", Fault::HoldReply);
    thread::scope(|scope| {
        let asking = scope.spawn(|| client.lock("a").is_locked());
        held.wait_for_hit(LIMIT);
        let ending = scope.spawn(|| client.shutdown(LIMIT));
        // Once it has begun.
        wait_until("it is shut down", LIMIT, || {
            // Without a valid name nothing is sent, which would wait behind the call.
            client.lock("").try_lock().is_err_and(|error| error == Error::Shutdown)
        });
        meanwhile(&client);
        assert!(!ending.is_finished());
        held.deliver();
        assert_eq!(asking.join().unwrap(), Ok(false));
        ending.join().unwrap();
    });
}

#[test]
fn calls_in_progress_have_the_time_of_a_shutdown() {
    shut_down_during_a_call(|_| {});
}

#[test]
fn a_second_shutdown_cuts_off_no_call_that_the_first_waits_for() {
    shut_down_during_a_call(|client| drop(client.shutdown(Duration::from_millis(50))));
}

#[test]
fn a_second_shutdown_waits_for_the_first() {
    let ((begun, has_begun), (go, go_on)) = (bounded(1), bounded(1));
    let clock = Arc::new(Slow { countdown: AtomicU32::new(0), begun, go_on });
    let memory = Memory::with_clock(clock.clone());
    let client = Client::builder().in_memory(&memory).build().unwrap();
    thread::scope(|scope| {
        // Dropped if this fails: then the first goes on.
        let go = go;
        let slow = thread::Builder::new().name("slow".to_owned());
        let first = slow.spawn_scoped(scope, || {
            let _guard = client.lock("a").lock().unwrap();
            clock.countdown.store(2, Ordering::SeqCst);
            client.shutdown(LIMIT)
        });
        has_begun.recv_timeout(LIMIT).unwrap();
        let second = scope.spawn(|| {
            let report = client.shutdown(LIMIT);
            (report, memory.fields("a").is_empty())
        });
        // Room for an end that must not come.
        pause(Duration::from_millis(100));
        assert!(!second.is_finished());
        go.send(()).unwrap();
        let (report, is_released) = second.join().unwrap();
        assert!(is_released && report.unreleased.is_empty(), "{report:?}");
        assert_eq!(first.unwrap().join().unwrap().released, 1);
    });
}

#[test]
fn two_shutdowns_at_once_both_end_when_the_work_is_done() {
    let server = Server::start();
    let client = connect(&server.url());
    let _guards: Vec<_> =
        (0..100).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
    let start = SystemClock.now();
    thread::scope(|scope| {
        let reports = [(); 2].map(|()| scope.spawn(|| client.shutdown(LIMIT)));
        let released = reports.map(|report| report.join().unwrap().released);
        assert_eq!(released.iter().sum::<usize>(), 100);
    });
    assert!(SystemClock.now() - start < LIMIT / 2);
}

#[test]
fn an_unlock_that_finds_a_loss_sends_it_to_the_lost_channel() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let (lease, tick) = (Duration::from_secs(10), Duration::from_millis(10));
    // An end that lies within a tick: the ticker comes after the test.
    for part in 0..10 {
        let lease = lease + tick * part / 3;
        let guard = client.lock("a").with_lease(lease).lock().unwrap();
        let told = guard.lost().clone();
        clock.advance(guard.remaining());
        let reason = LostReason::Expired;
        assert_eq!(guard.unlock(), lost("a", reason));
        assert_eq!(told.recv(), Ok(reason));
        clock.advance(lease);
    }
    assert_eq!(client.stats().lost, 10);
}

#[test]
fn an_in_memory_fault_never_hangs_a_call_on_a_stopped_clock() {
    let memory = Memory::with_clock(Arc::new(ManualClock::new()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guard = client.lock("held").lock().unwrap();
    let dropped = client.lock("dropped").lock().unwrap();
    memory.set_unreachable(true);
    assert!(matches!(client.lock("a").try_lock(), Err(Error::Unreachable { .. })));
    assert!(matches!(client.lock("a").lock(), Err(Error::Unreachable { .. })));
    assert!(matches!(guard.unlock(), Err(Error::Unreachable { .. })));
    drop(dropped);
    let report = client.shutdown(LIMIT);
    assert_eq!(report.unreleased.len(), 2);
}

#[test]
fn a_fair_wait_without_an_answer_waits_for_no_release_either() {
    let memory = Memory::with_clock(Arc::new(ManualClock::new()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    memory.lose_replies(true);
    let start = SystemClock.now();
    for _ in 0..40 {
        assert!(client.fair_lock("a").lock().unwrap_err().is_outcome_unknown());
    }
    // A quarter of a second for each would be ten seconds.
    let took = SystemClock.now() - start;
    assert!(took < LIMIT / 4, "{took:?}");
}

#[test]
fn a_name_is_resolved_for_all_threads_that_need_it_at_once() {
    let server = Server::start();
    let client = connect(&server.url().replace("127.0.0.1", "localhost"));
    thread::scope(|scope| {
        for number in 0..32 {
            let lock = client.lock(&number.to_string());
            scope.spawn(move || lock.lock().unwrap().unlock().unwrap());
        }
    });
}

#[test]
fn in_memory_a_shutdown_releases_all_however_many_they_are() {
    let memory = Memory::new();
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let names: Vec<String> = (0..1000).map(|number| format!("{number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| client.lock(name).lock().unwrap()).collect();
    let report = client.shutdown(LIMIT);
    assert_eq!((report.released, report.unreleased.len()), (guards.len(), 0));
}

/// The system's clock, of which one reading by the thread `slow` lasts for as long as the test
/// wants.
#[derive(Debug)]
struct Slow {
    /// Which of the next readings that is; zero for none.
    countdown: AtomicU32,
    begun: Sender<()>,
    go_on: Receiver<()>,
}

impl Clock for Slow {
    fn now(&self) -> Instant {
        if thread::current().name() == Some("slow") {
            let less = |count: u32| count.checked_sub(1);
            if self.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
                self.begun.send(()).unwrap();
                self.go_on.recv().unwrap();
            }
        }
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        SystemClock.park(parker, deadline, interrupt);
    }
}

/// What a shutdown says while a thread has come, in `act`, to that reading of the clock after it
/// was armed.
fn shut_down_during(reading: u32, act: impl FnOnce(&Client, &dyn Fn()) + Send) -> Vec<String> {
    let ((begun, has_begun), (go, go_on)) = (bounded(1), bounded(1));
    let clock = Arc::new(Slow { countdown: AtomicU32::new(0), begun, go_on });
    let memory = Memory::with_clock(clock.clone());
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let arm = || clock.countdown.store(reading, Ordering::SeqCst);
    thread::scope(|scope| {
        let slow = thread::Builder::new().name("slow".to_owned());
        slow.spawn_scoped(scope, || act(&client, &arm)).unwrap();
        has_begun.recv_timeout(LIMIT).unwrap();
        let report = client.shutdown(Duration::from_millis(100));
        go.send(()).unwrap();
        assert_eq!(report.released, 0);
        report.unreleased
    })
}

#[test]
fn a_shutdown_names_permits_that_a_thread_is_about_to_detach() {
    let permits = shut_down_during(1, |client, arm| {
        let permits = client.expirable_semaphore("a").watched();
        permits.set_permits(1).unwrap();
        let permit = permits.acquire().unwrap();
        arm();
        let _left_taken = permit.into_id();
    });
    assert_eq!(permits, ["a"]);
}

#[test]
fn a_second_shutdown_names_what_the_first_has_not_released_yet() {
    // The second reading comes when the first one has begun, and has a hold in hand.
    let locks = shut_down_during(2, |client, arm| {
        let _guard = client.lock("a").lock().unwrap();
        arm();
        assert_eq!(client.shutdown(LIMIT).released, 1);
    });
    assert_eq!(locks, ["a"]);
}

#[test]
#[cfg_attr(
    any(feature = "metrics", feature = "tracing"),
    ignore = "these read the clock before a release begins; runs with the default features"
)]
fn shutdown_report_names_release_begun_but_not_yet_sent() {
    let locks = shut_down_during(1, |client, arm| {
        let guard = client.lock("a").lock().unwrap();
        arm();
        guard.unlock().unwrap();
    });
    assert_eq!(locks, ["a"]);
    let permits = shut_down_during(1, |client, arm| {
        let permits = client.expirable_semaphore("a").watched();
        permits.set_permits(1).unwrap();
        let permit = permits.acquire().unwrap();
        arm();
        permit.release().unwrap();
    });
    assert_eq!(permits, ["a"]);
}
