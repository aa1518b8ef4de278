//! A process of ours beside this one: this test program again, with the name of its role in the environment.

use std::env;
use std::process::Command;

use crossbeam_channel::never;
use hashed_wheel::Parker;
use wheellock::{Client, Clock, SystemClock};
use wheellock_fixture::TestProcess;

use crate::KINDS;
use crate::counting::count_in_threads;
use crate::death::LEASE;
use crate::kind::Kind;
use crate::shared::SERVER;

const ROLE: &str = "WHEELLOCK_TEST_ROLE";

/// Starts a child process that does something with a kind of lock.
pub(crate) fn child(role: &str, kind: &Kind, settings: &[(&str, &str)]) -> TestProcess {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the first line.
    command.args(["--exact", "child::child_role", "--nocapture", "--test-threads=2"]);
    command.env(ROLE, role).env("KIND", kind.word).env("SERVER", SERVER.url());
    command.envs(settings.iter().copied());
    TestProcess::spawn(&mut command)
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(role) = env::var(ROLE) else { return };
    let word = setting("KIND");
    let kind = KINDS.iter().find(|kind| kind.word == word).unwrap();
    match role.as_str() {
        "hold" => hold(kind),
        "count" => count_in_threads(kind),
        other => panic!("there is no role {other:?}"),
    }
}

/// What the test has set for this child.
pub(crate) fn setting(name: &str) -> String {
    env::var(name).unwrap()
}

fn hold(kind: &Kind) {
    let client = Client::builder().url(&setting("SERVER")).watchdog_lease(LEASE).build().unwrap();
    let _held = (kind.open)(&client, &setting("NAME")).lock().unwrap();
    println!("holds");
    loop {
        SystemClock.park(&Parker::new(), None, &never());
    }
}
