//! What happens when one of the three processes is killed.

use std::process::Command;

use rustix::process::{Pid, Signal};
use wheellock_fixture::{Server, wait_until};

use crate::support::{
    PATIENCE, ended, holding, id, is_locked, outcome, process_id, send, spawn, wait_for_end,
    wait_for_renewal,
};

/// The guardian of this process: its child that leads a group and is not the command.
fn guardian(holder: Pid, command: Pid) -> Pid {
    let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().unwrap();
    let processes = String::from_utf8(output.stdout).unwrap();
    let child = processes.lines().find_map(|line| {
        let mut ids = line.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
        let (process, parent) = (ids.next()?, ids.next()?);
        (parent == holder && process != command).then_some(process)
    });
    child.unwrap()
}

#[test]
fn a_killed_command_gives_the_lock_back() {
    let server = Server::start();
    let (process, command) = holding(&server, &[]);
    send(command, Signal::KILL);
    assert_eq!(ended(process).0, 137);
    assert!(!is_locked(&server));
}

#[test]
fn a_killed_holder_takes_the_command_and_its_children_with_it() {
    let server = Server::start();
    let script = "sleep 1000 & echo process $!; echo process $$; wait";
    let mut process = spawn(&server, &["--watchdog", "2"], &["sh", "-c", script]);
    let (child, command) = (process_id(&mut process), process_id(&mut process));
    process.kill();
    wait_for_end(command);
    wait_for_end(child);
    // The lock is free when its lease has ended.
    assert_eq!(outcome(&server, &[], "exit 7").0, 7);
}

#[test]
fn the_guardian_ends_with_the_command() {
    let server = Server::start();
    let (process, command) = holding(&server, &[]);
    let guardian = guardian(id(&process), command);
    process.terminate();
    assert_eq!(ended(process).0, 143);
    wait_for_end(guardian);
}

#[test]
fn a_killed_guardian_changes_nothing_for_a_holder_that_lives() {
    let server = Server::start();
    let (process, command) = holding(&server, &["--watchdog", "6"]);
    send(guardian(id(&process), command), Signal::KILL);
    wait_for_renewal(&server);
    process.terminate();
    assert_eq!(ended(process).0, 143);
}

/// The kernel's signal at the death of the parent is Linux's.
#[cfg(target_os = "linux")]
#[test]
fn kernel_kills_command_if_guardian_and_holder_are_killed() {
    let server = Server::start();
    let (mut process, command) = holding(&server, &[]);
    send(guardian(id(&process), command), Signal::KILL);
    process.kill();
    wait_for_end(command);
}

#[test]
fn signals_to_the_guardian_do_not_end_it() {
    let server = Server::start();
    let (mut process, command) = holding(&server, &[]);
    let guardian = guardian(id(&process), command);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        send(guardian, signal);
    }
    wait_until("it is there", PATIENCE, || crate::support::state(guardian) == Some('S'));
    process.kill();
    wait_for_end(command);
    wait_for_end(guardian);
}
