//! How locks are taken and renewed by those that are programmed here: by Redisson's scripts, one lock each.

use std::net::SocketAddr;
use std::time::Duration;

use wheellock_fixture::RawConnection;

/// Redisson's `lock`, without what it does when it is nested.
const TAKE: &str = "redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil;";
/// Redisson's renewal, before it had many locks in one script.
const RENEW: &str = "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;";

/// A connection that takes locks one after the other, as a caller's thread does.
#[derive(Debug)]
pub(super) struct Taker {
    connection: RawConnection,
    take: String,
    pub(super) renew: String,
    pub(super) lease_millis: String,
}

impl Taker {
    pub(super) fn new(address: SocketAddr, lease: Duration) -> Self {
        let mut connection = RawConnection::open(address).expect("the server listens");
        let take = connection.command(&["SCRIPT", "LOAD", TAKE]).text();
        let renew = connection.command(&["SCRIPT", "LOAD", RENEW]).text();
        Self { connection, take, renew, lease_millis: lease.as_millis().to_string() }
    }

    pub(super) fn take(&mut self, name: &str, owner: &str) {
        let reply =
            self.connection.command(&["EVALSHA", &self.take, "1", name, &self.lease_millis, owner]);
        assert!(reply.is_nil(), "the server answered {reply:?}");
    }
}

/// As long as Redisson's and ours: a UUID and a number.
pub(super) fn owner(number: usize) -> String {
    format!("00000000-0000-4000-8000-000000000000:{number}")
}
