//! A fair lock's queue shared with Redisson threads. Their scripts, written from their description,
//! change the deadlines in the queue; no waiter loses its place, and the queue does not stall.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::thread;

use crate::common::fair_queue::{
    LIVENESS, OURS, ask, deadline, deadlines, no_trace, put_waiter, queue, queued, time,
    wait_for_queue,
};
use crate::common::{SLACK, SOON, built, now, timed};
use wheellock::Client;
use wheellock_fixture::{Reply, Server, wait_until};

/// What a thread of Redisson adds to the moments behind it, and takes off again, in milliseconds.
const WAIT: i64 = 300_000;

/// `RedissonFairLock`: the head takes the lock. KEYS: lock, queue, timeouts. ARGV: owner, wait.
const TAKE: &str = "
redis.call('del', KEYS[1])
redis.call('lpop', KEYS[2])
redis.call('zrem', KEYS[3], ARGV[1])
for _, other in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
  redis.call('zincrby', KEYS[3], -tonumber(ARGV[2]), other)
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], 30000)";

/// `RedissonFairLock`: release. KEYS: lock, queue, timeouts. ARGV: now, channel. Returns the queue.
const RELEASE: &str = "
while true do
  local head = redis.call('lindex', KEYS[2], 0)
  local deadline = head and redis.call('zscore', KEYS[3], head)
  if not deadline or tonumber(deadline) > tonumber(ARGV[1]) then
    break
  end
  redis.call('zrem', KEYS[3], head)
  redis.call('lpop', KEYS[2])
end
redis.call('del', KEYS[1])
local queue = redis.call('lrange', KEYS[2], 0, -1)
if queue[1] then
  redis.call('publish', ARGV[2] .. ':' .. queue[1], '0')
end
return queue";

/// A script as a part of a longer one: its two arguments are those behind the first `at`.
fn part(at: usize, script: &str) -> String {
    format!("do local ARGV = {{all[{}], all[{}]}} {script} end", at + 1, at + 2)
}

/// Threads of Redisson, on a server of our making.
struct Java<'a>(&'a Server);

impl Java<'_> {
    fn holds(&self, owner: &str) {
        self.0.command(&["HSET", "a", owner, "1"]);
        self.0.command(&["PEXPIRE", "a", "30000"]);
    }

    /// All of them take the lock, one after the other, and the last lets go of it; at one moment of
    /// the server's, so no try comes in between. Returns the queue.
    fn pass(&self, owners: &[&str], wait: i64) -> Vec<String> {
        let (queue, deadlines, now) = (queue("a"), deadlines("a"), time(self.0).to_string());
        let mut words: Vec<String> = Vec::new();
        let mut parts = vec![String::from("local all = ARGV")];
        for owner in owners {
            parts.push(part(words.len(), TAKE));
            words.extend([(*owner).to_owned(), wait.to_string()]);
        }
        parts.push(part(words.len(), RELEASE));
        words.extend([now, "redisson_lock__channel:{a}".to_owned()]);
        let script = parts.join("\n");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let head = ["EVAL", &script, "3", "a", &queue, &deadlines];
        self.0.command(&[&head[..], &words].concat()).texts()
    }

    /// The head takes the lock, and keeps it.
    fn takes(&self, owner: &str, wait: i64) {
        let (queue, deadlines, wait) = (queue("a"), deadlines("a"), wait.to_string());
        self.0.command(&["EVAL", TAKE, "3", "a", &queue, &deadlines, owner, &wait]);
    }
}

fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()))
}

/// The time until a waiter's liveness deadline.
fn left(server: &Server, owner: &str) -> i64 {
    deadline(server, "a", owner) - time(server)
}

/// Lets clients wait behind the waiters in the queue, has `pass` acquire and release the lock, and
/// measures until all of them were served.
fn served_after(
    server: &Server,
    ahead: usize,
    clients: &[Client],
    pass: impl FnOnce() -> Vec<String>,
) {
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (place, client) in clients.iter().enumerate() {
            waiting.push(scope.spawn(move || {
                client.fair_lock("a").lock().unwrap().unlock().unwrap();
                now()
            }));
            wait_for_queue(server, "a", ahead + place + 1);
        }
        wait_until("all sleep", SOON, || clients.iter().all(|client| client.stats().waiters == 1));
        let expected = queued(server, "a").split_off(ahead);
        let (kept, begun) = (pass(), now());
        assert_eq!(kept, expected, "those behind keep their places");
        for thread in waiting {
            let took = thread.join().unwrap().saturating_duration_since(begun);
            assert!(took < SLACK, "one slept on for {took:?} beside a free lock");
        }
    });
    assert!(no_trace(server, "a"));
}

#[test]
fn waiters_behind_an_old_redisson_waiter_keep_their_places() {
    let server = Server::start();
    let clients = [connect(&server), connect(&server), connect(&server)];
    let java = Java(&server);
    for waited in [0, 120_000, 325_000] {
        java.holds("java:1");
        put_waiter(&server, "a", "java:2", 30_000 + WAIT - waited);
        served_after(&server, 1, &clients, || java.pass(&["java:2"], WAIT));
    }
}

