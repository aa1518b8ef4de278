//! A process whose threads all want one lock, stopped for longer than the lease: none of its threads
//! believes afterwards.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use wheellock::{Client, Error};
use wheellock_fixture::{RawConnection, Server, TestProcess, wait_until};

use crate::processes::{LIMIT, child, connect};

const THREADS: usize = 16;
/// How often a thread looks at the server while it is inside.
const LOOKS: usize = 20;
/// How often the process is stopped.
const STOPS: usize = 3;

/// Set by the test while its own client holds the lock.
const FOREIGN: &str = "held by the test";

/// What the threads of the child do, and how often.
#[derive(Default)]
struct Counts {
    /// By thread: the entries so far.
    entered: [AtomicU64; THREADS],
    lost: AtomicU64,
    /// A thread saw a foreign hold between two moments at which it believed.
    spoiled: AtomicU64,
    over: AtomicBool,
}

impl Counts {
    fn of_threads(&self) -> [u64; THREADS] {
        std::array::from_fn(|thread| self.entered[thread].load(Ordering::SeqCst))
    }
}

/// In a child process: threads enter again and again, until the test stops them.
pub(crate) fn enter_in_many_threads(client: &Client, url: &str) {
    let address: SocketAddr =
        url.trim_start_matches("redis://").trim_end_matches('/').parse().unwrap();
    let connection = || RawConnection::open(address).unwrap();
    let counts = Counts::default();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let counts = &counts;
            scope.spawn(move || enter_until_over(client, connection(), thread, counts));
        }
        let mut server = connection();
        let all_entered = |before: [u64; THREADS]| {
            counts.of_threads().iter().zip(before).all(|(now, before)| *now > before)
        };
        for _ in 0..STOPS {
            let before = counts.of_threads();
            wait_until("all got in", LIMIT, || all_entered(before));
            println!("busy");
            wait_until("the test holds the lock", LIMIT, || is_set(&mut server, FOREIGN));
            // Then each has left, and found out that it held nothing.
            wait_until("all wait", LIMIT, || client.stats().waiters == THREADS);
            println!("all wait");
            wait_until("the test has released the lock", LIMIT, || !is_set(&mut server, FOREIGN));
        }
        let before = counts.of_threads();
        wait_until("all got in again", LIMIT, || all_entered(before));
        counts.over.store(true, Ordering::SeqCst);
    });
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.panics), (0, 0, 0));
    println!(
        "lost {} spoiled {}",
        counts.lost.load(Ordering::SeqCst),
        counts.spoiled.load(Ordering::SeqCst)
    );
    assert!(client.shutdown(LIMIT).unreleased.is_empty());
    println!("ended");
}

fn is_set(server: &mut RawConnection, key: &str) -> bool {
    server.command(&["EXISTS", key]).integer() == 1
}

fn enter_until_over(client: &Client, mut server: RawConnection, thread: usize, counts: &Counts) {
    let lock = client.lock("a");
    while !counts.over.load(Ordering::SeqCst) {
        let guard = match lock.lock() {
            Ok(guard) => guard,
            // Stopped in the middle of a call: the lease was over before its answer was read.
            Err(error) => {
                assert!(error.is_retryable() || matches!(error, Error::Lost { .. }), "{error}");
                continue;
            }
        };
        // So many looks that a stop mostly comes between two.
        for _ in 0..LOOKS {
            let believed = guard.is_held();
            let is_foreign = is_set(&mut server, FOREIGN);
            if believed && guard.is_held() {
                counts.spoiled.fetch_add(u64::from(is_foreign), Ordering::SeqCst);
                counts.entered[thread].fetch_add(1, Ordering::SeqCst);
            }
        }
        if thread.is_multiple_of(2) {
            drop(guard);
        } else if let Err(error) = guard.unlock() {
            assert!(error.is_retryable() || matches!(error, Error::Lost { .. }), "{error}");
            counts.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn start(server: &Server) -> TestProcess {
    child("enter in many threads", server, &[])
}

#[test]
fn threads_of_process_stopped_past_lease_see_loss_and_recover() {
    let server = Server::start();
    let client = connect(&server);
    let mut stopped = start(&server);
    for _ in 0..STOPS {
        stopped.wait_for_line("busy", LIMIT);
        stopped.pause();
        let guard = client.lock("a").try_lock_for(LIMIT).unwrap().expect("the lease ends");
        server.command(&["SET", FOREIGN, "1"]);
        // From here until the unlock, nobody of that process may believe.
        stopped.resume();
        stopped.wait_for_line("all wait", LIMIT);
        assert!(guard.is_held());
        assert_eq!(server.command(&["HKEYS", "a"]).texts(), [guard.owner()]);
        server.command(&["DEL", FOREIGN]);
        guard.unlock().unwrap();
    }
    let counts = stopped.wait_for_line("lost", LIMIT);
    assert!(counts.ends_with("spoiled 0"), "{counts}");
    stopped.wait_for_line("ended", LIMIT);
    assert_eq!(stopped.wait_for_exit(LIMIT), 0, "{}", stopped.output());
    assert_eq!(server.command(&["EXISTS", "a"]).integer(), 0);
}
