//! Exit codes, messages, and what a run leaves on the server.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{
    FAILED, LOST, NAME, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND, PATIENCE, SUCCESS, ended, holding,
    is_locked, outcome, spawn, wait_for_renewal, wait_until_one_waits, wheellock,
};

#[test]
fn the_exit_code_is_that_of_the_command() {
    let server = Server::start();
    for code in [0, 1, 7, 123, 255] {
        assert_eq!(outcome(&server, &[], &format!("exit {code}")), (code, String::new()));
        assert!(!is_locked(&server));
    }
}

#[test]
fn a_command_that_a_signal_ended_has_128_and_the_signal() {
    let server = Server::start();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130), ("USR1", 138)] {
        let (ended_with, output) = outcome(&server, &[], &format!("kill -{signal} $$; sleep 60"));
        assert_eq!(ended_with, code, "{output}");
        assert!(!is_locked(&server));
    }
}

#[test]
fn a_command_that_cannot_be_run_has_the_codes_of_env() {
    let server = Server::start();
    let (code, output) = ended(spawn(&server, &[], &["/nowhere/at-all"]));
    assert_eq!(code, NOT_FOUND, "{output}");
    assert!(output.contains("/nowhere/at-all: No such file"), "{output}");
    let (code, output) = ended(spawn(&server, &[], &["/dev/null"]));
    assert_eq!(code, NOT_EXECUTABLE, "{output}");
    assert!(!is_locked(&server));
}

#[test]
fn a_wrong_command_line_runs_nothing() {
    let server = Server::start();
    for wrong in [
        &["--wait", "-1"][..],
        &["--wait", "soon"],
        &["--wait", "1", "--no-wait"],
        &["--lease", "5", "--watchdog", "5"],
        &["--lease", "0"],
        &["--watchdog", "0.01"],
        &["--fair", "--shared"],
        &["--shared", "--exclusive"],
        &["--permits", "0"],
        &["--on-conflict", "256"],
        &["--quickly"],
    ] {
        let (code, output) = outcome(&server, wrong, "echo it ran");
        assert_eq!(code, FAILED, "{wrong:?}: {output}");
        assert!(!output.contains("it ran"), "{wrong:?}: {output}");
    }
    for incomplete in [&["run"][..], &["run", NAME], &["run", NAME, "--"], &["run", "--", "true"]] {
        let mut command = wheellock(incomplete);
        let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", server.url())));
        assert_eq!(code, FAILED, "{output}");
        assert!(output.contains("Usage"), "{output}");
    }
}

#[test]
fn without_a_server_nothing_runs() {
    for (url, message) in [
        ("", "which server?"),
        ("nonsense", "the server's URL"),
        ("redis://127.0.0.1:1/", "cannot be reached"),
    ] {
        let mut command = wheellock(&["run", NAME, "--", "echo", "it ran"]);
        let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", url)));
        assert_eq!(code, FAILED, "{output}");
        assert!(output.contains(message) && !output.contains("it ran"), "{output}");
    }
}

#[test]
fn a_server_that_hangs_or_goes_away_ends_the_wait() {
    let server = Server::start();
    server.pause();
    let (code, output) = outcome(&server, &[], "echo it ran");
    assert_eq!(code, FAILED, "{output}");
    assert!(!output.contains("it ran"), "{output}");
    server.resume();
    let (_holder, _) = holding(&server, &[]);
    let waiter = spawn(&server, &[], &["echo", "it ran"]);
    wait_until_one_waits(&server);
    server.kill();
    let (code, output) = ended(waiter);
    assert_eq!(code, FAILED, "{output}");
    assert!(!output.contains("it ran"), "{output}");
}

#[test]
fn a_key_that_is_not_a_lock_is_an_error() {
    let server = Server::start();
    server.command(&["SET", NAME, "other data"]);
    let (code, output) = outcome(&server, &[], "echo it ran");
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("holds something that is not a lock"), "{output}");
    assert!(!output.contains("it ran"), "{output}");
}

#[test]
fn a_lock_that_is_held_is_a_conflict() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &[]);
    for (options, code) in [
        (&["--no-wait"][..], NOT_ACQUIRED),
        (&["--wait", "0"], NOT_ACQUIRED),
        (&["--wait", "0.2"], NOT_ACQUIRED),
        (&["--no-wait", "--on-conflict", "75"], 75),
        (&["--no-wait", "--on-conflict", "0"], 0),
    ] {
        let (ended_with, output) = outcome(&server, options, "echo it ran");
        assert_eq!(ended_with, code, "{output}");
        assert!(output.contains("nightly: not acquired"), "{output}");
        assert!(!output.contains("it ran"), "{output}");
    }
    let quiet = outcome(&server, &["--quiet", "--no-wait"], "echo it ran");
    assert_eq!(quiet, (NOT_ACQUIRED, String::new()));
}

#[test]
fn a_release_hands_the_lock_to_a_waiter() {
    let server = Server::start();
    let (holder, _) = holding(&server, &[]);
    let mut waiter = spawn(&server, &["--wait", "600"], &["echo", "mine"]);
    wait_until_one_waits(&server);
    assert_eq!(waiter.lines(), Vec::<String>::new());
    holder.terminate();
    waiter.wait_for_line("mine", PATIENCE);
    assert_eq!(ended(waiter).0, SUCCESS);
}

