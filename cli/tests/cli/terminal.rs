//! wheellock in a terminal: who reads, Ctrl-C, Ctrl-Z.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{PATIENCE, is_locked, state};

/// A session on a terminal of its own, with one program in the foreground.
pub(crate) struct Session {
    pub(crate) process: TestProcess,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl Session {
    /// Runs a program in a new session.
    pub(crate) fn start(server: &Server, program: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let path = OsString::from_vec(ptsname(&terminal, Vec::new()).unwrap().into_bytes());
        // The session is begun by this program, which then becomes the other.
        let mut leader = Command::new(env::current_exe().unwrap());
        leader.args(["--exact", "terminal::leader", "--ignored", "--nocapture"]);
        leader.env("LEADER_TERMINAL", path).env("LEADER_PROGRAM", program.join("\u{1f}"));
        leader.env("WHEELLOCK", env!("CARGO_BIN_EXE_wheellock"));
        leader.env("REDIS_URL", server.url()).env("PS1", "").env("HISTFILE", "");
        let process = TestProcess::spawn(&mut leader);
        let keyboard = File::from(terminal);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        let read = move || {
            let mut bytes = [0; 1024];
            // It ends with an error when no process has the terminal any more.
            while let Ok(length) = reader.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        };
        thread::Builder::new().name("screen".to_owned()).spawn(read).unwrap();
        Self { process, keyboard, screen }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The rest of the first line that begins so, once it is complete: what a program has written
    /// and nobody has read is lost with Ctrl-Z.
    fn line(&self, beginning: &str) -> Option<String> {
        let screen = self.screen.lock().unwrap();
        let mut complete = screen.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        complete.find_map(|line| line.strip_prefix(beginning)).map(|rest| rest.trim().to_owned())
    }

    /// Waits until the text is on the screen.
    pub(crate) fn wait_for(&self, text: &str) {
        let what = format!("{text:?} is on the screen");
        wait_until(&what, PATIENCE, || self.screen.lock().unwrap().contains(text));
    }
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A command that runs until it is ended, and shows `[package]` first. From then on it can be
/// interrupted. A shell loses an interrupt that comes while it starts another program.
const SHOW_MANIFEST: &str = "tail -n +1 -f Cargo.toml";

/// The first process of a session. It has no other way to run between `fork` and `exec`.
#[test]
#[ignore = "the other tests start it as a process"]
fn leader() {
    let Some(terminal) = env::var_os("LEADER_TERMINAL") else { return };
    let program = env::var("LEADER_PROGRAM").unwrap();
    let words: Vec<&str> = program.split('\u{1f}').collect();
    setsid().unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(terminal).unwrap();
    ioctl_tiocsctty(&terminal).unwrap();
    let copy = || terminal.try_clone().unwrap();
    let error =
        Command::new(words[0]).args(&words[1..]).stdin(copy()).stdout(copy()).stderr(copy()).exec();
    panic!("{error}");
}

fn wheellock(script: &str) -> Vec<&str> {
    vec![env!("CARGO_BIN_EXE_wheellock"), "run", "nightly", "--", "sh", "-c", script]
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let server = Server::start();
    let script = "echo ask\"\"ing; read line; echo \"got <$line>\"";
    let mut session = Session::start(&server, &wheellock(script));
    session.wait_for("asking");
    session.press("hello\n");
    session.wait_for("got <hello>");
    assert_eq!(session.process.wait_for_exit(PATIENCE), 0);
}

#[test]
fn an_interrupt_reaches_a_command_that_does_not_read() {
    let server = Server::start();
    let script = format!("exec {SHOW_MANIFEST}");
    let mut session = Session::start(&server, &wheellock(&script));
    session.wait_for("[package]");
    session.press(CTRL_C);
    assert_eq!(session.process.wait_for_exit(PATIENCE), 130);
    assert!(!is_locked(&server));
}

#[test]
fn an_interrupt_reaches_a_command_that_has_the_terminal() {
    let server = Server::start();
    let script = "read one; echo \"got <$one>\"; read two";
    let mut session = Session::start(&server, &wheellock(script));
    session.press("hello\n");
    session.wait_for("got <hello>");
    session.press(CTRL_C);
    assert_eq!(session.process.wait_for_exit(PATIENCE), 130);
    assert!(!is_locked(&server));
}

#[test]
fn the_terminal_is_given_back_when_the_command_ends() {
    let server = Server::start();
    let script = "$WHEELLOCK run nightly -- sh -c 'read one; echo \"got <$one>\"'; \
                  read two; echo \"then <$two>\"";
    let mut session = Session::start(&server, &["sh", "-c", script]);
    session.press("hello\n");
    session.wait_for("got <hello>");
    session.press("again\n");
    session.wait_for("then <again>");
    assert_eq!(session.process.wait_for_exit(PATIENCE), 0);
}

#[test]
fn a_pipeline_keeps_the_terminal() {
    let server = Server::start();
    // The reader at the other end of the pipe reads from the terminal as well, as a pager does.
    let script = format!(
        "$WHEELLOCK run nightly -- {SHOW_MANIFEST} | \
         sh -c 'read line; echo $line; read key </dev/tty; echo \"got <$key>\"'"
    );
    let mut session = Session::start(&server, &["sh", "-c", &script]);
    session.wait_for("[package]");
    session.press("q\n");
    session.wait_for("got <q>");
    session.press(CTRL_C);
    session.process.wait_for_exit(PATIENCE);
    wait_until("the lock is free", PATIENCE, || !is_locked(&server));
}

#[test]
fn a_job_can_be_stopped_and_put_into_the_foreground_again() {
    let server = Server::start();
    let pipe = env::temp_dir().join(format!("wheellock-cli-{}-pipe", std::process::id()));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let shown = pipe.display();
    for (script, has_terminal) in [
        // One has the terminal when it is stopped. The other waits for something else, in the shell
        // itself: a shell that is starting a program at that moment does not stop before it runs.
        ("read one; echo \"got <$one>\"; read two; echo \"then <$two>\"".to_owned(), true),
        (format!("read one <\"{shown}\"; read two; echo \"then <$two>\""), false),
    ] {
        let script = format!("echo process $$; {script}");
        let mut session = Session::start(&server, &["sh", "-i"]);
        session.press(&format!("$WHEELLOCK run nightly -- sh -c '{script}'\n"));
        let mut id = None;
        wait_until("it runs", PATIENCE, || {
            id = session.line("process ");
            id.is_some()
        });
        let command = rustix::process::Pid::from_raw(id.unwrap().parse().unwrap()).unwrap();
        if has_terminal {
            session.press("hello\n");
            session.wait_for("got <hello>");
        }
        session.press(CTRL_Z);
        // The shell has the terminal again when it says so.
        session.wait_for("Stopped");
        session.press("echo ba''ck\n");
        session.wait_for("back");
        wait_until("the command stands still", PATIENCE, || state(command) == Some('T'));
        session.press("fg\n");
        wait_until("the command goes on", PATIENCE, || state(command) != Some('T'));
        if !has_terminal {
            fs::write(&pipe, "go on\n").unwrap();
        }
        session.press("again\n");
        session.wait_for("then <again>");
        session.press("exit 0\n");
        assert_eq!(session.process.wait_for_exit(PATIENCE), 0);
    }
    fs::remove_file(&pipe).unwrap();
}
