//! The example `everyday` runs on a server and in memory.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{PATIENCE, example};

fn runs(arguments: &[&str]) {
    let mut process = TestProcess::spawn(&mut example("everyday", arguments));
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    for line in [
        "one at a time: ship",
        "job: 3 pages",
        "leader: report in term ",
        "who holds: everyday:orders:43 by Thread",
        "sendable guard: written and released",
    ] {
        assert!(output.contains(line), "{output}");
    }
}

#[test]
fn it_runs_in_memory() {
    runs(&[]);
}

#[test]
fn everyday_example_leaves_only_record_and_tokens_on_server() {
    let server = Server::start();
    runs(&[&server.url()]);
    let mut keys = server.command(&["KEYS", "*"]).texts();
    keys.sort();
    let left = [
        "redisson_lock_token:{everyday:scheduler}",
        "wheellock_job_record:{everyday:report}:2026-11-23",
        "wheellock_job_runs:{everyday:report}",
        "wheellock_job_token:{everyday:report}",
    ];
    assert_eq!(keys, left);
}
