//! The members of a held red lock: missing ones are acquired again, and none is left after a loss.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::expected::{self, Expected};
use crate::common::{ProxiedServer, SOON, Script, built};
use wheellock::{
    Client, ClientBuilder, LockGuard, LostReason, ManualClock, Memory, RedGuard, RedLock,
};
use wheellock_fixture::{Fault, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than the time between two renewals, by default, and shorter than twice that.
const ROUND: Duration = Duration::from_secs(11);

/// Servers in memory on one clock.
struct Servers {
    clock: ManualClock,
    memories: Vec<Memory>,
}

impl Servers {
    fn new(count: usize) -> Self {
        let clock = ManualClock::new();
        let memory = |_| Memory::with_clock(Arc::new(clock.clone()));
        let memories = (0..count).map(memory).collect();
        Self { clock, memories }
    }

    fn clients(&self) -> Vec<Client> {
        self.clients_with(|builder| builder)
    }

    fn clients_with(&self, set: impl Fn(ClientBuilder) -> ClientBuilder) -> Vec<Client> {
        let client = |memory: &Memory| built(set(Client::builder().in_memory(memory)));
        self.memories.iter().map(client).collect()
    }

    /// How often the lock is held on each server, as that has it.
    fn counts(&self) -> Vec<String> {
        let count = |memory: &Memory| match &memory.fields("a")[..] {
            [] => String::new(),
            [(_, count)] => count.clone(),
            several => format!("{several:?}"),
        };
        self.memories.iter().map(count).collect()
    }

    fn set_unreachable(&self, places: &[usize], unreachable: bool) {
        for place in places {
            self.memories[*place].set_unreachable(unreachable);
        }
    }

    /// Moves the clock by a renewal interval, and waits until the guard is held on that many
    /// servers.
    fn wait_for(&self, guard: &RedGuard, servers: usize) {
        self.clock.advance(ROUND);
        wait_until("the missing parts have joined", SOON, || guard.held_on() == servers);
    }

    /// As [`wait_for`](Self::wait_for), with as many renewals as it takes. A renewal asks nothing
    /// of a member while an earlier request is in flight, and one that was granted too late for a
    /// lost hold keeps others out until it is released.
    fn renew_until(&self, guard: &RedGuard, servers: usize) {
        wait_until("the missing members have joined", SOON, || {
            let joined = guard.held_on() == servers;
            if !joined {
                self.clock.advance(ROUND);
            }
            joined
        });
    }

    /// Somebody else has the keys of the first servers.
    fn rivals(&self, count: usize) -> Vec<LockGuard> {
        let take = |memory: &Memory| {
            memory.delete("a");
            built(Client::builder().in_memory(memory)).lock("a").lock().unwrap()
        };
        self.memories[..count].iter().map(take).collect()
    }

    fn is_empty(&self, place: usize) -> bool {
        self.memories[place].fields("a").is_empty()
    }

    fn wait_for_nothing_left(&self) {
        wait_until("nothing is left", SOON, || {
            (0..self.memories.len()).all(|place| self.is_empty(place))
        });
    }
}

/// Held on all that answer. Those that do not have failed by then.
fn held(lock: &RedLock, servers: usize) -> RedGuard {
    let guard = lock.lock().unwrap();
    wait_until("all that answer have joined", SOON, || guard.held_on() == servers);
    guard
}

/// Waits until every server has answered a request for another lock. Each server's queue sends it
/// after all earlier requests. A request that is in flight while the clock is advanced makes its
/// server look stuck, and a stuck server is not asked. So the request is repeated.
fn wait_for_earlier_requests(other: &RedLock, servers: usize) {
    let mut guard = other.lock().unwrap();
    wait_until("every server has answered", SOON, || {
        let answered = guard.held_on() == servers;
        if !answered {
            guard = other.lock().unwrap();
        }
        answered
    });
}

fn lost(reason: LostReason) -> Expected {
    expected::lost("a", reason)
}

#[test]
fn minority_key_loss_keeps_the_lock_after_absent_members_join() {
    let servers = Servers::new(5);
    let lock = Client::red_lock(&servers.clients(), "a");
    let rival = Client::red_lock(&servers.clients(), "a");
    servers.set_unreachable(&[3, 4], true);
    let guard = held(&lock, 3);
    servers.set_unreachable(&[3, 4], false);
    servers.wait_for(&guard, 5);
    assert_eq!(servers.counts(), ["1"; 5]);

    servers.memories[0].flush_all();
    servers.memories[1].flush_all();
    assert!(rival.try_lock().unwrap().is_none());
    assert!(guard.is_held());
    drop(guard);
    servers.wait_for_nothing_left();
}

#[test]
fn a_part_that_was_lost_is_taken_again_with_another_owner() {
    let servers = Servers::new(3);
    let lock = Client::red_lock(&servers.clients(), "a");
    let guard = held(&lock, 3);
    let before = servers.memories[1].fields("a");
    servers.memories[1].delete("a");
    servers.clock.advance(ROUND);
    servers.wait_for(&guard, 3);
    assert_eq!(servers.counts(), ["1"; 3]);
    assert_ne!(servers.memories[1].fields("a"), before);
    // The others were there all the time, and the part that came back counts like them.
    servers.memories[0].delete("a");
    servers.clock.advance(ROUND);
    assert!(guard.is_held() && guard.lost().is_empty());
    drop(guard);
    servers.wait_for_nothing_left();
}

#[test]
fn a_long_outage_of_a_minority_leaves_no_part_missing() {
    let servers = Servers::new(5);
    let lock = Client::red_lock(&servers.clients(), "a");
    let guard = held(&lock, 5);
    servers.set_unreachable(&[0, 4], true);
    servers.clock.advance(SECOND * 60);
    assert_eq!(guard.held_on(), 3);
    servers.set_unreachable(&[0, 4], false);
    servers.wait_for(&guard, 5);
    assert!(guard.is_held());
    assert_eq!(servers.counts(), ["1"; 5]);
}

#[test]
fn a_member_held_by_another_client_is_requested_again() {
    let servers = Servers::new(3);
    let rival = servers.clients().remove(2);
    let lock = Client::red_lock(&servers.clients(), "a");
    let theirs = rival.lock("a").lock().unwrap();
    let guard = held(&lock, 2);
    servers.clock.advance(ROUND * 5);
    assert!(theirs.is_held() && guard.is_held());
    assert_eq!(guard.held_on(), 2);
    drop(theirs);
    servers.renew_until(&guard, 3);
}

#[test]
fn what_is_leased_is_not_taken_again() {
    let servers = Servers::new(3);
    let clients = servers.clients();
    let lock = Client::red_lock(&clients, "a").with_lease(SECOND * 600);
    let guard = held(&lock, 3);
    clients[0].lock("a").force_unlock().unwrap();
    servers.clock.advance(SECOND * 300);
    wait_for_earlier_requests(&lock.with_name("b"), 3);
    assert!(guard.is_held());
    assert_eq!(guard.held_on(), 2);
    assert_eq!(servers.counts(), ["", "1", "1"]);
}

#[test]
fn both_of_two_nested_guards_have_the_missing_parts() {
    let servers = Servers::new(5);
    let lock = Client::red_lock(&servers.clients(), "a");
    servers.set_unreachable(&[0, 1], true);
    let (outer, inner) = (held(&lock, 3), held(&lock, 3));
    servers.set_unreachable(&[0, 1], false);
    servers.clock.advance(ROUND);
    wait_until("the missing parts have joined", SOON, || {
        outer.held_on() + inner.held_on() == 10 || {
            // Two acquires of one holder that meet at the server exclude each other for once.
            servers.clock.advance(ROUND);
            false
        }
    });
    wait_until("each is held twice", SOON, || servers.counts() == ["2"; 5]);
    inner.unlock().unwrap();
    wait_until("each is held once", SOON, || servers.counts() == ["1"; 5]);
    assert_eq!(outer.held_on(), 5);
    outer.unlock().unwrap();
    servers.wait_for_nothing_left();
}

#[test]
fn rejoined_members_do_not_extend_a_hold_beyond_max_hold() {
    let servers = Servers::new(3);
    let clients = servers.clients_with(|builder| builder.max_hold(SECOND * 60));
    let lock = Client::red_lock(&clients, "a");
    let guard = held(&lock, 3);
    for client in &clients[..2] {
        client.lock("a").force_unlock().unwrap();
        assert_eq!(guard.held_on(), 2);
        servers.wait_for(&guard, 3);
    }
    servers.clock.advance(SECOND * 20);
    assert!(guard.is_held());
    // The two parts have come 11 and 22 s later. Longer than 60 s, and shorter than 71.
    servers.clock.advance(SECOND * 21);
    assert!(!guard.is_held());
    servers.wait_for_nothing_left();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Expired));
}

