//! `wheellock run` beside Redisson: a Java program holds and waits for the same locks.
//!
//! The program is that of `lock/tests/redisson`, whose grammar opens `RedissonPeer.java`.
//! `run-tests` builds it and runs these tests, which are ignored otherwise.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a test that fails")]

#[path = "../cli/support.rs"]
#[expect(dead_code, reason = "some of it is for the other tests")]
mod support;

use std::env;
use std::io::Write as _;
use std::process::{ChildStdin, Command};
use std::sync::mpsc::Receiver;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{
    NAME, NOT_ACQUIRED, PATIENCE, SUCCESS, ended, outcome, process_id, spawn, wait_until_one_waits,
    wheellock,
};

/// The options of `wheellock run`, and the same lock in Java.
const KINDS: [(&[&str], &str); 5] = [
    (&[], "fenced"),
    (&[], "lock"),
    (&["--fair"], "fair"),
    (&["--exclusive"], "write"),
    (&["--permits", "1"], "permits"),
];

/// A Java program with one thread. Its commands have their answers in their order.
struct Java {
    _process: TestProcess,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Java {
    fn start(server: &Server) -> Self {
        let program = env::var("REDISSON_PEER").unwrap_or_else(|_| {
            panic!("REDISSON_PEER does not say where the Java program is: run ./run-tests --all")
        });
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", &program]);
        java.arg(server.address().to_string());
        let (process, input, answers) = TestProcess::spawn_for_talk(&mut java);
        let java = Self { _process: process, input, answers };
        assert!(java.line().starts_with("ready "));
        java
    }

    fn line(&self) -> String {
        self.answers.recv_timeout(PATIENCE).unwrap()
    }

    fn send(&mut self, kind: &str, operation: &str) {
        writeln!(self.input, "1 main {kind} {NAME} {operation}").unwrap();
    }

    /// The value of the last command that was sent.
    fn value(&self) -> String {
        let line = self.line();
        line.strip_prefix("1 ok").unwrap_or_else(|| panic!("{line}")).trim_start().to_owned()
    }

    fn call(&mut self, kind: &str, operation: &str) -> String {
        self.send(kind, operation);
        self.value()
    }

    fn acquire(&mut self, kind: &str) -> String {
        if kind == "permits" {
            self.call(kind, "trySetPermits permits=1");
            return self.call(kind, "acquire");
        }
        self.call(kind, "lock")
    }

    fn release(&mut self, kind: &str, held: &str) {
        if kind == "permits" {
            self.call(kind, &format!("release id={held}"));
        } else {
            self.call(kind, "unlock");
        }
    }

    fn try_acquire(&mut self, kind: &str) -> bool {
        let operation = if kind == "permits" { "tryAcquire" } else { "tryLock" };
        let answer = self.call(kind, operation);
        answer != "false" && answer != "null"
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_holder_in_java_excludes_a_command_and_hands_over_to_it() {
    let server = Server::start();
    let mut java = Java::start(&server);
    for (options, kind) in KINDS {
        server.command(&["FLUSHALL"]);
        let held = java.acquire(kind);
        let (code, output) = outcome(&server, &[options, &["--no-wait"]].concat(), "echo it ran");
        assert_eq!(code, NOT_ACQUIRED, "{kind}: {output}");
        let mut waiter = spawn(&server, options, &["echo", "mine"]);
        wait_until_one_waits(&server);
        java.release(kind, &held);
        waiter.wait_for_line("mine", PATIENCE);
        let (code, output) = ended(waiter);
        assert_eq!(code, SUCCESS, "{kind}: {output}");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_command_excludes_java_and_hands_over_to_it() {
    let server = Server::start();
    let mut java = Java::start(&server);
    for (options, kind) in KINDS {
        server.command(&["FLUSHALL"]);
        let mut holder = spawn(&server, options, support::SLEEP);
        process_id(&mut holder);
        assert!(!java.try_acquire(kind), "{kind}");
        java.send(kind, if kind == "permits" { "acquire" } else { "lock" });
        wait_until_one_waits(&server);
        holder.terminate();
        assert_eq!(ended(holder).0, 143);
        let held = java.value();
        assert_eq!(outcome(&server, &[options, &["--no-wait"]].concat(), "").0, NOT_ACQUIRED);
        java.release(kind, &held);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_holder_in_java_is_shown_and_listed() {
    let server = Server::start();
    let mut java = Java::start(&server);
    let ask = |words: &[&str]| {
        let mut command = wheellock(words);
        ended(TestProcess::spawn(command.env("REDIS_URL", server.url())))
    };
    for (kind, shown) in [("lock", "lock"), ("fair", "lock"), ("write", "read-write")] {
        server.command(&["FLUSHALL"]);
        let held = java.acquire(kind);
        let begin = format!("nightly: {shown}, held by redisson ");
        for words in [&["status", NAME][..], &["list", "night*"]] {
            let (code, output) = ask(words);
            assert_eq!(code, SUCCESS, "{kind}: {output}");
            assert!(output.starts_with(&begin), "{kind}: {output}");
        }
        java.release(kind, &held);
        assert_eq!(ask(&["status", NAME]).0, NOT_ACQUIRED, "{kind}");
    }
}
