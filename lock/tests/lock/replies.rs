//! What the scripts of locks reply, value by value.

use crate::common::is_late;
use std::sync::atomic::{AtomicU32, Ordering};

use wheellock_fixture::{RawConnection, Reply, Server};

/// A script behind the part that says what a key holds.
macro_rules! recognizing {
    ($name:literal) => {
        concat!(
            include_str!("../../src/ops/scripts/recognize.lua"),
            include_str!(concat!("../../src/ops/scripts/", $name, ".lua"))
        )
    };
}

const ACQUIRE: &str = include_str!("../../src/ops/scripts/acquire.lua");
const RECOUNT: &str = include_str!("../../src/ops/scripts/set_count.lua");
const RELEASE: &str = include_str!("../../src/ops/scripts/release.lua");
const FORCE_RELEASE: &str = recognizing!("force_release");
const RENEW: &str = include_str!("../../src/ops/scripts/renew.lua");
const FENCED_ACQUIRE: &str = include_str!("../../src/ops/scripts/fenced_acquire.lua");
const DRAW_TOKEN: &str = include_str!("../../src/ops/scripts/draw_token.lua");
const TEXT_ACQUIRE: &str = include_str!("../../src/ops/scripts/simple_acquire.lua");
const TEXT_RELEASE: &str = include_str!("../../src/ops/scripts/simple_release.lua");
const TEXT_FORCE_RELEASE: &str = recognizing!("simple_force_release");
const TEXT_RENEW: &str = include_str!("../../src/ops/scripts/simple_renew.lua");
const READ_ACQUIRE: &str = include_str!("../../src/ops/scripts/read_acquire.lua");
const READ_RECOUNT: &str = include_str!("../../src/ops/scripts/read_set_count.lua");
const READ_RELEASE: &str = include_str!("../../src/ops/scripts/read_release.lua");
const READ_WRITE_FORCE_RELEASE: &str = recognizing!("read_write_force_release");
const READ_WRITE_IS_LOCKED: &str = include_str!("../../src/ops/scripts/read_write_is_locked.lua");
const WRITE_ACQUIRE: &str = include_str!("../../src/ops/scripts/write_acquire.lua");
const WRITE_RELEASE: &str = include_str!("../../src/ops/scripts/write_release.lua");
const RENEW_READERS: &str = include_str!("../../src/ops/scripts/renew_readers.lua");
const FAIR_ACQUIRE: &str = include_str!("../../src/ops/scripts/fair_acquire.lua");
const FAIR_RELEASE: &str = include_str!("../../src/ops/scripts/fair_release.lua");
const FAIR_FORCE_RELEASE: &str = recognizing!("fair_force_release");

/// A not-after that is far away, and one that has passed.
const LONG: &str = "9007199254740991";
const PAST: &str = "1";
/// The first owner, and others.
const A: &str = "client:1";
const B: &str = "client:2";
const C: &str = "client:3";
const LEASE: &str = "20000";
/// The owner of what has no end, and is a lock nevertheless.
const ENDLESS: &str = "7c4ff0e2-3f9c-4b7e-9a3f-0d7c9a1b2c3d:1";

/// The number of a call in its request sequence.
const NUMBER: &str = "1";
/// How long calls are remembered.
const REMEMBERED: &str = "9999";

/// A request sequence without calls.
fn request() -> String {
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    format!("request:{}", REQUESTS.fetch_add(1, Ordering::Relaxed))
}

fn run(server: &Server, script: &str, keys: &[&str], arguments: &[&str]) -> Reply {
    let count = keys.len().to_string();
    server.command(&[&["EVAL", script, &count], keys, arguments].concat())
}

fn time(server: &Server) -> i64 {
    let parts = server.command(&["TIME"]).texts();
    let numbers: Vec<i64> = parts.iter().map(|part| part.parse().unwrap_or_default()).collect();
    numbers[0] * 1000 + numbers[1] / 1000
}

/// The answer of a release: the number, behind which the server's clock stands.
fn found(server: &Server, reply: &Reply) -> i64 {
    let parts = reply.array();
    let now = parts[1].integer();
    assert!(parts.len() == 2 && (time(server) - now).abs() < 1000, "{parts:?}");
    parts[0].integer()
}

