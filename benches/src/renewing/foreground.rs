//! Somebody else's lock and unlock, in a process of its own, while others renew: its slowest hundredth.

use std::net::SocketAddr;
use std::time::Duration;

use wheellock::Client;

use crate::clock::now;
use crate::renewing::keepers::{Numbers, url};

const WARM_UP: usize = 500;

/// Takes and releases one free lock without a pause, for `window`.
pub(crate) fn foreground(address: SocketAddr, window: Duration) -> Numbers {
    let client = Client::connect(&url(address)).expect("the server is there");
    let lock = client.lock("bench:foreground");
    let pair = || {
        let start = now();
        let guard = lock.lock().expect("nobody else wants it");
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
    let at = |hundredth: usize| {
        let sample = samples.get(samples.len() * hundredth / 100).copied().unwrap_or_default();
        sample.as_secs_f64() * 1e6
    };
    vec![("p50", at(50)), ("p99", at(99))]
}
