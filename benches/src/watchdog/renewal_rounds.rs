//! Renewals flat out: a client whose locks are all due at once, and the floor with the same locks.
//!
//! A client renews as fast as it can when all that it holds is due, as after a pause of the process
//! or the machine for a third of the lease. Here its clock, given to the builder, is set forward by
//! that time; all else is real. A round begins there, and ends when the client has counted a
//! renewal of every lock. So the ticker's work, the encoding, the replies and the bookkeeping are
//! all in it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use wheellock::{Client, LockGuard};
use wheellock_fixture::RawConnection;

use crate::harness::clock::{now, sleep};
use crate::watchdog::floor::Floor;
use crate::watchdog::holders::{lock_name, url};
use crate::watchdog::jump_clock::JumpClock;
use crate::watchdog::server_load::ServerLoad;

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);
/// This many are renewed before the shortest sleep of a thread would end.
const FEW: usize = 2000;

/// A client that holds locks, and a plain socket that renews the same ones.
pub struct RenewalRounds {
    client: Client,
    /// Not released one by one, which would take longer than the measuring.
    guards: Vec<LockGuard>,
    clock: JumpClock,
    floor: Floor,
    keys_per_script: usize,
    /// The shortest round so far. To ask the client for its progress takes processor time from it.
    shortest: Duration,
}

impl RenewalRounds {
    /// Acquires this many locks on an empty server, and warms up.
    #[must_use]
    pub fn start(address: SocketAddr, held: usize) -> Self {
        let clock = JumpClock::default();
        let client = Client::builder()
            .url(&url(address))
            .clock(std::sync::Arc::new(clock.clone()))
            .watchdog_lease(LEASE)
            .build()
            .expect("the server is there");
        let names: Vec<String> = (0..held).map(lock_name).collect();
        let guards: Vec<LockGuard> =
            names.iter().map(|name| client.lock(name).lock().expect("the lock is free")).collect();
        let mut observer = RawConnection::open(address).expect("the server listens");
        let floor = Floor::start(address, &names, 1);
        let shortest = LIMIT;
        let mut own = Self { client, guards, clock, floor, keys_per_script: 1, shortest };
        // The first one loads the script into the server.
        own.renew();
        let before = ServerLoad::read(&mut observer);
        own.renew();
        let scripts = ServerLoad::read(&mut observer).since(before).scripts;
        own.keys_per_script = keys_per_script(held, scripts);
        own.floor = Floor::start(address, &names, own.keys_per_script);
        own.floor.renew();
        own
    }

    /// The keys in a script: the mean of the client's, and the number in each of the floor's.
    #[must_use]
    pub fn keys_per_script(&self) -> usize {
        self.keys_per_script
    }

    /// The client renews every lock once. Returns how long that took.
    pub fn renew(&mut self) -> Duration {
        let held = u64::try_from(self.guards.len()).unwrap_or(u64::MAX);
        let few = self.guards.len() <= FEW;
        let target = self.client.stats().renewed + held;
        let start = now();
        self.clock.jump(LEASE / 3);
        if !few && self.shortest < LIMIT {
            sleep(self.shortest * 19 / 20);
        }
        loop {
            let stats = self.client.stats();
            if stats.renewed >= target {
                break;
            }
            assert!(stats.lost == 0, "{} locks were lost", stats.lost);
            assert!(now() - start < LIMIT, "a round takes more than {LIMIT:?}");
            if few {
                std::thread::yield_now();
            } else {
                sleep(Duration::from_millis(1));
            }
        }
        let took = now() - start;
        self.shortest = self.shortest.min(took);
        took
    }

    /// The plain socket renews every lock once. Returns how long that took.
    pub fn floor(&mut self) -> Duration {
        self.floor.renew()
    }
}

impl Drop for RenewalRounds {
    fn drop(&mut self) {
        // It ends all holds at once, before each guard would release one.
        self.client.shutdown(Duration::from_secs(5));
    }
}

impl fmt::Debug for RenewalRounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RenewalRounds")
            .field("held", &self.guards.len())
            .finish_non_exhaustive()
    }
}

fn keys_per_script(held: usize, scripts: f64) -> usize {
    // The fewest keys with which all locks fit into as many scripts as the client sent.
    (1..=held)
        .find(|keys| {
            u32::try_from(held.div_ceil(*keys)).is_ok_and(|needed| f64::from(needed) <= scripts)
        })
        .unwrap_or(1)
}
