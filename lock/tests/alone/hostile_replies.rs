//! A server that replies with anything: numbers at their limits, text where numbers belong, lists
//! of the wrong length. Every operation returns a typed error or ignores what it cannot use, and no
//! thread panics.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may fail it as the test itself may")]

use std::cell::Cell;
use std::collections::HashMap;
use std::panic;
use std::sync::{Arc, LazyLock, Once};
use std::thread;
use std::time::Duration;

use crate::common::fake::{FakeServer, array};
use crate::common::{built, code};
use crate::ran_in_a_child;
use parking_lot::Mutex;
use wheellock::{Client, Error, ManualClock, PermitId};

const TIMEOUT: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(30);
const BRIEFLY: Duration = Duration::from_millis(1);

/// The panics of all threads, caught or not.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether a panic of this thread is the test's own.
    static IS_TEST: Cell<bool> = const { Cell::new(false) };
}

/// Counts the panics of all threads but those that assert.
fn count_panics() {
    static ONCE: Once = Once::new();
    IS_TEST.set(true);
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_TEST.try_with(Cell::get).unwrap_or(false) {
                PANICS.lock().push(info.to_string());
            }
            before(info);
        }));
    });
}

/// Does something that must not panic, here or on any other thread.
fn assert_no_panic(what: &str, action: impl FnOnce() + Send) {
    let here = thread::scope(|scope| scope.spawn(action).join().is_ok());
    assert!(here, "{what}: the caller panicked");
    assert_eq!(*PANICS.lock(), [""; 0], "{what}");
}

