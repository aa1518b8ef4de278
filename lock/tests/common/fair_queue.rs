//! The queue of a fair lock, read and changed from outside.

use wheellock_fixture::{Reply, Server, wait_until};

use super::SOON;

/// How long a waiter that stops trying counts as live, in milliseconds.
pub(crate) const LIVENESS: i64 = 30_000;

/// Owners such as this library draws: the identity's UUID is of version 8.
pub(crate) const OURS: [&str; 5] = [
    "5f0c1f5e-3a0b-8c61-9a3e-0d5f7c2b9a10:1",
    "5f0c1f5e-3a0b-8c61-9a3e-0d5f7c2b9a10:2",
    "5f0c1f5e-3a0b-8c61-9a3e-0d5f7c2b9a10:3",
    "5f0c1f5e-3a0b-8c61-9a3e-0d5f7c2b9a10:4",
    "5f0c1f5e-3a0b-8c61-9a3e-0d5f7c2b9a10:5",
];

pub(crate) fn queue(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}

pub(crate) fn deadlines(name: &str) -> String {
    format!("redisson_lock_timeout:{{{name}}}")
}

/// The waiters in the queue, in order.
pub(crate) fn queued(server: &Server, name: &str) -> Vec<String> {
    server.command(&["LRANGE", &queue(name), "0", "-1"]).texts()
}

/// A waiter's liveness deadline.
pub(crate) fn deadline(server: &Server, name: &str, owner: &str) -> i64 {
    server.command(&["ZSCORE", &deadlines(name), owner]).text().parse().unwrap()
}

/// Whether list and set are gone.
pub(crate) fn no_trace(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", &queue(name), &deadlines(name)]).integer() == 0
}

pub(crate) fn wait_for_no_trace(server: &Server, name: &str) {
    wait_until("the queue is empty", SOON, || no_trace(server, name));
}

pub(crate) fn wait_for_queue(server: &Server, name: &str, length: usize) {
    wait_until(&format!("{length} waiters are in the queue"), SOON, || {
        queued(server, name).len() == length
    });
}

/// The server's clock in milliseconds.
pub(crate) fn time(server: &Server) -> i64 {
    let parts = server.command(&["TIME"]).texts();
    parts[0].parse::<i64>().unwrap() * 1000 + parts[1].parse::<i64>().unwrap() / 1000
}

/// Queues a waiter that never tries, with a deadline in `millis` milliseconds.
pub(crate) fn put_waiter(server: &Server, name: &str, owner: &str, millis: i64) {
    let deadline = (time(server) + millis).to_string();
    server.command(&["RPUSH", &queue(name), owner]);
    server.command(&["ZADD", &deadlines(name), &deadline, owner]);
}

/// Tries a fair lock once for an owner, as a waiter does.
pub(crate) fn ask(server: &Server, name: &str, owner: &str) -> Reply {
    let script = include_str!("../../src/ops/scripts/fair_acquire.lua");
    let (queue, deadlines) = (queue(name), deadlines(name));
    let keys = ["4", name, &queue, &deadlines, &format!("redisson_lock__channel:{{{name}}}")];
    let limits = ["30000", "1", "30000", "1000", "5000", "0", "PUBLISH", "300000"];
    let not_after = (time(server) + 60_000).to_string();
    let rest = [&[not_after.as_str(), owner][..], &limits].concat();
    server.command(&[&["EVAL", script][..], &keys, &rest].concat())
}
