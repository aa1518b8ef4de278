//! Signals that come to wheellock: before, while and after the command runs.

use std::process::Command;

use rustix::process::Signal;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{
    NAME, PATIENCE, ended, holding, id, is_locked, outcome, send, spawn, state,
    wait_until_one_waits,
};

const SIGNALS: [(&str, Signal); 6] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

#[test]
fn a_signal_reaches_the_command_and_its_children() {
    let server = Server::start();
    for (word, signal) in SIGNALS {
        // The shell's child is in the same group. A shell runs its trap when its child has ended.
        let inner =
            format!("trap \"echo inner; exit 0\" {word}; echo on; while :; do sleep 0.05; done");
        let script = format!("trap 'echo outer; exit 7' {word}; sh -c '{inner}'; sleep 1000");
        let mut process = spawn(&server, &[], &["sh", "-c", &script]);
        process.wait_for_line("on", PATIENCE);
        send(id(&process), signal);
        let (code, output) = ended(process);
        assert_eq!(code, 7, "{word}: {output}");
        assert!(output.contains("inner") && output.contains("outer"), "{word}: {output}");
        assert!(!is_locked(&server), "{word}");
    }
}

#[test]
fn a_signal_ends_the_wait_and_the_command_never_starts() {
    let server = Server::start();
    for (word, signal) in SIGNALS {
        let (holder, _) = holding(&server, &[]);
        let waiter = spawn(&server, &[], &["echo", "it ran"]);
        wait_until_one_waits(&server);
        send(id(&waiter), signal);
        let (code, output) = ended(waiter);
        assert_eq!(code, 128 + signal.as_raw(), "{word}: {output}");
        assert!(output.contains("before the command was started"), "{word}: {output}");
        assert!(!output.contains("it ran"), "{word}: {output}");
        holder.terminate();
        assert_eq!(ended(holder).0, 143);
    }
}

#[test]
fn a_wait_that_a_signal_ended_leaves_the_fair_queue() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &["--fair"]);
    let waiter = spawn(&server, &["--fair"], &["echo", "it ran"]);
    let queue = format!("redisson_lock_queue:{{{NAME}}}");
    wait_until("it is in the queue", PATIENCE, || server.command(&["LLEN", &queue]).integer() == 1);
    waiter.interrupt();
    assert_eq!(ended(waiter).0, 130);
    assert_eq!(server.command(&["LLEN", &queue]).integer(), 0);
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_wheellock");
    let (holder, _) = holding(&server, &[]);
    // As nohup does.
    let script = "trap '' HUP; exec \"$0\" run nightly -- \
                  sh -c 'kill -HUP $$; echo still here; exit 7'";
    let mut command = Command::new("sh");
    command.args(["-c", script, program]).env("REDIS_URL", server.url());
    let mut waiter = TestProcess::spawn(&mut command);
    wait_until_one_waits(&server);
    send(id(&waiter), Signal::HUP);
    holder.terminate();
    waiter.wait_for_line("still here", PATIENCE);
    let (code, output) = ended(waiter);
    // Only Linux tells what is ignored.
    assert_eq!(code, if cfg!(target_os = "linux") { 7 } else { code }, "{output}");
}

#[test]
fn a_stop_and_a_continuation_reach_the_command() {
    let server = Server::start();
    let (process, command) = holding(&server, &["--watchdog", "600"]);
    send(id(&process), Signal::TSTP);
    wait_until("both stand still", PATIENCE, || {
        state(command) == Some('T') && state(id(&process)) == Some('T')
    });
    send(id(&process), Signal::CONT);
    wait_until("both go on", PATIENCE, || {
        state(command) == Some('S') && state(id(&process)) == Some('S')
    });
    process.terminate();
    assert_eq!(ended(process).0, 143);
}

#[test]
fn a_stop_while_waiting_stops_the_wait_alone() {
    let server = Server::start();
    let (holder, _) = holding(&server, &[]);
    let waiter = spawn(&server, &[], &["echo", "it ran"]);
    wait_until_one_waits(&server);
    send(id(&waiter), Signal::TSTP);
    wait_until("it stands still", PATIENCE, || state(id(&waiter)) == Some('T'));
    holder.terminate();
    assert_eq!(ended(holder).0, 143);
    send(id(&waiter), Signal::CONT);
    let (code, output) = ended(waiter);
    assert_eq!((code, output.as_str()), (0, "it ran\n"));
    assert_eq!(outcome(&server, &["--no-wait"], "exit 7").0, 7);
}