#[test]
fn the_lease_is_thirty_seconds_unless_it_is_given() {
    let server = Server::start();
    for (options, most) in [
        (&[][..], 30_000),
        (&["--watchdog", "22.5"], 22_500),
        (&["--lease", "17.25"], 17_250),
        (&["--fair", "--lease", "17.25"], 17_250),
    ] {
        let (holder, _) = holding(&server, options);
        let left = server.command(&["PTTL", NAME]).integer();
        assert!((most / 2..=most).contains(&left), "{options:?}: {left} ms");
        holder.terminate();
        assert_eq!(ended(holder).0, 143);
    }
}

#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let (holder, _) = holding(&server, &["--watchdog", "6"]);
    wait_for_renewal(&server);
    holder.terminate();
    assert_eq!(ended(holder).0, 143);
}

#[test]
fn readers_share_and_the_writer_is_alone() {
    let server = Server::start();
    let (reader, _) = holding(&server, &["--shared"]);
    assert_eq!(outcome(&server, &["--shared", "--no-wait"], "exit 7").0, 7);
    assert_eq!(outcome(&server, &["--exclusive", "--no-wait"], "exit 7").0, NOT_ACQUIRED);
    reader.terminate();
    assert_eq!(ended(reader).0, 143);
    let (_writer, _) = holding(&server, &["--exclusive"]);
    assert_eq!(outcome(&server, &["--shared", "--no-wait"], "exit 7").0, NOT_ACQUIRED);
    assert_eq!(outcome(&server, &["--exclusive", "--no-wait"], "exit 7").0, NOT_ACQUIRED);
}

#[test]
fn as_many_run_as_there_are_permits() {
    let server = Server::start();
    let (first, _) = holding(&server, &["--permits", "2"]);
    let (_second, _) = holding(&server, &["--permits", "2", "--lease", "600"]);
    let (code, output) = outcome(&server, &["--permits", "2", "--no-wait"], "exit 7");
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("all its permits are taken"), "{output}");
    first.terminate();
    assert_eq!(ended(first).0, 143);
    assert_eq!(outcome(&server, &["--permits", "2", "--no-wait"], "exit 7").0, 7);
    // The command line says how many there are, now as well.
    let (_third, _) = holding(&server, &["--permits", "2"]);
    assert_eq!(outcome(&server, &["--permits", "2", "--no-wait"], "exit 7").0, NOT_ACQUIRED);
    assert_eq!(outcome(&server, &["--permits", "3", "--no-wait"], "exit 7").0, 7);
}

#[test]
fn the_kinds_exclude_each_other_where_they_are_one_lock() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &["--fair"]);
    assert_eq!(outcome(&server, &["--no-wait"], "exit 7").0, NOT_ACQUIRED);
    assert_eq!(outcome(&server, &["--fair", "--no-wait"], "exit 7").0, NOT_ACQUIRED);
}

#[test]
fn a_short_command_keeps_the_lock_for_the_shortest_time() {
    let server = Server::start();
    for kind in [&["--fair"][..], &["--exclusive"], &["--shared"], &["--permits", "1"], &[]] {
        let with = |more: &[&'static str]| [kind, more].concat();
        assert_eq!(outcome(&server, &with(&["--min-hold", "600"]), "exit 7").0, 7, "{kind:?}");
        // Nobody holds it any more: the process has ended.
        let rival = if kind == ["--shared"] { vec!["--exclusive"] } else { kind.to_vec() };
        let rival = [&rival, &["--no-wait"][..]].concat();
        assert_eq!(outcome(&server, &rival, "exit 7").0, NOT_ACQUIRED, "{kind:?}");
        server.command(&["FLUSHALL"]);
    }
}

#[test]
fn a_waiter_has_the_lock_when_the_shortest_time_is_over() {
    let server = Server::start();
    for kind in [&[][..], &["--permits", "1"]] {
        assert_eq!(outcome(&server, &[kind, &["--min-hold", "1.5"]].concat(), "exit 7").0, 7);
        // The lease was 30 s.
        assert_eq!(outcome(&server, &[kind, &["--wait", "20"]].concat(), "exit 8").0, 8);
    }
}

#[test]
fn a_release_without_a_reply_does_not_change_the_exit_code() {
    let server = Server::start();
    let mut holder = spawn(
        &server,
        &[],
        &["sh", "-c", "trap 'exit 7' TERM; echo on; while :; do sleep 0.05; done"],
    );
    holder.wait_for_line("on", PATIENCE);
    server.kill();
    holder.terminate();
    let (code, output) = ended(holder);
    assert_eq!(code, 7, "{output}");
    assert!(output.contains("when its lease ends"), "{output}");
}

#[test]
fn a_lock_that_another_has_by_the_end_is_lost() {
    let server = Server::start();
    let mut process = spawn(
        &server,
        &[],
        &["sh", "-c", "trap 'exit 0' TERM; echo on; while :; do sleep 0.05; done"],
    );
    process.wait_for_line("on", PATIENCE);
    server.command(&["DEL", NAME]);
    process.terminate();
    let (code, output) = ended(process);
    assert_eq!(code, LOST, "{output}");
    assert!(output.contains("lost"), "{output}");
}

#[test]
fn help_and_version_are_not_errors() {
    for words in [&["--help"][..], &["run", "--help"], &["-h"], &["--version"]] {
        let (code, output) = ended(TestProcess::spawn(&mut wheellock(words)));
        assert_eq!(code, SUCCESS, "{output}");
        assert!(output.contains("wheellock"), "{output}");
    }
}

#[test]
fn a_number_of_permits_that_is_refused_names_the_real_bounds() {
    for permits in ["0", "2147483648"] {
        let arguments = ["run", "--permits", permits, NAME, "--", "true"];
        let (_, output) = ended(TestProcess::spawn(&mut wheellock(&arguments)));
        assert!(output.contains("1..=2147483647"), "{output}");
    }
}