/// The answers of a renewal: the numbers, before which the server's clock stands.
fn answers(server: &Server, reply: &Reply) -> Vec<i64> {
    let parts = reply.array();
    assert!((time(server) - parts[0].integer()).abs() < 1000, "{parts:?}");
    parts[1..].iter().map(Reply::integer).collect()
}

/// Asserts that each reply is a refusal of a copy that came too late, with the server's clock.
fn assert_all_late(server: &Server, replies: &[Reply]) {
    for reply in replies {
        assert!(is_late(reply), "{reply:?}");
        let parts = reply.array();
        assert!(parts.len() == 2 && (time(server) - parts[1].integer()).abs() < 1000, "{parts:?}");
    }
}

fn assert_wrong_type(reply: &Reply) {
    assert!(reply.is_error() && reply.error().contains("WRONGTYPE"), "{reply:?}");
}

fn left(server: &Server, key: &str) -> i64 {
    server.command(&["PTTL", key]).integer()
}

/// Whether a time to live is this lease, of which a little has passed.
fn is_about(left: i64, lease: i64) -> bool {
    (lease - 1000..=lease).contains(&left)
}

fn fields(server: &Server, key: &str) -> Vec<String> {
    let mut pairs: Vec<String> = server
        .command(&["HGETALL", key])
        .texts()
        .chunks(2)
        .map(|pair| format!("{} {}", pair[0], pair[1]))
        .collect();
    pairs.sort();
    pairs
}

/// A connection that gets every message.
fn listen(server: &Server) -> RawConnection {
    let mut listener = server.connection();
    drop(listener.command(&["PSUBSCRIBE", "*"]));
    listener
}

/// The channel and the text of the next message.
fn heard(listener: &mut RawConnection) -> [String; 2] {
    let parts = listener.receive().map(|message| message.texts()).unwrap_or_default();
    assert_eq!(parts.len(), 4, "{parts:?}");
    [parts[2].clone(), parts[3].clone()]
}

/// The next message is one of this test's own: the scripts before have sent none.
fn assert_silence(server: &Server, listener: &mut RawConnection) {
    server.command(&["PUBLISH", "end", "of it"]);
    assert_eq!(heard(listener), ["end", "of it"]);
}

#[test]
fn the_scripts_that_take_a_lock_and_count_its_holds() {
    let server = Server::start();
    let acquire = |owner, lease| run(&server, ACQUIRE, &["a"], &[LONG, owner, lease]);
    assert_eq!(acquire(A, LEASE), Reply::Nil);
    assert!(is_about(left(&server, "a"), 20_000));
    assert_eq!(acquire(A, "100"), Reply::Nil, "a copy, which shortens nothing");
    assert!(is_about(left(&server, "a"), 20_000));
    assert!(is_about(acquire(B, LEASE).integer(), 20_000), "busy for so long");
    assert_eq!(fields(&server, "a"), ["client:1 1"]);

    let recount = |owner, count, lease| run(&server, RECOUNT, &["a"], &[LONG, owner, count, lease]);
    assert_eq!(recount(A, "3", "30000"), Reply::Integer(1));
    assert_eq!(recount(A, "3", "30000"), Reply::Integer(1), "a copy");
    assert_eq!(fields(&server, "a"), ["client:1 3"]);
    assert!(is_about(left(&server, "a"), 30_000));
    assert_eq!(recount(A, "2", "0"), Reply::Integer(1));
    assert!(is_about(left(&server, "a"), 30_000), "as it was");
    assert_eq!(recount(B, "2", "30000"), Reply::Integer(0), "it holds nothing");
    assert_eq!(fields(&server, "a"), ["client:1 2"]);
    server.command(&["PERSIST", "a"]);
    server.command(&["HSET", "endless", ENDLESS, "1"]);
    let busy = run(&server, ACQUIRE, &["endless"], &[LONG, B, LEASE]);
    assert_eq!(busy, Reply::Integer(-1), "busy forever");

    assert_all_late(
        &server,
        &[
            run(&server, ACQUIRE, &["free"], &[PAST, A, LEASE]),
            run(&server, RECOUNT, &["a"], &[PAST, A, "9", LEASE]),
        ],
    );
    assert_eq!(fields(&server, "a"), ["client:1 2"]);
    assert_eq!(server.command(&["EXISTS", "free"]), Reply::Integer(0));
    server.command(&["SET", "data", "x"]);
    assert_wrong_type(&run(&server, ACQUIRE, &["data"], &[LONG, A, LEASE]));
    assert_wrong_type(&run(&server, RECOUNT, &["data"], &[LONG, A, "2", LEASE]));
}