#[test]
fn member_is_not_reacquired_beyond_the_max_hold() {
    let servers = Servers::new(3);
    let clients = servers.clients_with(|builder| builder.max_hold(SECOND * 60));
    let lock = Client::red_lock(&clients, "a");
    let guard = held(&lock, 3);
    servers.clock.advance(SECOND * 35);
    clients[0].lock("a").force_unlock().unwrap();
    servers.clock.advance(ROUND);
    wait_for_earlier_requests(&lock.with_name("b"), 3);
    assert!(guard.is_held());
    assert_eq!(guard.held_on(), 2);
}

#[test]
fn a_client_that_was_shut_down_is_a_part_that_stays_away() {
    let servers = Servers::new(3);
    let clients = servers.clients();
    let lock = Client::red_lock(&clients, "a");
    let guard = held(&lock, 3);
    clients[2].shutdown(SOON);
    servers.clock.advance(SECOND * 60);
    assert!(guard.is_held());
    assert_eq!(guard.held_on(), 2);
    assert_eq!(servers.counts(), ["1", "1", ""]);
}

#[test]
fn a_member_is_not_requested_while_its_last_release_is_pending() {
    let servers = Servers::new(3);
    let clients = servers.clients();
    let lock = Client::red_lock(&clients, "a");
    servers.memories[2].lose_replies(true);
    // Granted, but the reply was not received.
    let guard = held(&lock, 2);
    wait_until("its release is queued", SOON, || clients[2].stats().queued_releases == 1);
    for _ in 0..3 {
        servers.clock.advance(ROUND);
        assert!(clients[2].stats().queued_releases <= 1);
    }
    servers.memories[2].lose_replies(false);
    servers.clock.advance(SECOND * 5);
    wait_until("the release is done", SOON, || clients[2].stats().queued_releases == 0);
    servers.renew_until(&guard, 3);
    assert_eq!(servers.counts(), ["1"; 3]);
}

