//! One lock on several servers: a majority holds it, and no minority can affect it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::expected::lost;
use crate::common::{SLACK, SOON, Script, TIMEOUT, built, now, timed};
use crossbeam_channel::{TryRecvError, bounded};
use wheellock::{Client, Error, LostReason, Memory, RedGuard, RedLock, Wait};
use wheellock_fixture::{Fault, Server, wait_until};

/// What the servers are waited for where some do not answer.
const LIMIT: Duration = Duration::from_secs(3);
/// What they are waited for where all answer, however busy the machine is.
const PATIENT: Duration = Duration::from_secs(5);

fn servers(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start()).collect()
}

fn clients(servers: &[Server]) -> Vec<Client> {
    clients_with_timeout(servers, TIMEOUT * 4)
}

fn clients_with_timeout(servers: &[Server], timeout: Duration) -> Vec<Client> {
    let client =
        |server: &Server| built(Client::builder().url(&server.url()).command_timeout(timeout));
    servers.iter().map(client).collect()
}

fn in_memory(count: usize) -> (Vec<Memory>, Vec<Client>) {
    let memories: Vec<Memory> = (0..count).map(|_| Memory::new()).collect();
    let clients = clients_of(&memories);
    (memories, clients)
}

fn clients_of(memories: &[Memory]) -> Vec<Client> {
    memories.iter().map(|memory| built(Client::builder().in_memory(memory))).collect()
}

/// Waits until all servers have answered and joined.
fn everywhere(guard: RedGuard, servers: usize) -> RedGuard {
    wait_until("all have joined", SOON, || guard.held_on() == servers);
    guard
}

fn nothing_left(memories: &[Memory], name: &str) -> bool {
    memories.iter().all(|memory| memory.fields(name).is_empty())
}

fn is_there(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", name]).integer() == 1
}

#[test]
fn it_is_held_on_all_and_released_on_all() {
    for count in 3..=7 {
        let (memories, clients) = in_memory(count);
        let lock = Client::red_lock(&clients, "a");
        let guard = everywhere(lock.lock().unwrap(), count);
        assert!(guard.is_held() && guard.check().is_ok() && lock.is_held_by_current_thread());
        assert!(guard.remaining() > Duration::from_secs(25));
        guard.unlock().unwrap();
        wait_until("nothing is left", SOON, || nothing_left(&memories, "a"));
        assert!(!lock.is_held_by_current_thread());
    }
}

#[test]
fn a_majority_excludes_and_a_minority_does_not() {
    for count in 3..=6 {
        let (memories, clients) = in_memory(count);
        let rivals = clients_of(&memories);
        let lock = Client::red_lock(&clients, "a").with_server_timeout(PATIENT);
        let bearable = count - (count / 2 + 1);
        let mut held = Vec::new();
        for (place, rival) in rivals.iter().enumerate() {
            held.push(rival.lock("a").lock().unwrap());
            let guard = lock.try_lock().unwrap();
            assert_eq!(guard.is_some(), place < bearable, "{place} of {count}");
            drop(guard);
            let mine =
                || memories.iter().skip(place + 1).any(|memory| !memory.fields("a").is_empty());
            wait_until("what was taken is released", SOON, || !mine());
        }
    }
}

#[test]
fn a_wait_ends_in_time_and_leaves_nothing() {
    let (memories, clients) = in_memory(5);
    let rivals = clients_of(&memories[..3]);
    let _held: Vec<_> = rivals.iter().map(|rival| rival.lock("a").lock().unwrap()).collect();
    let lock = Client::red_lock(&clients, "a");
    let wait = Duration::from_millis(300);
    let (none, took) = timed(|| lock.try_lock_for(wait).unwrap());
    assert!(none.is_none());
    assert!(took >= wait * 49 / 50 && took < wait + SLACK, "{took:?}");
    wait_until("nothing is left", SOON, || nothing_left(&memories[3..], "a"));
}

#[test]
fn a_wait_can_be_cancelled() {
    let (memories, clients) = in_memory(3);
    let rivals = clients_of(&memories);
    let _held: Vec<_> = rivals.iter().map(|rival| rival.lock("a").lock().unwrap()).collect();
    let lock = Client::red_lock(&clients, "a");
    let (cancel, cancelled) = bounded(1);
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| lock.try_lock_with(Wait::forever().or_cancelled(&cancelled)).map(drop));
        cancel.send(()).unwrap();
        let (result, took) = timed(|| waiter.join().unwrap());
        assert!(matches!(result, Err(Error::Cancelled { .. })));
        assert!(took < SLACK, "{took:?}");
    });
}