#[test]
fn the_scripts_that_end_a_hold() {
    let server = Server::start();
    let mut listener = listen(&server);
    let take = || run(&server, ACQUIRE, &["a"], &[LONG, A, LEASE]);
    let release = |key, owner, channel: &[&str]| {
        let arguments = [&[owner, "0", "PUBLISH"], channel].concat();
        let reply = run(&server, RELEASE, &[key], &arguments);
        match reply.array() {
            // What was published has reached one subscriber.
            [ended, now, receivers] => {
                assert_eq!((ended.integer(), receivers.integer(), channel.len()), (1, 1, 1));
                assert!((time(&server) - now.integer()).abs() < 1000, "{reply:?}");
                1
            }
            _ => found(&server, &reply),
        }
    };
    assert_eq!(release("a", A, &["c"]), 0);
    take();
    assert_eq!(release("a", B, &["c"]), -1);
    assert_silence(&server, &mut listener);
    assert_eq!(release("a", A, &["c"]), 1);
    assert_eq!(heard(&mut listener), ["c", "0"]);
    assert_eq!(release("a", A, &["c"]), 0, "a copy");
    take();
    run(&server, RECOUNT, &["a"], &[LONG, A, "5", "0"]);
    assert_eq!(release("a", A, &[]), 1, "whatever its count, and without a word");
    assert_silence(&server, &mut listener);
    server.command(&["SET", "data", "x"]);
    assert_eq!(release("data", A, &["c"]), -1);
    assert_eq!(server.command(&["GET", "data"]).text(), "x");

    let force = |key, not_after| {
        run(
            &server,
            FORCE_RELEASE,
            &[key, "c", &request()],
            &[not_after, "0", "PUBLISH", NUMBER, REMEMBERED],
        )
    };
    assert_eq!(force("a", LONG), Reply::Integer(0));
    take();
    assert_all_late(&server, &[force("a", PAST)]);
    assert_silence(&server, &mut listener);
    assert_eq!(force("a", LONG), Reply::Integer(1));
    assert_eq!(heard(&mut listener), ["c", "0"]);
    assert_eq!(force("a", LONG), Reply::Integer(0), "a copy");
    assert_wrong_type(&force("data", LONG));
}

#[test]
fn the_script_that_renews_holds() {
    let server = Server::start();
    for (key, owner) in [("a", A), ("b", B), ("c", C)] {
        run(&server, ACQUIRE, &[key], &[LONG, owner, "5000"]);
    }
    server.command(&["SET", "data", "x"]);
    let keys = ["a", "gone", "b", "data", "c"];
    let renew = |not_after, lease| {
        let arguments = [not_after, A, lease, A, lease, A, lease, A, lease, C, lease];
        run(&server, RENEW, &keys, &arguments)
    };
    assert_eq!(answers(&server, &renew(LONG, LEASE)), [1, 0, -1, -1, 1]);
    assert!(is_about(left(&server, "a"), 20_000) && is_about(left(&server, "c"), 20_000));
    assert!(is_about(left(&server, "b"), 5_000), "another owner's");
    assert_eq!(answers(&server, &renew(LONG, "10")), [1, 0, -1, -1, 1]);
    assert!(is_about(left(&server, "a"), 20_000), "nothing shrinks");
    assert_all_late(&server, &[renew(PAST, "60000")]);
    assert!(is_about(left(&server, "a"), 20_000));
    assert_eq!(left(&server, "data"), -1);
    assert_eq!(server.command(&["EXISTS", "gone"]), Reply::Integer(0));
}

