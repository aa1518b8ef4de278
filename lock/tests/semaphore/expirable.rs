//! What a semaphore with ids and leases does, on all stores; and its keys as Redisson sees them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::expected::{self, Expected};
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SLACK, SOON, built, ended, is_wrong_type, now, timed};
use crossbeam_channel::bounded;
use wheellock::{
    Client, Error, ExpirableSemaphore, LostReason, ManualClock, Memory, Permit, PermitId, Wait,
};
use wheellock_fixture::{Reply, Server, wait_until};

const MINUTE: Duration = Duration::from_secs(60);
/// How long a wait lasts that comes to nothing.
const SHORT: Duration = Duration::from_millis(400);

fn with_permits(client: &Client, permits: u32) -> ExpirableSemaphore {
    let seats = client.expirable_semaphore("a");
    assert!(seats.try_set_permits(permits).unwrap());
    seats
}

/// Free, taken, and all of them.
fn counts(seats: &ExpirableSemaphore) -> (i64, i64, i64) {
    let free = seats.available_permits().unwrap();
    (free, seats.acquired_permits().unwrap(), seats.permits().unwrap())
}

fn wait_for_waiters(client: &Client, count: usize) {
    wait_until("all wait", SOON, || client.stats().waiters == count);
}

fn lost(reason: LostReason) -> Expected {
    expected::lost("a", reason)
}

