//! `wheellock ask`, and what `wheellock run` does then.

use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{
    FAILED, NAME, NOT_ACQUIRED, PATIENCE, SUCCESS, ended, holding, id, is_locked, send, spawn,
    wait_for_end, wheellock,
};
use rustix::process::Signal;

/// A command that ends in its own way when it is asked to.
const POLITE: &[&str] =
    &["sh", "-c", "trap 'echo ends; exit 7' TERM; echo works; while :; do sleep 0.05; done"];

fn ask(server: &Server, options: &[&str]) -> (i32, String) {
    let words = [&["ask"], options, &[NAME]].concat();
    ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", server.url())))
}

#[test]
fn ask_terminates_holder_command_before_lock_release() {
    let server = Server::start();
    for kind in [&[][..], &["--fair"], &["--shared"], &["--lease", "60"]] {
        let mut holder = spawn(&server, kind, POLITE);
        holder.wait_for_line("works", PATIENCE);
        // The server confirms that it hears after a moment.
        wait_until("the holder hears", PATIENCE, || {
            let (code, output) = ask(&server, &["--reason", "deploy of 2.1\u{1b}[2J"]);
            assert!([SUCCESS, NOT_ACQUIRED].contains(&code), "{output}");
            code == SUCCESS
        });
        let (code, output) = ended(holder);
        assert_eq!(code, 7, "{kind:?}: {output}");
        assert!(output.contains("asked to let it go (deploy of 2.1"), "{output}");
        assert!(output.contains("ends") && !output.contains('\u{1b}'), "{output}");
        assert!(!is_locked(&server), "{kind:?}");
    }
}

#[test]
fn a_holder_that_ignores_requests_goes_on() {
    let server = Server::start();
    let (holder, command) = holding(&server, &["--on-ask", "ignore"]);
    let (code, output) = ask(&server, &[]);
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("no holder is known to listen"), "{output}");
    assert!(is_locked(&server));
    send(id(&holder), Signal::TERM);
    wait_for_end(command);
}

#[test]
fn nobody_is_asked_for_a_free_lock_and_other_data_is_no_lock() {
    let server = Server::start();
    let (code, output) = ask(&server, &[]);
    assert_eq!(code, NOT_ACQUIRED, "{output}");
    assert!(output.contains("not held"), "{output}");
    let (code, output) = ask(&server, &["--reason", &"x".repeat(2000)]);
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("1000"), "{output}");
    server.command(&["LPUSH", NAME, "other data"]);
    let (code, output) = ask(&server, &[]);
    assert_eq!(code, FAILED, "{output}");
}
