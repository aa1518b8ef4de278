//! One lock on several servers: many callers, slow servers, closed connections, waits that end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::{LIMIT, ProxiedServer, SLACK, SOON, Script, built, timed};
use crossbeam_channel::{Receiver, bounded};
use hashed_wheel::Parker;
use parking_lot::Mutex;
use wheellock::{Client, Clock, Error, Memory, RedGuard, SystemClock, Wait};
use wheellock_fixture::{Fault, Request, Server, wait_until};

const LONG: Duration = Duration::from_secs(1);

fn three() -> (Vec<Server>, Vec<Client>) {
    three_with(Duration::from_secs(3))
}

/// With that command timeout.
fn three_with(timeout: Duration) -> (Vec<Server>, Vec<Client>) {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let client =
        |server: &Server| built(Client::builder().url(&server.url()).command_timeout(timeout));
    let clients = servers.iter().map(client).collect();
    (servers, clients)
}

/// Three servers whose next scripts are answered so much later.
fn far_away(by: Duration, scripts: usize) -> Vec<ProxiedServer> {
    let setups: Vec<ProxiedServer> = (0..3).map(|_| ProxiedServer::new()).collect();
    for setup in &setups {
        for _ in 0..scripts {
            let any = |request: &Request| request.name() == "EVALSHA";
            setup.proxy.on(any, Fault::DelayReply(by));
        }
    }
    setups
}