on_all_stores! {
    fn a_permit_is_taken_until_it_is_released_or_dropped(setup: &TestStore) {
        let seats = with_permits(&setup.client(), 3);
        let one = seats.acquire().unwrap();
        let other = seats.try_acquire().unwrap().unwrap();
        let third = seats.try_acquire_for(SOON).unwrap().unwrap();
        assert!(seats.try_acquire().unwrap().is_none());
        assert_eq!(counts(&seats), (0, 3, 3));
        assert!(one.is_valid() && one.remaining() == Duration::MAX);
        assert_eq!(one.name(), "a");
        one.release().unwrap();
        assert_eq!(counts(&seats), (1, 2, 3));
        drop(other);
        assert_eq!(counts(&seats), (2, 1, 3));
        assert_eq!(third.release(), Ok(()));
        assert_eq!(counts(&seats), (3, 0, 3));
    }

    fn permit_can_be_released_by_any_thread_or_by_id_in_any_client(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let seats = with_permits(&client, 2);
        let permit = seats.acquire().unwrap();
        thread::scope(|scope| scope.spawn(move || permit.release()).join().unwrap()).unwrap();
        let text = seats.acquire().unwrap().into_id().to_string();
        assert_eq!(counts(&seats), (1, 1, 2));
        let id: PermitId = text.parse().unwrap();
        other.expirable_semaphore("a").release(&id).unwrap();
        assert_eq!(counts(&seats), (2, 0, 2));
    }

    fn a_permit_is_released_once(setup: &TestStore) {
        let seats = with_permits(&setup.client(), 2);
        let permit = seats.acquire().unwrap();
        assert!(seats.try_release(&permit.id()).unwrap());
        assert!(!seats.try_release(&permit.id()).unwrap());
        assert_eq!(seats.release(&permit.id()), lost(LostReason::Deleted));
        assert_eq!(permit.release(), lost(LostReason::Deleted));
        assert_eq!(counts(&seats), (2, 0, 2));
    }

    fn several_are_taken_and_given_back_all_or_none(setup: &TestStore) {
        let seats = with_permits(&setup.client(), 5);
        assert!(seats.try_acquire_many(6).unwrap().is_none());
        let permits = seats.acquire_many(3).unwrap();
        assert!(seats.try_acquire_many_with(3, SHORT).unwrap().is_none());
        assert_eq!((permits.name(), permits.remaining()), ("a".to_owned(), Duration::MAX));
        let ids = permits.into_ids();
        assert_eq!(counts(&seats), (2, 3, 5));
        assert!(seats.try_release(&ids[1]).unwrap());
        assert!(!seats.release_all(&ids).unwrap());
        assert_eq!(counts(&seats), (3, 2, 5));
        assert!(seats.release_all(&[ids[0], ids[2]]).unwrap());
        assert!(seats.release_all(&[]).unwrap());
        assert_eq!(counts(&seats), (5, 0, 5));
    }

    fn permit_returns_at_lease_end_and_is_acquired_by_waiter(setup: &TestStore) {
        let client = setup.client();
        let lease = Duration::from_millis(600);
        let for_good = with_permits(&client, 1);
        let seats = for_good.clone().with_lease(lease);
        let begun = now();
        let abandoned = seats.acquire().unwrap();
        assert!(abandoned.remaining() < lease);
        let id = abandoned.into_id();
        // No message tells of it.
        let (next, _) = timed(|| for_good.try_acquire_for(SOON).unwrap().unwrap());
        let took = now().saturating_duration_since(begun);
        // The server's clock counts whole milliseconds; the validity ends earlier than that.
        assert!(took + Duration::from_millis(1) >= lease && took < lease + SLACK, "{took:?}");
        assert_eq!(seats.release(&id), lost(LostReason::Deleted));
        assert_eq!(counts(&seats), (0, 1, 1));
        drop(next);
    }

    fn the_total_can_be_set_and_changed_while_permits_are_taken(setup: &TestStore) {
        let seats = setup.client().expirable_semaphore("a");
        seats.set_permits(3).unwrap();
        let taken = seats.acquire_many(2).unwrap();
        seats.set_permits(10).unwrap();
        assert_eq!(counts(&seats), (8, 2, 10));
        seats.set_permits(1).unwrap();
        assert_eq!(counts(&seats), (-1, 2, 1));
        drop(taken);
        assert_eq!(counts(&seats), (1, 0, 1));
        seats.add_permits(4).unwrap();
        seats.add_permits(-1).unwrap();
        assert_eq!(counts(&seats), (4, 0, 4));
        assert!(!seats.try_set_permits(9).unwrap());
    }

    fn a_lease_can_be_changed_and_asked_for(setup: &TestStore) {
        let seats = with_permits(&setup.client(), 2);
        let id = seats.acquire().unwrap().into_id();
        assert_eq!(seats.lease_of(&id).unwrap(), Some(Duration::MAX));
        assert!(seats.update_lease(&id, MINUTE).unwrap());
        let left = seats.lease_of(&id).unwrap().unwrap();
        assert!(left <= MINUTE && left > MINUTE * 5 / 6, "{left:?}");
        assert!(seats.remove_lease(&id).unwrap());
        assert_eq!(seats.lease_of(&id).unwrap(), Some(Duration::MAX));
        seats.release(&id).unwrap();
        assert_eq!(seats.lease_of(&id).unwrap(), None);
        assert!(!seats.update_lease(&id, MINUTE).unwrap());
        assert!(!seats.remove_lease(&id).unwrap());
        assert_eq!(counts(&seats), (2, 0, 2));
    }

    fn every_way_to_add_permits_wakes_a_waiter(setup: &TestStore) {
        let (giver, waiter) = (setup.client(), setup.without_polls());
        let seats = giver.expirable_semaphore("a");
        for round in 0..6 {
            let held = (round == 1 || round == 2).then(|| seats.acquire().unwrap());
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    waiter.expirable_semaphore("a").acquire().map(Permit::into_id)
                });
                wait_for_waiters(&waiter, 1);
                match round {
                    0 => assert!(seats.try_set_permits(1).unwrap()),
                    1 => held.unwrap().release().unwrap(),
                    2 => seats.release(&held.unwrap().into_id()).unwrap(),
                    3 => seats.set_permits(2).unwrap(),
                    4 => seats.add_permits(1).unwrap(),
                    _ => seats.set_permits(9).unwrap(),
                }
                let id = ended(&waiter, waiting).unwrap();
                // The first rounds need it again.
                if round < 2 {
                    seats.release(&id).unwrap();
                }
            });
        }
    }

    fn a_waiter_that_wants_five_does_not_block_one_that_wants_one(setup: &TestStore) {
        let (holder, waiters) = (setup.client(), setup.without_polls());
        let seats = with_permits(&holder, 0);
        thread::scope(|scope| {
            let greedy = scope.spawn(|| {
                let permits = waiters.expirable_semaphore("a").acquire_many(5);
                permits.map(|permits| permits.ids().len())
            });
            wait_for_waiters(&waiters, 1);
            let modest =
                scope.spawn(|| waiters.expirable_semaphore("a").acquire().map(Permit::into_id));
            wait_for_waiters(&waiters, 2);
            seats.add_permits(1).unwrap();
            assert!(ended(&waiters, modest).is_ok());
            assert!(!greedy.is_finished());
            seats.add_permits(5).unwrap();
            assert_eq!(ended(&waiters, greedy), Ok(5));
        });
    }

    fn a_wait_ends_on_time_or_when_cancelled_or_with_the_client(setup: &TestStore) {
        let client = setup.client();
        let seats = with_permits(&client, 0);
        let wait = Duration::from_millis(700);
        let (permit, took) = timed(|| seats.try_acquire_for(wait).unwrap());
        assert!(permit.is_none() && took >= wait && took < wait + SLACK, "{took:?}");
        assert!(seats.try_acquire_with(now()).unwrap().is_none());
        assert!(seats.try_acquire_many_with(2, now()).unwrap().is_none());
        let (cancel, cancelled) = bounded(1);
        assert!(seats.try_acquire_with(Wait::at_most(SHORT).or_cancelled(&cancelled)).unwrap().is_none());
        assert!(seats.try_acquire_many_with(2, Wait::at_most(SHORT).or_cancelled(&cancelled)).unwrap().is_none());
        thread::scope(|scope| {
            let one = scope.spawn(|| seats.try_acquire_with(Wait::forever().or_cancelled(&cancelled)).unwrap_err());
            let many = scope.spawn(|| seats.try_acquire_many_with(2, Wait::forever().or_cancelled(&cancelled)).unwrap_err());
            let other = scope.spawn(|| seats.acquire().unwrap_err());
            let timed = scope.spawn(|| seats.try_acquire_with(Wait::at_most(MINUTE).or_cancelled(&cancelled)).unwrap_err());
            let both = scope.spawn(|| {
                seats.try_acquire_many_with(2, Wait::at_most(MINUTE).or_cancelled(&cancelled)).unwrap_err()
            });
            wait_for_waiters(&client, 5);
            cancel.send(()).unwrap();
            for waiting in [timed, both] {
                assert_eq!(waiting.join().unwrap(), expected::cancelled("a"));
            }
            assert_eq!(one.join().unwrap(), expected::cancelled("a"));
            assert_eq!(many.join().unwrap(), expected::cancelled("a"));
            client.shutdown(SOON);
            assert_eq!(other.join().unwrap(), Error::Shutdown);
        });
    }

    fn a_permit_can_be_given_back_after_the_shutdown(setup: &TestStore) {
        let client = setup.client();
        let seats = with_permits(&client, 1);
        let permit = seats.acquire().unwrap();
        client.shutdown(SOON);
        assert!(permit.is_valid());
        assert_eq!(permit.release(), Ok(()));
        assert_eq!(counts(&setup.client().expirable_semaphore("a")), (1, 0, 1));
    }

    fn invalid_arguments_are_refused(setup: &TestStore) {
        let client = setup.client();
        let seats = client.expirable_semaphore("a");
        let unknown: PermitId = "0".repeat(32).parse().unwrap();
        for error in [
            seats.acquire_many(0).unwrap_err(),
            seats.try_acquire_many(1001).unwrap_err(),
            seats.try_acquire_many_with(u32::MAX, SOON).unwrap_err(),
            seats.release_all(&[unknown; 1001]).unwrap_err(),
            seats.try_set_permits(u32::MAX).unwrap_err(),
            seats.set_permits(1 << 31).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidCount { .. }), "{error}");
        }
        for lease in [Duration::ZERO, Duration::MAX] {
            for error in [
                seats.clone().with_lease(lease).acquire().unwrap_err(),
                seats.update_lease(&unknown, lease).unwrap_err(),
            ] {
                assert!(matches!(error, Error::InvalidLease { .. }), "{error}");
            }
        }
        let error = client.expirable_semaphore("").acquire().unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
        for text in ["", "0", &"0".repeat(31), &"0".repeat(33), &"x".repeat(32), &"é".repeat(16)] {
            let error = text.parse::<PermitId>().unwrap_err();
            assert_eq!(error, Expected::InvalidPermitId(text.to_owned()));
        }
        assert_eq!("AB".repeat(16).parse::<PermitId>().unwrap().to_string(), "ab".repeat(16));
        assert!(!setup.is_there("a"));
        // The most at once.
        seats.set_permits(1000).unwrap();
        assert!(seats.release_all(&seats.acquire_many(1000).unwrap().into_ids()).unwrap());
    }

    fn a_key_that_holds_something_else_is_an_error_and_stays(setup: &TestStore) {
        let client = setup.client();
        let id: PermitId = "0".repeat(32).parse().unwrap();
        setup.put_text("number");
        setup.put_text("{leases}:timeout");
        client.expirable_semaphore("leases").try_set_permits(1).unwrap();
        for (name, key) in [("number", "number"), ("leases", "{leases}:timeout")] {
            let seats = client.expirable_semaphore(name);
            for error in [
                seats.acquire().unwrap_err(),
                seats.release(&id).unwrap_err(),
                seats.available_permits().unwrap_err(),
                seats.set_permits(1).unwrap_err(),
            ] {
                assert!(is_wrong_type(&error, key), "{error}");
            }
        }
        assert_eq!(client.semaphore("leases").available_permits().unwrap(), 1);
    }
}

