//! What locks cost: each function makes contenders, of which the first is the floor.

mod cache;
mod endpoints;
mod failover;
mod fair_queue;
mod hand_over;
mod kinds;
mod lock_unlock;
mod many;
mod red_lock;
mod request_keys;
mod threads;

pub(crate) mod raw;

pub use cache::{CACHE_PROCESS, cache_process, cache_report};
pub use endpoints::{behind_sentinels, in_a_cluster};
pub use failover::{Cause, failovers};
pub use fair_queue::fair_queues;
pub use hand_over::{hand_overs, redisson_hand_over, slow_hand_overs};
pub use kinds::lock_kinds;
pub use lock_unlock::{lock_unlocks, slow_lock_unlocks};
pub use many::{HELD_PROCESS, held_process, many_report};
pub use red_lock::{RedServers, red_locks};
pub use request_keys::{RequestKeys, request_keys};
pub use threads::{ManyThreads, threads_report};

use wheellock::Client;

use crate::harness::Contender;

/// This crate with a watchdog, at the servers of `url`.
fn watched(name: &'static str, url: &str, key: &str) -> Contender {
    let client = Client::connect(url).expect("the server is there");
    let lock = client.lock(key);
    Contender::timed(name, move || {
        let guard = lock.lock().expect("the lock is free");
        guard.unlock().expect("it was held");
    })
}
