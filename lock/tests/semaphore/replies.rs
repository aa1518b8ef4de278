//! What the scripts of semaphores, permits and latches reply, value by value.

use crate::common::is_late;
use wheellock_fixture::{Reply, Server};

const TAKE: &str = include_str!("../../src/ops/scripts/semaphore_acquire.lua");
const UNDO: &str = include_str!("../../src/ops/scripts/semaphore_undo.lua");
const ADD: &str = include_str!("../../src/ops/scripts/semaphore_add.lua");
const MAKE: &str = include_str!("../../src/ops/scripts/semaphore_set.lua");
const DRAIN: &str = include_str!("../../src/ops/scripts/semaphore_drain.lua");
const ACQUIRE: &str = include_str!("../../src/ops/scripts/permits_acquire.lua");
const RELEASE: &str = include_str!("../../src/ops/scripts/permits_release.lua");
const COUNT: &str = include_str!("../../src/ops/scripts/permits_count.lua");
const SET: &str = include_str!("../../src/ops/scripts/permits_set.lua");
const LEASE: &str = include_str!("../../src/ops/scripts/permits_lease.lua");
const LEASE_OF: &str = include_str!("../../src/ops/scripts/permits_lease_of.lua");
const SET_COUNT: &str = include_str!("../../src/ops/scripts/latch_set.lua");
const COUNT_DOWN: &str = include_str!("../../src/ops/scripts/latch_count_down.lua");
const DELETE: &str = include_str!("../../src/ops/scripts/latch_delete.lua");

/// The number of a call in its request sequence.
const NUMBER: &str = "5";
/// A not-after that is far away, and one that has passed.
const LONG: &str = "9007199254740991";
const PAST: &str = "1";
const A: &str = "aaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbb";

fn run(server: &Server, script: &str, keys: &[&str], arguments: &[&str]) -> Reply {
    let count = keys.len().to_string();
    server.command(&[&["EVAL", script, &count], keys, arguments].concat())
}

fn numbers(numbers: &[i64]) -> Reply {
    Reply::Array(numbers.iter().map(|number| Reply::Integer(*number)).collect())
}

/// The first number of an answer whose last is the server's clock.
fn found(reply: &Reply) -> i64 {
    let parts = reply.array();
    assert!(parts.len() == 2 && parts[1].integer() > 1_700_000_000_000, "{parts:?}");
    parts[0].integer()
}

#[test]
fn the_scripts_of_a_semaphore() {
    let server = Server::start();
    let make =
        |id, n| run(&server, MAKE, &["s", "c", id], &[LONG, n, "0", NUMBER, "9999", "PUBLISH"]);
    assert_eq!(make("m1", "3"), Reply::Integer(1));
    assert_eq!(make("m2", "3"), Reply::Integer(0));
    assert_eq!(make("m1", "3"), Reply::Integer(1), "remembered");
    let take = |id, n| run(&server, TAKE, &["s", id], &[LONG, n, NUMBER, "9999"]);
    assert_eq!(take("t1", "2"), numbers(&[1, 1]));
    assert_eq!(take("t2", "2"), numbers(&[0, 1]));
    assert_eq!(take("t1", "2"), numbers(&[1, 1]), "remembered");
    let undo = |id| found(&run(&server, UNDO, &["s", "c", id], &[NUMBER, "9999", "PUBLISH"]));
    assert_eq!((undo("t1"), undo("t1"), undo("t9")), (1, 0, 0));
    assert_eq!(take("t1", "2"), numbers(&[0, 3]), "undone");
    assert_eq!(take("t9", "2"), numbers(&[0, 3]), "undone before it came");
    let add = |id, n, must| {
        run(&server, ADD, &["s", "c", id], &[LONG, n, must, NUMBER, "9999", "PUBLISH"])
    };
    assert_eq!(found(&add("a1", "4", "0")), 1);
    assert_eq!(found(&add("a2", "2147483647", "0")), -1);
    let drain = |id| run(&server, DRAIN, &["s", id], &[LONG, NUMBER, "9999"]);
    assert_eq!(drain("d1"), Reply::Integer(7));
    assert_eq!(drain("d2"), Reply::Integer(0));
    assert_eq!(drain("d1"), Reply::Integer(7), "remembered");
    assert_eq!((undo("d1"), undo("d1"), undo("d2")), (1, 0, 0));
    assert_eq!(drain("d1"), Reply::Integer(0), "undone");
    assert_eq!(drain("d3"), Reply::Integer(7));
    server.command(&["DEL", "s"]);
    assert_eq!(found(&add("a3", "1", "1")), 0);
    assert_eq!(take("t3", "1"), numbers(&[0, 0]));
    for late in [
        run(&server, MAKE, &["s", "c", "l"], &[PAST, "3", "0", NUMBER, "9999", "PUBLISH"]),
        run(&server, TAKE, &["s", "l"], &[PAST, "1", NUMBER, "9999"]),
        run(&server, ADD, &["s", "c", "l"], &[PAST, "1", "0", NUMBER, "9999", "PUBLISH"]),
        run(&server, DRAIN, &["s", "l"], &[PAST, NUMBER, "9999"]),
    ] {
        assert!(is_late(&late), "{late:?}");
    }
    assert_eq!(server.command(&["EXISTS", "s", "l"]), Reply::Integer(0));
}

