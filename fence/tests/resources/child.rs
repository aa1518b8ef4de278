//! A process that holds a lock and writes to a resource.
//!
//! A child is this test program again, with its task in the environment. It runs only [`child_role`],
//! a test that does nothing without a task.

use std::env;
use std::io::{Write, stdin, stdout};
use std::process::Command;

use wheellock::Client;
use wheellock::crossbeam_channel::never;
use wheellock_fixture::TestProcess;

use crate::kinds::{LEASE, LOCK, Place, Step};

const PLACE: &str = "WHEELLOCK_TEST_PLACE";
const TASK: &str = "WHEELLOCK_TEST_TASK";

/// What a child does.
pub(crate) enum Task<'a> {
    /// It acquires the lock on this server, waits for a line on its input, and writes.
    Write { url: &'a str, fenced: bool },
    /// It writes with this token, and stands still after the step.
    StandStill { token: u64, after: Step },
}

/// The command of a child.
pub(crate) fn command(place: &Place, task: &Task<'_>) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    // More than one test thread: with one, the harness would write the test's name in front of the
    // first line.
    command.args(["--exact", "child::child_role", "--nocapture", "--test-threads=2"]);
    let task = match task {
        Task::Write { url, fenced } => format!("write {fenced} {url}"),
        Task::StandStill { token, after } => format!("stand-still {token} {after:?}"),
    };
    command.env(PLACE, place.to_text()).env(TASK, task);
    command
}

/// A child that stands still after a step of its write.
pub(crate) fn standing_still(place: &Place, token: u64, after: Step) -> TestProcess {
    let mut child = TestProcess::spawn(&mut command(place, &Task::StandStill { token, after }));
    child.wait_for_line("it stands still", crate::LIMIT);
    child
}

#[test]
fn child_role() {
    // Only in a child process that a test has started is this more than an empty test.
    let Ok(task) = env::var(TASK) else { return };
    let place = Place::parse(&env::var(PLACE).unwrap());
    let words: Vec<&str> = task.split(' ').collect();
    match words[..] {
        ["write", fenced, url] => write(&place, fenced == "true", url),
        ["stand-still", token, after] => stand_still(&place, token.parse().unwrap(), after),
        _ => panic!("there is no task {task}"),
    }
}

fn say(line: &str) {
    let mut out = stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn write(place: &Place, fenced: bool, url: &str) {
    let client = Client::builder().url(url).watchdog_lease(LEASE).build().unwrap();
    let mut resource = place.open();
    let guard = client.lock(LOCK).lock().unwrap();
    let token = guard.draw_token().unwrap();
    assert!(guard.is_held());
    say(&format!("it holds {token}"));
    stdin().read_line(&mut String::new()).unwrap();
    let written = if fenced {
        resource.write(token, "of the paused holder", &mut |_| {})
    } else {
        resource.write_without_a_fence("of the paused holder");
        Ok(())
    };
    say(&written.map_or_else(|stale| format!("stale: {stale}"), |()| "written".to_owned()));
}

fn stand_still(place: &Place, token: u64, after: &str) {
    let mut resource = place.open();
    let written = resource.write(token, "of the killed writer", &mut |step| {
        if format!("{step:?}") == after {
            say("it stands still");
            never::<()>().recv().unwrap();
        }
    });
    say(&format!("not reached: {written:?}"));
}
