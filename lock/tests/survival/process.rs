//! Ten thousand locks of a process that is stopped: what it finds when it resumes.
//!
//! The process is this test program again, with its role in the environment, as in
//! `lifecycle/processes.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

use std::env;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::fleet::{
    ALL_TOLD, Fleet, LIMIT, MANY, Strangers, UNHARMED, assert_nothing_left, come_back,
    hold_a_canary, other_names, questions, some_names,
};
use crate::common::{now, pause};
use wheellock::Client;
use wheellock_fixture::{RawConnection, Server, TestProcess};

/// A tenth of it, for an attempt, is long enough for a busy machine to renew ten thousand.
const LEASE: Duration = Duration::from_secs(15);
const ROLE: &str = "WHEELLOCK_TEST_ROLE";

fn child(server: &Server) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "process::child_role", "--nocapture", "--test-threads=2"]);
    command.env(ROLE, "be stopped").env("SERVER", server.address().to_string());
    TestProcess::spawn(&mut command)
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    if env::var(ROLE).is_ok() {
        be_stopped(env::var("SERVER").unwrap().parse().unwrap());
    }
}

/// Holds ten thousand locks, finds out that it was stopped, and says what it sees then.
fn be_stopped(server: SocketAddr) {
    let builder = Client::builder().url(&format!("redis://{server}/")).watchdog_lease(LEASE);
    let mut fleet = Fleet::take(builder);
    let renewed = fleet.client.stats().renewed + MANY as u64;
    fleet.look_until("all were renewed", |fleet, toll| {
        assert_eq!(toll, UNHARMED);
        fleet.client.stats().renewed >= renewed
    });
    let mut connection = RawConnection::open(server).unwrap();
    // Before the line is printed, for the stop may come right after it.
    let mut last = now();
    println!("holds");
    loop {
        let toll = fleet.look();
        let at = now();
        if at - last > LEASE / 3 {
            break;
        }
        assert_eq!(toll, UNHARMED, "lost without having been stopped");
        last = at;
        pause(Duration::from_millis(2));
    }
    // The stop came during that look or before it. This one is all after it.
    let woke = fleet.look();
    println!("woke {woke:?}");
    fleet.assert_no_hold_is_valid_without_a_key(&mut connection);
    let before: Vec<_> = fleet.seen().iter().map(|seen| seen.ends).collect();
    let after = fleet.look_until("each is renewed or lost", |fleet, _| {
        let mut holds = fleet.seen().iter().zip(&before);
        holds.all(|(seen, before)| seen.reason.is_some() || seen.ends > *before)
    });
    fleet.assert_no_hold_is_valid_without_a_key(&mut connection);
    println!("why {:?}", fleet.reasons());
    println!("after {after:?}");
    let (client, time) = fleet.release_all();
    come_back(&client, &time);
    println!("released");
    println!("canary {}", hold_a_canary(&client, &time));
    println!("ended");
}

/// Waits until the process has let all go and has shown that it renews nothing of it any more.
fn see_it_end(process: &mut TestProcess, server: &Server, of_others: &[&Strangers]) {
    process.wait_for_line("released", LIMIT);
    let before = questions(server);
    assert_nothing_left(server, of_others);
    let line = process.wait_for_line("canary", LIMIT);
    let renewed: u64 = line.trim_start_matches("canary ").parse().unwrap();
    // Beside the canary's own: its release.
    assert!(questions(server) - before <= renewed + 1, "something else was renewed");
    assert_nothing_left(server, of_others);
    process.wait_for_line("ended", LIMIT);
    assert_eq!(process.wait_for_exit(LIMIT), 0);
}

/// The length of the stop is what is tested, and nothing is waited for.
fn let_it_stand_until(end: Instant) {
    pause(end.saturating_duration_since(now()));
}

#[test]
fn a_process_stopped_for_half_a_lease_loses_nothing() {
    let server = Server::start();
    let mut strangers = Strangers::take(&server, &other_names());
    let mut process = child(&server);
    process.wait_for_line("holds", LIMIT);
    process.pause();
    let_it_stand_until(now() + LEASE / 2);
    process.resume();
    assert_eq!(process.wait_for_line("woke", LIMIT), format!("woke {UNHARMED:?}"));
    let after = process.wait_for_line("after", LIMIT);
    assert_eq!(after, format!("after {UNHARMED:?}"), "{}", process.output());
    strangers.assert_intact();
    see_it_end(&mut process, &server, &[&strangers]);
    strangers.assert_intact();
}

#[test]
fn process_stopped_for_1_5_leases_reports_all_holds_lost() {
    let server = Server::start();
    let mut strangers = Strangers::take(&server, &other_names());
    let mut process = child(&server);
    process.wait_for_line("holds", LIMIT);
    process.pause();
    let stopped = now();
    // Granted one after the other as the leases end.
    let mut heirs = Strangers::take(&server, &some_names());
    let_it_stand_until(stopped + LEASE * 3 / 2);
    process.resume();
    let woke = process.wait_for_line("woke", LIMIT);
    assert!(woke.contains("held: 0,"), "{woke}");
    println!("{}", process.wait_for_line("why", LIMIT));
    let after = process.wait_for_line("after", LIMIT);
    assert_eq!(after, format!("after {ALL_TOLD:?}"), "{}", process.output());
    heirs.assert_intact();
    see_it_end(&mut process, &server, &[&strangers, &heirs]);
    heirs.assert_intact();
    strangers.assert_intact();
}