#[test]
fn the_scripts_of_permits() {
    let server = Server::start();
    let set =
        |id, n| run(&server, SET, &["s", "z", "c", id], &[LONG, n, NUMBER, "9999", "PUBLISH"]);
    assert_eq!(set("s1", "2"), Reply::Integer(1));
    let acquire = |id, lease| {
        run(&server, ACQUIRE, &["s", "z", "c", &format!("r{id}")], &[LONG, lease, "PUBLISH", id])
    };
    assert_eq!(acquire(A, "-1"), numbers(&[1, 1, -1]));
    assert_eq!(acquire(A, "-1"), numbers(&[1, 1, -1]), "a copy");
    assert_eq!(acquire(B, "1000"), numbers(&[1, 0, -1]));
    assert_eq!(acquire(B, "60000"), numbers(&[1, 0, -1]), "a copy, whose lease begins anew");
    assert!(run(&server, LEASE_OF, &["z"], &[B]).integer() > 59_000);
    assert_eq!(acquire(B, "10"), numbers(&[1, 0, -1]), "a copy that shortens nothing");
    assert!(run(&server, LEASE_OF, &["z"], &[B]).integer() > 59_000);
    server.command(&["ZREM", "z", B]);
    server.command(&["INCR", "s"]);
    let both = [LONG, "-1", "PUBLISH", B, "cccccccccccccccc"];
    let two = run(&server, ACQUIRE, &["s", "z", "c", "r1", "r2"], &both);
    assert_eq!(two, numbers(&[0, 1, -1]));
    let lease_of = |id| run(&server, LEASE_OF, &["z"], &[id]);
    assert_eq!(lease_of(A), Reply::Integer(-1));
    assert_eq!(lease_of(B), Reply::Integer(-2));
    let lease = |id, by| run(&server, LEASE, &["z", by], &[LONG, id, "60000", NUMBER, "9999"]);
    assert_eq!(lease(A, "u1"), Reply::Integer(1));
    assert_eq!(lease(B, "u2"), Reply::Integer(0));
    assert!((59_000..=60_000).contains(&lease_of(A).integer()));
    let refused = run(&server, ACQUIRE, &["s", "z", "c", "r1", "r2"], &both);
    let wait = refused.array()[2].integer();
    assert!((59_000..=60_000).contains(&wait), "until the next lease ends");
    let count = || run(&server, COUNT, &["s", "z", "c"], &["PUBLISH"]);
    assert_eq!(count(), numbers(&[1, 1]));
    let release = |id, by| {
        let keys = ["s", "z", "c", &format!("r{id}")];
        found(&run(&server, RELEASE, &keys, &["9999", "PUBLISH", by, id]))
    };
    assert_eq!((release(A, "x"), release(A, "x"), release(A, "y")), (1, 1, 0));
    assert_eq!(acquire(A, "-1"), numbers(&[0, 2, -1]), "given back before this copy came");
    server.command(&["ZADD", "z", "1000", B]);
    assert_eq!(release(B, "x"), 2, "late");
    assert_eq!(count(), numbers(&[3, 0]));
    server.command(&["ZADD", "z", "1000", B]);
    assert_eq!(count(), numbers(&[4, 0]), "ended by itself");
    for late in [
        run(&server, SET, &["s", "z", "c", "l"], &[PAST, "9", NUMBER, "9999", "PUBLISH"]),
        run(&server, ACQUIRE, &["s", "z", "c", "l"], &[PAST, "-1", "PUBLISH", "dddddddddddddddd"]),
        run(&server, LEASE, &["z", "l"], &[PAST, A, "60000", NUMBER, "9999"]),
    ] {
        assert!(is_late(&late), "{late:?}");
    }
    assert_eq!(count(), numbers(&[4, 0]));
    server.command(&["DEL", "s"]);
    assert_eq!(count(), numbers(&[0, 0]));
}