fn is_there(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

fn close_connections(servers: &[Server]) {
    for server in servers {
        assert!(!server.command(&["CLIENT", "KILL", "TYPE", "normal"]).is_error());
    }
}

#[test]
fn idle_connections_that_were_closed_cost_no_try() {
    let (servers, clients) = three();
    let lock = Client::red_lock(&clients, "a");
    let guard = lock.lock().unwrap();
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    guard.unlock().unwrap();
    close_connections(&servers);
    let guard = lock.try_lock().unwrap().unwrap();
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    close_connections(&servers);
    assert_eq!(guard.unlock(), Ok(()));
    for server in &servers {
        wait_until("it is released", SOON, || !is_there(server, "a"));
    }
}

#[test]
fn refusal_by_own_unreleased_acquire_is_no_contention() {
    let setups = [(); 3].map(|()| ProxiedServer::new());
    let clients: Vec<Client> = setups.iter().map(ProxiedServer::patient).collect();
    let lock = Client::red_lock(&clients, "a");
    // One server is another owner's, so the two others are needed.
    let other = setups[1].rival();
    let _held = other.lock("a").lock().unwrap();
    // The first attempt ends before the third server's answer has come: a grant.
    let kept = setups[2].on(Script::Acquire, "a", Fault::HoldReply);
    let first = lock.clone().with_server_timeout(LONG).try_lock();
    assert_eq!(first.map(|guard| guard.is_some()), Ok(false));
    assert_eq!(kept.hits(), 1);
    let second = lock.with_server_timeout(SOON);
    let asked = setups[2].on(Script::Acquire, "a", Fault::PassOn);
    thread::scope(|scope| {
        let tried = scope.spawn(|| second.try_lock().map(|guard| guard.is_some()));
        asked.wait_for_hit(SOON);
        kept.deliver();
        assert_eq!(tried.join().unwrap(), Ok(true));
    });
}

#[test]
fn contention_is_never_an_error_however_many_want_it() {
    const CALLERS: usize = 200;
    // None of them is late because so many are.
    let (_servers, clients) = three_with(LIMIT);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(SOON);
    drop(lock.lock().unwrap());
    let together = Barrier::new(CALLERS);
    let results: Vec<Result<(), Error>> = thread::scope(|scope| {
        let call = || {
            together.wait();
            let call = |_| lock.try_lock().and_then(|guard| guard.map_or(Ok(()), RedGuard::unlock));
            (0..5).map(call).collect::<Vec<_>>()
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(errors.is_empty(), "{} errors: {:?}", errors.len(), errors.first());
    wait_until("it can be had", SOON, || lock.try_lock().unwrap().is_some());
}

#[test]
fn concurrent_locks_of_different_names_cause_no_timeout() {
    const NAMES: usize = 40;
    // A server's four threads take two seconds. If the callers waited for each other, the last
    // callers would wait for eight.
    let setups = far_away(Duration::from_millis(200), 4 * NAMES);
    let clients: Vec<Client> = setups.iter().map(ProxiedServer::patient).collect();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(Duration::from_secs(5));
    let results: Vec<Result<bool, Error>> = thread::scope(|scope| {
        let call = |number: usize| {
            let lock = lock.with_name(&format!("a{number}"));
            scope.spawn(move || lock.try_lock().map(|guard| guard.is_some()))
        };
        let callers: Vec<_> = (0..NAMES).map(call).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    for result in results {
        assert_eq!(result, Ok(true));
    }
}

#[test]
fn a_timed_wait_ends_in_time_although_a_majority_hangs() {
    let (servers, clients) = three();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(Duration::from_secs(5));
    drop(lock.lock().unwrap());
    servers[0].pause();
    servers[1].pause();
    let wait = Duration::from_millis(20);
    let (result, took) = timed(|| lock.try_lock_for(wait));
    servers[0].resume();
    servers[1].resume();
    assert!(result.unwrap_err().is_retryable());
    assert!(took < wait + SLACK, "{took:?}");
}

#[test]
fn try_cut_off_by_the_deadline_reports_a_held_lock_not_an_error() {
    let setups = far_away(Duration::from_millis(100), 1000);
    let clients: Vec<Client> = setups.iter().map(ProxiedServer::patient).collect();
    let _held: Vec<_> =
        setups.iter().take(2).map(|setup| setup.rival().lock("a").lock().unwrap()).collect();
    // Longer than any wait, so that it is the deadline that cuts a try off.
    let lock = Client::red_lock(&clients, "a").with_server_timeout(Duration::from_secs(2));
    // The connections are there then.
    assert!(lock.try_lock().unwrap().is_none());
    setups[2].wait_until_gone("a");
    for wait in (400..800).step_by(70).map(Duration::from_millis) {
        // A machine that stands still for most of the wait hears nothing of the others.
        wait_until("it hears of the others", SOON * 2, || {
            let (result, took) = timed(|| lock.try_lock_for(wait).map(|guard| guard.is_some()));
            assert!(took < wait + SLACK, "{took:?}");
            match result {
                Ok(taken) => !taken,
                Err(error) if error.is_retryable() => false,
                Err(error) => panic!("{error}"),
            }
        });
    }
}

#[test]
fn a_timed_wait_can_be_cancelled_too() {
    let memories = [(); 3].map(|()| Memory::new());
    let of_all = || memories.each_ref().map(|memory| built(Client::builder().in_memory(memory)));
    let held = Client::red_lock(&of_all(), "a").lock().unwrap();
    let lock = Client::red_lock(&of_all(), "a");
    let (cancel, cancelled) = bounded(1);
    let short = Duration::from_millis(20);
    assert!(lock.try_lock_with(Wait::at_most(short).or_cancelled(&cancelled)).unwrap().is_none());
    thread::scope(|scope| {
        let waiter = scope
            .spawn(|| lock.try_lock_with(Wait::at_most(SOON).or_cancelled(&cancelled)).map(drop));
        cancel.send(()).unwrap();
        let (result, took) = timed(|| waiter.join().unwrap());
        assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
        assert!(took < SLACK, "{took:?}");
    });
    drop((held, cancelled.recv()));
    assert!(lock.try_lock_with(Wait::at_most(SOON).or_cancelled(&cancelled)).unwrap().is_some());
}

#[test]
fn thread_holds_nothing_after_unlock_while_servers_hang() {
    let (servers, clients) = three();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LONG);
    let other = lock.with_name("b");
    let guard = lock.lock().unwrap();
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    servers[0].pause();
    servers[1].pause();
    thread::scope(|scope| {
        // So the releases stand in line behind what is not answered.
        scope.spawn(|| other.try_lock().map(drop));
        wait_until("the servers are asked", SOON, || is_there(&servers[2], "b"));
        let error = guard.unlock().unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(!lock.is_held_by_current_thread());
        for client in &clients {
            assert_eq!(client.lock("a").hold_count(), 0);
        }
    });
    servers[0].resume();
    servers[1].resume();
    for server in &servers {
        wait_until("it is released", SOON, || !is_there(server, "a") && !is_there(server, "b"));
    }
}

#[test]
fn the_databases_of_one_server_are_one_server() {
    let server = Server::start();
    let client =
        |database| Client::connect(&format!("redis://{}/{database}", server.address())).unwrap();
    let error = Client::red_lock(&[0, 1, 2].map(client), "a").try_lock().unwrap_err();
    assert!(matches!(error, Error::InvalidSetting { setting: "red_lock", .. }), "{error}");
}

#[test]
fn client_shut_down_earlier_is_a_failed_server_at_any_position() {
    for place in 0..3 {
        let clients = [(); 3].map(|()| Client::in_memory());
        clients[place].shutdown(SOON);
        drop(Client::red_lock(&clients, "a").lock().unwrap());
    }
}

/// The system's clock, which breaks once on each thread of a red lock.
#[derive(Debug, Default)]
struct Fragile {
    breaks: AtomicBool,
    broke: Mutex<HashSet<ThreadId>>,
}

impl Clock for Fragile {
    fn now(&self) -> Instant {
        let here = thread::current();
        let may_break = here.name() == Some("lock-member") && self.breaks.load(Ordering::SeqCst);
        let breaks = may_break && self.broke.lock().insert(here.id());
        assert!(!breaks, "it breaks, as this test wants it");
        SystemClock.now()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn panic_on_a_red_lock_thread_is_counted_and_thread_continues() {
    let clock = Arc::new(Fragile::default());
    let clients = [(); 3].map(|()| {
        let memory = Memory::with_clock(clock.clone());
        built(Client::builder().in_memory(&memory))
    });
    let lock = Client::red_lock(&clients, "a").with_server_timeout(SOON);
    let guard = lock.lock().unwrap();
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    clock.breaks.store(true, Ordering::SeqCst);
    let (result, took) = timed(|| guard.unlock());
    assert!(result.unwrap_err().is_retryable());
    assert!(took < SOON / 2, "{took:?}");
    assert_eq!(clients.each_ref().map(|client| client.stats().panics), [1; 3]);
    wait_until("it is released in the background", SOON, || {
        clients.iter().all(|client| !client.lock("a").is_locked().unwrap())
    });
    clock.broke.lock().clear();
    let (result, took) = timed(|| lock.try_lock());
    assert!(result.unwrap_err().is_retryable());
    assert!(took < SOON / 2, "{took:?}");
    assert!(lock.try_lock_for(SOON).unwrap().is_some());
}

/// A clock that can be set forward, and that three threads of a red lock wait for while it is
/// jammed, one for each server: when they read it again, after they have noted when they send.
#[derive(Debug, Default)]
struct Jammed {
    jams: AtomicBool,
    readings: Mutex<HashMap<ThreadId, u32>>,
    waiting: AtomicUsize,
    ahead: Mutex<Duration>,
}

impl Clock for Jammed {
    fn now(&self) -> Instant {
        let here = thread::current();
        if here.name() == Some("lock-member") && self.jams.load(Ordering::SeqCst) {
            let (reading, threads) = {
                let mut readings = self.readings.lock();
                let reading = readings.entry(here.id()).or_default();
                *reading += 1;
                let reading = *reading;
                // Not the timer, which reads once and then waits for long.
                (reading, readings.values().filter(|readings| **readings >= 2).count())
            };
            if reading == 2 && threads <= 3 {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                wait_until("it goes on", LIMIT, || !self.jams.load(Ordering::SeqCst));
            }
        }
        SystemClock.now() + *self.ahead.lock()
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        let ahead = *self.ahead.lock();
        let deadline = deadline.map(|deadline| deadline.checked_sub(ahead).unwrap_or(deadline));
        SystemClock.park(parker, deadline, interrupt);
    }
}

#[test]
fn an_unlock_after_a_clock_jump_passes_other_threads_acquires() {
    let jammed = Arc::new(Jammed::default());
    let clients =
        [(); 3].map(|()| built(Client::builder().in_memory(&Memory::new()).clock(jammed.clone())));
    let lock = Client::red_lock(&clients, "a");
    let guard = lock.lock().unwrap();
    wait_until("all have joined", SOON, || guard.held_on() == 3);
    jammed.jams.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let other = scope.spawn(|| lock.try_lock().map(drop));
        wait_until("its acquires are under way", SOON, || {
            jammed.waiting.load(Ordering::SeqCst) == 3
        });
        // More than a server timeout, which is a twentieth of a lease at most.
        *jammed.ahead.lock() = LONG * 2;
        let unlocked = guard.unlock();
        jammed.jams.store(false, Ordering::SeqCst);
        assert_eq!(unlocked, Ok(()));
        drop(other.join().unwrap());
    });
}
