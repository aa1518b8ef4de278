//! `wheellock run --slot`, and `wheellock jobs`.

use rustix::process::Signal;
use serde_json::Value;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{
    FAILED, LOST, NAME, NOT_ACQUIRED, PATIENCE, SLEEP, SUCCESS, ended, id, outcome, process_id,
    send, spawn, wait_for_end, wheellock,
};

const ATTEMPTS_USED_UP: i32 = 122;

fn jobs(server: &Server, options: &[&str]) -> (i32, String) {
    let words = [&["jobs"], options, &[NAME]].concat();
    ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", server.url())))
}

/// The records of the runs, the latest first.
fn records(server: &Server) -> Vec<Value> {
    let (code, output) = jobs(server, &["--json"]);
    assert_eq!(code, SUCCESS, "{output}");
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn is_running(server: &Server) -> bool {
    let (code, output) = jobs(server, &[]);
    code == SUCCESS && output.contains(": running on ")
}

#[test]
fn a_slot_runs_on_one_of_several_machines() {
    let server = Server::start();
    let command = &["sh", "-c", "echo it ran as $WHEELLOCK_SLOT $WHEELLOCK_ATTEMPT; sleep 0.2"];
    let machines = [(); 4].map(|()| spawn(&server, &["--slot", "release 2.1"], command));
    let ends = machines.map(ended);
    assert!(ends.iter().all(|(code, _)| *code == SUCCESS), "{ends:?}");
    let ran = |(_, output): &&(i32, String)| output.contains("it ran as release 2.1 1");
    assert_eq!(ends.iter().filter(ran).count(), 1, "{ends:?}");
    let said = |(_, output): &&(i32, String)| output.contains("this slot has run");
    assert_eq!(ends.iter().filter(said).count(), 3, "{ends:?}");
    // Another slot runs. Quiet, one that has run says nothing.
    assert_eq!(outcome(&server, &["--slot", "release 2.2"], "exit 0"), (SUCCESS, String::new()));
    let again = outcome(&server, &["-q", "--slot", "release 2.2"], "echo it ran");
    assert_eq!(again, (SUCCESS, String::new()));
}

#[test]
fn without_a_wait_a_slot_that_runs_elsewhere_is_a_conflict() {
    let server = Server::start();
    let mut holder = spawn(&server, &["--slot", "noon"], SLEEP);
    let command = process_id(&mut holder);
    let (code, output) = outcome(&server, &["--slot", "noon", "--no-wait"], "echo it ran");
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("nightly, noon: not run, another machine is at it"), "{output}");
    let options = ["--slot", "noon", "--wait", "0.1", "--on-conflict", "0"];
    assert_eq!(outcome(&server, &options, "echo it ran").0, SUCCESS);
    send(id(&holder), Signal::TERM);
    wait_for_end(command);
    assert_eq!(ended(holder).0, 143);
}