#[test]
fn the_scripts_that_give_tokens() {
    let server = Server::start();
    let acquire =
        |owner, not_after| run(&server, FENCED_ACQUIRE, &["a", "t"], &[not_after, owner, LEASE]);
    let token = |reply: &Reply| {
        let parts = reply.array();
        assert_eq!(parts.len(), 1, "{parts:?}");
        parts[0].text().parse::<i64>().unwrap_or_default()
    };
    let before = time(&server) * 1000;
    let first = token(&acquire(A, LONG));
    assert!(first >= before && first <= (time(&server) + 1) * 1000, "{first}: the clock");
    assert_eq!(token(&acquire(A, LONG)), first, "a copy");
    assert!(is_about(acquire(B, LONG).integer(), 20_000), "busy for so long");
    server.command(&["HSET", "endless", ENDLESS, "1"]);
    let busy = run(&server, FENCED_ACQUIRE, &["endless", "t"], &[LONG, B, LEASE]);
    assert_eq!(busy, Reply::Integer(-1), "busy forever");
    assert_eq!(server.command(&["GET", "t"]).text(), first.to_string());

    let draw =
        |owner, not_after| run(&server, DRAW_TOKEN, &["a", "t"], &[not_after, owner, "hash"]);
    let second = token(&draw(A, LONG));
    assert!(second > first);
    assert!(token(&draw(A, LONG)) > second, "a copy draws another");
    assert_eq!(draw(B, LONG), Reply::Nil);

    // More than the clock, with more digits than a number of Lua's keeps.
    server.command(&["DEL", "a"]);
    server.command(&["SET", "t", "9007199254740993", "EX", "100"]);
    assert_eq!(acquire(B, LONG), Reply::Array(vec![Reply::Text(b"9007199254740994".to_vec())]));
    assert_eq!(left(&server, "t"), -1, "the counter has no expiry");
    server.command(&["EXPIRE", "t", "100"]);
    assert_eq!(draw(B, LONG), Reply::Array(vec![Reply::Text(b"9007199254740995".to_vec())]));
    assert_eq!(left(&server, "t"), -1);

    server.command(&["DEL", "a"]);
    assert_all_late(&server, &[acquire(A, PAST), draw(B, PAST)]);
    assert_eq!(server.command(&["EXISTS", "a"]), Reply::Integer(0));
    assert_eq!(server.command(&["GET", "t"]).text(), "9007199254740995");
    server.command(&["SET", "a", "x"]);
    assert_wrong_type(&acquire(A, LONG));
    assert_wrong_type(&draw(A, LONG));
}

#[test]
fn the_scripts_of_a_simple_lock() {
    let server = Server::start();
    let acquire = |key, owner, lease, not_after| {
        run(&server, TEXT_ACQUIRE, &[key], &[not_after, owner, lease])
    };
    assert_eq!(acquire("a", A, LEASE, LONG), Reply::Nil);
    assert_eq!(acquire("a", A, "10", LONG), Reply::Nil, "a copy, which shortens nothing");
    assert!(is_about(acquire("a", B, LEASE, LONG).integer(), 20_000), "busy for so long");
    assert_eq!(server.command(&["GET", "a"]).text(), A);
    server.command(&["SET", "kept", ENDLESS]);
    assert_eq!(acquire("kept", A, LEASE, LONG), Reply::Integer(-1), "busy forever");

    server.command(&["HSET", "hash", A, "1"]);
    let renew = |not_after, lease| {
        let arguments = [not_after, A, lease, A, lease, A, lease, A, lease];
        run(&server, TEXT_RENEW, &["a", "gone", "kept", "hash"], &arguments)
    };
    assert_eq!(answers(&server, &renew(LONG, "30000")), [1, 0, -1, -1]);
    assert!(is_about(left(&server, "a"), 30_000));
    assert_eq!(answers(&server, &renew(LONG, "10")), [1, 0, -1, -1]);
    assert!(is_about(left(&server, "a"), 30_000), "nothing shrinks");

    let release = |key, owner| found(&server, &run(&server, TEXT_RELEASE, &[key], &[owner]));
    assert_eq!(release("a", B), -1);
    assert_eq!(release("hash", A), -1);
    assert_eq!((release("a", A), release("a", A)), (1, 0));
    let force = |key, not_after| {
        run(&server, TEXT_FORCE_RELEASE, &[key, &request()], &[not_after, NUMBER, REMEMBERED])
    };
    assert_all_late(
        &server,
        &[acquire("a", A, LEASE, PAST), renew(PAST, "60000"), force("kept", PAST)],
    );
    assert_eq!(server.command(&["EXISTS", "a"]), Reply::Integer(0));
    assert_eq!(server.command(&["GET", "kept"]).text(), ENDLESS);
    server.command(&["SET", "other", B]);
    assert_wrong_type(&force("other", LONG));
    assert_eq!((force("kept", LONG), force("kept", LONG)), (Reply::Integer(1), Reply::Integer(0)));
    assert_wrong_type(&force("hash", LONG));
    assert_wrong_type(&acquire("hash", A, LEASE, LONG));
    assert_eq!(fields(&server, "hash"), ["client:1 1"]);
}

