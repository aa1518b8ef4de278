//! The example `synchronizers` runs to its end, in memory and on a server.

use std::process::Command;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{PATIENCE, example};

fn runs(command: &mut Command) {
    let mut process = TestProcess::spawn(command);
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    for line in [
        "latch: all 4 parts are done",
        "semaphore: 2 permits are free again",
        "permits: it expired",
        "permits: 1 of 1 are free",
    ] {
        assert!(output.contains(line), "{output}");
    }
}

#[test]
fn it_runs_in_memory() {
    runs(&mut example::<&str>("synchronizers", &[]));
}

#[test]
fn it_runs_on_the_server_it_is_given() {
    let server = Server::start();
    runs(&mut example("synchronizers", &[&server.url()]));
}