#[test]
fn a_waiter_gets_a_permit_when_its_lease_ends_without_polling() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = built(Client::builder().in_memory(&memory));
    let seats = with_permits(&client, 1);
    let lease = Duration::from_millis(600);
    let _taken = seats.clone().with_lease(lease).acquire().unwrap().into_id();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| seats.acquire().map(drop));
        wait_for_waiters(&client, 1);
        // Long before the poll bound of a second.
        clock.advance(lease + Duration::from_millis(10));
        assert_eq!(ended(&client, waiting), Ok(()));
    });
}

/// A semaphore in memory, on a clock that stands still.
fn on_a_still_clock() -> (ManualClock, Client, ExpirableSemaphore) {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = built(Client::builder().in_memory(&memory));
    let seats = with_permits(&client, 1).with_lease(MINUTE);
    (clock, client, seats)
}

#[test]
fn a_permit_is_valid_for_slightly_less_than_its_lease() {
    let (clock, _client, seats) = on_a_still_clock();
    let permit = seats.acquire().unwrap();
    // One hundredth and 2 ms.
    assert_eq!(permit.remaining(), Duration::from_millis(60_000 - 600 - 2));
    clock.advance(Duration::from_millis(60_000 - 600 - 3));
    assert!(permit.is_valid());
    clock.advance(Duration::from_millis(1));
    assert!(!permit.is_valid());
    // The server still has it.
    assert_eq!(counts(&seats), (0, 1, 1));
    assert_eq!(permit.release(), Ok(()));
}

