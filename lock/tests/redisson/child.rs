//! One of our processes: this test program again, with its role in the environment.

use std::env;
use std::process::Command;

use crossbeam_channel::never;
use hashed_wheel::Parker;
use wheellock::{AnyLock, Client, Clock, SystemClock};
use wheellock_fixture::TestProcess;

use crate::KINDS;
use crate::cached;
use crate::counting::count_under;
use crate::death::LEASE;
use crate::killed::READ;
use crate::kind::Kind;
use crate::majority;
use crate::several;
use crate::shared::SERVER;

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

/// Starts a child process that does something with what the settings name.
pub(crate) fn child(role: &str, settings: &[(&str, &str)]) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "child::child_role", "--nocapture", "--test-threads=2"]);
    command.env(ROLE, role).env("SERVER", SERVER.url());
    command.envs(settings.iter().copied());
    TestProcess::spawn(&mut command)
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    match role.as_str() {
        "hold" => hold(kind()),
        "hold several" => hold_several(),
        "hold a permit" => hold_a_permit(),
        "count" => count_under(kind()),
        "count cached" => cached::count_cached(),
        "count under several" => several::count_under_several(),
        "count under a majority" => majority::count_under_a_majority(),
        other => panic!("there is no role {other:?}"),
    }
}

/// The kind of lock that is set.
fn kind() -> &'static Kind {
    let word = setting("KIND");
    KINDS.iter().chain([&READ]).find(|kind| kind.word == word).unwrap()
}

/// What the test has set for this child.
pub(crate) fn setting(name: &str) -> String {
    env::var(name).unwrap()
}

fn connect() -> Client {
    Client::builder().url(&setting("SERVER")).watchdog_lease(LEASE).build().unwrap()
}

fn hold(kind: &Kind) {
    let client = connect();
    let _held = (kind.open)(&client, &setting("NAME")).lock().unwrap();
    rest()
}

/// All locks whose names are set, as one.
fn hold_several() {
    let client = connect();
    let locks: Vec<_> = setting("NAME").split(',').map(|name| client.lock(name)).collect();
    let locks: Vec<&dyn AnyLock> = locks.iter().map(|lock| lock as _).collect();
    let _held = client.multi_lock(&locks).lock().unwrap();
    rest()
}

fn hold_a_permit() {
    let client = connect();
    let semaphore = client.expirable_semaphore(&setting("NAME")).with_lease(LEASE);
    let _held = semaphore.acquire().unwrap();
    rest()
}

/// Says that it holds, and does nothing more.
fn rest() -> ! {
    println!("holds");
    loop {
        SystemClock.park(&Parker::new(), None, &never());
    }
}
