//! The example `hold` as its users run it: processes, signals, a server, exit codes and lines.

#![expect(clippy::panic, reason = "a test that meets what it cannot read fails, and says why")]

use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{PATIENCE, example};

const RELEASED: i32 = 0;
const FAILED: i32 = 1;
const NOT_ACQUIRED: i32 = 3;
const LOST: i32 = 4;

const NAME: &str = "orders:42";

/// Starts `hold` on the lock [`NAME`] of this server.
fn hold(server: &Server, more: &[&str]) -> TestProcess {
    let url = server.url();
    let arguments = [&["--redis", &url, NAME], more].concat();
    TestProcess::spawn(&mut example("hold", &arguments))
}

/// Starts `hold`, and returns it and the lock's owner when it has the lock.
fn holding(server: &Server, more: &[&str]) -> (TestProcess, String) {
    let mut process = hold(server, more);
    let line = process.wait_for_line("held", PATIENCE);
    let owner = line
        .strip_prefix(&format!("held {NAME} owner="))
        .unwrap_or_else(|| panic!("unexpected line: {line:?}"));
    (process, owner.to_owned())
}

fn is_locked(server: &Server) -> bool {
    server.command(&["EXISTS", NAME]).integer() == 1
}

fn is_owned_by(server: &Server, owner: &str) -> bool {
    server.command(&["HEXISTS", NAME, owner]).integer() == 1
}

