//! How things end when the end is not a clean one: the last handle goes, a grant comes too late, a shutdown meets calls
//! that are under way.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use wheellock::{Client, Clock, Error, LostReason, ManualClock, Memory, SystemClock};
use wheellock_fixture::{Fault, Proxy, Server, wait_until};

const LIMIT: Duration = Duration::from_secs(20);

fn exists(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}

fn connect(url: &str) -> Client {
    Client::builder().url(url).command_timeout(Duration::from_secs(1)).build().unwrap()
}

#[test]
fn a_release_that_is_owed_when_the_last_handle_goes_is_sent_before_the_client_ends() {
    let server = Server::start();
    let guard = connect(&server.url()).lock("a").with_lease(LIMIT * 100).lock().unwrap();
    // The guard's one attempt meets a connection that the server has closed.
    drop(server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    drop(guard);
    assert!(!exists(&server, "a"));
}

#[test]
fn the_last_handle_waits_for_what_is_owed_for_5_s_at_most_however_much_that_is() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = Client::connect(&proxy.url()).unwrap();
    let guards: Vec<_> = (0..2000)
        .map(|number| client.lock(&number.to_string()).with_lease(LIMIT * 100).lock().unwrap())
        .collect();
    proxy.refuse(true);
    proxy.cut_all();
    drop(guards);
    assert_eq!(client.stats().owed_releases, 2000);
    proxy.refuse(false);
    // A hundred in each round: eighteen seconds for all of them.
    proxy.delay_replies(Duration::from_millis(900));
    let start = SystemClock.now();
    drop(client);
    let took = SystemClock.now() - start;
    assert!(took < Duration::from_secs(8), "{took:?}");
    let left = server.command(&["DBSIZE"]).integer();
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
        assert_eq!(error, Error::Lost { name, reason });
    });
    // Sooner than the server would end it, which counts from when it went on.
    wait_until("it is released", lease * 3 / 4, || !exists(&server, "a"));
}

#[test]
fn a_timed_wait_whose_first_try_stalled_still_gets_the_lock_when_it_is_released() {
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
fn a_shutdown_names_the_release_that_another_thread_is_still_sending() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = connect(&proxy.url());
    thread::scope(|scope| {
        let (locked, is_locked) = crossbeam_channel::bounded(1);
        let (go, told) = crossbeam_channel::bounded(1);
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
fn an_unlock_that_is_the_first_to_see_the_end_tells_the_lost_channel_too() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let (lease, tick) = (Duration::from_secs(10), Duration::from_millis(10));
    // An end that lies within a tick: the ticker comes after the test.
    for part in 0..10 {
        let lease = lease + tick * part / 3;
        let guard = client.lock("a").with_lease(lease).lock().unwrap();
        let lost = guard.lost().clone();
        clock.advance(guard.remaining());
        let reason = LostReason::Expired;
        assert_eq!(guard.unlock(), Err(Error::Lost { name: "a".to_owned(), reason }));
        assert_eq!(lost.recv(), Ok(reason));
        clock.advance(lease);
    }
    assert_eq!(client.stats().lost, 10);
}

#[test]
fn a_fault_of_the_store_in_memory_never_hangs_a_call_on_a_clock_that_stands_still() {
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
