//! This crate's client, which renews what it holds; and the same with a lease that needs no
//! renewal.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use wheellock::{Client, LockGuard};
use wheellock_fixture::RawConnection;

use crate::harness::clock::now;
use crate::harness::measured::Numbers;
use crate::watchdog::holders::{Holder, HolderConfig, lock_name, url};

/// Longer than any measurement.
const LONG: Duration = Duration::from_secs(3600);
const PINGS: usize = 101;

/// A client with its watchdog.
#[derive(Debug)]
pub(crate) struct Wheellock {
    client: Client,
    guards: Vec<LockGuard>,
    address: SocketAddr,
}

impl Holder for Wheellock {
    fn start(config: &HolderConfig) -> Self {
        let client = Client::builder()
            .url(&url(config.address))
            .watchdog_lease(config.lease)
            .build()
            .expect("the server is there");
        drop(client.lock("bench:warm-up").lock().expect("the lock is free"));
        Self { client, guards: Vec::new(), address: config.address }
    }

    fn acquire(&mut self, held: usize) {
        self.guards.reserve_exact(held);
        for number in 0..held {
            let guard = self.client.lock(&lock_name(number)).lock();
            self.guards.push(guard.expect("the lock is free"));
        }
        start_subscription(&self.client);
    }

    fn lost(&self) -> usize {
        self.guards.iter().filter(|guard| !guard.is_held()).count()
    }

    /// In milliseconds: the lateness of the client's renewals that 99 of 100 do not exceed, and the
    /// round trip to the server, by which it is judged.
    fn more(&self) -> Numbers {
        let stats = self.client.stats();
        assert!(stats.panics == 0, "a turn of the renewal thread panicked");
        vec![
            ("lateness", stats.renewal_lateness.p99.as_secs_f64() * 1000.0),
            ("round-trip", round_trip(self.address).as_secs_f64() * 1000.0),
        ]
    }
}

/// Lets a waiter time out: a client starts its thread for messages with the first waiter.
fn start_subscription(client: &Client) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let waited = client.lock(&lock_name(0)).try_lock_for(Duration::from_millis(50));
            assert!(waited.is_ok_and(|guard| guard.is_none()), "this thread does not hold it");
        });
    });
}

/// The median of some PINGs.
fn round_trip(address: SocketAddr) -> Duration {
    let mut connection = RawConnection::open(address).expect("the server listens");
    let mut took: Vec<Duration> = (0..PINGS)
        .map(|_| {
            let start = now();
            connection.command(&["PING"]);
            now() - start
        })
        .collect();
    took.sort_unstable();
    took.get(PINGS / 2).copied().unwrap_or_default()
}

/// A client whose leases are so long that nothing is renewed.
#[derive(Debug)]
pub(crate) struct Unrenewed {
    client: Client,
    guards: Vec<LockGuard>,
}

impl Holder for Unrenewed {
    fn start(config: &HolderConfig) -> Self {
        let client = Client::connect(&url(config.address)).expect("the server is there");
        Self { client, guards: Vec::new() }
    }

    fn acquire(&mut self, held: usize) {
        self.guards.extend((0..held).map(|number| {
            let lock = self.client.lock(&lock_name(number)).with_lease(LONG);
            lock.lock().expect("the lock is free")
        }));
    }

    fn lost(&self) -> usize {
        0
    }
}
