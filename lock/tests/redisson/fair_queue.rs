//! Both sides share a fair lock's queue: waiters are served in order of arrival, and one that gave
//! up or died blocks no other.

use std::collections::VecDeque;
use std::thread::{self, Scope};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::{Client, Error, Lock, OnDeadlock, Wait};
use wheellock_fixture::wait_until;

use crate::KINDS;
use crate::child::child;
use crate::peer::{JavaThread, Peer, Pending};
use crate::shared::{
    JAVA, LIMIT, SECOND_JAVA, SERVER, Tries, alone, connect, fresh, now, start, warm_up,
};
use crate::waking::{java_wakes_rust, rust_wakes_java};

/// What the Java program calls it.
const FAIR: &str = "fair";

/// What a busy machine may take for anything that takes no time, when a dead one has to be noticed
/// first.
const SOON: Duration = Duration::from_millis(400);

/// The queue on the server, and the waiters with a deadline, the next one first in both.
fn queued(name: &str) -> [Vec<String>; 2] {
    let all = |command: &str, key: String| SERVER.command(&[command, &key, "0", "-1"]).texts();
    [
        all("LRANGE", format!("redisson_lock_queue:{{{name}}}")),
        all("ZRANGE", format!("redisson_lock_timeout:{{{name}}}")),
    ]
}

fn wait_for_queue(name: &str, waiters: usize) {
    wait_until("it is in the queue", LIMIT, || queued(name)[0].len() == waiters);
}

/// A queued waiter, which then holds until the test releases it.
enum Waiter {
    Java { name: String, thread: JavaThread<'static>, owned: Pending },
    Rust { owned: Receiver<()>, release: Sender<()> },
}

impl Waiter {
    fn in_java(peer: &'static Peer, name: &str, way: &str) -> Self {
        let thread = peer.thread();
        let owned = thread.send(FAIR, name, way);
        Self::Java { name: name.to_owned(), thread, owned }
    }

    fn in_rust<'scope>(scope: &'scope Scope<'scope, '_>, lock: Lock) -> Self {
        let ((owns, owned), (release, told)) = (bounded(1), bounded(1));
        start(scope, move || {
            let held = lock.try_lock_for(LIMIT).unwrap().unwrap();
            owns.send(()).unwrap();
            // If the test has failed, no message comes.
            told.recv().ok();
            held.unlock().unwrap();
        });
        Self::Rust { owned, release }
    }

    fn waits(&self) -> bool {
        match self {
            Self::Java { owned, .. } => owned.is_under_way(),
            Self::Rust { owned, .. } => owned.is_empty(),
        }
    }

    fn wait_until_it_owns(self) -> Owner {
        match self {
            Self::Java { name, thread, owned } => {
                owned.value();
                Owner::Java { name, thread }
            }
            Self::Rust { owned, release } => {
                owned.recv_timeout(LIMIT).unwrap();
                Owner::Rust(release)
            }
        }
    }
}