#[test]
fn failed_command_is_retried_and_record_holds_outcome() {
    let server = Server::start();
    let retries = ["--retries", "2", "--retry-pause", "0"];
    let slot = |slot| [&["--slot", slot], &retries[..]].concat();
    let script = "echo attempt $WHEELLOCK_ATTEMPT; exit $((3 - WHEELLOCK_ATTEMPT))";
    let (code, output) = outcome(&server, &slot("noon"), script);
    assert_eq!(code, SUCCESS, "{output}");
    for said in ["attempt 1", "exit code 2; the next attempt is in 0 s", "attempt 2", "attempt 3"] {
        assert!(output.contains(said), "{said}: {output}");
    }
    let (code, output) = outcome(&server, &slot("midnight"), "echo tried; exit 7");
    assert_eq!((code, output.matches("tried").count()), (7, 3), "{output}");
    // All machines together.
    let (code, output) = outcome(&server, &slot("midnight"), "echo tried");
    assert_eq!(code, ATTEMPTS_USED_UP, "{output}");
    assert!(output.contains("tried as often as allowed"), "{output}");

    let records = records(&server);
    let text = |record: &Value, field: &str| record[field].as_str().unwrap().to_owned();
    let [midnight, noon] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(text(midnight, "slot"), "midnight");
    assert_eq!((text(midnight, "state"), &midnight["exit_code"]), ("failed".to_owned(), &7.into()));
    assert_eq!((text(noon, "state"), &noon["exit_code"]), ("succeeded".to_owned(), &0.into()));
    for record in &records {
        assert_eq!(record["attempts"], 3, "{record}");
        assert!(!text(record, "host").is_empty(), "{record}");
        let time = |field: &str| record[field].as_u64().unwrap();
        assert!(time("ended_unix_ms") >= time("started_unix_ms"), "{record}");
    }
    let (_, lines) = jobs(&server, &["--limit", "1"]);
    assert!(lines.starts_with("midnight: failed on "), "{lines}");
    assert!(lines.contains(", attempt 3, 20") && lines.ends_with("exit code 7\n"), "{lines}");
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

#[test]
fn who_is_told_to_end_does_not_try_again() {
    let server = Server::start();
    let options = |slot| ["--slot", slot, "--retries", "5", "--retry-pause", "1000"];
    // While the command runs.
    let mut runner = spawn(&server, &options("noon"), SLEEP);
    process_id(&mut runner);
    send(id(&runner), Signal::TERM);
    assert_eq!(ended(runner).0, 143);
    // In the pause.
    let runner = spawn(&server, &options("midnight"), &["sh", "-c", "exit 7"]);
    let is_pausing = || runner.output().contains("the next attempt is in 1000 s");
    wait_until("the command has failed", PATIENCE, is_pausing);
    send(id(&runner), Signal::TERM);
    let (code, output) = ended(runner);
    assert_eq!(code, 143, "{output}");
    // When somebody asks for the slot.
    let mut runner = spawn(&server, &options("evening"), SLEEP);
    process_id(&mut runner);
    wait_until("the holder hears", PATIENCE, || {
        let mut ask = wheellock(&["ask", "wheellock_job_lock:{nightly}:evening"]);
        ended(TestProcess::spawn(ask.env("REDIS_URL", server.url()))).0 == SUCCESS
    });
    assert_eq!(ended(runner).0, 143);
}

#[test]
fn a_machine_that_dies_is_followed_by_one_that_waits() {
    let server = Server::start();
    let options = ["--slot", "noon", "--retries", "1", "--watchdog", "2"];
    let mut holder = spawn(&server, &options, SLEEP);
    let command = process_id(&mut holder);
    wait_until("the run is listed", PATIENCE, || is_running(&server));
    let waiter = spawn(&server, &options, &["sh", "-c", "echo attempt $WHEELLOCK_ATTEMPT"]);
    holder.kill();
    wait_for_end(command);
    let (code, output) = ended(waiter);
    assert_eq!(code, SUCCESS, "{output}");
    assert!(output.contains("attempt 2"), "{output}");
    let records = records(&server);
    assert_eq!((&records[0]["state"], &records[0]["attempts"]), (&"succeeded".into(), &2.into()));
}

#[test]
fn a_run_that_is_lost_is_not_recorded_and_not_tried_again() {
    let server = Server::start();
    let options = ["--slot", "noon", "--retries", "5", "--watchdog", "1"];
    let mut runner = spawn(&server, &options, SLEEP);
    process_id(&mut runner);
    server.command(&["DEL", "wheellock_job_lock:{nightly}:noon"]);
    let (code, output) = ended(runner);
    assert_eq!(code, LOST, "{output}");
    assert_eq!(records(&server)[0]["state"], "died");
}

#[test]
fn without_a_server_the_command_runs_if_it_is_told_to() {
    // A port where nobody listens.
    let server = Server::start();
    server.kill();
    let script = "echo it ran as ${WHEELLOCK_OWNER:-nobody}; exit 7";
    let run = |options: &[&str]| outcome(&server, options, script);
    for kind in [&["--wait", "1"][..], &["--slot", "%F", "--no-wait"], &["--permits", "2"]] {
        let (code, output) = run(kind);
        assert_eq!(code, FAILED, "{kind:?}: {output}");
        assert!(!output.contains("it ran"), "{kind:?}: {output}");
        let (code, output) = run(&[kind, &["--on-unreachable", "run"]].concat());
        assert_eq!(code, 7, "{kind:?}: {output}");
        assert!(output.contains("it ran as nobody"), "{kind:?}: {output}");
        assert!(output.contains("The command runs without the lock"), "{kind:?}: {output}");
    }
    // A server that hangs.
    let server = Server::start();
    server.pause();
    let options = ["--wait", "0.2", "--on-unreachable", "run"];
    let (code, output) = outcome(&server, &options, script);
    assert_eq!(code, 7, "{output}");
    assert!(output.contains("no answer") && output.contains("it ran as nobody"), "{output}");
}

#[test]
fn wrong_credentials_are_an_error_despite_on_unreachable_run() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis://nobody:wrong@");
    let mut run = wheellock(&["run", "--on-unreachable", "run", NAME, "--", "echo", "it ran"]);
    let (code, output) = ended(TestProcess::spawn(run.env("REDIS_URL", url)));
    assert_eq!(code, FAILED, "{output}");
    assert!(!output.contains("it ran"), "{output}");
}

#[test]
fn an_invalid_slot_is_refused_and_names_what_is_wrong() {
    let server = Server::start();
    let wrong = [
        (&["--slot", "%"][..], "--slot %"),
        (&["--slot", ""], "the slot is empty"),
        (&["--slot", "%F", "--slot-zone", "Mars/Olympus"], "--slot-zone Mars/Olympus"),
        (&["--slot-zone", "UTC"], "--slot"),
        (&["--retries", "1"], "--slot"),
        (&["--slot", "%F", "--fair"], "--fair"),
        (&["--slot", "%F", "--lease", "3"], "--lease"),
        (&["--slot", "%F", "--min-hold", "3"], "--min-hold"),
    ];
    for (options, named) in wrong {
        let (code, output) = outcome(&server, options, "echo it ran");
        assert_eq!(code, FAILED, "{options:?}: {output}");
        assert!(output.contains(named) && !output.contains("it ran"), "{options:?}: {output}");
    }
    assert!(server.command(&["KEYS", "*"]).array().is_empty());
}

#[test]
fn job_without_runs_is_reported_and_slot_name_is_escaped() {
    let server = Server::start();
    let (code, output) = jobs(&server, &[]);
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("nightly: no run is remembered"), "{output}");
    let (code, output) = outcome(&server, &["--slot", "a\u{1b}[2Jb"], "exit 7");
    assert_eq!((code, output.contains('\u{1b}')), (7, false), "{output}");
    let (_, lines) = jobs(&server, &[]);
    assert!(lines.starts_with("a\\u{1b}[2Jb: failed"), "{lines}");
}
