//! Waiters woken from the other side: at once by a message, or by the poll.

use std::thread;

use crate::peer::Pending;
use crate::shared::{Tries, now, start};
use crate::{AT_ONCE, TRIES};

/// Has a thread of ours wait, and Java do what it waits for. Answers what the wait was for.
pub(crate) fn java_wakes_rust<T: Send>(
    tries: Tries,
    wait: impl FnOnce() -> T + Send,
    cause: impl FnOnce() -> Pending,
) -> T {
    thread::scope(|scope| {
        let waiter = start(scope, || (wait(), now()));
        tries.wait_until_asleep(TRIES);
        assert!(!waiter.is_finished(), "it did not wait");
        let caused = cause().answer();
        assert!(caused.said.is_ok(), "{:?}", caused.said);
        let (value, woken_at) = waiter.join().unwrap();
        let took = woken_at.saturating_duration_since(caused.at);
        assert!(took < AT_ONCE, "Rust was woken after {took:?}");
        value
    })
}

/// Has a thread of Java's wait, and does what it waits for. Answers what the wait was for.
pub(crate) fn rust_wakes_java(
    tries: Tries,
    wait: impl FnOnce() -> Pending,
    cause: impl FnOnce(),
) -> String {
    let waiting = wait();
    tries.wait_until_asleep(TRIES);
    assert!(waiting.is_under_way(), "it did not wait");
    cause();
    let caused_at = now();
    let woken = waiting.answer();
    let took = woken.at.saturating_duration_since(caused_at);
    assert!(took < AT_ONCE, "Java was woken after {took:?}");
    woken.said.unwrap_or_else(|thrown| panic!("the wait ended with {thrown}"))
}
