//! `wheellock unlock`.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{
    FAILED, LOST, NAME, NOT_ACQUIRED, PATIENCE, SUCCESS, ended, holding, is_locked, outcome, spawn,
    wait_until_one_waits, wheellock,
};
use crate::terminal::Session;

/// A thread of Redisson, as its owner shows.
const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

/// A hold of the library that was released before its shortest time was over.
const KEPT: &str = "7f9a3b7e-0f0e-8c3f-9a51-2f4a5d8f0c11:42:kept";

fn unlock(server: &Server, options: &[&str]) -> (i32, String) {
    let words = [&["unlock"], options, &[NAME]].concat();
    ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", server.url())))
}

#[test]
fn a_lock_of_each_kind_is_released_by_force_and_its_holder_told() {
    let server = Server::start();
    for kind in [&[][..], &["--fair"], &["--shared"], &["--exclusive"]] {
        let (holder, _) = holding(&server, &[kind, &["--watchdog", "5"]].concat());
        let (code, output) = unlock(&server, &["--force", "--yes"]);
        assert_eq!((code, output.as_str()), (SUCCESS, "nightly: released\n"), "{kind:?}");
        let (code, output) = ended(holder);
        assert_eq!(code, LOST, "{kind:?}: {output}");
        assert!(output.contains("its key was deleted"), "{kind:?}: {output}");
        assert!(!is_locked(&server), "{kind:?}");
    }
}

#[test]
fn a_release_by_force_wakes_a_waiter() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &[]);
    let mut waiter = spawn(&server, &[], &["echo", "mine"]);
    wait_until_one_waits(&server);
    assert_eq!(unlock(&server, &["--force", "--yes"]).0, SUCCESS);
    waiter.wait_for_line("mine", PATIENCE);
    assert_eq!(ended(waiter).0, SUCCESS);
}

#[test]
fn a_lock_that_is_not_held_is_not_released() {
    let server = Server::start();
    let (code, output) = unlock(&server, &["--force", "--yes"]);
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("not held"), "{output}");
}

#[test]
fn a_key_that_is_not_a_lock_stays() {
    let server = Server::start();
    server.command(&["SET", NAME, "other data"]);
    let (code, output) = unlock(&server, &["--force", "--yes"]);
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("a string that is not a lock"), "{output}");
    assert_eq!(server.command(&["GET", NAME]).text(), "other data");
    server.command(&["DEL", NAME]);
    server.command(&["HSET", NAME, "user", "ann"]);
    let (code, output) = unlock(&server, &["--force", "--yes"]);
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("a hash that is not a lock"), "{output}");
    assert_eq!(server.command(&["HGET", NAME, "user"]).text(), "ann");
    server.command(&["DEL", NAME]);
    server.command(&["SET", NAME, "3"]);
    let (code, output) = unlock(&server, &["--force", "--yes"]);
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("a number has no holder"), "{output}");
    assert_eq!(server.command(&["GET", NAME]).text(), "3");
}

#[test]
fn a_simple_lock_is_released_by_force() {
    let server = Server::start();
    server.command(&["SET", NAME, JAVA, "PX", "60000"]);
    let (code, output) = unlock(&server, &["--force", "--yes"]);
    assert_eq!((code, output.as_str()), (SUCCESS, "nightly: released\n"));
    assert!(!is_locked(&server));
}

#[test]
fn the_question_is_true_for_the_holder_that_was_found() {
    let server = Server::start();
    let program = [env!("CARGO_BIN_EXE_wheellock"), "unlock", "--force", NAME];
    for (owner, shown, consequence) in [
        (JAVA, "held by redisson 7f9a", "is not told of a release by force"),
        ("worker-7", "held by an unknown kind of client, worker-7", "look at its program first"),
        (KEPT, "held by wheellock 7f9a", "Its holder has released it"),
    ] {
        server.command(&["DEL", NAME]);
        server.command(&["HSET", NAME, owner, "1"]);
        server.command(&["PEXPIRE", NAME, "60000"]);
        let mut session = Session::start(&server, &program);
        session.wait_for("Release it? [y/N]");
        session.wait_for(shown);
        session.wait_for(consequence);
        session.press("y\n");
        assert_eq!(session.process.wait_for_exit(PATIENCE), SUCCESS, "{owner}");
        assert!(!is_locked(&server), "{owner}");
    }
}

#[test]
fn a_message_does_not_carry_a_long_name() {
    let server = Server::start();
    for name in ["x".repeat(60_000), "x".repeat(70_000)] {
        let words = ["unlock", "--force", "--yes", &name];
        let command = &mut wheellock(&words);
        let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", server.url())));
        assert_ne!(code, SUCCESS);
        assert!(output.len() < 300, "{} bytes", output.len());
        let words = ["run", "--no-wait", &name, "--", "true"];
        let command = &mut wheellock(&words);
        server.command(&["HSET", &name, JAVA, "1"]);
        let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", server.url())));
        assert_ne!(code, SUCCESS);
        assert!(output.len() < 300, "{} bytes", output.len());
    }
}

#[test]
fn nothing_is_released_without_force_and_consent() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &[]);
    for options in [&[][..], &["--yes"]] {
        assert_eq!(unlock(&server, options).0, FAILED, "--force is required");
    }
    let (code, output) = unlock(&server, &["--force"]);
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("--yes"), "{output}");
    assert!(is_locked(&server));
}

#[test]
fn on_a_terminal_it_asks() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &[]);
    let program = [env!("CARGO_BIN_EXE_wheellock"), "unlock", "--force", NAME];
    for (answer, code) in [("n\n", NOT_ACQUIRED), ("\n", NOT_ACQUIRED), ("y\n", SUCCESS)] {
        let mut session = Session::start(&server, &program);
        session.wait_for("Release it? [y/N]");
        session.press(answer);
        assert_eq!(session.process.wait_for_exit(PATIENCE), code, "{answer:?}");
    }
    assert_eq!(outcome(&server, &["--no-wait"], "exit 7").0, 7);
}