#[test]
fn lost_member_returns_only_with_the_next_nested_acquire() {
    let (_memories, clients) = in_memory(3);
    let lock = Client::red_lock(&clients, "a");
    let outer = everywhere(lock.lock().unwrap(), 3);
    clients[0].lock("a").force_unlock().unwrap();
    let inner = everywhere(lock.lock().unwrap(), 3);
    assert_eq!(outer.held_on(), 2);
    drop(inner);
    assert!(outer.is_held());
}

#[test]
fn the_loss_of_the_majority_is_final_and_reported_once() {
    let (memories, clients) = in_memory(5);
    let lock = Client::red_lock(&clients, "a");
    let guard = everywhere(lock.lock().unwrap(), 5);
    let told = guard.lost().clone();
    for client in &clients[..2] {
        client.lock("a").force_unlock().unwrap();
        assert!(guard.is_held());
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    }
    clients[2].lock("a").force_unlock().unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Deleted));
    let lost = lost("a", LostReason::Deleted);
    assert_eq!(guard.check(), lost.clone());
    clients[3].lock("a").force_unlock().unwrap();
    assert_eq!(guard.unlock(), lost);
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    wait_until("nothing is left", SOON, || nothing_left(&memories, "a"));
}

#[test]
fn the_release_succeeds_although_a_minority_was_lost() {
    let (memories, clients) = in_memory(3);
    let guard = everywhere(Client::red_lock(&clients, "a").lock().unwrap(), 3);
    clients[0].lock("a").force_unlock().unwrap();
    guard.unlock().unwrap();
    wait_until("nothing is left", SOON, || nothing_left(&memories, "a"));
}

#[test]
fn a_release_is_no_loss() {
    let (_memories, clients) = in_memory(3);
    let guard = Client::red_lock(&clients, "a").lock().unwrap();
    let told = guard.lost().clone();
    guard.unlock().unwrap();
    wait_until("the channel is closed", SOON, || {
        told.try_recv() == Err(TryRecvError::Disconnected)
    });
}

#[test]
fn wrong_lists_and_settings_are_errors() {
    let (_memories, clients) = in_memory(5);
    let wrong = |lock: RedLock| {
        let error = lock.try_lock().unwrap_err();
        assert_eq!(lock.lock().unwrap_err(), error);
        error
    };
    for few in 0..3 {
        let error = wrong(Client::red_lock(&clients[..few], "a"));
        assert!(matches!(error, Error::InvalidSetting { setting: "red_lock", .. }), "{error}");
        assert!(matches!(wrong(RedLock::new(&[])), Error::InvalidSetting { .. }));
    }
    let twice = [clients[0].clone(), clients[1].clone(), clients[0].clone()];
    assert!(matches!(wrong(Client::red_lock(&twice, "a")), Error::InvalidSetting { .. }));
    assert!(matches!(wrong(Client::red_lock(&clients, "")), Error::InvalidName { .. }));
    let lock = Client::red_lock(&clients, "a");
    assert!(matches!(wrong(lock.with_name("")), Error::InvalidName { .. }));
    for timeout in [Duration::ZERO, Duration::from_secs(11)] {
        let error = wrong(lock.clone().with_server_timeout(timeout));
        assert!(matches!(error, Error::InvalidSetting { setting: "server_timeout", .. }));
    }
    let short = lock.clone().with_lease(Duration::from_millis(1));
    assert!(matches!(wrong(short), Error::InvalidLease { .. }));
    assert!(lock.with_server_timeout(PATIENT).try_lock().unwrap().is_some());
}

#[test]
fn clients_that_are_shut_down_are_servers_that_fail() {
    let (_memories, clients) = in_memory(3);
    let lock = Client::red_lock(&clients, "a");
    clients[0].shutdown(SOON);
    drop(lock.lock().unwrap());
    clients[1].shutdown(SOON);
    assert_eq!(lock.lock().unwrap_err(), Error::Shutdown);
}

