//! Our readers and writers beside Redisson's: what Java's scripts, written from their description,
//! do to the keys, and what is left of our holds.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use wheellock::{Client, Error, LockGuard, LostReason, ManualClock, Memory};
use wheellock_fixture::{Reply, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(10);
const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

/// `RedissonReadLock`: acquire. KEYS: lock, prefix of the levels. ARGV: lease, owner, owner:write.
const READ_LOCK: &str = "
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  redis.call('hset', KEYS[1], 'mode', 'read')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('set', KEYS[2] .. ':1', 1)
  redis.call('pexpire', KEYS[2] .. ':1', ARGV[1])
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if mode == 'read' or (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1) then
  local count = redis.call('hincrby', KEYS[1], ARGV[2], 1)
  local key = KEYS[2] .. ':' .. count
  redis.call('set', key, 1)
  redis.call('pexpire', key, ARGV[1])
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
  return nil
end
return redis.call('pttl', KEYS[1])";

/// `RedissonReadLock`: release, without its latch. KEYS: lock, channel, prefix of the levels, tag.
/// ARGV: message, owner.
const READ_UNLOCK: &str = "
if redis.call('hget', KEYS[1], 'mode') == false then
  redis.call('publish', KEYS[2], ARGV[1])
  return nil
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return nil
end
local count = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if count == 0 then
  redis.call('hdel', KEYS[1], ARGV[2])
end
redis.call('del', KEYS[3] .. ':' .. (count + 1))
if redis.call('hlen', KEYS[1]) > 1 then
  local longest = -3
  for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    local count = tonumber(redis.call('hget', KEYS[1], field))
    if type(count) == 'number' then
      for i = count, 1, -1 do
        longest = math.max(redis.call('pttl', KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i), longest)
      end
    end
  end
  if longest > 0 then
    redis.call('pexpire', KEYS[1], longest)
    return 0
  end
  if redis.call('hget', KEYS[1], 'mode') == 'write' then
    return 0
  end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1";

/// `ReadLockTask`: the renewal of one reader. KEYS: lock, tag. ARGV: lease, owner.
const READ_RENEWAL: &str = "
local count = tonumber(redis.call('hget', KEYS[1], ARGV[2]))
if not count then
  return 0
end
for i = count, 1, -1 do
  redis.call('pexpire', KEYS[2] .. ':' .. ARGV[2] .. ':rwlock_timeout:' .. i, ARGV[1])
end
redis.call('pexpire', KEYS[1], ARGV[1])
return 1";

/// A Java program that reads, on a server of its own making.
struct Java<'a>(&'a Server);

impl Java<'_> {
    fn read_lock(&self, lease: Duration) -> Reply {
        let (levels, lease) =
            (format!("{{a}}:{JAVA}:rwlock_timeout"), lease.as_millis().to_string());
        let writer = format!("{JAVA}:write");
        self.0.command(&["EVAL", READ_LOCK, "2", "a", &levels, &lease, JAVA, &writer])
    }

    fn read_unlock(&self) -> Reply {
        let levels = format!("{{a}}:{JAVA}:rwlock_timeout");
        let channel = "redisson_rwlock:{a}";
        self.0.command(&["EVAL", READ_UNLOCK, "4", "a", channel, &levels, "{a}", "0", JAVA])
    }

    fn renew(&self, lease: Duration) -> Reply {
        let lease = lease.as_millis().to_string();
        self.0.command(&["EVAL", READ_RENEWAL, "2", "a", "{a}", &lease, JAVA])
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.url()).unwrap()
}

fn reader(client: &Client, lease: Duration) -> LockGuard {
    client.read_write_lock("a").read_lock().with_lease(lease).lock().unwrap()
}

fn left(server: &Server, key: &str) -> Duration {
    Duration::from_millis(server.command(&["PTTL", key]).integer().try_into().unwrap_or(0))
}