/// The key of one level of a reader's nesting in the lock `a`.
fn level(owner: &str, level: u32) -> String {
    format!("{{a}}:{owner}:rwlock_timeout:{level}")
}

fn read(server: &Server, owner: &str, lease: &str, writer: &str, not_after: &str) -> Reply {
    run(server, READ_ACQUIRE, &["a"], &[not_after, owner, lease, writer])
}

fn write(server: &Server, field: &str, lease: &str, not_after: &str) -> Reply {
    run(server, WRITE_ACQUIRE, &["a"], &[not_after, field, lease])
}

#[test]
fn the_scripts_of_readers() {
    let server = Server::start();
    let mut listener = listen(&server);
    let writer = "client:9:write";
    assert_eq!(read(&server, A, LEASE, "", LONG), Reply::Nil);
    assert_eq!(read(&server, A, "10", "", LONG), Reply::Nil, "a copy, which shortens nothing");
    assert_eq!(read(&server, B, "10000", "", LONG), Reply::Nil);
    assert_eq!(fields(&server, "a"), ["client:1 1", "client:2 1", "mode read"]);
    assert!(is_about(left(&server, "a"), 20_000));
    assert!(is_about(left(&server, &level(A, 1)), 20_000));
    assert!(is_about(left(&server, &level(B, 1)), 10_000));
    assert!(is_about(write(&server, writer, LEASE, LONG).integer(), 20_000), "busy for so long");

    let recount = |owner, count, lease, not_after| {
        run(&server, READ_RECOUNT, &["a"], &[not_after, owner, count, lease])
    };
    assert_eq!(recount(B, "2", "30000", LONG), Reply::Integer(1));
    assert_eq!(recount(B, "2", "30000", LONG), Reply::Integer(1), "a copy");
    assert_eq!(recount(C, "2", "30000", LONG), Reply::Integer(0), "it reads nothing");
    assert!(is_about(left(&server, "a"), 30_000) && is_about(left(&server, &level(B, 2)), 30_000));
    assert_eq!(recount(B, "1", "0", LONG), Reply::Integer(1));
    assert_eq!(left(&server, &level(B, 2)), -2);
    assert!(is_about(left(&server, &level(B, 1)), 30_000), "the longest is handed on");
    assert_eq!(fields(&server, "a"), ["client:1 1", "client:2 1", "mode read"]);

    let renew = |not_after, lease| {
        server.command(&["SET", "data", "x"]);
        let arguments = [not_after, A, lease, A, lease, A, lease];
        run(&server, RENEW_READERS, &["a", "gone", "data"], &arguments)
    };
    server.command(&["PEXPIRE", "a", "1000"]);
    server.command(&["DEL", &level(A, 1)]);
    assert_eq!(answers(&server, &renew(LONG, "40000")), [1, 0, -1]);
    assert!(is_about(left(&server, "a"), 40_000) && is_about(left(&server, &level(A, 1)), 40_000));
    let stranger = run(&server, RENEW_READERS, &["a"], &[LONG, C, "90000"]);
    assert_eq!(answers(&server, &stranger), [-1]);
    assert!(is_about(left(&server, "a"), 40_000));

    assert_all_late(
        &server,
        &[
            read(&server, C, LEASE, "", PAST),
            recount(A, "9", LEASE, PAST),
            renew(PAST, "90000"),
            write(&server, writer, LEASE, PAST),
        ],
    );
    assert_eq!(fields(&server, "a"), ["client:1 1", "client:2 1", "mode read"]);
    assert!(is_about(left(&server, "a"), 40_000));

    let release = |owner| {
        found(&server, &run(&server, READ_RELEASE, &["a", "c"], &[owner, "0", "PUBLISH", "10"]))
    };
    assert_eq!(release(C), -1);
    assert_eq!(release(A), 1);
    assert_eq!(release(A), -1, "a copy");
    assert_silence(&server, &mut listener);
    assert!(is_about(left(&server, "a"), 30_000), "as long as the other's longest");
    assert_eq!(release(B), 1);
    assert_eq!(heard(&mut listener), ["c", "0"]);
    assert_eq!(release(B), 0, "a copy");
    server.command(&["DEL", "data"]);
    assert_eq!(server.size(), 0);
}

