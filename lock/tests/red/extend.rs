//! A red lock with a lease that is extended, or watched from now on, on a majority of servers.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::stores::TestStore;
use crate::common::{SOON, built, timed};
use wheellock::{Client, Error, LostReason, ManualClock, Memory, RedGuard};
use wheellock_fixture::{Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What a server that hangs may not cost.
const LIMIT: Duration = Duration::from_secs(15);

/// Waits until that many servers have joined.
fn joined(guard: RedGuard, servers: usize) -> RedGuard {
    wait_until("they have joined", SOON, || guard.held_on() == servers);
    guard
}

fn have_the_new_lease_here_and_on_each_server(servers: &[TestStore; 3]) {
    let clients = servers.each_ref().map(TestStore::client);
    let lock = Client::red_lock(&clients, "a").with_lease(MINUTE);
    let guard = joined(lock.with_server_timeout(SECOND * 5).lock().unwrap(), 3);
    guard.extend(MINUTE * 10).unwrap();
    assert!(guard.remaining() > MINUTE * 9 && guard.held_on() == 3);
    wait_until("each server has it", SOON, || {
        servers.iter().all(|server| server.time_to_live("a").unwrap() > MINUTE * 9)
    });
    assert!(clients.iter().all(|client| !client.holds()[0].watched));
    // A shorter lease takes nothing away.
    guard.extend(SECOND).unwrap();
    assert!(guard.remaining() > MINUTE * 9);
    guard.unlock().unwrap();
    wait_until("nothing is left", SOON, || servers.iter().all(|server| !server.is_there("a")));
}

fn is_an_error_when_the_majority_is_gone(servers: &[TestStore; 3]) {
    let clients = servers.each_ref().map(TestStore::client);
    let lock = Client::red_lock(&clients, "a").with_lease(MINUTE);
    let mut guard = joined(lock.with_server_timeout(SECOND * 5).lock().unwrap(), 3);
    servers[0].delete("a");
    guard.extend(MINUTE).unwrap();
    wait_until("one is missing", SOON, || guard.held_on() == 2);
    servers[1].delete("a");
    let lost = guard.extend(MINUTE * 10).unwrap_err();
    assert!(matches!(lost, Error::Lost { reason: LostReason::Deleted, .. }), "{lost}");
    assert!(!guard.is_held() && guard.watch().is_err());
    wait_until("the rest is released", SOON, || !servers[2].is_there("a"));
}

#[test]
fn extended_locks_have_the_new_lease_in_memory() {
    have_the_new_lease_here_and_on_each_server(&[(); 3].map(|()| TestStore::in_memory()));
}

#[test]
fn extended_locks_have_the_new_lease_on_servers() {
    have_the_new_lease_here_and_on_each_server(&[(); 3].map(|()| TestStore::on_a_server()));
}

#[test]
fn extending_without_a_majority_is_an_error_in_memory() {
    is_an_error_when_the_majority_is_gone(&[(); 3].map(|()| TestStore::in_memory()));
}

#[test]
fn extending_without_a_majority_is_an_error_on_servers() {
    is_an_error_when_the_majority_is_gone(&[(); 3].map(|()| TestStore::on_a_server()));
}

#[test]
fn watched_lock_is_renewed_and_missing_members_are_requested() {
    let clock = ManualClock::new();
    let memories = [(); 3].map(|()| Memory::with_clock(Arc::new(clock.clone())));
    let clients = memories.each_ref().map(|memory| built(Client::builder().in_memory(memory)));
    let lock = Client::red_lock(&clients, "a").with_lease(MINUTE);
    memories[2].set_unreachable(true);
    let mut guard = lock.lock().unwrap();
    for _ in 0..2 {
        guard.watch().unwrap();
    }
    memories[2].set_unreachable(false);
    for _ in 0..20 {
        clock.advance(SECOND * 10);
        assert!(guard.is_held());
    }
    // The missing member, which had a lease of its own, is acquired as a watched lock.
    wait_until("the third has joined", SOON, || {
        clock.advance(SECOND * 10);
        guard.held_on() == 3
    });
    assert!(clients[2].holds()[0].watched);
    guard.unlock().unwrap();
    wait_until("nothing is left", SOON, || {
        memories.iter().all(|memory| memory.fields("a").is_empty())
    });
    clock.advance(MINUTE);
    assert!(clients.iter().all(|client| client.holds().is_empty()));
}

#[test]
fn extension_with_hung_servers_is_bounded_and_needs_a_majority() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let client = |server: &Server| built(Client::builder().url(&server.url()));
    let clients: Vec<Client> = servers.iter().map(client).collect();
    let lock = Client::red_lock(&clients, "a").with_lease(MINUTE);
    let patient = joined(lock.clone().with_server_timeout(LIMIT).lock().unwrap(), 3);
    let hurried = lock.with_server_timeout(Duration::from_millis(100)).lock().unwrap();
    servers[0].pause();
    let (result, took) = timed(|| patient.extend(MINUTE * 10));
    assert_eq!(result, Ok(()));
    assert!(took < LIMIT, "{took:?}");
    assert!(patient.remaining() > MINUTE * 9);

    servers[1].pause();
    let (result, took) = timed(|| hurried.extend(MINUTE * 20));
    assert!(result.unwrap_err().is_retryable());
    assert!(took < LIMIT, "{took:?}");
    // The lock is held as long as it was.
    assert!(hurried.is_held() && patient.remaining() > MINUTE * 9);
    servers[0].resume();
    servers[1].resume();
    wait_until("it can be extended again", SOON, || hurried.extend(MINUTE * 30).is_ok());
    assert!(patient.remaining() > MINUTE * 29);
}
