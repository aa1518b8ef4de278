//! Real processes that wait for each other: one is killed, one is stopped.
//!
//! A child process is this test program again, with the address of the server in the environment. It
//! runs only [`child_role`], a test that does nothing without an address.

use std::env;
use std::process::Command;
use std::thread;
use std::time::Duration;

use wheellock::crossbeam_channel::bounded;
use wheellock::{Client, OnDeadlock};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::common::{LIMIT, built};
use crate::{client, cycles};

/// The watchdog's lease in the child.
const LEASE: Duration = Duration::from_secs(6);

const SERVER: &str = "WHEELLOCK_TEST_SERVER";

fn child(server: &Server) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "processes::child_role", "--nocapture", "--test-threads=2"]);
    let mut child = TestProcess::spawn(command.env(SERVER, server.url()));
    child.wait_for_line("it holds b", LIMIT);
    child
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(url) = env::var(SERVER) else { return };
    let client = built(Client::builder().url(&url).watchdog_lease(LEASE).label("the child"));
    let _b = client.lock("b").lock().unwrap();
    println!("it holds b");
    let _a = client.lock("a").lock().unwrap();
}

#[test]
fn a_cycle_with_a_process_that_is_killed_ends_with_its_lease() {
    let server = Server::start();
    let client = client(&server, "the parent", OnDeadlock::Warn);
    let a = client.lock("a");
    let (started, starts) = bounded(1);
    thread::scope(|scope| {
        let wait = || {
            let _a = a.lock().unwrap();
            started.send(child(&server)).unwrap();
            // If the cycle is not reported, the test ends all the same.
            client.lock("b").try_lock_for(LIMIT * 2).unwrap().is_some()
        };
        let waiting = thread::Builder::new().spawn_scoped(scope, wait).unwrap();
        let mut child = starts.recv().unwrap();
        wait_until("the cycle is reported", LIMIT, || !cycles(&client).is_empty());
        let cycle = cycles(&client).remove(0);
        assert!(cycle.contains("the child") && cycle.contains("the parent"), "{cycle}");
        child.kill();
        assert!(waiting.join().unwrap(), "its lease ends");
    });
}

#[test]
fn a_process_that_is_stopped_is_in_a_cycle_only_if_it_says_so() {
    let server = Server::start();
    let client = client(&server, "the parent", OnDeadlock::Fail);
    let a = client.lock("a").lock().unwrap();
    let child = child(&server);
    let record = || {
        let keys = server.command(&["KEYS", "wheellock_client:*"]).texts();
        keys.iter().any(|key| !server.command(&["HGET", key, "waits"]).is_nil())
    };
    wait_until("the child says that it waits", LIMIT, record);
    child.pause();
    // Its record stays as it is, so nobody knows whether it still waits. Its lease ends.
    let b = client.lock("b").lock().unwrap();
    assert_eq!(cycles(&client).len(), 0);
    child.resume();
    drop((a, b));
    assert!(client.lock("a").lock().is_ok());
}
