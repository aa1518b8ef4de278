//! `wheellock graph`.

use std::sync::Barrier;
use std::thread;

use serde_json::Value;
use wheellock::{Client, OnDeadlock};
use wheellock_fixture::{Server, TestProcess, wait_until};

#[cfg(feature = "serve")]
use crate::http::get;
#[cfg(feature = "serve")]
use crate::permissions::server_with;
#[cfg(feature = "serve")]
use crate::serve::Serving;
use crate::support::{PATIENCE, SUCCESS, ended, wheellock};

const DEADLOCK: i32 = 3;

/// Names that no format may take for its own.
const NAMES: [&str; 2] = ["a\"<b>&\u{1b}[2J", "orders:2"];

fn graph(server: &Server, options: &[&str]) -> (i32, String) {
    let words = [&["graph"], options].concat();
    ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", server.url())))
}

#[test]
fn without_waits_it_says_so() {
    let server = Server::start();
    let (code, output) = graph(&server, &[]);
    assert_eq!(code, SUCCESS, "{output}");
    assert_eq!(output, "nobody has waited for more than a second\n");
    let (code, output) = graph(&server, &["--format", "json"]);
    assert_eq!(code, SUCCESS, "{output}");
    let found: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(found["cycles"], Value::Array(Vec::new()));
}

/// Calls `look` while two threads of two clients wait for each other, and ends that as an operator does.
fn with_a_deadlock(server: &Server, look: impl FnOnce()) {
    let client = |label: &str| {
        let builder = Client::builder().url(&server.url()).on_deadlock(OnDeadlock::Warn);
        builder.label(label).build().unwrap()
    };
    let clients = [client("one"), client("other")];
    let both = Barrier::new(2);
    thread::scope(|scope| {
        let run = |own: usize| {
            let _first = clients[own].lock(NAMES[own]).lock().unwrap();
            both.wait();
            clients[own].lock(NAMES[1 - own]).try_lock_for(PATIENCE * 2).unwrap().is_some()
        };
        let threads = [0, 1].map(|own| {
            let thread = thread::Builder::new().name(format!("worker-{own}"));
            thread.spawn_scoped(scope, move || run(own)).unwrap()
        });
        look();
        assert!(clients[0].lock("orders:2").force_unlock().unwrap());
        let ends = threads.map(|thread| thread.join().unwrap());
        assert_eq!(ends, [true, true]);
    });
}

#[test]
fn a_cycle_is_shown_in_each_format_and_is_the_exit_code() {
    let server = Server::start();
    with_a_deadlock(&server, || {
        wait_until("the cycle is found", PATIENCE, || graph(&server, &[]).0 == DEADLOCK);
        for format in ["text", "dot", "mermaid", "json"] {
            let (code, output) = graph(&server, &["--format", format]);
            assert_eq!(code, DEADLOCK, "{output}");
            assert!(output.contains("orders:2") && output.contains("worker-1"), "{output}");
            assert!(!output.contains('\u{1b}'), "{output}");
        }
        let (_, text) = graph(&server, &[]);
        assert!(text.contains("deadlock: ") && text.contains(", holds orders:2"), "{text}");
        let (_, dot) = graph(&server, &["--format", "dot"]);
        assert!(dot.starts_with("digraph waits {\n") && dot.ends_with("}\n"), "{dot}");
        assert_eq!(dot.matches("color=red").count(), 4, "{dot}");
        let (_, json) = graph(&server, &["--format", "json", "orders:*"]);
        let found: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(found["locks"].as_array().unwrap().len(), 1, "{json}");
        assert_eq!(found["cycles"][0]["waits"].as_array().unwrap().len(), 2, "{json}");
    });
    assert_eq!(graph(&server, &[]).0, SUCCESS);
}

#[cfg(feature = "serve")]
#[test]
fn the_page_of_a_user_that_only_reads_shows_a_deadlock() {
    let (server, _) = server_with("ACL SETUSER page ");
    let url = format!("redis://page:password@{}/", server.address());
    let mut command = wheellock(&["serve", "--listen", "127.0.0.1:0", "--refresh", "0"]);
    let serving = Serving::of(command.env("REDIS_URL", &url));
    with_a_deadlock(&server, || {
        wait_until("the deadlock is counted", PATIENCE, || {
            get(serving.address, "/metrics", &[]).body.contains("wheellock_server_deadlocks 1\n")
        });
        let api: Value = serde_json::from_str(&get(serving.address, "/api", &[]).body).unwrap();
        let graph = &api["scan"]["graph"];
        let edges = graph["edges"].as_array().unwrap();
        let in_cycle = edges.iter().filter(|edge| edge["cycle"] == true).count();
        assert_eq!((in_cycle, edges.len()), (4, 4), "{graph}");
        assert!(graph["deadlocks"][0].as_str().unwrap().contains("worker-0"), "{graph}");
        let mut command = wheellock(&["graph"]);
        let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", &url)));
        assert_eq!(code, DEADLOCK, "{output}");
    });
    wait_until("it is counted no longer", PATIENCE, || {
        get(serving.address, "/metrics", &[]).body.contains("wheellock_server_deadlocks 0\n")
    });
}

#[test]
fn it_is_printed_again_until_nobody_reads_it() {
    let server = Server::start();
    let mut watch = wheellock(&["graph", "--watch", "--interval", "0.01"]);
    let mut watch = TestProcess::spawn(watch.env("REDIS_URL", server.url()));
    for _ in 0..3 {
        watch.wait_for_line("nobody has waited", PATIENCE);
    }
    watch.interrupt();
    assert_eq!(watch.wait_for_exit(PATIENCE), 130);
}
