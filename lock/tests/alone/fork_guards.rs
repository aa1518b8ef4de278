//! Guards of several locks in a fork: inert in the child, valid in the parent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::SOON;
use crate::common::forked::Child;
use crate::ran_in_a_child;
use wheellock::{Client, Error, LostReason, MultiGuard, MultiLock, RedGuard, RedLock};
use wheellock_fixture::{RawConnection, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(6);

fn forked(name: &str) -> Error {
    Error::Lost { name: name.to_owned(), reason: LostReason::Forked }
}

/// The owner of a lock, as its server has it.
fn owners(server: SocketAddr, name: &str) -> Vec<String> {
    RawConnection::open(server).unwrap().command(&["HKEYS", name]).texts()
}

/// What both processes have.
struct World {
    servers: [SocketAddr; 3],
    clients: [Client; 3],
    red: RedLock,
    multi: MultiLock,
}

/// The owner of each part: that of the red lock on each server, then the two of the multi-lock.
fn parts(world: &World) -> Vec<Vec<String>> {
    let [first, second, _] = world.servers;
    let red = world.servers.iter().map(|server| owners(*server, "red"));
    red.chain([owners(first, "one"), owners(second, "two")]).collect()
}

fn look_from_a_fork(world: &World, red: RedGuard, multi: MultiGuard) {
    let before = parts(world);
    assert!(!red.is_held() && !multi.is_held());
    assert_eq!((red.remaining(), multi.remaining()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(red.held_on(), 0);
    assert_eq!(red.check(), Err(forked("red")));
    assert!(matches!(multi.check(), Err(Error::Lost { reason: LostReason::Forked, .. })));
    assert_eq!(red.lost().recv_timeout(SECOND), Ok(LostReason::Forked));
    assert_eq!(multi.lost().recv_timeout(SECOND), Ok(LostReason::Forked));
    assert!(format!("{red:?} {multi:?}").contains("RedGuard"));
    assert!(!world.red.is_held_by_current_thread() && !world.multi.is_held_by_current_thread());
    assert_eq!(red.unlock(), Err(forked("red")));
    assert!(matches!(multi.unlock(), Err(Error::Lost { reason: LostReason::Forked, .. })));
    assert_eq!(parts(world), before, "the fork changed the parent's holds");

    // The locks work with another owner: the parent's are taken, and other names are free.
    assert!(world.red.try_lock().unwrap().is_none());
    assert!(world.multi.try_lock().unwrap().is_none());
    let own = world.red.with_name("own").lock().unwrap();
    let [one, two] = ["own one", "own two"].map(|name| world.clients[0].lock(name));
    let both = world.clients[0].multi_lock(&[&one, &two]).lock().unwrap();
    assert!(own.is_held() && both.is_held());
    own.unlock().unwrap();
    both.unlock().unwrap();
    assert_eq!(parts(world), before);
}

#[test]
fn inherited_guards_of_several_locks_hold_nothing_and_release_nothing() {
    if ran_in_a_child(inherited_guards_of_several_locks_hold_nothing_and_release_nothing) {
        return;
    }
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = servers
        .each_ref()
        .map(|server| Client::builder().url(&server.url()).watchdog_lease(LEASE).build().unwrap());
    let (one, two) = (clients[0].lock("one"), clients[1].lock("two"));
    let world = World {
        servers: servers.each_ref().map(Server::address),
        red: Client::red_lock(&clients, "red"),
        multi: MultiLock::new(&[&one, &two]),
        clients,
    };
    let (red, multi) = (world.red.lock().unwrap(), world.multi.lock().unwrap());
    wait_until("all servers have joined", SOON, || red.held_on() == 3);
    let before = parts(&world);
    let renewed = || world.clients.each_ref().map(|client| client.stats().renewed);

    let mut held = Some((red, multi));
    let child = Child::doing(SOON, || {
        let (red, multi) = held.take().unwrap();
        look_from_a_fork(&world, red, multi);
    });
    let (red, multi) = held.unwrap();
    child.wait();

    let then = renewed();
    wait_until("the locks are renewed", SOON, || {
        assert!(red.is_held() && multi.is_held());
        renewed().iter().zip(then).all(|(now, then)| *now > then + 1)
    });
    assert_eq!(parts(&world), before);
    assert!(red.lost().try_recv().is_err() && multi.lost().try_recv().is_err());
    red.unlock().unwrap();
    multi.unlock().unwrap();
    for server in &servers {
        wait_until("nothing is left", SOON, || server.size() == 0);
    }
}
