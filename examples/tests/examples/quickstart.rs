//! The example `quickstart` runs to its end with each backend.

use std::process::Command;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{PATIENCE, example};

fn runs_all_chapters(command: &mut Command, beginning: &str) {
    let mut process = TestProcess::spawn(command);
    process.wait_for_line(beginning, PATIENCE);
    for chapter in ["Acquired", "Contended", "Renewed", "Handed over", "Nested", "Recovered"] {
        process.wait_for_line(chapter, PATIENCE);
    }
    assert_eq!(process.wait_for_exit(PATIENCE), 0, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    for event in [
        "has the lock, with a lease of 1.5s",
        "tries: no",
        "# ",
        "renewed",
        "holds it: true",
        "after Ann's release began",
        "acquires it again: count 2",
        "releases the other: locked: false",
        "later: the lease of 1.5s had ended",
        "the lock is free",
    ] {
        assert!(output.contains(event), "{event} is not in:\n{output}");
    }
}

#[test]
fn quickstart_runs_in_memory_and_reports_lock_scope() {
    runs_all_chapters(
        &mut example::<&str>("quickstart", &[]),
        "They exclude the threads of this process only",
    );
}

#[test]
fn it_runs_on_the_server_it_is_given() {
    let server = Server::start();
    let mut command = example("quickstart", &["--redis", &server.url()]);
    runs_all_chapters(&mut command, "Locks: on a Redis server, because --redis names it");
    assert_eq!(server.size(), 0, "nothing is left");
}

#[test]
fn it_runs_on_the_server_of_the_environment() {
    let server = Server::start();
    let mut command = example::<&str>("quickstart", &[]);
    let mut process = TestProcess::spawn(command.env("REDIS_URL", server.url()));
    process.wait_for_line("Locks: on a Redis server, because REDIS_URL names it", PATIENCE);
    // From here on it runs as on any other.
    process.wait_for_line("Acquired", PATIENCE);
}

#[test]
fn it_runs_on_a_server_of_its_own() {
    runs_all_chapters(
        &mut example("quickstart", &["--spawn"]),
        "Locks: on a Redis server at 127.0.0.1:",
    );
}

#[test]
fn without_a_server_program_it_says_what_to_install() {
    let mut command = example("quickstart", &["--spawn"]);
    let mut process = TestProcess::spawn(command.env("REDIS_SERVER", "no-such-program"));
    assert_eq!(process.wait_for_exit(PATIENCE), 1);
    let output = process.wait_for_output(PATIENCE);
    assert!(output.contains("apt-get install"), "{output}");
}

#[test]
fn unknown_arguments_are_refused() {
    for wrong in [&["--loud"][..], &["--redis"], &["--spawn", "--redis", "redis://127.0.0.1/"]] {
        let mut process = TestProcess::spawn(&mut example("quickstart", wrong));
        assert_eq!(process.wait_for_exit(PATIENCE), 2, "{wrong:?}");
        let output = process.wait_for_output(PATIENCE);
        assert!(output.contains("usage: quickstart"), "{output}");
    }
}
