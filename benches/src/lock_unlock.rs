//! Lock and unlock without a rival: the floors, this crate and the peers, each ready to be run.

use std::time::Duration;

use redlock::RedLock;
use rlock::sync_lock::RLock;
use rlock::{AcquireOptions, RenewalMode};
use wheellock::Client;
use wheellock_fixture::Server;

use crate::contender::Contender;
use crate::raw::RawLock;

/// The floor: acquire and release by the same scripts, on a plain socket.
pub const TWO_EVALSHA: &str = "two raw EVALSHA";
/// This crate, with its watchdog.
pub const WATCHED: &str = "wheellock, watched";

const LEASE: Duration = Duration::from_secs(30);

/// The floors, this crate and a peer that are fast enough to be run thousands of times; the first is the floor.
#[must_use]
pub fn lock_unlocks(server: &Server) -> Vec<Contender> {
    vec![
        two_evalsha(server),
        wheellock(server, true),
        wheellock(server, false),
        two_pings(server),
        { rlock(server, "rlock 0.2, no renewal", RenewalMode::Disabled) },
    ]
}

/// The peers that need a thread or two connections for each lock.
#[must_use]
pub fn slow_lock_unlocks(server: &Server) -> Vec<Contender> {
    vec![rlock(server, "rlock 0.2, renewed", RenewalMode::Auto), redlock(server)]
}

fn two_evalsha(server: &Server) -> Contender {
    let mut raw = RawLock::new(server.address(), "bench:floor");
    Contender::timed(TWO_EVALSHA, move || {
        raw.acquire();
        raw.release();
    })
}

fn two_pings(server: &Server) -> Contender {
    let mut raw = RawLock::new(server.address(), "bench:pings");
    Contender::timed("two PINGs", move || {
        raw.ping();
        raw.ping();
    })
}

fn wheellock(server: &Server, watched: bool) -> Contender {
    let client = Client::connect(&server.url()).expect("the server is there");
    let lock = client.lock("bench:wheel");
    let (name, lock) =
        if watched { (WATCHED, lock) } else { ("wheellock, with_lease", lock.with_lease(LEASE)) };
    Contender::timed(name, move || {
        let guard = lock.lock().expect("nobody else wants it");
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
            .expect("nobody else wants it");
        guard.release().expect("it was held");
    })
}

fn redlock(server: &Server) -> Contender {
    let manager = RedLock::new(vec![server.url()]);
    Contender::timed("redlock 2.0", move || {
        let lock = manager
            .lock(b"bench:redlo", 30_000)
            .expect("the server is there")
            .expect("nobody else wants it");
        manager.unlock(&lock);
    })
}
