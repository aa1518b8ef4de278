//! What is at the lock's key and cannot be a lock: an error at once, never a wait. What another
//! client may hold is waited for.

use std::time::Duration;

use wheellock::{Client, Error};
use wheellock_fixture::{Server, wait_until};

use crate::common::{SOON, built, is_wrong_type};

/// Long enough for an answer of the server on a busy machine, and waited out by what waits.
const SHORT: Duration = Duration::from_millis(250);
const REDISSON: &str = "7c4ff0e2-3f9c-4b7e-9a3f-0d7c9a1b2c3d:71";

/// A kind of lock, and what waiting so long for it comes to.
type Attempt = (&'static str, fn(&Client, Duration) -> Result<bool, Error>);

const HASHES: [Attempt; 7] = [
    ("lock", |client, limit| Ok(client.lock("a").try_lock_for(limit)?.is_some())),
    ("non-reentrant", |client, limit| {
        Ok(client.non_reentrant_lock("a").try_lock_for(limit)?.is_some())
    }),
    ("spin", |client, limit| Ok(client.spin_lock("a").try_lock_for(limit)?.is_some())),
    ("fair", |client, limit| Ok(client.fair_lock("a").try_lock_for(limit)?.is_some())),
    ("fenced", |client, limit| Ok(client.fenced_lock("a").try_lock_for(limit)?.is_some())),
    ("read", |client, limit| {
        Ok(client.read_write_lock("a").read_lock().try_lock_for(limit)?.is_some())
    }),
    ("write", |client, limit| {
        Ok(client.read_write_lock("a").write_lock().try_lock_for(limit)?.is_some())
    }),
];

const TEXTS: [Attempt; 1] =
    [("simple", |client, limit| Ok(client.simple_lock("a").try_lock_for(limit)?.is_some()))];

fn found(
    takings: &[Attempt],
    commands: &[&[&str]],
    limit: Duration,
) -> Vec<(&'static str, Result<bool, Error>)> {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).command_timeout(SOON));
    let mut all = Vec::new();
    for (kind, take) in takings {
        server.command(&["FLUSHALL"]);
        for command in commands {
            server.command(command);
        }
        let before = server.command(&["DUMP", "a"]);
        let taken = take(&client, limit);
        assert_eq!(server.command(&["DUMP", "a"]), before, "{kind} changed it");
        wait_until("no queue is left", SOON, || {
            server.command(&["EXISTS", "redisson_lock_queue:{a}"]).integer() == 0
        });
        all.push((*kind, taken));
    }
    all
}

#[test]
fn a_hash_that_is_no_lock_is_an_error_at_once() {
    let expire: &[&str] = &["PEXPIRE", "a", "60000"];
    let cases: [&[&[&str]]; 6] = [
        &[&["HSET", "a", "user", "ann"]],
        &[&["HSET", "a", "user", "ann"], expire],
        &[&["HSET", "a", "sku:123", "2"]],
        &[&["HSET", "a", "mode", "dark", "theme", "1"], expire],
        &[&["HSET", "a", "mode", "read", "owner", "1"]],
        &[&["HSET", "a", REDISSON, "many"]],
    ];
    for commands in cases {
        for (kind, taken) in found(&HASHES, commands, SOON) {
            let is_wrong = taken.as_ref().is_err_and(|error| is_wrong_type(error, "a"));
            assert!(is_wrong, "{kind}: {commands:?}: {taken:?}");
        }
    }
}

#[test]
fn a_hash_that_may_be_a_lock_is_waited_for() {
    let expire: &[&str] = &["PEXPIRE", "a", "60000"];
    let writer = format!("{REDISSON}:write");
    let cases: [&[&[&str]]; 4] = [
        &[&["HSET", "a", REDISSON, "1"]],
        &[&["HSET", "a", "mode", "write", &writer, "2"], expire],
        &[&["HSET", "a", "worker-7", "1"], expire],
        &[&["HSET", "a", &format!("{REDISSON}:kept"), "1"], expire],
    ];
    for commands in cases {
        for (kind, taken) in found(&HASHES, commands, SHORT) {
            assert_eq!(taken, Ok(false), "{kind}: {commands:?}");
        }
    }
}

#[test]
fn a_text_that_is_no_simple_lock_is_an_error_at_once() {
    let taken = found(&TEXTS, &[&["SET", "a", "localhost:8080"]], SOON);
    assert!(
        matches!(&taken[..], [("simple", Err(error))] if is_wrong_type(error, "a")),
        "{taken:?}"
    );
    for commands in [["SET", "a", "other", "PX", "60000"].as_slice(), &["SET", "a", REDISSON]] {
        assert_eq!(found(&TEXTS, &[commands], SHORT), [("simple", Ok(false))], "{commands:?}");
    }
}
