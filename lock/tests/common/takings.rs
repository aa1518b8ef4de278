//! Every way to acquire something once, for tests of rollbacks.

use wheellock::{Client, Error, Guard, Lock, SemaphoreGuard};
use wheellock_fixture::Server;

use super::SOON;

/// A way to take something, once. What was taken is given back.
pub(crate) struct Kind {
    /// Also the name.
    pub(crate) word: &'static str,
    pub(crate) take: fn(&Client) -> Result<bool, Error>,
}

fn take<G: Guard>(lock: &Lock<G>) -> Result<bool, Error> {
    Ok(lock.try_lock()?.is_some())
}

pub(crate) const KINDS: [Kind; 13] = [
    Kind { word: "lock", take: |client| take(&client.lock("lock")) },
    Kind { word: "lease", take: |client| take(&client.lock("lease").with_lease(SOON)) },
    Kind { word: "fair", take: |client| take(&client.fair_lock("fair")) },
    Kind {
        word: "line",
        take: |client| Ok(client.fair_lock("line").try_lock_for(SOON)?.is_some()),
    },
    Kind { word: "fenced", take: |client| take(&client.fenced_lock("fenced")) },
    Kind { word: "spin", take: |client| take(&client.spin_lock("spin")) },
    Kind { word: "simple", take: |client| take(&client.simple_lock("simple")) },
    Kind { word: "read", take: |client| take(&client.read_write_lock("read").read_lock()) },
    Kind { word: "write", take: |client| take(&client.read_write_lock("write").write_lock()) },
    Kind {
        word: "semaphore",
        take: |client| {
            let semaphore = client.semaphore("semaphore");
            let taken = semaphore.try_acquire(2).map(taken)?;
            if taken {
                semaphore.release(2)?;
            }
            Ok(taken)
        },
    },
    Kind {
        word: "permits",
        take: |client| {
            let semaphore = client.expirable_semaphore("permits").watched();
            Ok(semaphore.try_acquire_many(2)?.is_some())
        },
    },
    Kind {
        word: "unleased",
        take: |client| Ok(client.expirable_semaphore("unleased").try_acquire_many(2)?.is_some()),
    },
    Kind {
        word: "drain",
        take: |client| {
            let semaphore = client.semaphore("drain");
            let drained = semaphore.drain_permits()?;
            if drained > 0 {
                semaphore.release(2)?;
            }
            Ok(drained == 2)
        },
    },
];

/// Makes the semaphores of [`KINDS`], with two permits each.
pub(crate) fn make_semaphores(client: &Client) {
    assert!(client.semaphore("semaphore").try_set_permits(2).unwrap());
    assert!(client.semaphore("drain").try_set_permits(2).unwrap());
    for name in ["permits", "unleased"] {
        assert!(client.expirable_semaphore(name).try_set_permits(2).unwrap());
    }
}

/// What is at a server but for what has no end: counters of tokens, semaphores, and what remembers
/// requests.
pub(crate) fn left_at(server: &Server) -> Vec<String> {
    let permanent = [
        "redisson_lock_token:",
        "semaphore",
        "drain",
        "permits",
        "unleased",
        "wheellock_request:",
        "wheellock_client:",
    ];
    let is_left = |key: &String| !permanent.iter().any(|beginning| key.starts_with(beginning));
    server.command(&["KEYS", "*"]).texts().into_iter().filter(is_left).collect()
}

/// Leaves the permits taken. Whether there were any.
pub(crate) fn taken(guard: Option<SemaphoreGuard>) -> bool {
    guard.map(SemaphoreGuard::forget).is_some()
}
