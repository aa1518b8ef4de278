//! Lock and unlock of another client, in a process of its own, while a holder renews.

use std::net::SocketAddr;
use std::time::Duration;

use wheellock::Client;

use crate::harness::clock::now;
use crate::harness::figures::at_permille;
use crate::harness::measured::Numbers;
use crate::watchdog::holders::url;

const WARM_UP: usize = 500;

/// Acquires and releases one free lock without a sleep, for `window`.
pub(crate) fn foreground(address: SocketAddr, window: Duration) -> Numbers {
    let client = Client::connect(&url(address)).expect("the server is there");
    let lock = client.lock("bench:foreground");
    let pair = || {
        let start = now();
        let guard = lock.lock().expect("the lock is free");
        guard.unlock().expect("it was held");
        now() - start
    };
    for _ in 0..WARM_UP {
        pair();
    }
    let start = now();
    let mut samples = Vec::new();
    while now() - start < window {
        samples.push(pair());
    }
    samples.sort_unstable();
    let at = |permille| at_permille(&samples, permille).unwrap_or_default().as_secs_f64() * 1e6;
    vec![("p50", at(500)), ("p99", at(990))]
}
