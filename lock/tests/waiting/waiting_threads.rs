//! Threads that wait for a lock on a real server, and how far they have come.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use wheellock::{Client, OnDeadlock};
use wheellock_fixture::{Server, wait_until};

use crate::common::{LIMIT, built, now};

/// As the documentation has it: a waiter that was not told asks again after so long.
pub(crate) const POLL_BOUND: Duration = Duration::from_secs(1);
/// What ends long before it has to.
pub(crate) const IN_TIME: Duration = Duration::from_secs(8);

/// A client whose scripts are those of its calls: to look for deadlocks would add some to each wait of
/// more than a second.
pub(crate) fn connect(server: &Server) -> Client {
    built(Client::builder().url(&server.url()).on_deadlock(OnDeadlock::Ignore))
}

/// Starts a thread with a stack so small that a thousand of them are no burden.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    thread::Builder::new().stack_size(128 * 1024).spawn_scoped(scope, run).unwrap()
}

/// How many connections listen for the releases of a lock.
pub(crate) fn listeners(server: &Server, name: &str) -> i64 {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    server.command(&["PUBSUB", "NUMSUB", &channel]).array()[1].integer()
}

/// How many scripts the server has run or refused to run.
pub(crate) fn scripts(server: &Server) -> u64 {
    server.command_calls("evalsha") + server.command_calls("eval")
}

/// Waits until this number of the client's threads wait, and are subscribed.
pub(crate) fn wait_for_waiters(server: &Server, client: &Client, name: &str, count: usize) {
    wait_until("the threads wait", LIMIT, || client.stats().waiters == count);
    wait_until("they listen", LIMIT, || listeners(server, name) > 0);
}

/// Waits until the first thread that waits for a lock has been refused twice, before it listened
/// and after. From then on it is up to a message or to the poll bound. `before` counts the scripts
/// before it began.
pub(crate) fn wait_for_the_head(server: &Server, client: &Client, name: &str, before: u64) {
    wait_for_waiters(server, client, name, 1);
    wait_until("it was refused twice", LIMIT, || scripts(server) >= before + 2);
}

/// Waits for a lock, and releases it at once. Answers when it was owned.
pub(crate) fn take(client: &Client, name: &str) -> Instant {
    let guard = client.lock(name).lock().unwrap();
    let owned_at = now();
    guard.unlock().unwrap();
    owned_at
}