/// A waiter that was served.
enum Owner {
    Java { name: String, thread: JavaThread<'static> },
    Rust(Sender<()>),
}

impl Owner {
    fn release(self) {
        match self {
            Self::Java { name, thread } => drop(thread.call(FAIR, &name, "unlock")),
            Self::Rust(release) => release.send(()).unwrap(),
        }
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn waiters_of_both_sides_are_served_in_order() {
    let _alone = alone();
    let clients = [connect(), connect()];
    // Without a lease, the wait of Redisson's `tryLock` is off by a factor of a thousand (D5).
    let ways = ["lock", "tryLock wait=30000 lease=20000", "lock lease=20000"];
    for first_in_java in [false, true] {
        let name = fresh(FAIR);
        thread::scope(|scope| {
            let open = |place: usize| clients[place % 2].fair_lock(&name);
            let first = if first_in_java {
                Waiter::in_java(&JAVA, &name, "lock")
            } else {
                Waiter::in_rust(scope, open(0))
            };
            let mut owner = first.wait_until_it_owns();
            let mut waiters = VecDeque::new();
            for place in 0..12 {
                let peer = if place % 4 == 0 { &*JAVA } else { &*SECOND_JAVA };
                waiters.push_back(if place % 2 == 0 {
                    Waiter::in_java(peer, &name, ways[place / 2 % ways.len()])
                } else {
                    Waiter::in_rust(scope, open(place / 2))
                });
                wait_for_queue(&name, place + 1);
            }
            while let Some(next) = waiters.pop_front() {
                owner.release();
                owner = next.wait_until_it_owns();
                assert!(waiters.iter().all(Waiter::waits), "one was served before its turn");
            }
            owner.release();
        });
        assert_nothing_is_left(&name);
    }
}

/// The queue is empty, and the lock is free.
fn assert_nothing_is_left(name: &str) {
    wait_until("it is free", LIMIT, || SERVER.command(&["EXISTS", name]).integer() == 0);
    assert_eq!(queued(name), [Vec::<String>::new(), Vec::new()]);
}

/// Takes it and releases it on both sides. Then the server has the scripts, and the JVM its
/// classes.
fn warm(client: &Client, java: &JavaThread<'_>) {
    warm_up(KINDS.iter().find(|kind| kind.word == FAIR).unwrap(), client, java);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_waiter_leaves_no_queue_entry_after_timeout_or_cancel() {
    let _alone = alone();
    let (client, holder) = (connect(), JAVA.thread());
    let java = SECOND_JAVA.thread();
    warm(&client, &java);
    let (cancel, cancelled) = bounded(1);
    let name = fresh(FAIR);
    let lock = client.fair_lock(&name);
    for in_time in [true, false] {
        holder.call(FAIR, &name, "lock");
        thread::scope(|scope| {
            let waiter = start(scope, || {
                if in_time {
                    assert!(lock.try_lock_for(Duration::from_millis(500)).unwrap().is_none());
                } else {
                    let ended = lock.try_lock_with(Wait::forever().or_cancelled(&cancelled));
                    assert!(matches!(ended, Err(Error::Cancelled { .. })), "{ended:?}");
                }
            });
            wait_for_queue(&name, 1);
            let owner = java.call("peer", "-", "owner");
            rust_wakes_java(
                Tries::begin(),
                || {
                    let waiting = java.send(FAIR, &name, "lock");
                    wait_for_queue(&name, 2);
                    if !in_time {
                        cancel.send(()).unwrap();
                    }
                    waiter.join().unwrap();
                    assert_eq!(queued(&name), [[owner.clone()], [owner]]);
                    waiting
                },
                || drop(holder.call(FAIR, &name, "unlock")),
            );
            java.call(FAIR, &name, "unlock");
        });
        assert_nothing_is_left(&name);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_waiter_leaves_no_queue_entry_after_timeout() {
    let _alone = alone();
    let (client, holder) = (connect(), JAVA.thread());
    let java = SECOND_JAVA.thread();
    warm(&client, &java);
    let name = fresh(FAIR);
    let lock = client.fair_lock(&name);
    holder.call(FAIR, &name, "lock");
    let given_up = java.send(FAIR, &name, "tryLock wait=500 lease=20000");
    wait_for_queue(&name, 1);
    let mut given_up = Some(given_up);
    java_wakes_rust(
        Tries::begin(),
        || lock.lock().unwrap().unlock().unwrap(),
        || {
            assert_eq!(given_up.take().unwrap().value(), "false");
            let [list, set] = queued(&name);
            assert_eq!(list, set);
            assert!(matches!(list.as_slice(), [owner] if owner.starts_with(&client.id())));
            holder.send(FAIR, &name, "unlock")
        },
    );
    assert_nothing_is_left(&name);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn killed_java_head_waiter_is_removed_without_busy_loop() {
    let _alone = alone();
    // The scripts are counted, and looks for deadlocks are scripts too.
    let client =
        Client::builder().url(&SERVER.url()).on_deadlock(OnDeadlock::Ignore).build().unwrap();
    let java = JAVA.thread();
    warm(&client, &java);
    // For Redisson it is live until the holder's lease is over, and for this long after that.
    let doomed = Peer::start(&["fairLockWaitTimeout=1000"], &[&SERVER]);
    let name = fresh(FAIR);
    let lock = client.fair_lock(&name);
    let held = lock.clone().with_lease(Duration::from_secs(2)).lock().unwrap();
    let _never = doomed.thread().send(FAIR, &name, "lock");
    wait_for_queue(&name, 1);
    doomed.kill();
    let left = liveness_left(&name, &queued(&name)[0][0]);
    let deadline = now() + left;

    let tries = calls();
    thread::scope(|scope| {
        let waiter = Waiter::in_rust(scope, lock);
        wait_for_queue(&name, 2);
        held.unlock().unwrap();
        let owner = waiter.wait_until_it_owns();
        let owned_at = now();
        let asked = calls() - tries;
        assert!(asked <= 10, "it took {asked} scripts (D1)");
        let early = deadline.saturating_duration_since(owned_at);
        let late = owned_at.saturating_duration_since(deadline);
        assert!(early <= Duration::from_millis(5), "{early:?} before the deadline");
        assert!(late < SOON, "{late:?} after the deadline");
        let waiting = Waiter::in_java(&JAVA, &name, "lock");
        wait_for_queue(&name, 1);
        owner.release();
        waiting.wait_until_it_owns().release();
    });
    assert_nothing_is_left(&name);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_killed_rust_waiter_at_the_head_is_removed_by_java() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let kind = KINDS.iter().find(|kind| kind.word == FAIR).unwrap();
    warm(&client, &java);
    let name = fresh(FAIR);
    // Java may have asked twice before it is released. Then it sleeps until the lease would end,
    // for its release tells the one at the head, who is dead.
    let lock = client.fair_lock(&name).with_lease(Duration::from_secs(3));
    let held = lock.lock().unwrap();
    let mut doomed = child("hold", &[("KIND", kind.word), ("NAME", &name)]);
    wait_for_queue(&name, 1);
    doomed.kill();
    let dead = queued(&name)[0][0].clone();
    // Half a minute is brought near.
    let deadline = wall_clock() + 3000;
    let timeouts = format!("redisson_lock_timeout:{{{name}}}");
    SERVER.command(&["ZADD", &timeouts, "XX", &deadline.to_string(), &dead]);

    let waiting = java.send(FAIR, &name, "lock");
    wait_for_queue(&name, 2);
    held.unlock().unwrap();
    assert!(waiting.is_under_way(), "it was served before the deadline of the one at the head");
    waiting.value();
    let late = wall_clock().checked_sub(deadline).unwrap_or_else(|| panic!("served too early"));
    assert!(u128::from(late) < SOON.as_millis(), "{late} ms after the deadline");
    java.call(FAIR, &name, "unlock");
    assert_nothing_is_left(&name);
}

/// The time until a waiter's liveness deadline.
fn liveness_left(name: &str, owner: &str) -> Duration {
    let timeouts = format!("redisson_lock_timeout:{{{name}}}");
    let deadline: f64 = SERVER.command(&["ZSCORE", &timeouts, owner]).text().parse().unwrap();
    Duration::from_secs_f64(deadline / 1000.0).saturating_sub(Duration::from_millis(wall_clock()))
}

/// The server's, in milliseconds.
fn wall_clock() -> u64 {
    let time: Vec<u64> =
        SERVER.command(&["TIME"]).texts().iter().map(|part| part.parse().unwrap()).collect();
    time[0] * 1000 + time[1] / 1000
}

fn calls() -> u64 {
    SERVER.command_calls("evalsha") + SERVER.command_calls("eval")
}
