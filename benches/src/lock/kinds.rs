//! Every kind of lock without contention, beside the scripts that it runs, on a plain socket.

use std::time::Duration;

use wheellock::{Client, Guard, Lock};
use wheellock_fixture::Server;

use crate::harness::Contender;
use crate::lock::raw::{
    FAR_IN_THE_FUTURE, LEASE_MILLIS as LEASE, NUMBER, OWNER, RawPair, RawScript, UNLOCKED, script,
};

/// The name of a kind, and its contenders.
type Kinds = Vec<(&'static str, Vec<Contender>)>;

const FLOOR: &str = "two raw EVALSHA";
const OURS: &str = "wheellock";
const LATE: &str = FAR_IN_THE_FUTURE;
/// A writer's field.
const WRITER: &str = "00000000-0000-4000-8000-000000000000:000000:write";
/// How long a call is remembered by default, in milliseconds.
const REMEMBERED: &str = "72000";
const PERMIT: &str = "0123456789abcdef";

/// Each kind with its contenders, of which the first is the floor.
#[must_use]
pub fn lock_kinds(server: &Server) -> Kinds {
    let client = Client::connect(&server.url()).expect("the server is there");
    let floor = |acquire: RawScript<'_>, release: RawScript<'_>| {
        let mut pair = RawPair::new(server.address(), &acquire, &release);
        Contender::timed(FLOOR, move || {
            pair.acquire();
            pair.release();
        })
    };
    let mut kinds = locks(&client, &floor);
    kinds.extend(permits(&client, server, &floor));
    kinds
}

fn locks(client: &Client, floor: &impl Fn(RawScript<'_>, RawScript<'_>) -> Contender) -> Kinds {
    const CHANNEL: &str = "redisson_lock__channel:{bench:r}";
    const READ_WRITE: &str = "redisson_rwlock:{bench:r}";
    const QUEUE: [&str; 4] =
        ["bench:r", "redisson_lock_queue:{bench:r}", "redisson_lock_timeout:{bench:r}", CHANNEL];
    let release =
        || script!("release", ["bench:r"], [OWNER, UNLOCKED, "PUBLISH", CHANNEL], "*3\r\n:1");
    let read_write = client.read_write_lock("bench:o");
    vec![
        (
            "lock",
            vec![
                floor(script!("acquire", ["bench:r"], [LATE, OWNER, LEASE], "$-1"), release()),
                ours(client.lock("bench:o")),
            ],
        ),
        (
            "fair lock",
            vec![
                floor(
                    script!(
                        "fair_acquire",
                        QUEUE,
                        [
                            LATE, OWNER, LEASE, "1", LEASE, "1000", "5000", UNLOCKED, "PUBLISH",
                            "300000"
                        ],
                        "$-1"
                    ),
                    script!("fair_release", QUEUE, [OWNER, UNLOCKED, "PUBLISH"], "*2\r\n:1"),
                ),
                ours(client.fair_lock("bench:o")),
            ],
        ),
        (
            "read lock",
            vec![
                floor(
                    script!("read_acquire", ["bench:r"], [LATE, OWNER, LEASE, ""], "$-1"),
                    script!(
                        "read_release",
                        ["bench:r", READ_WRITE],
                        [OWNER, UNLOCKED, "PUBLISH", "10"],
                        "*2\r\n:1"
                    ),
                ),
                ours(read_write.read_lock()),
            ],
        ),
        (
            "write lock",
            vec![
                floor(
                    script!("write_acquire", ["bench:r"], [LATE, WRITER, LEASE], "$-1"),
                    script!(
                        "write_release",
                        ["bench:r", READ_WRITE],
                        [WRITER, "1", UNLOCKED, "PUBLISH"],
                        "*2\r\n:1"
                    ),
                ),
                ours(read_write.write_lock()),
            ],
        ),
        (
            "fenced lock",
            vec![
                floor(
                    script!(
                        "fenced_acquire",
                        ["bench:r", "redisson_lock_token:{bench:r}"],
                        [LATE, OWNER, LEASE],
                        "*1"
                    ),
                    release(),
                ),
                ours(client.fenced_lock("bench:o")),
            ],
        ),
        (
            "spin lock",
            vec![
                floor(
                    script!("acquire", ["bench:r"], [LATE, OWNER, LEASE], "$-1"),
                    script!("release", ["bench:r"], [OWNER, UNLOCKED, "PUBLISH"], "*2\r\n:1"),
                ),
                ours(client.spin_lock("bench:o")),
            ],
        ),
        (
            "simple lock",
            vec![
                floor(
                    script!("simple_acquire", ["bench:r"], [LATE, OWNER, LEASE], "$-1"),
                    script!("simple_release", ["bench:r"], [OWNER], "*2\r\n:1"),
                ),
                ours(client.simple_lock("bench:p")),
            ],
        ),
    ]
}

fn ours<G: Guard + 'static>(lock: Lock<G>) -> Contender {
    Contender::timed(OURS, move || drop(lock.lock().expect("the lock is free")))
}

fn permits(
    client: &Client,
    server: &Server,
    floor: &impl Fn(RawScript<'_>, RawScript<'_>) -> Contender,
) -> Kinds {
    const CHANNEL: &str = "redisson_sc:{bench:s}";
    // The same two keys each time, as each call is the next one of a request sequence.
    const REQUEST: &str = "wheellock_request:{bench:s}:00000000-0000-8000-0000-000000000000:0";
    const BACK: &str = "wheellock_request:{bench:s}:00000000-0000-8000-0000-000000000000:1";
    const ID: &str = "wheellock_request:{bench:s}:30313233343536373839616263646566";
    server.command(&["SET", "bench:s", "10"]);
    let semaphore = client.semaphore("bench:t");
    let leased = client.expirable_semaphore("bench:u").with_lease(Duration::from_secs(30));
    semaphore.try_set_permits(10).expect("the server is there");
    leased.try_set_permits(10).expect("the server is there");
    vec![
        (
            "semaphore",
            vec![
                floor(
                    script!(
                        "semaphore_acquire",
                        ["bench:s", REQUEST],
                        [LATE, "1", NUMBER, REMEMBERED],
                        "*2\r\n:1"
                    ),
                    script!(
                        "semaphore_add",
                        ["bench:s", CHANNEL, BACK],
                        [LATE, "1", "1", NUMBER, REMEMBERED, "PUBLISH"],
                        "*2\r\n:1"
                    ),
                ),
                Contender::timed(OURS, move || {
                    let guard = semaphore.acquire(1).expect("there are ten");
                    guard.release().expect("it exists");
                }),
            ],
        ),
        (
            "expirable semaphore",
            vec![
                floor(
                    script!(
                        "permits_acquire",
                        ["bench:s", "{bench:s}:timeout", CHANNEL, ID],
                        [LATE, LEASE, "PUBLISH", PERMIT],
                        "*3\r\n:1"
                    ),
                    script!(
                        "permits_release",
                        ["bench:s", "{bench:s}:timeout", CHANNEL, ID],
                        ["0", "PUBLISH", OWNER, PERMIT],
                        "*2\r\n:1"
                    ),
                ),
                Contender::timed(OURS, move || {
                    leased.acquire().expect("there are ten").release().expect("its lease runs");
                }),
            ],
        ),
    ]
}