#[test]
fn the_scripts_of_writers() {
    let server = Server::start();
    let mut listener = listen(&server);
    let writer = "client:1:write";
    assert_eq!(write(&server, writer, LEASE, LONG), Reply::Nil);
    assert_eq!(write(&server, writer, "10", LONG), Reply::Nil, "a copy, which shortens nothing");
    assert_eq!(fields(&server, "a"), ["client:1:write 1", "mode write"]);
    assert!(is_about(write(&server, "client:2:write", LEASE, LONG).integer(), 20_000));
    assert!(is_about(read(&server, B, LEASE, "", LONG).integer(), 20_000));
    assert!(is_about(read(&server, B, LEASE, "client:2:write", LONG).integer(), 20_000));
    assert_eq!(read(&server, B, "10000", writer, LONG), Reply::Nil, "under its own write hold");
    assert_eq!(fields(&server, "a"), ["client:1:write 1", "client:2 1", "mode write"]);

    let is_locked = |mode| run(&server, READ_WRITE_IS_LOCKED, &["a"], &[mode]);
    assert_eq!((is_locked("read"), is_locked("write")), (Reply::Integer(1), Reply::Integer(1)));
    let release = |field| {
        let arguments = [field, "1", "0", "PUBLISH"];
        found(&server, &run(&server, WRITE_RELEASE, &["a", "c"], &arguments))
    };
    assert_eq!(release("client:2:write"), -1);
    assert_silence(&server, &mut listener);
    assert_eq!(release(writer), 1);
    assert_eq!(heard(&mut listener), ["c", "1"]);
    assert_eq!(heard(&mut listener), ["c", "0"]);
    assert_eq!(release(writer), -1, "a copy: it reads");
    assert_eq!(fields(&server, "a"), ["client:2 1", "mode read"]);
    assert!(is_about(left(&server, "a"), 10_000), "as long as it reads");
    assert_eq!((is_locked("read"), is_locked("write")), (Reply::Integer(1), Reply::Integer(0)));

    let force = |mode, not_after| {
        let arguments = [not_after, mode, "0", "PUBLISH", NUMBER, REMEMBERED];
        run(&server, READ_WRITE_FORCE_RELEASE, &["a", "c", &request()], &arguments)
    };
    assert_eq!(force("write", LONG), Reply::Integer(0), "there is no writer");
    assert_all_late(&server, &[force("read", PAST)]);
    assert_silence(&server, &mut listener);
    assert_eq!(force("read", LONG), Reply::Integer(1));
    assert_eq!(heard(&mut listener), ["c", "0"]);
    assert_eq!(force("read", LONG), Reply::Integer(0), "a copy");
    assert_eq!((is_locked("read"), is_locked("write")), (Reply::Integer(0), Reply::Integer(0)));

    write(&server, writer, LEASE, LONG);
    assert_eq!((is_locked("read"), is_locked("write")), (Reply::Integer(0), Reply::Integer(1)));
    assert_eq!(release(writer), 1);
    assert_eq!(release(writer), 0, "a copy");
    assert_eq!(server.command(&["EXISTS", "a"]), Reply::Integer(0));
    // A lock of another kind is not taken for a free one.
    run(&server, ACQUIRE, &["a"], &[LONG, C, LEASE]);
    assert!(is_about(write(&server, writer, LEASE, LONG).integer(), 20_000));
    assert!(is_about(read(&server, B, LEASE, "", LONG).integer(), 20_000));
    server.command(&["SET", "a", "x"]);
    assert_wrong_type(&write(&server, writer, LEASE, LONG));
    assert_wrong_type(&read(&server, B, LEASE, "", LONG));
    assert_wrong_type(&force("read", LONG));
}