#[test]
fn readers_share_with_java_and_java_unlock_keeps_our_read_hold() {
    let server = Server::start();
    let (client, other, java) = (connect(&server), connect(&server), Java(&server));
    assert_eq!(java.read_lock(SECOND * 30), Reply::Nil);
    let guard = reader(&client, HOUR);
    assert_eq!(java.read_unlock(), Reply::Integer(0), "one level is left");
    assert!(left(&server, "a") + SECOND * 5 > HOUR);
    assert!(other.read_write_lock("a").write_lock().try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert!(other.read_write_lock("a").write_lock().try_lock().unwrap().is_some());
}

#[test]
fn our_read_unlock_leaves_a_java_reader_its_hold_and_lease() {
    let server = Server::start();
    let (client, java) = (connect(&server), Java(&server));
    let guard = reader(&client, HOUR);
    assert_eq!(java.read_lock(SECOND * 30), Reply::Nil);
    assert!(left(&server, "a") + SECOND * 5 > HOUR);
    guard.unlock().unwrap();
    let rest = left(&server, "a");
    assert!(rest <= SECOND * 30 && rest > SECOND * 25, "{rest:?}");
    assert_eq!(java.read_unlock(), Reply::Integer(1));
}

#[test]
fn our_writer_blocks_java_readers_and_waits_for_the_last_reader() {
    let server = Server::start();
    let (client, java) = (connect(&server), Java(&server));
    let lock = client.read_write_lock("a").write_lock();
    let writing = lock.lock().unwrap();
    assert!(matches!(java.read_lock(SECOND), Reply::Integer(1..)));
    writing.unlock().unwrap();
    assert_eq!(java.read_lock(SECOND * 30), Reply::Nil);
    assert_eq!(java.read_lock(SECOND * 30), Reply::Nil);
    assert!(lock.try_lock().unwrap().is_none());
    java.read_unlock();
    assert!(lock.try_lock().unwrap().is_none());
    java.read_unlock();
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn leased_reader_cut_by_a_java_renewal_recovers_within_a_third() {
    let server = Server::start();
    let foreign = SECOND * 3;
    let client = Client::builder().url(&server.url()).foreign_watchdog(foreign).build().unwrap();
    let java = Java(&server);
    java.read_lock(foreign);
    let guard = reader(&client, HOUR);
    for _ in 0..2 {
        assert_eq!(java.renew(foreign), Reply::Integer(1));
        assert!(left(&server, "a") <= foreign);
        wait_until("the lock has the hour again", foreign / 3 + SECOND / 2, || {
            left(&server, "a") + SECOND * 30 > HOUR
        });
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn long_watched_reader_cut_by_java_renewal_recovers_in_a_third() {
    let server = Server::start();
    let foreign = SECOND * 3;
    let builder = Client::builder().url(&server.url()).foreign_watchdog(foreign);
    let client = builder.watchdog_lease(HOUR).build().unwrap();
    let java = Java(&server);
    java.read_lock(foreign);
    let guard = client.read_write_lock("a").read_lock().lock().unwrap();
    java.renew(foreign);
    assert!(left(&server, "a") <= foreign);
    wait_until("the lock has the hour again", foreign / 3 + SECOND / 2, || {
        left(&server, "a") + SECOND * 30 > HOUR
    });
    guard.unlock().unwrap();
}

#[test]
fn a_level_that_was_lost_is_made_again_by_the_next_renewal() {
    let server = Server::start();
    let client = Client::builder().url(&server.url()).watchdog_lease(SECOND * 4).build().unwrap();
    let lock = client.read_write_lock("a").read_lock();
    let guards = [lock.lock().unwrap(), lock.lock().unwrap()];
    let level = format!("{{a}}:{}:rwlock_timeout:1", guards[0].owner());
    server.command(&["DEL", &level]);
    wait_until("the level is there again", SOON, || left(&server, &level) > Duration::ZERO);
    assert!(guards.iter().all(LockGuard::is_held));
}

#[test]
fn a_leased_reader_is_never_renewed() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guard = reader(&client, SECOND * 100);
    let before = guard.remaining();
    clock.advance(SECOND * 50);
    assert!(client.stats().renewed >= 4, "{:?}", client.stats());
    assert_eq!(guard.remaining() + SECOND * 50, before);
    let end = guard.remaining();
    clock.advance(end.checked_sub(Duration::from_millis(1)).unwrap());
    assert!(guard.is_held());
    clock.advance(Duration::from_millis(20));
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Expired));
    // Every third of the shorter lease, and no more often as the end comes near.
    assert!(client.stats().renewed <= 10, "{:?}", client.stats());
    clock.advance(SECOND);
    assert_eq!(memory.fields("a"), [], "the server kept it no longer than it was granted");
}

#[test]
fn a_short_lease_of_a_reader_is_not_asked_for_again() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guard = reader(&client, Duration::from_millis(250));
    clock.advance(SECOND);
    assert!(!guard.is_held());
    assert_eq!(client.stats().renewed, 0);
}

