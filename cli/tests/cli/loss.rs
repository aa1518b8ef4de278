//! A lock that is lost while the command runs.

use wheellock_fixture::{Server, wait_until};

use crate::support::{
    LOST, NAME, PATIENCE, ended, holding, is_locked, outcome, process_id, spawn, wait_for_end,
};

#[test]
fn a_loss_terminates_the_command_and_its_children() {
    let server = Server::start();
    let script = "sleep 1000 & echo process $!; echo process $$; wait";
    let mut process = spawn(&server, &["--watchdog", "6"], &["sh", "-c", script]);
    let (child, command) = (process_id(&mut process), process_id(&mut process));
    server.command(&["DEL", NAME]);
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    assert!(output.contains("nightly: lost: its key was deleted"), "{output}");
    wait_for_end(command);
    wait_for_end(child);
}

#[test]
fn a_command_that_ignores_the_termination_is_killed() {
    let server = Server::start();
    let script = "trap '' TERM; echo process $$; while :; do sleep 0.1; done";
    let options = ["--watchdog", "6", "--kill-after", "0.5"];
    let mut process = spawn(&server, &options, &["sh", "-c", script]);
    let command = process_id(&mut process);
    server.command(&["DEL", NAME]);
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    wait_for_end(command);
}

#[test]
fn a_command_may_clean_up_after_a_loss() {
    let server = Server::start();
    let script =
        "trap 'sleep 0.5; echo cleaned; exit 0' TERM; echo on; while :; do sleep 0.05; done";
    let mut process =
        spawn(&server, &["--watchdog", "6", "--kill-after", "600"], &["sh", "-c", script]);
    process.wait_for_line("on", PATIENCE);
    server.command(&["DEL", NAME]);
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    assert!(output.contains("cleaned"), "{output}");
}

#[test]
fn a_lease_without_renewal_ends_the_command() {
    let server = Server::start();
    for kind in [&[][..], &["--permits", "1"]] {
        server.command(&["FLUSHALL"]);
        let options = [kind, &["--lease", "3"]].concat();
        let (process, command) = holding(&server, &options);
        let (code, output) = ended(process);
        assert_eq!(code, LOST, "{options:?}: {output}");
        assert!(output.contains("lost"), "{output}");
        wait_for_end(command);
    }
}

#[test]
fn a_server_that_is_gone_ends_the_command_with_the_lease() {
    let server = Server::start();
    let (process, command) = holding(&server, &["--watchdog", "3"]);
    server.kill();
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    assert!(output.contains("lost: the server did not answer"), "{output}");
    wait_for_end(command);
}

#[test]
fn guardian_ends_command_of_holder_stopped_past_lease() {
    let server = Server::start();
    let (process, command) = holding(&server, &["--watchdog", "3"]);
    process.pause();
    // The guardian ends it, as the holder cannot.
    wait_for_end(command);
    wait_until("the lease has ended", PATIENCE, || !is_locked(&server));
    let (successor, _) = holding(&server, &["--no-wait"]);
    process.resume();
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    assert!(is_locked(&server), "the new owner's hold is not touched");
    successor.terminate();
    assert_eq!(ended(successor).0, 143);
    assert_eq!(outcome(&server, &["--no-wait"], "exit 7").0, 7);
}

#[test]
fn the_guardian_kills_a_command_that_ignores_the_termination() {
    let server = Server::start();
    let script = "trap '' TERM; echo process $$; while :; do sleep 0.1; done";
    let options = ["--watchdog", "3", "--kill-after", "0.5"];
    let mut process = spawn(&server, &options, &["sh", "-c", script]);
    let command = process_id(&mut process);
    process.pause();
    wait_for_end(command);
    process.resume();
    assert_eq!(ended(process).0, LOST);
}
