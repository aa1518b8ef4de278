//! Locks that stay with their client between two uses.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails is a test that fails, and children tell by printing"
)]

#[path = "../common/mod.rs"]
mod common;

mod ends;
mod processes;
mod reuse;
mod settings;
mod wanted;

use std::time::Duration;

use wheellock::{Client, Lock};
use wheellock_fixture::wait_until;

use crate::common::SOON;

/// How long the tests leave a lock with its client.
const TIME: Duration = Duration::from_millis(200);

fn cached(client: &Client, name: &str) -> Lock {
    client.lock(name).with_cache(TIME)
}

/// Uses a lock once.
fn use_once(lock: &Lock) {
    lock.lock().unwrap().unlock().unwrap();
}

/// Uses the lock until it is cached: before, its client has to hear others.
fn cache(client: &Client, name: &str) {
    wait_until("it is cached", SOON, || {
        use_once(&cached(client, name));
        client.stats().cache.cached > 0
    });
}

/// Whether a client that caches nothing gets the lock now.
fn is_free(rival: &Client, name: &str) -> bool {
    match rival.lock(name).try_lock().unwrap() {
        Some(guard) => {
            guard.unlock().unwrap();
            true
        }
        None => false,
    }
}
