//! Real processes that hold thousands of locks as one: one is killed, one is stopped beyond the
//! lease.
//!
//! A child process is this test program again, with its role in the environment. It runs only
//! [`child_role`], a test that does nothing without a role.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

use std::env;
use std::process::Command;
use std::time::Duration;

use hashed_wheel::Parker;
use wheellock::{Client, Clock, LostReason, SystemClock};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::common::{LIMIT, now};

/// The watchdog's lease in the children.
const LEASE: Duration = Duration::from_secs(6);
/// Three batches.
const NAMES: usize = 2_500;

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

fn names() -> Vec<String> {
    (0..NAMES).map(|number| format!("many:{number}")).collect()
}

/// Starts a child process.
fn child(role: &str, server: &Server) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "processes::child_role", "--nocapture", "--test-threads=2"]);
    TestProcess::spawn(command.env(ROLE, role).env("SERVER", server.url()))
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    let url = env::var("SERVER").unwrap();
    let client = Client::builder().url(&url).watchdog_lease(LEASE).build().unwrap();
    match role.as_str() {
        "be killed" => be_killed(&client),
        "be killed amid acquires" => be_killed_amid_acquires(&client),
        "be stopped" => be_stopped(&client),
        other => panic!("there is no role {other:?}"),
    }
}

fn be_killed(client: &Client) {
    let guard = client.lock_many(&names()).lock().unwrap();
    wait_until("all were renewed", LIMIT, || client.stats().renewed >= NAMES as u64);
    assert!(guard.is_held());
    println!("holds");
    loop {
        SystemClock.park(&Parker::new(), None, &crossbeam_channel::never());
    }
}

fn be_killed_amid_acquires(client: &Client) {
    let many = client.lock_many(&names());
    println!("begins");
    loop {
        many.lock().unwrap().unlock().unwrap();
    }
}

fn be_stopped(client: &Client) {
    let guard = client.lock_many(&names()).lock().unwrap();
    // Before the line is printed, for the stop may come right after the line.
    let mut last = now();
    println!("holds");
    // The test stops this process for as long as no turn of this loop takes.
    loop {
        let at = now();
        if at.saturating_duration_since(last) > LEASE {
            break;
        }
        last = at;
    }
    println!("woke held={}", guard.is_held());
    assert_eq!(guard.lost().recv_timeout(LIMIT), Ok(LostReason::Paused));
    assert!(guard.unlock().is_err());
    wait_until("nothing is held", LIMIT, || client.stats().held == 0);
    client.shutdown(LIMIT);
    println!("ended");
}

/// All are acquired together once the leases have ended, and nothing is left after the release.
fn assert_all_come_free(server: &Server) {
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock_many(&names()).try_lock_for(LIMIT).unwrap().unwrap();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(client.lock_many(&names()).available().unwrap().unwrap().names().len(), NAMES);
}

#[test]
fn what_a_killed_process_held_is_free_when_its_lease_ends() {
    let server = Server::start();
    let rival = Client::connect(&server.url()).unwrap();
    let mut killed = child("be killed", &server);
    killed.wait_for_line("holds", LIMIT);
    killed.kill();
    let begun = now();
    assert!(rival.lock_many(&names()).available().unwrap().is_none(), "the leases have begun");
    assert_all_come_free(&server);
    // From the last renewals on, at the latest a third of the lease ago.
    assert!(now() - begun > LEASE / 3, "a lock ended before its lease");
}

#[test]
fn process_killed_amid_acquires_and_releases_leaves_only_leases() {
    for number in 0..5 {
        let server = Server::start();
        let mut killed = child("be killed amid acquires", &server);
        killed.wait_for_line("begins", LIMIT);
        // At some other step each time.
        wait_until("it acquires", LIMIT, || server.command_calls("evalsha") > 6 + number);
        killed.kill();
        for name in names() {
            let left = server.command(&["PTTL", &name]).integer();
            assert_ne!(left, -1, "{name} has no lease");
        }
        assert_all_come_free(&server);
    }
}

#[test]
fn process_stopped_past_leases_reports_loss_and_spares_owner() {
    let server = Server::start();
    let rival = Client::connect(&server.url()).unwrap();
    let mut stopped = child("be stopped", &server);
    stopped.wait_for_line("holds", LIMIT);
    stopped.pause();
    let guard = rival.lock_many(&names()).try_lock_for(LIMIT).unwrap().unwrap();
    let begun = now();
    wait_until("the stop is longer than the lease", LIMIT, || now() - begun > LEASE);
    stopped.resume();
    assert_eq!(stopped.wait_for_line("woke", LIMIT), "woke held=false");
    stopped.wait_for_line("ended", LIMIT);
    assert_eq!(stopped.wait_for_exit(LIMIT), 0);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}