#[test]
fn the_scripts_of_a_latch() {
    let server = Server::start();
    let set =
        |id, n| run(&server, SET_COUNT, &["s", id], &[LONG, n, NUMBER, "9999", "PUBLISH", "c"]);
    let down = |id| run(&server, COUNT_DOWN, &["s", id], &[LONG, NUMBER, "9999", "PUBLISH", "c"]);
    let delete = |id| run(&server, DELETE, &["s", id], &[LONG, NUMBER, "9999", "PUBLISH", "c"]);
    assert_eq!(down("0"), Reply::Integer(0));
    assert_eq!(set("1", "2"), Reply::Integer(1));
    assert_eq!(set("2", "2"), Reply::Integer(0));
    assert_eq!(set("1", "2"), Reply::Integer(1), "remembered");
    assert_eq!(down("3"), Reply::Integer(1));
    assert_eq!(down("3"), Reply::Integer(1), "remembered");
    assert_eq!(server.command(&["GET", "s"]).text(), "1");
    assert_eq!(delete("4"), Reply::Integer(1));
    assert_eq!(delete("5"), Reply::Integer(0));
    assert_eq!(set("6", "1"), Reply::Integer(1));
    assert_eq!(delete("4"), Reply::Integer(1), "remembered");
    assert_eq!(server.command(&["GET", "s"]).text(), "1");
    for late in [
        run(&server, SET_COUNT, &["s", "l"], &[PAST, "3", NUMBER, "9999", "PUBLISH", "c"]),
        run(&server, COUNT_DOWN, &["s", "l"], &[PAST, NUMBER, "9999", "PUBLISH", "c"]),
        run(&server, DELETE, &["s", "l"], &[PAST, NUMBER, "9999", "PUBLISH", "c"]),
    ] {
        assert!(is_late(&late), "{late:?}");
    }
    assert_eq!(server.command(&["GET", "s"]).text(), "1");
}

#[test]
fn each_script_refuses_a_call_of_a_sequence_after_a_later_one() {
    let server = Server::start();
    // What the scripts would change, and what is remembered of the sequence.
    server.command(&["SET", "s", "3"]);
    server.command(&["SET", "sequence", &format!("{} 1", i64::from(u8::MAX))]);
    let calls: [(&str, &[&str], &[&str]); 9] = [
        (TAKE, &["s", "sequence"], &[LONG, "1", NUMBER, "9999"]),
        (ADD, &["s", "c", "sequence"], &[LONG, "1", "0", NUMBER, "9999", "PUBLISH"]),
        (MAKE, &["new", "c", "sequence"], &[LONG, "1", "0", NUMBER, "9999", "PUBLISH"]),
        (DRAIN, &["s", "sequence"], &[LONG, NUMBER, "9999"]),
        (SET, &["s", "z", "c", "sequence"], &[LONG, "9", NUMBER, "9999", "PUBLISH"]),
        (LEASE, &["z", "sequence"], &[LONG, A, "60000", NUMBER, "9999"]),
        (SET_COUNT, &["new", "sequence"], &[LONG, "1", NUMBER, "9999", "PUBLISH", "c"]),
        (COUNT_DOWN, &["s", "sequence"], &[LONG, NUMBER, "9999", "PUBLISH", "c"]),
        (DELETE, &["s", "sequence"], &[LONG, NUMBER, "9999", "PUBLISH", "c"]),
    ];
    for (script, keys, arguments) in calls {
        let reply = run(&server, script, keys, arguments);
        assert!(is_late(&reply), "{reply:?} of {script}");
    }
    let undo = run(&server, UNDO, &["s", "c", "sequence"], &[NUMBER, "9999", "PUBLISH"]);
    assert_eq!(found(&undo), 0);
    assert_eq!(server.command(&["MGET", "s", "sequence"]).texts(), ["3", "255 1"]);
    assert_eq!(server.command(&["EXISTS", "new", "z"]), Reply::Integer(0));
}

#[test]
fn each_script_replaces_what_is_remembered_of_the_call_before() {
    let server = Server::start();
    server.command(&["SET", "s", "9"]);
    let take = |number| run(&server, TAKE, &["s", "sequence"], &[LONG, "1", number, "9999"]);
    let add = |number| {
        run(&server, ADD, &["s", "c", "sequence"], &[LONG, "5", "0", number, "9999", "PUBLISH"])
    };
    assert_eq!(take("1"), numbers(&[1, 8]));
    assert_eq!(found(&add("2")), 1);
    assert_eq!(found(&add("2")), 1, "a copy");
    assert!(is_late(&take("1")), "a copy of the call before");
    // Compared as numbers and not as texts.
    assert_eq!(take("10"), numbers(&[1, 12]));
    assert!(is_late(&add("2")));
    assert_eq!(server.command(&["MGET", "s", "sequence"]).texts(), ["12", "10 1"]);
}