#[test]
fn two_clients_on_three_and_on_five_servers_exclude_each_other() {
    for count in [3, 5] {
        let servers = servers(count);
        let counter = AtomicU64::new(0);
        // On a busy machine a server may be slow, which is not what is tested.
        let red_lock = || Client::red_lock(&clients(&servers), "a").with_server_timeout(PATIENT);
        let all: Vec<RedLock> = (0..2).map(|_| red_lock()).collect();
        thread::scope(|scope| {
            for lock in all.iter().chain(&all) {
                let counter = &counter;
                scope.spawn(move || {
                    for _ in 0..25 {
                        let guard = lock.lock().unwrap();
                        let seen = counter.load(Ordering::Relaxed);
                        thread::yield_now();
                        counter.store(seen + 1, Ordering::Relaxed);
                        guard.unlock().unwrap();
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 100);
        for server in &servers {
            wait_until("nothing is left", SOON, || !is_there(server, "a"));
        }
    }
}

#[test]
fn a_minority_that_is_dead_is_not_missed() {
    let servers = servers(5);
    let clients = clients(&servers);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(PATIENT);
    servers[0].kill();
    let guard = lock.lock().unwrap();
    // Otherwise fewer than a majority might have released it.
    wait_until("it is held on the four", SOON, || guard.held_on() == 4);
    servers[3].kill();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    for server in [1, 2, 4] {
        wait_until("it is released", SOON, || !is_there(&servers[server], "a"));
    }
    drop(lock.lock().unwrap());
}

#[test]
fn a_hanging_minority_delays_nothing() {
    let servers = servers(5);
    let clients = clients(&servers);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LIMIT);
    drop(lock.lock().unwrap());
    servers[1].pause();
    servers[4].pause();
    let (mut slowest, begin) = (Duration::ZERO, now());
    // Long enough for the threads of the two to be through with a request and to begin another.
    while now() < begin + TIMEOUT * 10 {
        let ((), took) = timed(|| lock.lock().unwrap().unlock().unwrap());
        slowest = slowest.max(took);
    }
    assert!(slowest < LIMIT, "{slowest:?}");
    // What was sent to them does not pile up: at most eight requests are under way to a server, and
    // each acquire that is unanswered leaves a release.
    for server in [1, 4] {
        let stats = clients[server].stats();
        assert!(stats.queued_releases <= 8 + 3, "{stats:?}");
        assert!(stats.connections_made < 20, "{stats:?}");
    }
    servers[1].resume();
    servers[4].resume();
    for server in &servers {
        wait_until("nothing is left", SOON, || !is_there(server, "a"));
    }
    wait_until("they grant again", SOON, || {
        let guard = lock.lock().unwrap();
        let mut looks = 0;
        while guard.held_on() < 5 && looks < 100 {
            looks += 1;
            thread::yield_now();
        }
        guard.held_on() == 5
    });
}

#[test]
fn hung_server_delays_a_release_by_at_most_the_server_timeout() {
    let servers = servers(3);
    let clients = clients(&servers);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LIMIT);
    let guard = everywhere(lock.lock().unwrap(), 3);
    servers[0].pause();
    let (result, took) = timed(|| guard.unlock());
    assert_eq!(result, Ok(()));
    assert!(took < LIMIT, "{took:?}");
    assert!(!is_there(&servers[1], "a") && !is_there(&servers[2], "a"));
    servers[0].resume();
    wait_until("it is released in the background", SOON, || !is_there(&servers[0], "a"));
}

#[test]
fn a_majority_that_hangs_is_an_error_in_time_and_leaves_nothing() {
    let servers = servers(3);
    let clients: Vec<Client> = servers
        .iter()
        .map(|server| built(Client::builder().url(&server.url()).command_timeout(TIMEOUT)))
        .collect();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(Duration::from_millis(100));
    drop(lock.lock().unwrap());
    servers[0].pause();
    servers[2].pause();
    let (result, took) = timed(|| lock.try_lock());
    assert!(result.unwrap_err().is_retryable());
    assert!(took < Duration::from_millis(100) + SLACK, "{took:?}");
    let (result, took) = timed(|| lock.lock());
    let error = result.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(took < TIMEOUT * 2 + SLACK * 2, "{took:?}");
    wait_until("the one that is well is let go", SOON, || !is_there(&servers[1], "a"));
    servers[0].resume();
    servers[2].resume();
    for server in &servers {
        wait_until("nothing is left", SOON, || !is_there(server, "a"));
    }
    wait_until("no release is queued", SOON, || {
        clients.iter().all(|client| client.stats().queued_releases == 0)
    });
    drop(lock.try_lock_for(SOON).unwrap().unwrap());
}

#[test]
fn a_majority_that_is_known_to_hang_is_not_waited_for_again() {
    let servers = servers(3);
    // A server is known to hang for as long as a request to it is under way: longer than both
    // tries.
    let clients = clients_with_timeout(&servers, LIMIT * 5);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LIMIT);
    drop(lock.lock().unwrap());
    servers[0].pause();
    servers[1].pause();
    assert!(lock.try_lock().unwrap_err().is_retryable());
    let (result, took) = timed(|| lock.try_lock());
    assert!(matches!(result, Err(Error::Unreachable { .. })), "{result:?}");
    assert!(took < LIMIT, "{took:?}");
}

#[test]
fn renewal_needs_a_majority() {
    let servers = servers(5);
    let lease = Duration::from_secs(2);
    let clients: Vec<Client> = servers
        .iter()
        .map(|server| built(Client::builder().url(&server.url()).watchdog_lease(lease)))
        .collect();
    let guard = everywhere(Client::red_lock(&clients, "a").lock().unwrap(), 5);
    let told = guard.lost().clone();
    servers[0].pause();
    servers[1].kill();
    wait_until("two are lost", SOON, || guard.held_on() == 3);
    assert_eq!(told.recv_timeout(lease * 3 / 2), Err(crossbeam_channel::RecvTimeoutError::Timeout));
    assert!(guard.is_held());
    servers[2].pause();
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::ServerUnreachable));
    assert!(!guard.is_held());
    servers[0].resume();
    servers[2].resume();
    let (result, _) = timed(|| guard.unlock());
    assert!(matches!(result, Err(Error::Lost { .. })), "{result:?}");
    for server in [0, 2, 3, 4] {
        wait_until("it is released", SOON, || !is_there(&servers[server], "a"));
    }
}

