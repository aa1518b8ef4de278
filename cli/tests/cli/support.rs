//! Starts `wheellock`, and looks at what it did.

use std::io::{self, Write as _};
use std::mem;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use wheellock_fixture::{Server, TestProcess, wait_until};

/// Much longer than anything here takes, so that only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const NAME: &str = "nightly";

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const NOT_ACQUIRED: i32 = 1;
pub(crate) const LOST: i32 = 123;
pub(crate) const FAILED: i32 = 125;
pub(crate) const NOT_EXECUTABLE: i32 = 126;
pub(crate) const NOT_FOUND: i32 = 127;

/// A command that runs `wheellock` with these arguments on no server.
pub(crate) fn wheellock(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wheellock"));
    command.args(arguments).env_remove("REDIS_URL").env_remove("WHEELLOCK_TOKEN");
    command
}

/// A command that runs `wheellock run` with these options on the lock [`NAME`] of this server.
pub(crate) fn run(server: &Server, options: &[&str], command: &[&str]) -> Command {
    let arguments = [&["run"], options, &[NAME, "--"], command].concat();
    let mut run = wheellock(&arguments);
    run.env("REDIS_URL", server.url());
    run
}

pub(crate) fn spawn(server: &Server, options: &[&str], command: &[&str]) -> TestProcess {
    TestProcess::spawn(&mut run(server, options, command))
}

/// Runs a shell's script to its end, and returns the exit code and all output.
pub(crate) fn outcome(server: &Server, options: &[&str], script: &str) -> (i32, String) {
    ended(spawn(server, options, &["sh", "-c", script]))
}

/// Waits for the end, and returns the exit code and all output.
pub(crate) fn ended(mut process: TestProcess) -> (i32, String) {
    let code = process.wait_for_exit(PATIENCE);
    (code, process.wait_for_output(PATIENCE))
}

/// A command that says its process id, and runs until it is ended.
pub(crate) const SLEEP: &[&str] = &["sh", "-c", "echo process $$; exec sleep 1000"];

/// Starts a command that holds the lock until it is ended. Returns wheellock's process and the
/// command's.
pub(crate) fn holding(server: &Server, options: &[&str]) -> (TestProcess, Pid) {
    let mut process = spawn(server, options, SLEEP);
    let command = process_id(&mut process);
    (process, command)
}

/// The process whose id the command prints.
pub(crate) fn process_id(process: &mut TestProcess) -> Pid {
    let line = process.wait_for_line("process ", PATIENCE);
    Pid::from_raw(line.trim_start_matches("process ").parse().unwrap()).unwrap()
}

pub(crate) fn id(process: &TestProcess) -> Pid {
    Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap()
}

pub(crate) fn send(process: Pid, signal: Signal) {
    kill_process(process, signal).unwrap();
}

/// Waits until the process has ended, whichever process reaps it.
pub(crate) fn wait_for_end(process: Pid) {
    wait_until("the process has ended", PATIENCE, || {
        test_kill_process(process).is_err() || state(process) == Some('Z')
    });
}

/// The state of a process, as `ps` has it.
pub(crate) fn state(process: Pid) -> Option<char> {
    let id = process.as_raw_nonzero().to_string();
    let output = Command::new("ps").args(["-o", "stat=", "-p", &id]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().chars().next()
}

pub(crate) fn is_locked(server: &Server) -> bool {
    server.command(&["EXISTS", NAME]).integer() == 1
}

pub(crate) fn wait_until_one_waits(server: &Server) {
    wait_until("a process waits", PATIENCE, || {
        let channels = server.command(&["PUBSUB", "CHANNELS", "*nightly*"]);
        !channels.array().is_empty()
    });
}

/// Waits until the lease is longer than it was.
pub(crate) fn wait_for_renewal(server: &Server) {
    let left = || server.command(&["PTTL", NAME]).integer();
    let mut last = left();
    wait_until("the lease is renewed", PATIENCE, || {
        let before = mem::replace(&mut last, left());
        last > before
    });
}

/// Says what was not checked and why, also if the test passes.
pub(crate) fn not_run(what: &str) {
    // A failure cannot be reported anywhere.
    writeln!(io::stderr(), "not run: {what}").ok();
}
