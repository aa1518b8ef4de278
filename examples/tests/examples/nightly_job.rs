//! The example `nightly_job` as its users run it: processes, one of which is killed.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{PATIENCE, example};

const LEASE: &str = "4";
const SLOT: &str = "2026-11-23";

fn start(server: &Server, seconds: &str) -> TestProcess {
    let arguments = ["--redis", &server.url(), "--watchdog", LEASE, "--seconds", seconds, SLOT];
    TestProcess::spawn(&mut example("nightly_job", &arguments))
}

/// The token that it tells.
fn token(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|token| token.parse().ok()).unwrap_or_default()
}

#[test]
fn a_job_whose_process_is_killed_is_done_exactly_once_more() {
    let server = Server::start();
    let mut first = start(&server, "600");
    let line = first.wait_for_line("begins: attempt 1", PATIENCE);
    let mut others = [start(&server, "0"), start(&server, "0")];
    first.wait_for_line("page 1", PATIENCE);
    first.kill();
    assert!(others.iter_mut().all(|process| process.wait_for_exit(PATIENCE) == 0));
    let outputs = others.map(|process| process.wait_for_output(PATIENCE));
    let all: Vec<&str> = outputs.iter().flat_map(|output| output.lines()).collect();
    let begun: Vec<_> = all.iter().filter(|line| line.starts_with("begins")).collect();
    assert_eq!(begun.len(), 1, "{all:?}");
    assert!(begun[0].contains("attempt 2") && token(begun[0]) > token(&line), "{all:?}");
    assert_eq!(all.iter().filter(|line| line.starts_with("done:")).count(), 1, "{all:?}");
    assert_eq!(all.iter().filter(|line| **line == "done elsewhere").count(), 1, "{all:?}");
    // Whoever comes later has nothing to do.
    start(&server, "600").wait_for_line("done elsewhere", PATIENCE);
}

#[test]
fn a_job_that_always_dies_is_given_up() {
    let server = Server::start();
    for attempt in 1..=3 {
        let mut process = start(&server, "600");
        process.wait_for_line(&format!("begins: attempt {attempt}"), PATIENCE);
        process.kill();
    }
    let mut last = start(&server, "600");
    last.wait_for_line("tried too often", PATIENCE);
    assert_eq!(last.wait_for_exit(PATIENCE), 2);
}