/// What no operation expects, and what looks like an answer and is at the end of its numbers.
fn hostile() -> Vec<Vec<u8>> {
    let (min, max) = (i64::MIN, i64::MAX);
    let digits = "9".repeat(40);
    let long = "x".repeat(100_000);
    let mut replies: Vec<Vec<u8>> = [
        format!(":{min}\r\n"),
        format!(":{max}\r\n"),
        ":-3\r\n".to_owned(),
        ":-1\r\n".to_owned(),
        ":0\r\n".to_owned(),
        ":2\r\n".to_owned(),
        "$-1\r\n".to_owned(),
        "*-1\r\n".to_owned(),
        "*0\r\n".to_owned(),
        "+\r\n".to_owned(),
        "-\r\n".to_owned(),
        "-ERR\r\n".to_owned(),
        "*1\r\n*1\r\n*1\r\n*0\r\n".to_owned(),
        "*2\r\n$4\r\nLATE\r\n$1\r\nx\r\n".to_owned(),
        "*2\r\n-ERR a part\r\n:1\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into();
    // Texts: fencing tokens, numbers of permits, TIME.
    for text in [&digits, &long, &min.to_string(), &max.to_string()] {
        replies.push(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        replies.push(array(&[text]));
    }
    // The largest and the smallest number of seconds whose milliseconds fit.
    let seconds = (max / 1000).to_string();
    replies.extend([array(&[&seconds, &max.to_string()]), array(&["-1", "-1"])]);
    replies.push(array(&[&format!("-{seconds}"), &min.to_string()]));
    // Lists of numbers: releases, renewals, counts of permits.
    for (first, rest) in
        [(min, 1), (max, 1), (max, -1), (2, min), (1, max), (1, min), (0, max), (0, min), (-1, max)]
    {
        replies.push(format!("*2\r\n:{first}\r\n:{rest}\r\n").into_bytes());
        replies.push(format!("*3\r\n:{first}\r\n:{rest}\r\n:{rest}\r\n").into_bytes());
    }
    replies
}

/// A script, and how a server answers it that is well.
struct Script {
    name: &'static str,
    source: &'static str,
    well: &'static str,
}

macro_rules! scripts {
    ($($name:literal $(after $part:literal)?: $well:literal,)*) => {
        &[$(Script {
            name: $name,
            source: concat!(
                $(include_str!(concat!("../../src/ops/scripts/", $part, ".lua")),)?
                include_str!(concat!("../../src/ops/scripts/", $name, ".lua"))
            ),
            well: $well,
        }),*]
    };
}

const SCRIPTS: &[Script] = scripts![
    "acquire": "$-1\r\n",
    "client_record": ":1\r\n",
    "client_record_of": "*3\r\n$1\r\na\r\n:1\r\n:1\r\n",
    "draw_token": "*1\r\n$1\r\n7\r\n",
    "fair_acquire": "$-1\r\n",
    "fair_force_release" after "recognize": ":1\r\n",
    "fair_release": "*2\r\n:1\r\n:1000\r\n",
    "fenced_acquire": "*1\r\n$1\r\n7\r\n",
    "force_release" after "recognize": ":1\r\n",
    "inspect" after "recognize": "*9\r\n$4\r\nlock\r\n:1\r\n*2\r\n\
        $38\r\n7f9a3b7e-0f0e-8c3f-9a51-2f4a5d8f0c11:1\r\n:1\r\n:1\r\n$0\r\n\r\n*0\r\n:0\r\n:0\r\n\
        *3\r\n:0\r\n:0\r\n:0\r\n",
    "latch_count_down": ":1\r\n",
    "latch_delete": ":1\r\n",
    "latch_set": ":1\r\n",
    "permits_acquire": "*3\r\n:1\r\n:1\r\n:-1\r\n",
    "permits_count": "*2\r\n:1\r\n:1\r\n",
    "permits_lease": ":1\r\n",
    "permits_lease_of": ":1\r\n",
    "permits_release": "*2\r\n:1\r\n:1000\r\n",
    "permits_renew": "*2\r\n:1000\r\n:1\r\n",
    "permits_set": ":1\r\n",
    "read_acquire": "$-1\r\n",
    "read_set_count": ":1\r\n",
    "read_release": "*2\r\n:1\r\n:1000\r\n",
    "read_write_force_release" after "recognize": ":1\r\n",
    "read_write_is_locked": ":1\r\n",
    "set_count": ":1\r\n",
    "release": "*2\r\n:1\r\n:1000\r\n",
    "renew": "*2\r\n:1000\r\n:1\r\n",
    "renew_readers": "*2\r\n:1000\r\n:1\r\n",
    "scan": "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n",
    "semaphore_acquire": "*2\r\n:1\r\n:1\r\n",
    "semaphore_add": "*2\r\n:1\r\n:9\r\n",
    "semaphore_drain": ":1\r\n",
    "semaphore_set": ":1\r\n",
    "semaphore_undo": "*2\r\n:1\r\n:1000\r\n",
    "simple_acquire": "$-1\r\n",
    "simple_force_release" after "recognize": ":1\r\n",
    "simple_release": "*2\r\n:1\r\n:1000\r\n",
    "simple_renew": "*2\r\n:1000\r\n:1\r\n",
    "write_acquire": "$-1\r\n",
    "write_release": "*2\r\n:1\r\n:1000\r\n",
];

/// The scripts by their code as clients send it.
static SCRIPT_OF_CODE: LazyLock<HashMap<String, &Script>> =
    LazyLock::new(|| SCRIPTS.iter().map(|script| (code(script.source), script)).collect());

/// A server that is well but for one script or command, which it answers so.
fn server(target: &'static str, reply: Vec<u8>) -> FakeServer {
    FakeServer::start(move |words| {
        let (name, well) = match words {
            // So it is sent whole, and says which it is.
            ["EVALSHA", ..] => return b"-NOSCRIPT no such script\r\n".to_vec(),
            ["EVAL", source, ..] => {
                let script = SCRIPT_OF_CODE[*source];
                (script.name, script.well.as_bytes().to_vec())
            }
            ["TIME"] => ("TIME", array(&["1", "0"])),
            ["EXISTS", ..] => ("EXISTS", b":1\r\n".to_vec()),
            ["PTTL", ..] => ("PTTL", b":1\r\n".to_vec()),
            ["GET", ..] => ("GET", b"$1\r\n1\r\n".to_vec()),
            ["GETRANGE", ..] => ("GETRANGE", b"$1\r\n1\r\n".to_vec()),
            ["INFO", ..] => ("INFO", b"$0\r\n\r\n".to_vec()),
            ["WAIT", ..] => ("WAIT", b":1\r\n".to_vec()),
            ["CLUSTER", ..] => ("CLUSTER", b"*0\r\n".to_vec()),
            ["SUBSCRIBE", channel, ..] => {
                let part = |text: &str| format!("${}\r\n{text}\r\n", text.len());
                let confirmation = format!("*3\r\n{}{}:1\r\n", part("subscribe"), part(channel));
                ("SUBSCRIBE", confirmation.into_bytes())
            }
            _ => return b"+OK\r\n".to_vec(),
        };
        if name == target { reply.clone() } else { well }
    })
}

/// Whatever comes of it, it comes.
fn took<T>(result: Result<T, Error>) {
    drop(result);
}

/// Takes a lock, and takes it once more.
fn nest<G>(get: impl Fn() -> Result<Option<G>, Error>) {
    if let Ok(Some(outer)) = get() {
        drop(get());
        drop(outer);
    }
    took(get());
}

fn ask_locks(client: &Client) {
    let both = client.read_write_lock("a");
    for lock in [
        client.lock("a"),
        client.fair_lock("a"),
        client.simple_lock("a"),
        client.spin_lock("a"),
        both.read_lock(),
        both.write_lock(),
    ] {
        nest(|| lock.try_lock());
        nest(|| lock.try_lock_for(BRIEFLY));
        took(lock.is_locked());
        took(lock.remaining_lease());
        took(lock.holder());
        took(lock.waiters());
        took(lock.force_unlock());
    }
    let fenced = client.fenced_lock("a");
    nest(|| fenced.try_lock());
    took(fenced.last_token());
    // A server may never say that this was all.
    client.locks("*").take(3).for_each(took);
    let guard = client.lock("a").try_lock();
    took(fenced.try_lock());
    drop(guard);
}

fn ask_numbers(client: &Client) {
    let semaphore = client.semaphore("a");
    took(semaphore.try_acquire(1));
    took(semaphore.try_acquire_for(1, BRIEFLY));
    took(semaphore.release(1));
    took(semaphore.release_if_exists(1));
    took(semaphore.available_permits());
    took(semaphore.drain_permits());
    took(semaphore.try_set_permits(1));
    took(semaphore.add_permits(-1));
    let latch = client.count_down_latch("a");
    took(latch.try_set_count(1));
    took(latch.count_down());
    took(latch.count());
    took(latch.wait_for(BRIEFLY));
    took(latch.delete());
}

fn ask_permits(client: &Client) {
    let id: PermitId = "00112233445566778899aabbccddeeff".parse().unwrap();
    let permits = client.expirable_semaphore("a");
    took(permits.try_acquire());
    for permits in [permits.clone().with_lease(LEASE), permits.clone().watched()] {
        took(permits.try_acquire_for(BRIEFLY));
        took(permits.try_acquire_many(2));
    }
    took(permits.release(&id));
    took(permits.try_release(&id));
    took(permits.available_permits());
    took(permits.permits());
    took(permits.acquired_permits());
    took(permits.try_set_permits(1));
    took(permits.set_permits(1));
    took(permits.add_permits(1));
    took(permits.update_lease(&id, LEASE));
    took(permits.remove_lease(&id));
    took(permits.lease_of(&id));
}

/// Holds what is renewed, for some renewals.
fn hold(client: &Client, clock: &ManualClock) {
    let both = client.read_write_lock("rw");
    let locks = [client.lock("a"), client.simple_lock("b"), both.read_lock()];
    let guards = locks.map(|lock| lock.try_lock());
    let permit = client.expirable_semaphore("c").watched().try_acquire();
    for _ in 0..4 {
        clock.advance(LEASE / 6);
    }
    drop((guards, permit));
}

fn builder(server: &FakeServer) -> wheellock::ClientBuilder {
    Client::builder().url(&format!("redis://{}/", server.address())).command_timeout(TIMEOUT)
}

/// Asks servers of which each answers one of these in each hostile way.
fn ask_all(targets: &[&'static str], ask: impl Fn(&Client) + Sync) {
    count_panics();
    thread::scope(|scope| {
        for target in targets {
            scope.spawn(|| ask_one(target, &ask));
        }
    });
}

fn ask_one(target: &'static str, ask: impl Fn(&Client) + Sync) {
    count_panics();
    for reply in hostile() {
        let what = format!("{target}: {}", String::from_utf8_lossy(&reply[..reply.len().min(60)]));
        let server = server(target, reply);
        assert_no_panic(&what, || {
            // As the number of its connections is bounded, one that is lost is missed.
            if let Ok(client) = builder(&server).max_connections(1).build() {
                ask(&client);
            }
        });
    }
}

#[test]
fn locks_survive_any_reply() {
    if ran_in_a_child(locks_survive_any_reply) {
        return;
    }
    let targets = [
        "acquire",
        "client_record_of",
        "draw_token",
        "fair_acquire",
        "fair_force_release",
        "fair_release",
        "fenced_acquire",
        "force_release",
        "inspect",
        "scan",
        "read_acquire",
        "read_set_count",
        "read_release",
        "read_write_force_release",
        "read_write_is_locked",
        "set_count",
        "release",
        "simple_acquire",
        "simple_force_release",
        "simple_release",
        "write_acquire",
        "write_release",
        "EXISTS",
        "PTTL",
        "GET",
    ];
    ask_all(&targets, ask_locks);
}

#[test]
fn semaphores_and_latches_survive_any_reply() {
    if ran_in_a_child(semaphores_and_latches_survive_any_reply) {
        return;
    }
    let targets = [
        "latch_count_down",
        "latch_delete",
        "latch_set",
        "semaphore_acquire",
        "semaphore_add",
        "semaphore_drain",
        "semaphore_set",
        "semaphore_undo",
        "GETRANGE",
    ];
    ask_all(&targets, ask_numbers);
}

#[test]
fn permits_survive_any_reply() {
    if ran_in_a_child(permits_survive_any_reply) {
        return;
    }
    let targets = [
        "permits_acquire",
        "permits_count",
        "permits_lease",
        "permits_lease_of",
        "permits_release",
        "permits_set",
        "semaphore_set",
        "semaphore_add",
    ];
    ask_all(&targets, ask_permits);
}

#[test]
fn connecting_survives_any_reply() {
    if ran_in_a_child(connecting_survives_any_reply) {
        return;
    }
    ask_all(&["TIME", "INFO"], |client| took(client.lock("a").try_lock()));
}

#[test]
fn waiting_survives_any_reply() {
    if ran_in_a_child(waiting_survives_any_reply) {
        return;
    }
    // A latch that is not open, whose waiter listens.
    ask_all(&["SUBSCRIBE"], |client| took(client.count_down_latch("a").wait_for(BRIEFLY)));
}

#[test]
fn replica_acknowledgements_survive_any_reply() {
    if ran_in_a_child(replica_acknowledgements_survive_any_reply) {
        return;
    }
    count_panics();
    for reply in hostile() {
        let what = format!("WAIT: {}", String::from_utf8_lossy(&reply[..reply.len().min(60)]));
        let server = server("WAIT", reply);
        assert_no_panic(&what, || {
            let client = built(builder(&server).replica_acks(1, BRIEFLY));
            took(client.lock("a").try_lock());
            took(client.semaphore("a").try_acquire(1));
        });
    }
}

#[test]
fn a_cluster_survives_any_reply() {
    if ran_in_a_child(a_cluster_survives_any_reply) {
        return;
    }
    count_panics();
    let mut replies = hostile();
    let ends = [i64::MIN, -1, 0, 16_384, 65_535, i64::MAX];
    for (first, last) in ends.iter().flat_map(|first| ends.map(|last| (first, last))) {
        let range = format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{last}\r\n");
        replies.push(format!("*1\r\n{range}").into_bytes());
    }
    for reply in replies {
        let what = format!("CLUSTER: {}", String::from_utf8_lossy(&reply[..reply.len().min(60)]));
        let server = server("CLUSTER", reply);
        assert_no_panic(&what, || {
            let url = format!("redis-cluster://{}", server.address());
            took(Client::builder().url(&url).command_timeout(TIMEOUT).build());
        });
    }
}

#[test]
fn renewals_survive_any_reply() {
    if ran_in_a_child(renewals_survive_any_reply) {
        return;
    }
    count_panics();
    thread::scope(|scope| {
        for target in ["renew", "renew_readers", "simple_renew", "permits_renew", "client_record"] {
            scope.spawn(|| renew_all(target));
        }
    });
}

fn renew_all(target: &'static str) {
    count_panics();
    for reply in hostile() {
        let what = format!("{target}: {}", String::from_utf8_lossy(&reply[..reply.len().min(60)]));
        let server = server(target, reply);
        assert_no_panic(&what, || {
            let clock = ManualClock::new();
            let client = built(builder(&server).clock(Arc::new(clock.clone())));
            hold(&client, &clock);
        });
    }
}
