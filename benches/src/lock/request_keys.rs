//! What a busy semaphore leaves on the server to recognize copies of its calls.

use std::fmt;
use std::thread;
use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::Server;

use crate::harness::clock::now;

/// A semaphore after some time at full load.
#[derive(Clone, Copy, Debug)]
pub struct RequestKeys {
    threads: usize,
    length: Duration,
    pairs: u64,
    keys: i64,
    /// By which `used_memory` of `INFO` grew.
    bytes: i64,
}

/// So many threads of one client acquire and release a permit for `length`, each of its own, so
/// that none waits.
#[must_use]
pub fn request_keys(threads: usize, length: Duration) -> RequestKeys {
    let server = Server::start();
    let client = Client::connect(&server.url()).expect("the server is there");
    let semaphore = client.semaphore("bench:busy");
    let permits = u32::try_from(threads).expect("a few threads");
    semaphore.try_set_permits(permits).expect("the server is there");
    let pair = || {
        let guard = semaphore.acquire(1).expect("each thread has a permit");
        guard.release().expect("it exists");
    };
    // The scripts are loaded, and the connections are open.
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(pair))));
    let (before, begun) = (used_memory(&server), now());
    let pairs = thread::scope(|scope| {
        let work = || {
            let mut pairs: u64 = 0;
            while now() < begun + length {
                pair();
                pairs += 1;
            }
            pairs
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    let bytes = used_memory(&server) - before;
    let keys = server.command(&["DBSIZE"]).integer();
    RequestKeys { threads, length, pairs, keys, bytes }
}

fn used_memory(server: &Server) -> i64 {
    let info = server.command(&["INFO", "memory"]).text();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|bytes| bytes.parse().ok()).expect("each server has the line")
}

impl fmt::Display for RequestKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, length, pairs, keys, bytes } = self;
        let rate = u128::from(*pairs) * 1000 / length.as_millis().max(1);
        write!(
            formatter,
            "{threads:>3} threads: {rate} pairs/s for {length:?}, then {keys} keys, {bytes} bytes more"
        )
    }
}
