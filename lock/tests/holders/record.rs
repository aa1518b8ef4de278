//! The record of a client on the server: when it is there, and what it may not disturb.

use std::time::Duration;

use crate::common::{SOON, built, limited_user, pause};
use wheellock::{Client, Warning};
use wheellock_fixture::{Server, wait_until};

fn record_of(client: &Client) -> String {
    format!("wheellock_client:{}", client.id())
}

fn is_there(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}

#[test]
fn record_exists_while_a_lock_is_held_and_ends_with_the_client() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()));
    let key = record_of(&client);
    assert!(!is_there(&server, &key), "nobody needs it yet");
    let guard = client.lock("a").lock().unwrap();
    wait_until("the record is there", SOON, || is_there(&server, &key));
    let lives = server.command(&["PTTL", &key]).integer();
    assert!((1..=60_000).contains(&lives), "{lives}");
    drop((guard, client));
    assert!(!is_there(&server, &key));
}

#[test]
fn a_shutdown_removes_it() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()));
    let key = record_of(&client);
    let guard = client.lock("a").lock().unwrap();
    wait_until("the record is there", SOON, || is_there(&server, &key));
    client.shutdown(SOON);
    wait_until("the record is gone", SOON, || !is_there(&server, &key));
    drop(guard);
}

#[test]
fn a_program_that_holds_a_lock_for_a_moment_leaves_none() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()));
    client.lock("a").lock().unwrap().unlock().unwrap();
    // Longer than a renewal thread takes to write it.
    pause(Duration::from_millis(1500));
    assert!(!is_there(&server, &record_of(&client)));
}

#[test]
fn missing_record_permission_warns_once_and_locks_still_work() {
    let server = Server::start();
    let user = limited_user(&server, &["resetkeys", "~orders:*", "~redisson_lock__channel:*"]);
    let client = built(Client::builder().url(&user));
    let guard = client.lock("orders:42").lock().unwrap();
    wait_until("the refusal is noticed", SOON, || !client.warnings().is_empty());
    let warnings = client.warnings();
    let [Warning::RecordRefused { refusal, .. }] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    assert!(refusal.contains("NOPERM"), "{refusal}");
    assert!(guard.is_held());
    guard.unlock().unwrap();
}
