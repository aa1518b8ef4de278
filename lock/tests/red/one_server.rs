//! One server under several names, which a proxy stands for: it has one vote.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::{SLACK, SOON, built, timed};
use wheellock::{Client, Error, RedLock, Warning};
use wheellock_fixture::{Proxy, Server, wait_until};

const PATIENT: Duration = Duration::from_secs(5);

/// Clients of one server that do not connect yet, each by another name.
fn clients_of_one(server: &Server, proxies: &[Proxy]) -> Vec<Client> {
    let urls = [server.url()].into_iter().chain(proxies.iter().map(Proxy::url));
    urls.map(|url| built(Client::builder().url(&url).connect_lazily())).collect()
}

fn proxies(server: &Server, count: usize) -> Vec<Proxy> {
    (0..count).map(|_| Proxy::start(server.address())).collect()
}

fn is_one_server(error: &Error, proxies: &[Proxy]) -> bool {
    let text = error.to_string();
    let is_named = proxies.iter().any(|proxy| text.contains(&proxy.address().to_string()));
    matches!(error, Error::InvalidSetting { setting: "red_lock", .. }) && is_named
}

#[test]
fn three_names_of_one_server_are_an_error_that_says_so() {
    let server = Server::start();
    let proxies = proxies(&server, 2);
    let lock =
        Client::red_lock(&clients_of_one(&server, &proxies), "a").with_server_timeout(PATIENT);
    let (error, took) = timed(|| lock.try_lock_for(SOON).unwrap_err());
    assert!(is_one_server(&error, &proxies), "{error}");
    assert!(took < SLACK, "{took:?}");
    wait_until("nothing is left", SOON, || server.command(&["EXISTS", "a"]).integer() == 0);
}

/// Two names of `server`, and one of `other`. Read locks, as `server` would grant one to each name.
fn two_names(server: &Server, proxies: &[Proxy], other: &Server) -> (Vec<Client>, RedLock) {
    let mut clients = clients_of_one(server, proxies);
    clients.push(built(Client::builder().url(&other.url()).connect_lazily()));
    let locks = clients.iter().map(|client| client.read_write_lock("a").read_lock());
    let [one, two, three] = locks.collect::<Vec<_>>().try_into().unwrap();
    (clients, RedLock::new(&[&one, &two, &three]).with_server_timeout(PATIENT))
}

#[test]
fn two_names_of_one_server_have_one_vote() {
    let (server, other) = (Server::start(), Server::start());
    let proxies = proxies(&server, 1);
    let (clients, lock) = two_names(&server, &proxies, &other);
    let guard = lock.try_lock().unwrap().unwrap();
    // It nests with the same votes.
    let inner = lock.try_lock().unwrap().unwrap();
    assert_eq!((guard.held_on(), inner.held_on()), (2, 2));
    assert_eq!(server.command(&["HLEN", "a"]).integer(), 2, "the mode, and one reader");
    inner.unlock().unwrap();
    guard.unlock().unwrap();
    // The vote of that server alone is no majority.
    let writer = Client::connect(&other.url()).unwrap().read_write_lock("a").write_lock();
    let writing = writer.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    drop(writing);
    let told: Vec<Warning> = clients.iter().flat_map(Client::warnings).collect();
    assert!(matches!(told[..], [Warning::SharedServer { .. }]), "{told:?}");
}

#[test]
fn a_second_name_that_is_reachable_later_gets_no_vote() {
    let (server, other) = (Server::start(), Server::start());
    let proxies = proxies(&server, 1);
    proxies[0].refuse(true);
    let (clients, lock) = two_names(&server, &proxies, &other);
    let guard = lock.try_lock().unwrap().unwrap();
    proxies[0].refuse(false);
    // The next acquire asks for what is missing.
    wait_until("the second name is recognized", SOON, || {
        lock.try_lock().unwrap().unwrap().unlock().unwrap();
        clients.iter().any(|client| !client.warnings().is_empty())
    });
    assert_eq!(guard.held_on(), 2);
    assert_eq!(server.command(&["HLEN", "a"]).integer(), 2, "the mode, and one reader");
    guard.unlock().unwrap();
}
