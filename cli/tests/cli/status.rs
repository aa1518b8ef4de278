//! `wheellock status`, `list` and `watch`.

use std::process::Stdio;

use rustix::process::Signal;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{
    FAILED, NAME, NOT_ACQUIRED, PATIENCE, SUCCESS, ended, holding, id, send, spawn,
    wait_until_one_waits, wheellock,
};

/// A thread of Redisson, as its owner shows.
const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

fn ask(server: &Server, words: &[&str]) -> (i32, String) {
    ended(TestProcess::spawn(wheellock(words).env("REDIS_URL", server.url())))
}

fn owner(server: &Server) -> String {
    let fields = server.command(&["HKEYS", NAME]).texts();
    let owner = fields.iter().find(|field| *field != "mode").unwrap();
    owner.trim_end_matches(":write").to_owned()
}

#[test]
fn the_holder_is_shown_with_its_label_and_time() {
    let server = Server::start();
    for (kind, shown) in [
        (&[][..], "fenced"),
        (&["--fair"], "fenced"),
        (&["--shared"], "read-write"),
        (&["--exclusive"], "read-write"),
    ] {
        let (holder, _) = holding(&server, kind);
        let mut output = String::new();
        wait_until("the label is known", PATIENCE, || {
            let (code, shown) = ask(&server, &["status", NAME]);
            assert_eq!(code, SUCCESS, "{shown}");
            output = shown;
            output.contains(", for ")
        });
        let begin = format!("nightly: {shown}, held by wheellock, ");
        assert!(output.starts_with(&begin), "{kind:?}: {output}");
        assert!(output.contains(&owner(&server)) && output.contains("renewed, "), "{output}");

        let (code, output) = ask(&server, &["status", "--json", NAME]);
        assert_eq!(code, SUCCESS, "{output}");
        for part in [
            format!("{{\"held\":true,\"name\":\"nightly\",\"kind\":\"{shown}\""),
            format!("\"owner\":\"{}\",\"kind\":\"wheellock\",\"label\":\"", owner(&server)),
            format!("\"process\":{}", holder.id()),
            format!("\"shared\":{}", kind == ["--shared"]),
            "\"waiters\":{\"here\":0,\"elsewhere\":0,\"queue\":[]}".to_owned(),
        ] {
            assert!(output.contains(&part), "{part} is not in {output}");
        }
        holder.terminate();
        ended(holder);
    }
}

#[test]
fn a_lock_that_is_free_has_an_exit_code_of_its_own() {
    let server = Server::start();
    assert_eq!(ask(&server, &["status", NAME]), (NOT_ACQUIRED, "nightly: not held\n".to_owned()));
    let (code, output) = ask(&server, &["status", "--json", NAME]);
    assert_eq!(code, NOT_ACQUIRED);
    assert!(output.contains("\"held\":false,\"name\":\"nightly\",\"kind\":null"), "{output}");
    server.command(&["SET", NAME, "other data"]);
    assert_eq!(ask(&server, &["status", NAME]).0, FAILED);
}

#[test]
fn waiters_are_counted_and_those_of_a_fair_lock_listed() {
    let server = Server::start();
    let (holder, _) = holding(&server, &["--fair"]);
    let waiter = spawn(&server, &["--fair"], &["true"]);
    wait_until_one_waits(&server);
    wait_until("the label is known", PATIENCE, || {
        let (_, output) = ask(&server, &["status", NAME]);
        output.contains("; 1 waiting") && output.contains("\n  1. wheellock, ")
    });
    holder.terminate();
    ended(holder);
    assert_eq!(ended(waiter).0, SUCCESS);
}

#[test]
fn locks_are_listed_by_pattern_and_other_keys_left_out() {
    let server = Server::start();
    let (_holder, _) = holding(&server, &[]);
    server.command(&["HSET", "night:java", JAVA, "1"]);
    server.command(&["SET", "night:data", "other data"]);
    server.command(&["HSET", "day", JAVA, "1"]);
    let (code, output) = ask(&server, &["list", "night*"]);
    assert_eq!(code, SUCCESS, "{output}");
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    let [java, ours] = lines.as_slice() else { panic!("{output}") };
    assert_eq!(*java, format!("night:java: lock, held by redisson {JAVA}, without an end"));
    assert!(ours.starts_with("nightly: fenced, held by "), "{output}");
    assert_eq!(ask(&server, &["list"]).1.lines().count(), 3);
    let (_, output) = ask(&server, &["list", "--json", "day"]);
    assert!(output.contains("\"kind\":\"redisson\",\"label\":null"), "{output}");
    assert_eq!(server.command_calls("keys"), 0);
}

#[test]
fn odd_keys_do_not_end_the_list() {
    let server = Server::start();
    server.command(&["HSET", "orders:1", JAVA, "1"]);
    server.command(&["SET", "", "1"]);
    server.command(&["SET", "wheellock_job_token:{nightly}", "7"]);
    server.command(&["SET", "address", "localhost:8080"]);
    server.command(&["SET", "digits", "123456789012345678901234"]);
    server.command(&["HSET", "cart", "sku:123", "2"]);
    let only = format!("orders:1: lock, held by redisson {JAVA}, without an end\n");
    assert_eq!(ask(&server, &["list"]), (SUCCESS, only.clone()));

    let user = ["ACL", "SETUSER", "reader", "on", ">secret", "+@all", "&*", "~*orders:*"];
    server.command(&user);
    let url = format!("redis://reader:secret@{}/", server.address());
    let (code, output) = ended(TestProcess::spawn(wheellock(&["list"]).env("REDIS_URL", url)));
    assert_eq!(code, SUCCESS, "{output}");
    // Not the blank key, which is no name, and not the key of a job.
    assert!(output.contains(&only), "{output}");
    assert!(output.contains("wheellock: 3 keys not readable by this user"), "{output}");
}

#[test]
fn each_change_is_a_line_until_a_signal() {
    let server = Server::start();
    let mut watch = wheellock(&["watch", NAME]);
    let mut watch = TestProcess::spawn(watch.env("REDIS_URL", server.url()));
    watch.wait_for_line("nightly: not held", PATIENCE);
    let (holder, _) = holding(&server, &[]);
    watch.wait_for_line("nightly: fenced, held by ", PATIENCE);
    holder.terminate();
    ended(holder);
    watch.wait_for_line("nightly: not held", PATIENCE);
    server.command(&["HSET", NAME, JAVA, "1"]);
    // Its token is still there.
    watch.wait_for_line(&format!("nightly: fenced, held by redisson {JAVA}"), PATIENCE);
    send(id(&watch), Signal::INT);
    assert_eq!(watch.wait_for_exit(PATIENCE), 130);
}

#[test]
fn a_watch_ends_with_its_reader() {
    let server = Server::start();
    let mut watch = wheellock(&["watch", NAME]);
    let mut watch = watch.env("REDIS_URL", server.url()).stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = watch.stdout.take().unwrap();
    let mut first = [0; 8];
    std::io::Read::read_exact(&mut reader, &mut first).unwrap();
    assert_eq!(&first, b"nightly:");
    drop(reader);
    assert!(watch.wait().unwrap().success());
}