#[test]
fn d18_late_release_returns_permit_once_and_reports_expiry() {
    let (clock, _client, seats) = on_a_still_clock();
    // Nobody has taken it since: it is given back by the very call that says that it was late.
    let permit = seats.acquire().unwrap();
    clock.advance(MINUTE);
    assert_eq!(permit.release(), lost(LostReason::Expired));
    assert_eq!(counts(&seats), (1, 0, 1));
    let id = seats.acquire().unwrap().into_id();
    clock.advance(MINUTE);
    assert_eq!(seats.release(&id), lost(LostReason::Expired));
    assert_eq!(counts(&seats), (1, 0, 1));
    // Redisson answers no to this, and has given it back.
    let id = seats.acquire().unwrap().into_id();
    clock.advance(MINUTE);
    assert!(seats.try_release(&id).unwrap());
    assert!(!seats.try_release(&id).unwrap());
    assert_eq!(counts(&seats), (1, 0, 1));
    // Somebody else has it by now: that one is not touched.
    let late = seats.acquire().unwrap();
    clock.advance(MINUTE);
    let other = seats.acquire().unwrap();
    assert_eq!(late.release(), lost(LostReason::Expired));
    assert_eq!(counts(&seats), (0, 1, 1));
    assert_eq!(other.release(), Ok(()));
}