/// Three servers behind proxies, and a lock on them whose time is the test's.
fn behind_proxies() -> (ManualClock, Vec<ProxiedServer>, Vec<Client>, RedLock) {
    let clock = ManualClock::new();
    let setups: Vec<ProxiedServer> = (0..3).map(|_| ProxiedServer::new()).collect();
    let client = |setup: &ProxiedServer| {
        let builder = setup.builder().command_timeout(SOON);
        built(builder.clock(Arc::new(clock.clone())))
    };
    let clients: Vec<Client> = setups.iter().map(client).collect();
    let lock = Client::red_lock(&clients, "a");
    (clock, setups, clients, lock)
}

#[test]
fn member_held_by_another_client_is_requested_once_per_renewal() {
    let (clock, setups, _clients, lock) = behind_proxies();
    let _theirs = setups[0].rival().lock("a").lock().unwrap();
    // An acquire that finds a lock busy asks how long it is.
    let asked = || setups[0].server.command_calls("pttl");
    let before = asked();
    let guard = held(&lock, 2);
    // One by the acquire, and one for each renewal.
    let mut most = 1;
    for round in 1..=5 {
        wait_until("it is asked for", SOON, || {
            assert!(asked() <= before + most, "a renewal asks for it more than once");
            let was_asked = asked() >= before + round;
            // A renewal asks nothing while an earlier request is in flight. Then the next one does.
            if !was_asked {
                clock.advance(ROUND);
                most += 1;
            }
            was_asked
        });
    }
    assert!(guard.is_held());
}

#[test]
fn a_grant_after_the_guard_is_dropped_is_released() {
    let (clock, setups, clients, lock) = behind_proxies();
    let guard = held(&lock, 3);
    clients[0].lock("a").force_unlock().unwrap();
    let held_back = setups[0].on(Script::Acquire, "a", Fault::HoldReply);
    clock.advance(ROUND);
    held_back.wait_for_hit(SOON);
    assert!(setups[0].exists("a"));
    guard.unlock().unwrap();
    held_back.deliver();
    for setup in &setups {
        setup.wait_until_gone("a");
    }
}

#[test]
fn a_grant_after_the_majority_is_lost_is_released() {
    let (clock, setups, clients, lock) = behind_proxies();
    let guard = held(&lock, 3);
    clients[0].lock("a").force_unlock().unwrap();
    let held_back = setups[0].on(Script::Acquire, "a", Fault::HoldReply);
    clock.advance(ROUND);
    held_back.wait_for_hit(SOON);
    clients[1].lock("a").force_unlock().unwrap();
    held_back.deliver();
    for setup in &setups {
        setup.wait_until_gone("a");
    }
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
}

