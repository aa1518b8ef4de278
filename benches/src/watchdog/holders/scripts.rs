//! Redisson's scripts for one lock each, as the holders that are written here use them.

use std::net::SocketAddr;
use std::time::Duration;

use wheellock_fixture::RawConnection;

/// Redisson's `lock`, without the part for a nested one.
const ACQUIRE: &str = "redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil;";
/// Redisson's renewal, before it had many locks in a script.
const RENEW: &str = "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;";

/// A connection that acquires locks one after the other, as a caller's thread does.
#[derive(Debug)]
pub(super) struct ScriptLock {
    connection: RawConnection,
    acquire: String,
    pub(super) renew: String,
    pub(super) lease_millis: String,
}

impl ScriptLock {
    pub(super) fn new(address: SocketAddr, lease: Duration) -> Self {
        let mut connection = RawConnection::open(address).expect("the server listens");
        let acquire = connection.command(&["SCRIPT", "LOAD", ACQUIRE]).text();
        let renew = connection.command(&["SCRIPT", "LOAD", RENEW]).text();
        Self { connection, acquire, renew, lease_millis: lease.as_millis().to_string() }
    }

    pub(super) fn acquire(&mut self, name: &str, owner: &str) {
        let reply = self.connection.command(&[
            "EVALSHA",
            &self.acquire,
            "1",
            name,
            &self.lease_millis,
            owner,
        ]);
        assert!(reply.is_nil(), "the server answered {reply:?}");
    }
}

/// As long as an owner of Redisson and of this crate: a UUID and a number.
pub(super) fn owner(number: usize) -> String {
    format!("00000000-0000-4000-8000-000000000000:{number}")
}