/// `end` is a line of the standard output. After a colon follows what the standard error contains.
fn ends_with(mut process: TestProcess, end: &str, code: i32) {
    let (line, reason) = end.split_once(": ").unwrap_or((end, ""));
    let printed = process.wait_for_line(line, PATIENCE);
    assert!(reason.is_empty() || printed == line, "{printed}");
    let ended = process.wait_for_exit(PATIENCE);
    assert_eq!(ended, code, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    assert!(output.contains(reason), "{reason} is not in:\n{output}");
}

fn fails_with(mut process: TestProcess, complaint: &str, code: i32) {
    assert_eq!(process.wait_for_exit(PATIENCE), code, "{}", process.output());
    let output = process.wait_for_output(PATIENCE);
    assert!(output.contains(complaint), "{complaint} is not in:\n{output}");
}

fn wait_until_one_waits(server: &Server) {
    let channel = format!("redisson_lock__channel:{{{NAME}}}");
    wait_until("a process waits", PATIENCE, || {
        server.command(&["PUBSUB", "NUMSUB", &channel]).array()[1].integer() == 1
    });
}

#[test]
fn it_holds_for_the_seconds_it_is_given_and_releases() {
    let server = Server::start();
    // Longer than its lease.
    let (process, owner) = holding(&server, &["2", "--watchdog", "1.5"]);
    assert!(is_owned_by(&server, &owner));
    ends_with(process, "released", RELEASED);
    assert!(!is_locked(&server));
}

#[test]
fn the_lease_is_thirty_seconds_unless_it_is_given() {
    let server = Server::start();
    for (option, most) in [
        (&[][..], 30_000),
        (&["--watchdog", "12.5"], 12_500),
        (&["--watchdog=12.5"], 12_500),
        (&["--lease", "7.25"], 7_250),
    ] {
        let (process, _) = holding(&server, option);
        let left = server.command(&["PTTL", NAME]).integer();
        assert!((most - 2_000..=most).contains(&left), "{option:?}: {left} ms");
        process.terminate();
        ends_with(process, "released", RELEASED);
    }
}

#[test]
fn a_lease_without_renewal_ends_and_the_holder_reports_the_loss() {
    let server = Server::start();
    let (process, _) = holding(&server, &["--lease", "1"]);
    ends_with(process, "lost: its lease ran out", LOST);
}

#[test]
fn a_termination_releases_first() {
    let server = Server::start();
    let (process, _) = holding(&server, &[]);
    process.terminate();
    ends_with(process, "released", RELEASED);
    assert!(!is_locked(&server));
}

#[test]
fn an_interrupt_releases_first() {
    let server = Server::start();
    let (process, _) = holding(&server, &["3600"]);
    process.interrupt();
    ends_with(process, "released", RELEASED);
    assert!(!is_locked(&server));
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let server = Server::start();
    let (_holder, owner) = holding(&server, &[]);
    for wait in ["0", "0.25"] {
        ends_with(hold(&server, &["--wait", wait]), "not acquired: somebody else", NOT_ACQUIRED);
    }
    assert!(is_owned_by(&server, &owner));
}

#[test]
fn a_signal_ends_a_wait() {
    let server = Server::start();
    let (_holder, owner) = holding(&server, &[]);
    for limit in [&[][..], &["--wait", "3600"]] {
        for signal in [TestProcess::terminate, TestProcess::interrupt] {
            let waiter = hold(&server, limit);
            wait_until_one_waits(&server);
            signal(&waiter);
            ends_with(waiter, "not acquired: a signal", NOT_ACQUIRED);
        }
    }
    assert!(is_owned_by(&server, &owner));
}

#[test]
fn a_release_hands_the_lock_to_a_waiter() {
    let server = Server::start();
    let (holder, _) = holding(&server, &[]);
    let mut waiter = hold(&server, &["0"]);
    wait_until_one_waits(&server);
    assert_eq!(waiter.lines(), Vec::<String>::new());
    holder.terminate();
    waiter.wait_for_line("held", PATIENCE);
    ends_with(waiter, "released", RELEASED);
}

#[test]
fn holder_stopped_past_lease_reports_loss_and_spares_new_owner() {
    let server = Server::start();
    let (sleeper, _) = holding(&server, &["--watchdog", "1"]);
    sleeper.pause();
    let (successor, owner) = holding(&server, &["--wait", "5"]);
    sleeper.resume();
    // It was stopped between two renewals or, rarely, within one. The reasons differ.
    ends_with(sleeper, "lost: ", LOST);
    assert!(is_owned_by(&server, &owner));
    successor.terminate();
    ends_with(successor, "released", RELEASED);
}

#[test]
fn hold_time_elapsed_while_stopped_is_reported_as_loss() {
    let server = Server::start();
    let (sleeper, _) = holding(&server, &["0.5", "--watchdog", "1"]);
    sleeper.pause();
    let (_successor, owner) = holding(&server, &["--wait", "5"]);
    sleeper.resume();
    ends_with(sleeper, "lost: ", LOST);
    assert!(is_owned_by(&server, &owner));
}

#[test]
fn a_release_without_a_reply_is_an_error() {
    let server = Server::start();
    let (process, _) = holding(&server, &[]);
    server.kill();
    process.terminate();
    // The message differs: the release may have run before the server ended, or not.
    fails_with(process, "stderr: hold: ", FAILED);
}

#[test]
fn failures_end_with_an_error() {
    let nowhere = ["--redis", "redis://127.0.0.1:1/", NAME];
    fails_with(TestProcess::spawn(&mut example("hold", &nowhere)), "cannot be reached", FAILED);
    let nonsense = ["--redis", "nonsense", NAME];
    fails_with(TestProcess::spawn(&mut example("hold", &nonsense)), "the server's URL", FAILED);
    let server = Server::start();
    server.command(&["SET", NAME, "other data"]);
    fails_with(hold(&server, &[]), "something that is not a lock", FAILED);
    assert_eq!(server.command(&["GET", NAME]).text(), "other data");
}

#[test]
fn an_invalid_command_line_is_refused_and_acquires_nothing() {
    let server = Server::start();
    for wrong in [
        &["--lease", "5", "--watchdog", "5"][..],
        &["--wait", "-1"],
        &["--wait", "nan"],
        &["--wait", "inf"],
        &["--wait", "1e300"],
        &["--wait", "soon"],
        &["--wait", ""],
        &["--wait"],
        &["--lease", "0"],
        &["--lease", "0.001"],
        &["--lease", "1e15"],
        &["--watchdog", "0.01"],
        &["--watchdog", "1e15"],
        &["-5"],
        &["--", "-5"],
        &["later"],
        &["1", "2"],
        &["--quickly"],
    ] {
        let mut process = hold(&server, wrong);
        assert_eq!(process.wait_for_exit(PATIENCE), FAILED, "{wrong:?}: {}", process.output());
        assert!(!is_locked(&server), "{wrong:?}");
    }
    for incomplete in [&["--redis", &server.url()][..], &[NAME]] {
        let process = TestProcess::spawn(&mut example("hold", incomplete));
        fails_with(process, "usage: hold", FAILED);
    }
}

#[test]
fn a_very_long_time_is_no_limit() {
    let server = Server::start();
    let (process, _) = holding(&server, &["1e18", "--wait", "1e18"]);
    process.terminate();
    ends_with(process, "released", RELEASED);
}

#[test]
fn url_comes_from_environment_and_name_may_be_any_text() {
    let server = Server::start();
    let mut command = example("hold", &["--", "--two\nlines", "0"]);
    let mut process = TestProcess::spawn(command.env("REDIS_URL", server.url()));
    process.wait_for_line("held --two\\nlines owner=", PATIENCE);
    ends_with(process, "released", RELEASED);
}

#[test]
fn help_is_not_an_error() {
    ends_with(TestProcess::spawn(&mut example("hold", &["--help"])), "usage", RELEASED);
}
