//! `wheellock doctor`: the exit codes, the table, and JSON.

use wheellock_fixture::{Server, TestProcess};

use crate::support::{FAILED, SUCCESS, ended, wheellock};

const WARNED: i32 = 1;
const UNFIT: i32 = 2;

fn ask(url: &str, words: &[&str]) -> (i32, String) {
    let words = [&["doctor"], words].concat();
    ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", url)))
}

#[test]
fn the_exit_code_is_that_of_the_worst_check() {
    let server = Server::start();
    let (code, output) = ask(&server.url(), &[]);
    assert_eq!(code, WARNED, "{output}");
    assert!(output.contains("\nwarn  persistence "), "{output}");
    assert!(
        output.contains("\n                         -> start a failed server only"),
        "{output}"
    );

    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let (code, output) = ask(&server.url(), &[]);
    assert_eq!(code, SUCCESS, "{output}");
    // On a busy machine the round trips may be too long to judge the clock.
    let is_fine = |line: &str| line.starts_with("ok    ") || line.starts_with("-     clock ");
    assert!(output.lines().all(is_fine), "{output}");

    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let (code, output) = ask(&server.url(), &["--json"]);
    assert_eq!(code, UNFIT, "{output}");
    let json: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(json["state"], "fail");
    let checks = json["checks"].as_array().unwrap();
    let eviction = checks.iter().find(|check| check["name"] == "eviction").unwrap();
    assert_eq!(eviction["state"], "fail");
    assert_eq!(eviction["found"], "allkeys-lru evicts locks");
    assert_eq!(eviction["repair"], "CONFIG SET maxmemory-policy noeviction");
}

#[test]
fn a_server_that_is_not_there_is_a_failed_check() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let (code, output) = ask(&url, &[]);
    assert_eq!(code, UNFIT, "{output}");
    assert!(output.starts_with("fail  connection  "), "{output}");
    assert_eq!(ask(&url, &["--what"]).0, FAILED);
}

#[test]
fn a_user_of_some_names_is_asked_with_their_prefix() {
    let server = Server::start();
    let user = ["ACL", "SETUSER", "some", "on", ">secret", "+@all", "&*"];
    let keys = ["~orders:*", "~redisson_*", "~wheellock_request:*", "~wheellock_client:*"];
    server.command(&[&user[..], &keys, &["~{orders:*"]].concat());
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let url = format!("redis://some:secret@{}/", server.address());
    let (code, output) = ask(&url, &[]);
    assert_eq!(code, UNFIT, "{output}");
    assert!(output.contains("ACL SETUSER some ~wheellock_doctor:*"), "{output}");
    let (code, output) = ask(&url, &["--prefix", "orders:"]);
    assert_eq!(code, SUCCESS, "{output}");
}

#[test]
fn the_server_is_an_argument_too() {
    let server = Server::start();
    let url = server.url();
    let run = |words: &[&str]| {
        ended(TestProcess::spawn(wheellock(words).env("REDIS_URL", "redis://127.0.0.1:1/")))
    };
    let (code, output) = run(&["doctor", &url]);
    assert_eq!(code, WARNED, "{output}");
    assert_eq!(run(&["doctor"]).0, UNFIT);
    assert_eq!(run(&["doctor", &url, "--redis", &url]).0, FAILED);
}