#[test]
fn waiter_keeps_place_when_all_redisson_threads_ahead_leave() {
    let server = Server::start();
    let clients = [connect(&server)];
    let java = Java(&server);
    java.holds("java:1");
    let owners = ["java:2", "java:3", "java:4"];
    for (owner, left) in owners.iter().zip([230_000, 530_000, 830_000]) {
        put_waiter(&server, "a", owner, left);
    }
    served_after(&server, 3, &clients, || java.pass(&owners, WAIT));
}

#[test]
fn deadlines_of_dead_waiters_do_not_add_up_behind_redisson() {
    let server = Server::start();
    let java = Java(&server);
    java.holds("java:1");
    put_waiter(&server, "a", "java:2", 30_000 + WAIT);
    for owner in OURS {
        assert!(matches!(ask(&server, "a", owner), Reply::Integer(1..)));
    }
    java.takes("java:2", WAIT);
    for owner in OURS {
        let left = left(&server, owner);
        assert!((LIVENESS - 2000..=LIVENESS).contains(&left), "{owner}: {left}");
    }
}

#[test]
fn deadlines_raised_by_redisson_thread_are_cut_after_departure() {
    let server = Server::start();
    let java = Java(&server);
    let [dead, others @ .., asks] = OURS;
    java.holds("java:1");
    put_waiter(&server, "a", "java:2", 60_000);
    for owner in OURS {
        ask(&server, "a", owner);
    }
    // Behind all of ours, with a wait of 30 s.
    put_waiter(&server, "a", "java:3", left(&server, asks) + 30_000);
    java.takes("java:2", 30_000);
    assert!(left(&server, dead) > LIVENESS * 2);
    ask(&server, "a", asks);
    for owner in [dead, asks].iter().chain(&others) {
        assert!(left(&server, owner) <= LIVENESS + 1000, "{owner}: {}", left(&server, owner));
    }
    let left = left(&server, "java:3");
    // The clock is read in between.
    assert!((LIVENESS - 1000..=LIVENESS * 2 + 1000).contains(&left), "{left}");
}

#[test]
fn a_dead_redisson_thread_blocks_the_queue_for_half_a_minute() {
    let server = Server::start();
    let java = Java(&server);
    java.holds("java:1");
    put_waiter(&server, "a", "java:2", 60_000);
    let [first, second, ..] = OURS;
    ask(&server, "a", first);
    assert!(left(&server, first) > WAIT);
    server.command(&["ZADD", &deadlines("a"), "1", "java:2"]);
    ask(&server, "a", second);
    assert_eq!(queued(&server, "a"), [first, second]);
    for owner in [first, second] {
        assert!(left(&server, owner) <= LIVENESS, "{owner}: {}", left(&server, owner));
    }
}

#[test]
fn redisson_thread_deadline_does_not_grow_with_queue_length() {
    let server = Server::start();
    let (holder, waiters) = (connect(&server), [connect(&server), connect(&server)]);
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        for (place, client) in waiters.iter().enumerate() {
            scope.spawn(|| client.fair_lock("a").lock().unwrap().unlock().unwrap());
            wait_for_queue(&server, "a", place + 1);
        }
        // As Redisson does it: its wait behind the deadline of the last.
        let last = deadline(&server, "a", &queued(&server, "a")[1]);
        put_waiter(&server, "a", "java:1", last + WAIT - time(&server));
        guard.unlock().unwrap();
        wait_for_queue(&server, "a", 1);
    });
    let left = left(&server, "java:1");
    assert!((LIVENESS + WAIT - 5000..=LIVENESS + WAIT).contains(&left), "{left}");
}

#[test]
fn deadlines_do_not_add_up_in_a_mixed_queue() {
    let server = Server::start();
    let java = Java(&server);
    java.holds("java:0");
    let mut before = String::from("java:0");
    for round in 1..=20 {
        let (ours, theirs) = (OURS[round % 5], format!("java:{round}"));
        ask(&server, "a", ours);
        put_waiter(&server, "a", &theirs, left(&server, ours) + WAIT);
        // The thread before goes, then the one of ours behind it.
        if round > 1 {
            java.takes(&before, WAIT);
        }
        server.command(&["DEL", "a"]);
        assert_eq!(ask(&server, "a", ours), Reply::Nil);
        before = theirs;
    }
    let left = left(&server, &before);
    assert!(left <= WAIT + 2 * LIVENESS, "{left}");
}

#[test]
fn a_server_out_of_memory_lets_a_waiter_extend_its_deadline() {
    let server = Server::start();
    let (holder, waiter) = (connect(&server), connect(&server));
    let guard = holder.fair_lock("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.fair_lock("a").lock().unwrap().unlock());
        wait_for_queue(&server, "a", 1);
        let owner = queued(&server, "a").remove(0);
        wait_until("it sleeps", SOON, || waiter.stats().waiters == 1);
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let first = time(&server) + LIVENESS;
        wait_until("it moves", SOON, || deadline(&server, "a", &owner) > first);
        guard.unlock().unwrap();
        let (got, took) = timed(|| waiting.join().unwrap());
        assert!(got.is_ok() && took < SLACK, "{got:?} after {took:?}");
    });
    assert!(no_trace(&server, "a"));
}