#[test]
fn a_late_grant_joins_or_is_released() {
    let setups: Vec<crate::common::ProxiedServer> =
        (0..3).map(|_| crate::common::ProxiedServer::new()).collect();
    let clients: Vec<Client> = setups.iter().map(crate::common::ProxiedServer::patient).collect();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LIMIT);
    let held_back = setups[0].on(Script::Acquire, "a", Fault::HoldReply);
    let guard = lock.lock().unwrap();
    held_back.wait_for_hit(SOON);
    assert_eq!(guard.held_on(), 2);
    held_back.deliver();
    let guard = everywhere(guard, 3);
    guard.unlock().unwrap();

    let held_back = setups[1].on(Script::Acquire, "a", Fault::HoldReply);
    let guard = lock.lock().unwrap();
    held_back.wait_for_hit(SOON);
    guard.unlock().unwrap();
    assert!(setups[1].exists("a"));
    held_back.deliver();
    setups[1].wait_until_gone("a");
}

#[test]
fn late_member_does_not_restore_a_lost_majority() {
    let setups: Vec<crate::common::ProxiedServer> =
        (0..3).map(|_| crate::common::ProxiedServer::new()).collect();
    let clients: Vec<Client> = setups.iter().map(crate::common::ProxiedServer::patient).collect();
    let lock = Client::red_lock(&clients, "a").with_server_timeout(LIMIT);
    let held_back = setups[0].on(Script::Acquire, "a", Fault::HoldReply);
    let guard = lock.lock().unwrap();
    held_back.wait_for_hit(SOON);
    clients[1].lock("a").force_unlock().unwrap();
    assert!(!guard.is_held());
    held_back.deliver();
    setups[0].wait_until_gone("a");
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn a_majority_that_answers_too_late_is_refused_and_released() {
    let setups: Vec<crate::common::ProxiedServer> =
        (0..3).map(|_| crate::common::ProxiedServer::new()).collect();
    let client =
        |setup: &crate::common::ProxiedServer| built(setup.builder().command_timeout(SOON));
    let clients: Vec<Client> = setups.iter().map(client).collect();
    let timeout = Duration::from_millis(50);
    let lock = Client::red_lock(&clients, "a").with_server_timeout(timeout);
    for setup in &setups[..2] {
        setup.on(Script::Acquire, "a", Fault::DelayReply(SOON / 4));
    }
    let (result, took) = timed(|| lock.try_lock());
    assert!(result.unwrap_err().is_retryable());
    assert!(took < SOON / 4, "{took:?}");
    for setup in &setups {
        setup.wait_until_gone("a");
    }
}
