//! Renewals flat out: a client whose locks are all due at once, and the floor on the same locks.
//!
//! A client renews as fast as it can when all that it holds is due: after the process or the machine stood still for a
//! third of the lease. Here its clock is set forward by that, through the builder's `clock`; all else is real. The
//! sweep begins with that and ends when the client has counted a renewal of every lock. So the ticker's work, the
//! encoding, the replies and the bookkeeping are all in it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use wheellock::{Client, LockGuard};
use wheellock_fixture::RawConnection;

use crate::clock::{now, pause};
use crate::renewing::floor::Floor;
use crate::renewing::jump_clock::JumpClock;
use crate::renewing::keepers::{lock_name, url};
use crate::renewing::server_load::ServerLoad;

const LEASE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);
/// So many are renewed before a pause of a thread would end.
const FEW: usize = 2000;

/// A client that holds locks, and a bare socket that renews the same ones.
pub struct Sweeps {
    client: Client,
    /// Never released one by one: that would take longer than the measuring.
    guards: Vec<LockGuard>,
    clock: JumpClock,
    floor: Floor,
    keys_per_script: usize,
    /// The shortest sweep so far. Asking the client how far it is takes processor time from it.
    shortest: Duration,
}

impl Sweeps {
    /// Takes so many locks on a server that has none, and warms up.
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
        let guards: Vec<LockGuard> = names
            .iter()
            .map(|name| client.lock(name).lock().expect("nobody else wants it"))
            .collect();
        let mut asking = RawConnection::open(address).expect("the server listens");
        let floor = Floor::start(address, &names, 1);
        let shortest = LIMIT;
        let mut own = Self { client, guards, clock, floor, keys_per_script: 1, shortest };
        // The first one teaches the server the script.
        own.sweep();
        let before = ServerLoad::read(&mut asking);
        own.sweep();
        let scripts = ServerLoad::read(&mut asking).since(before).scripts;
        own.keys_per_script = keys_per_script(held, scripts);
        own.floor = Floor::start(address, &names, own.keys_per_script);
        own.floor.sweep();
        own
    }

    /// How many keys the client's scripts had in the mean, and the floor's have.
    #[must_use]
    pub fn keys_per_script(&self) -> usize {
        self.keys_per_script
    }

    /// The client renews every lock once: how long that took.
    pub fn sweep(&mut self) -> Duration {
        let held = u64::try_from(self.guards.len()).unwrap_or(u64::MAX);
        let few = self.guards.len() <= FEW;
        let target = self.client.stats().renewed + held;
        let start = now();
        self.clock.jump(LEASE / 3);
        if !few && self.shortest < LIMIT {
            pause(self.shortest * 19 / 20);
        }
        loop {
            let stats = self.client.stats();
            if stats.renewed >= target {
                break;
            }
            assert!(stats.lost == 0, "{} locks were lost", stats.lost);
            assert!(now() - start < LIMIT, "a sweep takes more than {LIMIT:?}");
            if few {
                std::thread::yield_now();
            } else {
                pause(Duration::from_millis(1));
            }
        }
        let took = now() - start;
        self.shortest = self.shortest.min(took);
        took
    }

    /// The bare socket renews every lock once: how long that took.
    pub fn floor(&mut self) -> Duration {
        self.floor.sweep()
    }
}

impl Drop for Sweeps {
    fn drop(&mut self) {
        // Ended all at once, and not one by one by their guards.
        self.client.shutdown(Duration::from_secs(5));
    }
}

impl fmt::Debug for Sweeps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sweeps").field("held", &self.guards.len()).finish_non_exhaustive()
    }
}

fn keys_per_script(held: usize, scripts: f64) -> usize {
    // Whole scripts, counted up: the shortest that has no more scripts than the client sent.
    (1..=held)
        .find(|keys| {
            u32::try_from(held.div_ceil(*keys)).is_ok_and(|needed| f64::from(needed) <= scripts)
        })
        .unwrap_or(1)
}