#[test]
fn the_scripts_that_end_a_fair_hold_or_leave_its_queue() {
    let server = Server::start();
    let mut listener = listen(&server);
    let keys = ["a", "queue", "deadlines", "c"];
    let take = |owner, waits| {
        let arguments =
            [LONG, owner, LEASE, waits, "30000", "1000", "5000", "0", "PUBLISH", "300000"];
        run(&server, FAIR_ACQUIRE, &keys, &arguments)
    };
    let release =
        |owner| found(&server, &run(&server, FAIR_RELEASE, &keys, &[owner, "0", "PUBLISH"]));
    let force = |not_after| {
        let request = request();
        let keys = [&keys[..], &[&request]].concat();
        let arguments = [not_after, "0", "PUBLISH", NUMBER, REMEMBERED];
        run(&server, FAIR_FORCE_RELEASE, &keys, &arguments)
    };
    assert_eq!(release(A), 0);
    assert_eq!(force(LONG), Reply::Integer(0));
    assert_eq!(take(A, "1"), Reply::Nil);
    assert_eq!((take(B, "1"), take(C, "1")), (Reply::Integer(1000), Reply::Integer(1000)));
    assert_eq!(release("client:4"), -1);
    assert_eq!(release(C), -1, "it was in the queue and is not any more");
    assert_eq!(server.command(&["LRANGE", "queue", "0", "-1"]).texts(), [B]);
    assert_eq!(server.command(&["ZRANGE", "deadlines", "0", "-1"]).texts(), [B]);
    assert_all_late(&server, &[force(PAST)]);
    assert_silence(&server, &mut listener);
    assert_eq!(release(A), 1);
    assert_eq!(heard(&mut listener), ["c:client:2", "0"]);
    assert_eq!(release(A), 0, "a copy, which wakes it once more");
    assert_eq!(heard(&mut listener), ["c:client:2", "0"]);

    assert_eq!(take(A, "0"), Reply::Integer(1000), "not its turn");
    assert_eq!(
        force(LONG),
        Reply::Integer(0),
        "nothing held it, and the waiter is woken all the same"
    );
    assert_eq!(heard(&mut listener), ["c:client:2", "0"]);
    assert_eq!(take(B, "1"), Reply::Nil);
    assert_eq!(take(A, "1"), Reply::Integer(1000));
    assert_eq!(force(LONG), Reply::Integer(1));
    assert_eq!(heard(&mut listener), ["c:client:1", "0"]);
    assert_eq!(release(A), 0, "the last leaves the line");
    assert_silence(&server, &mut listener);
    let there = server.command(&[&["EXISTS"], &keys[..]].concat());
    assert_eq!(there, Reply::Integer(0), "but for what is remembered of requests");

    server.command(&["SET", "a", "x"]);
    assert_wrong_type(&force(LONG));
    assert_wrong_type(&take(A, "1"));
    assert_eq!(release(A), -1);
    assert_eq!(server.command(&["GET", "a"]).text(), "x");
    let arguments = [PAST, A, LEASE, "1", "30000", "1000", "5000", "0", "PUBLISH", "300000"];
    assert_all_late(&server, &[run(&server, FAIR_ACQUIRE, &keys, &arguments)]);
}

#[test]
fn force_release_copy_after_a_later_call_has_no_effect() {
    let server = Server::start();
    server.command(&["HSET", "a", "mode", "read", A, "1"]);
    server.command(&["SET", "text", A]);
    server.command(&["SET", "sequence", "2 0"]);
    let fair_keys = ["a", "queue", "moments", "c", "sequence"];
    let calls: [(&str, &[&str], &[&str]); 4] = [
        (FORCE_RELEASE, &["a", "c", "sequence"], &[LONG, "0", "PUBLISH", NUMBER, REMEMBERED]),
        (TEXT_FORCE_RELEASE, &["text", "sequence"], &[LONG, NUMBER, REMEMBERED]),
        (
            READ_WRITE_FORCE_RELEASE,
            &["a", "c", "sequence"],
            &[LONG, "read", "0", "PUBLISH", NUMBER, REMEMBERED],
        ),
        (FAIR_FORCE_RELEASE, &fair_keys, &[LONG, "0", "PUBLISH", NUMBER, REMEMBERED]),
    ];
    let late = calls.map(|(script, keys, arguments)| run(&server, script, keys, arguments));
    assert_all_late(&server, &late);
    assert_eq!(server.command(&["EXISTS", "a", "text"]), Reply::Integer(2));
    assert_eq!(server.command(&["GET", "sequence"]).text(), "2 0");
}
