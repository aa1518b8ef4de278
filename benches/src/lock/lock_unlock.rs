//! Lock and unlock without contention: the floors, this crate and the peers.

use std::time::Duration;

use redlock::RedLock;
use rlock::sync_lock::RLock;
use rlock::{AcquireOptions, RenewalMode};
use wheellock::Client;
use wheellock_fixture::Server;

use crate::harness::Contender;
use crate::lock::raw::RawPair;
use crate::lock::watched;

const LEASE: Duration = Duration::from_secs(30);

/// The contenders that are fast enough to be run thousands of times. The floor is the same scripts
/// on a plain socket.
#[must_use]
pub fn lock_unlocks(server: &Server) -> Vec<Contender> {
    vec![
        two_evalsha(server),
        watched("wheellock, watched", &server.url(), "bench:wheel"),
        with_lease(server),
        two_pings(server),
        rlock(server, "rlock 0.2, no renewal", RenewalMode::Disabled),
    ]
}

/// The floor, and the peers that need a thread or two connections for each lock.
#[must_use]
pub fn slow_lock_unlocks(server: &Server) -> Vec<Contender> {
    let renewed = rlock(server, "rlock 0.2, renewed", RenewalMode::Auto);
    vec![two_evalsha(server), renewed, redlock(server)]
}

fn two_evalsha(server: &Server) -> Contender {
    let mut raw = RawPair::of_lock(server.address(), "bench:floor");
    Contender::timed("two raw EVALSHA", move || {
        raw.acquire();
        raw.release();
    })
}

fn two_pings(server: &Server) -> Contender {
    let mut raw = RawPair::of_lock(server.address(), "bench:pings");
    Contender::timed("two PINGs", move || {
        raw.ping();
        raw.ping();
    })
}

fn with_lease(server: &Server) -> Contender {
    let client = Client::connect(&server.url()).expect("the server is there");
    let lock = client.lock("bench:wheel").with_lease(LEASE);
    Contender::timed("wheellock, with_lease", move || {
        let guard = lock.lock().expect("the lock is free");
        guard.unlock().expect("it was held");
    })
}

fn rlock(server: &Server, name: &'static str, renewal: RenewalMode) -> Contender {
    let manager = RLock::new(server.url().as_str()).expect("the server is there");
    let options = AcquireOptions::builder().ttl(LEASE).renewal_mode(renewal).build();
    let options = options.expect("the options are valid");
    Contender::timed(name, move || {
        let mut guard = manager
            .acquire_mutex_with_options("bench:rlock", options.clone())
            .expect("the lock is free");
        guard.release().expect("it was held");
    })
}

fn redlock(server: &Server) -> Contender {
    let manager = RedLock::new(vec![server.url()]);
    Contender::timed("redlock 2.0", move || {
        let lock = manager
            .lock(b"bench:redlo", 30_000)
            .expect("the server is there")
            .expect("the lock is free");
        manager.unlock(&lock);
    })
}
