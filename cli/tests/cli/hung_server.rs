//! A server that does not answer: the wait, signals and a second bound all that `run` does.

use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;
use wheellock::{Clock as _, SystemClock};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{
    FAILED, NAME, PATIENCE, ended, holding, id, outcome, send, spawn, wait_until_one_waits,
    wheellock,
};

/// What is always more than a second and less than the client's command timeout of 3 s.
const BOUND: Duration = Duration::from_millis(2500);

/// How long the process lives from now on, with its exit code and output.
fn timed_end(process: TestProcess) -> (i32, String, Duration) {
    let start = SystemClock.now();
    let (code, output) = ended(process);
    (code, output, SystemClock.now() - start)
}

#[test]
fn the_wait_covers_connecting() {
    let server = Server::start();
    server.pause();
    for options in [&["--wait", "0.2"][..], &["--wait", "0"], &["--no-wait"]] {
        let (code, output, took) = timed_end(spawn(&server, options, &["echo", "it ran"]));
        assert_eq!(code, FAILED, "{options:?}: {output}");
        assert!(output.contains("no answer"), "{options:?}: {output}");
        assert!(!output.contains("it ran"), "{options:?}: {output}");
        assert!(took < BOUND, "{options:?}: {took:?}");
    }
}

#[test]
fn a_signal_while_connecting_ends_the_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let mut command = wheellock(&["run", NAME, "--", "echo", "it ran"]);
    let process = TestProcess::spawn(command.env("REDIS_URL", url));
    let _connection = listener.accept().unwrap();
    send(id(&process), Signal::TERM);
    let (code, output, took) = timed_end(process);
    assert_eq!(code, 143, "{output}");
    assert!(output.contains("before the command was started"), "{output}");
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn a_signal_while_waiting_at_a_stopped_server_ends_the_wait() {
    for options in [&[][..], &["--fair"], &["--exclusive"]] {
        let server = Server::start();
        let (_holder, _) = holding(&server, options);
        let waiter = spawn(&server, options, &["echo", "it ran"]);
        wait_until_one_waits(&server);
        server.pause();
        send(id(&waiter), Signal::TERM);
        let (code, output, took) = timed_end(waiter);
        assert_eq!(code, 143, "{options:?}: {output}");
        assert!(took < BOUND, "{options:?}: {took:?}");
        server.resume();
    }
}

#[test]
fn a_wait_ends_in_time_at_a_server_that_stops_in_the_middle() {
    let wait = Duration::from_secs(1);
    for options in [&["--fair", "--wait", "1"][..], &["--wait", "1"], &["--shared", "--wait", "1"]]
    {
        let server = Server::start();
        let kind = if options[0] == "--shared" { &["--exclusive"][..] } else { &options[..1] };
        let kind = if options[0] == "--wait" { &[][..] } else { kind };
        let (_holder, _) = holding(&server, kind);
        let start = SystemClock.now();
        let waiter = spawn(&server, options, &["echo", "it ran"]);
        wait_until_one_waits(&server);
        server.pause();
        let (code, output) = ended(waiter);
        let took = SystemClock.now() - start;
        assert_ne!(code, 0, "{options:?}: {output}");
        assert!(!output.contains("it ran"), "{options:?}: {output}");
        assert!(took < wait + BOUND, "{options:?}: {took:?}");
        server.resume();
    }
}

#[test]
fn the_end_of_the_command_waits_a_second_for_the_server() {
    for kind in [&[][..], &["--fair"], &["--shared"], &["--permits", "1"], &["--min-hold", "60"]] {
        let server = Server::start();
        let (process, command) = holding(&server, kind);
        server.pause();
        send(command, Signal::TERM);
        let (code, output, took) = timed_end(process);
        assert_eq!(code, 143, "{kind:?}: {output}");
        assert!(output.contains("free when its lease ends"), "{kind:?}: {output}");
        assert!(took < BOUND, "{kind:?}: {took:?}");
        server.resume();
    }
}

#[test]
fn a_release_that_the_server_runs_later_is_not_lost() {
    let server = Server::start();
    let (process, command) = holding(&server, &[]);
    server.pause();
    send(command, Signal::TERM);
    assert_eq!(ended(process).0, 143);
    server.resume();
    wait_until("it is released", PATIENCE, || server.command(&["EXISTS", NAME]).integer() == 0);
    assert_eq!(outcome(&server, &["--no-wait"], "exit 7").0, 7);
}