#[test]
fn lock_survives_empty_restart_after_two_stopped_servers_join() {
    let servers: Vec<Server> = (0..5).map(|_| Server::start()).collect();
    let clients = || -> Vec<Client> {
        let builder = |server: &Server| Client::builder().url(&server.url());
        let client = |server| builder(server).watchdog_lease(SECOND * 15).command_timeout(SECOND);
        servers.iter().map(|server| built(client(server))).collect()
    };
    let own = clients();
    let lock = Client::red_lock(&own, "a");
    let rival = Client::red_lock(&clients(), "a").with_server_timeout(SECOND * 5);
    servers[3].pause();
    servers[4].pause();
    let guard = held(&lock, 3);
    wait_until("the two have failed", SOON, || {
        own[3..].iter().all(|client| client.stats().queued_releases == 1)
    });
    servers[3].resume();
    servers[4].resume();
    wait_until("all have joined", SECOND * 60, || guard.held_on() == 5);
    servers[0].restart();
    assert!(rival.try_lock().unwrap().is_none());
    assert!(guard.is_held());
}

#[test]
fn members_left_of_a_lost_majority_are_released_at_once() {
    let servers = Servers::new(5);
    let clients = servers.clients();
    let lock = Client::red_lock(&clients, "a");
    let guard = held(&lock, 5);
    let rivals = servers.rivals(3);
    // The guard is not asked.
    servers.clock.advance(ROUND);
    wait_until("the others are released", SOON, || servers.is_empty(3) && servers.is_empty(4));
    wait_until("nothing is renewed", SOON, || {
        clients.iter().all(|client| client.stats().held == 0)
    });
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::TakenOver));
    assert!(!guard.is_held() && guard.held_on() == 0 && guard.remaining().is_zero());
    assert_eq!(guard.check(), lost(LostReason::TakenOver));
    drop(rivals);
    let rival = Client::red_lock(&servers.clients(), "a");
    let theirs = rival.lock().unwrap();
    servers.renew_until(&theirs, 5);
    assert_eq!(guard.unlock(), lost(LostReason::TakenOver));
    servers.clock.advance(ROUND * 3);
    assert_eq!(theirs.held_on(), 5);
}

#[test]
fn unresponsive_majority_is_lost_and_remaining_members_released() {
    let servers = Servers::new(5);
    let lock = Client::red_lock(&servers.clients(), "a");
    let guard = held(&lock, 5);
    servers.set_unreachable(&[1, 2, 3], true);
    servers.clock.advance(SECOND * 31);
    wait_until("the others are released", SOON, || servers.is_empty(0) && servers.is_empty(4));
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::ServerUnreachable));
    assert!(!guard.is_held());
}

#[test]
fn the_loss_is_that_of_all_nested_guards_and_of_nothing_else() {
    let servers = Servers::new(3);
    let clients = servers.clients();
    let lock = Client::red_lock(&clients, "a");
    let (outer, inner) = (held(&lock, 3), held(&lock, 3));
    let (other, beside) = (held(&lock.with_name("b"), 3), clients[2].lock("a").lock().unwrap());
    let rivals = servers.rivals(2);
    servers.clock.advance(ROUND);
    for guard in [&outer, &inner] {
        assert_eq!(guard.lost().recv_timeout(SOON), Ok(LostReason::TakenOver));
        assert!(!guard.is_held());
    }
    servers.clock.advance(SECOND * 60);
    assert!(other.is_held() && beside.is_held());
    drop((inner, outer));
    assert!(other.is_held() && beside.is_held());
    drop((beside, other, rivals));
    servers.wait_for_nothing_left();
}

#[test]
fn what_is_left_of_a_lost_lock_can_be_taken_by_the_same_thread() {
    let servers = Servers::new(3);
    let lock = Client::red_lock(&servers.clients(), "a");
    let first = held(&lock, 3);
    let rivals = servers.rivals(2);
    servers.clock.advance(ROUND);
    wait_until("the last part is released", SOON, || servers.is_empty(2));
    drop(rivals);
    let second = lock.lock().unwrap();
    servers.renew_until(&second, 3);
    drop(first);
    servers.clock.advance(ROUND * 3);
    assert_eq!(second.held_on(), 3);
    assert_eq!(servers.counts(), ["1"; 3]);
}
