//! What the command gets: its environment, its arguments, its input.

use std::io::Write as _;
use std::process::Stdio;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{NAME, PATIENCE, SUCCESS, ended, outcome, run, spawn};

const SHOW: &str = "echo name=$WHEELLOCK_NAME; echo owner=$WHEELLOCK_OWNER; \
                    echo token=${WHEELLOCK_TOKEN-none}";

fn value(output: &str, key: &str) -> String {
    let line = output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default().to_owned()
}

#[test]
fn the_environment_has_name_owner_and_token() {
    let server = Server::start();
    let script = format!("{SHOW}; echo on; exec sleep 1000");
    let mut process = spawn(&server, &[], &["sh", "-c", &script]);
    process.wait_for_line("on", PATIENCE);
    let shown = process.output();
    assert_eq!(value(&shown, "name"), NAME);
    let owner = value(&shown, "owner");
    assert_eq!(server.command(&["HEXISTS", NAME, &owner]).integer(), 1, "{shown}");
    let token: u64 = value(&shown, "token").parse().unwrap();
    process.terminate();
    assert_eq!(ended(process).0, 143);
    let (_, shown) = outcome(&server, &[], SHOW);
    assert!(value(&shown, "token").parse::<u64>().unwrap() > token);
}

#[test]
fn tokens_of_every_exclusive_kind_grow_across_kinds() {
    let server = Server::start();
    let mut newest = 7;
    for kind in [&["--fair"][..], &["--exclusive"], &["--permits", "2"], &[], &["--lease", "60"]] {
        let mut command = run(&server, kind, &["sh", "-c", SHOW]);
        let (code, shown) = ended(TestProcess::spawn(command.env("WHEELLOCK_TOKEN", "7")));
        assert_eq!(code, SUCCESS, "{shown}");
        let token: u64 = value(&shown, "token").parse().unwrap();
        assert!(token > newest, "{kind:?}: {token} after {newest}");
        newest = token;
        // Another kind of the same name; the counter of tokens stays.
        server.command(&["DEL", NAME, &format!("{{{NAME}}}:timeout")]);
    }
}

#[test]
fn a_shared_lock_has_no_token_and_not_that_of_a_lock_around_it() {
    let server = Server::start();
    let mut command = run(&server, &["--shared"], &["sh", "-c", SHOW]);
    let (code, shown) = ended(TestProcess::spawn(command.env("WHEELLOCK_TOKEN", "7")));
    assert_eq!(code, SUCCESS, "{shown}");
    assert_eq!(value(&shown, "token"), "none");
    assert!(!value(&shown, "owner").is_empty());
}

#[test]
fn arguments_come_as_they_are() {
    let server = Server::start();
    let strange = "$HOME; exit 7 '\" *\n--wait";
    let (code, output) = ended(spawn(&server, &[], &["printf", "%s|", strange, "", "--", "-q"]));
    assert_eq!(code, SUCCESS);
    assert_eq!(output, format!("{strange}||--|-q|\n"));
}

#[test]
fn standard_input_is_that_of_the_command() {
    let server = Server::start();
    let mut child =
        run(&server, &[], &["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"one\ntwo\n");
    assert!(output.status.success());
}

#[test]
fn no_signal_is_blocked_in_the_command() {
    let server = Server::start();
    // Without a shell, which may set them.
    let (code, output) = ended(spawn(&server, &[], &["grep", "SigBlk", "/proc/self/status"]));
    // Elsewhere than on Linux there is no such file.
    if code == SUCCESS {
        assert_eq!(output, "SigBlk:\t0000000000000000\n");
    }
}

#[test]
fn the_command_leads_a_process_group_of_its_own() {
    let server = Server::start();
    let (_, output) = outcome(&server, &[], "echo $$; ps -o pgid= -p $$");
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    assert_eq!(lines[0], lines[1], "{output}");
}