#[test]
fn a_reader_that_nests_often_asks_again_all_the_same() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let outer = reader(&client, HOUR);
    for _ in 0..20 {
        clock.advance(SECOND * 3);
        reader(&client, SECOND).unlock().unwrap();
    }
    assert!(client.stats().renewed >= 5, "{:?}", client.stats());
    assert!(outer.is_held());
}

#[test]
fn a_long_leased_reader_is_reported_within_a_tick() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let (tell, told) = crossbeam_channel::unbounded();
    let builder = Client::builder().in_memory(&memory);
    let client = builder
        .on_long_hold(SECOND * 25, move |held| tell.send(held.held_for()).unwrap())
        .build()
        .unwrap();
    let _guard = reader(&client, HOUR);
    // Beyond two times that it asks again, before the third.
    clock.advance(SECOND * 25 + Duration::from_millis(20));
    let held_for = told.try_recv().unwrap();
    assert!(held_for < SECOND * 25 + Duration::from_millis(20), "{held_for:?}");
}

#[test]
fn a_foreign_lease_out_of_bounds_is_refused() {
    for wrong in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
        let builder = Client::builder().in_memory(&Memory::new()).foreign_watchdog(wrong);
        let error = builder.build().map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidLease { lease, .. } if lease == wrong), "{error}");
    }
}

#[test]
fn watched_reader_at_max_hold_keeps_the_rest_and_then_expires() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let builder = Client::builder().in_memory(&memory).watchdog_lease(SECOND * 90);
    let client = builder.max_hold(SECOND * 120).build().unwrap();
    let guard = client.read_write_lock("a").read_lock().lock().unwrap();
    clock.advance(SECOND * 125);
    assert_eq!(guard.lost().try_recv(), Ok(LostReason::Expired));
    // Renewed for the first half minute, and the rest asked for after.
    assert!(client.stats().renewed >= 7, "{:?}", client.stats());
}

#[test]
fn d2_read_or_write_hold_stays_watched_when_counterpart_ends() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let lock = client.read_write_lock("a");
    let writing = lock.write_lock().lock().unwrap();
    let reading = lock.read_lock().lock().unwrap();
    reading.unlock().unwrap();
    clock.advance(HOUR);
    assert!(writing.is_held());
    let reading = lock.read_lock().lock().unwrap();
    writing.unlock().unwrap();
    clock.advance(HOUR);
    assert!(reading.is_held());
    let level = format!("{{a}}:{}:rwlock_timeout:1", reading.owner());
    for key in ["a", &level] {
        assert!(memory.time_to_live(key).unwrap() > SECOND * 15, "{key}");
    }
    reading.unlock().unwrap();
}

#[test]
fn a_dead_reader_excludes_writers_for_its_own_lease_only() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = || Client::builder().in_memory(&memory).build().unwrap();
    let (dead, alive, writer) = (client(), client(), client());
    let lock = writer.read_write_lock("a").write_lock();
    let guard = reader(&alive, SECOND * 10);
    // It never says that it has gone.
    std::mem::forget(reader(&dead, SECOND * 60));
    guard.unlock().unwrap();
    clock.advance(SECOND * 59);
    assert!(lock.try_lock().unwrap().is_none());
    clock.advance(SECOND * 2);
    assert!(lock.try_lock().unwrap().is_some());
    // Others outlast it: its client, which is alive, has released the rest.
    let staying = alive.read_write_lock("a").read_lock().lock().unwrap();
    std::mem::forget(reader(&dead, SECOND * 60));
    clock.advance(SECOND * 120);
    assert_eq!(memory.fields("a").len(), 2);
    assert!(lock.try_lock().unwrap().is_none());
    staying.unlock().unwrap();
    assert!(lock.try_lock().unwrap().is_some());
}