#[test]
fn expired_permit_cannot_be_revived_by_lease_update() {
    let (clock, _client, seats) = on_a_still_clock();
    let id = seats.acquire().unwrap().into_id();
    clock.advance(MINUTE);
    assert_eq!(seats.lease_of(&id).unwrap(), None);
    assert!(!seats.update_lease(&id, MINUTE).unwrap());
    assert_eq!(counts(&seats), (1, 0, 1));
}

#[test]
fn the_keys_the_ids_and_the_messages_are_redissons() {
    const NEVER: &str = "922337203685477";
    let server = Server::start();
    let mut listener = server.connection();
    let client = Client::connect(&server.url()).unwrap();
    drop(listener.command(&["SUBSCRIBE", "redisson_sc:{a}"]));
    let seats = with_permits(&client, 2);
    let forever = seats.acquire().unwrap();
    let leased = seats.clone().with_lease(MINUTE).acquire().unwrap();
    assert_eq!(server.command(&["GET", "a"]).text(), "0");
    let score = |id: &PermitId| {
        let digits = id.to_string();
        let bytes: Vec<u8> = (0..16)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        server.command(&[b"ZSCORE", b"{a}:timeout".as_slice(), &bytes]).text()
    };
    assert_eq!(server.command(&["ZCARD", "{a}:timeout"]), Reply::Integer(2));
    assert_eq!(score(&forever.id()), NEVER);
    let now: i64 = server.command(&["TIME"]).texts()[0].parse().unwrap();
    let ends: i64 = score(&leased.id()).parse().unwrap();
    assert!((55_000..=62_000).contains(&(ends - now * 1000)), "{ends} at {now}");
    // A permit of Redisson's, which draws its ids at random.
    let foreign: PermitId = "00ff10ee20dd30cc40bb50aa60997088".parse().unwrap();
    let bytes = b"\x00\xff\x10\xee\x20\xdd\x30\xcc\x40\xbb\x50\xaa\x60\x99\x70\x88";
    drop(server.command(&[b"ZADD", b"{a}:timeout".as_slice(), NEVER.as_bytes(), bytes]));
    assert_eq!(seats.lease_of(&foreign).unwrap(), Some(Duration::MAX));
    seats.release(&foreign).unwrap();
    leased.release().unwrap();
    forever.release().unwrap();
    let told: Vec<String> =
        (0..4).map(|_| listener.receive().unwrap().texts()[2].clone()).collect();
    assert_eq!(told, ["2", "1", "2", "3"]);
}

#[test]
fn a_server_out_of_memory_releases_and_extends_permits() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let seats = with_permits(&client, 3);
    let one = seats.acquire().unwrap();
    let other = seats.acquire().unwrap().into_id();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = seats.try_acquire().unwrap_err();
    assert!(matches!(&error, Error::Refused { code, .. } if code == "OOM"), "{error}");
    assert!(seats.update_lease(&other, MINUTE).unwrap());
    one.release().unwrap();
    seats.release(&other).unwrap();
    assert_eq!(counts(&seats), (3, 0, 3));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(seats.try_acquire().unwrap().is_some());
}

#[test]
fn permit_is_send_and_drop_retries_release_without_panic() {
    fn can_be_sent<T: Send + Sync>(_: &T) {}
    let memory = Memory::new();
    let client = built(Client::builder().in_memory(&memory));
    let seats = with_permits(&client, 1);
    let permit = seats.acquire().unwrap();
    can_be_sent(&permit);
    memory.set_unreachable(true);
    drop(permit);
    memory.set_unreachable(false);
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    assert_eq!(counts(&seats), (1, 0, 1));
}
