//! Renewed permits: how long they last, how they are lost, and who is notified.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::expected::{self, Expected};
use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{SOON, built};
use crossbeam_channel::{TryRecvError, unbounded};
use wheellock::{Client, Error, ExpirableSemaphore, LostReason, Permit};
use wheellock_fixture::{Aim, Fault, Reply, Request};

const SECOND: Duration = Duration::from_secs(1);
const ACQUIRE: &str = include_str!("../../src/ops/scripts/permits_acquire.lua");
const RELEASE: &str = include_str!("../../src/ops/scripts/permits_release.lua");

fn watched(client: &Client, name: &str, permits: u32) -> ExpirableSemaphore {
    let seats = client.expirable_semaphore(name).watched();
    seats.set_permits(permits).unwrap();
    seats
}

fn counts(seats: &ExpirableSemaphore) -> (i64, i64) {
    (seats.available_permits().unwrap(), seats.acquired_permits().unwrap())
}

fn lost(reason: LostReason) -> Expected {
    expected::lost("a", reason)
}

on_both_stores! {
    fn watched_permit_uses_watchdog_lease_until_release_or_drop(setup: &TestStore) {
        let client = setup.client();
        let seats = watched(&client, "a", 2);
        let (one, other) = (seats.acquire().unwrap(), seats.try_acquire().unwrap().unwrap());
        assert_eq!(client.stats().held, 2);
        assert!(one.is_valid() && one.remaining() > SECOND * 25 && one.remaining() < SECOND * 30);
        let left = seats.lease_of(&one.id()).unwrap().unwrap();
        assert!(left <= SECOND * 30 && left > SECOND * 25, "{left:?}");
        let told = one.lost().unwrap().clone();
        one.release().unwrap();
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
        drop(other);
        assert_eq!(counts(&seats), (2, 0));
        assert_eq!(client.stats().held, 0);
        let leased = seats.clone().with_lease(SECOND * 30).acquire().unwrap();
        assert!(leased.lost().is_none() && client.stats().held == 0);
    }

    fn a_watched_permit_is_given_back_when_its_client_is_shut_down(setup: &TestStore) {
        let client = setup.client();
        let seats = watched(&client, "a", 5);
        let (one, several) = (seats.acquire().unwrap(), seats.acquire_many(3).unwrap());
        let (told, all_told) = (one.lost().unwrap().clone(), several.lost().unwrap().clone());
        assert_eq!(client.shutdown(SOON).released, 4);
        assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Shutdown));
        assert_eq!(all_told.recv_timeout(SOON), Ok(LostReason::Shutdown));
        assert!(!one.is_valid() && !several.is_valid());
        assert_eq!(one.release(), lost(LostReason::Shutdown));
        assert_eq!(several.release(), lost(LostReason::Shutdown));
        assert_eq!(counts(&setup.client().expirable_semaphore("a")), (5, 0));
    }

    fn a_permit_keeps_its_token_when_it_is_watched(setup: &TestStore) {
        let client = setup.client();
        let seats = watched(&client, "a", 1).with_lease(SECOND * 30);
        let mut permit = seats.acquire().unwrap();
        let token = permit.draw_token().unwrap();
        permit.watch().unwrap();
        assert_eq!(permit.draw_token().unwrap(), token);
    }

    fn a_leased_permit_is_not_watched_after_the_shutdown(setup: &TestStore) {
        let client = setup.client();
        let seats = watched(&client, "a", 1).with_lease(SECOND * 30);
        let mut permit = seats.acquire().unwrap();
        client.shutdown(SOON);
        assert_eq!(permit.watch(), Err(Error::Shutdown));
        assert!(permit.lost().is_none() && permit.is_valid());
        assert_eq!(client.stats().held, 0);
        assert_eq!(permit.release(), Ok(()));
        assert_eq!(counts(&setup.client().expirable_semaphore("a")), (1, 0));
    }
}

#[test]
fn watched_permits_are_renewed_until_release() {
    let setup = InMemory::new();
    let client = setup.client();
    let seats = watched(&client, "a", 4);
    let (one, several) = (seats.acquire().unwrap(), seats.acquire_many(2).unwrap());
    for _ in 0..60 {
        setup.clock.advance(SECOND * 60);
        assert!(one.is_valid() && several.is_valid());
        assert!(seats.lease_of(&one.id()).unwrap().unwrap() >= SECOND * 20);
        // Whose lease has ended is not counted.
        assert_eq!(counts(&seats), (1, 3));
    }
    one.release().unwrap();
    several.release().unwrap();
    assert_eq!(counts(&seats), (4, 0));
    let renewed = client.stats().renewed;
    setup.clock.advance(SECOND * 60);
    assert_eq!(client.stats().renewed, renewed);
}

#[test]
fn watched_permit_released_by_id_is_lost_at_next_renewal() {
    let setup = InMemory::new();
    let (tell, told_of) = unbounded();
    let client = built(
        setup
            .builder()
            .on_lost(move |lock| drop(tell.send((lock.name().to_owned(), lock.reason())))),
    );
    let seats = watched(&client, "a", 3);
    let (one, several) = (seats.acquire().unwrap(), seats.acquire_many(2).unwrap());
    let others = client.expirable_semaphore("a");
    others.release(&one.id()).unwrap();
    others.release(&several.ids()[1]).unwrap();
    setup.clock.advance(SECOND * 10);
    assert_eq!(one.lost().unwrap().try_recv(), Ok(LostReason::Deleted));
    assert_eq!(several.lost().unwrap().recv_timeout(SOON), Ok(LostReason::Deleted));
    assert!(!one.is_valid() && !several.is_valid());
    assert_eq!(one.draw_token().map(drop), lost(LostReason::Deleted));
    assert_eq!(several.draw_token().map(drop), lost(LostReason::Deleted));
    for _ in 0..2 {
        let told = told_of.recv_timeout(SOON).unwrap();
        assert_eq!(told, ("a".to_owned(), LostReason::Deleted));
    }
    assert_eq!(one.release(), lost(LostReason::Deleted));
    assert_eq!(several.release(), lost(LostReason::Deleted));
    assert_eq!(counts(&seats), (3, 0));
    assert!(told_of.try_recv().is_err());
}

#[test]
fn watched_permit_is_lost_at_lease_end_if_server_unreachable() {
    let setup = InMemory::new();
    let client = setup.client();
    let other = setup.client();
    let seats = watched(&client, "a", 1);
    let permit = seats.acquire().unwrap();
    setup.clock.advance(SECOND * 100);
    setup.memory.set_unreachable(true);
    setup.clock.advance(SECOND * 31);
    assert_eq!(permit.lost().unwrap().try_recv(), Ok(LostReason::ServerUnreachable));
    assert!(!permit.is_valid() && permit.remaining().is_zero());
    setup.memory.set_unreachable(false);
    let theirs = other.expirable_semaphore("a").try_acquire().unwrap().unwrap();
    assert_eq!(permit.release(), lost(LostReason::ServerUnreachable));
    setup.clock.advance(SECOND * 10);
    assert_eq!(client.stats().queued_releases, 0);
    // Whoever has it by now is not touched.
    assert_eq!(counts(&seats), (0, 1));
    theirs.release().unwrap();
}

#[test]
fn into_id_ends_renewal_and_permit_expires_with_lease() {
    let setup = InMemory::new();
    let client = setup.client();
    let seats = watched(&client, "a", 1);
    let permit = seats.acquire().unwrap();
    setup.clock.advance(SECOND * 100);
    let told = permit.lost().unwrap().clone();
    let _id = permit.into_id();
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!((client.stats().held, counts(&seats)), (0, (0, 1)));
    setup.clock.advance(SECOND * 31);
    assert_eq!(counts(&seats), (1, 0));
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn damaged_permit_leases_do_not_stop_renewal_of_valid_holds() {
    let setup = InMemory::new();
    let client = setup.client();
    let (spoilt, gone) = (watched(&client, "a", 1), watched(&client, "b", 1));
    let (first, second) = (spoilt.acquire().unwrap(), gone.acquire().unwrap());
    let well = watched(&client, "c", 1).acquire().unwrap();
    let lock = client.lock("d").lock().unwrap();
    setup.memory.put_text("{a}:timeout");
    setup.memory.delete("{b}:timeout");
    setup.clock.advance(SECOND * 10);
    assert_eq!(first.lost().unwrap().try_recv(), Ok(LostReason::TakenOver));
    assert_eq!(second.lost().unwrap().try_recv(), Ok(LostReason::Deleted));
    setup.clock.advance(SECOND * 100);
    assert!(well.is_valid() && lock.is_held());
}

#[test]
fn renewal_extends_short_lease_and_keeps_longer_manual_lease() {
    let setup = InMemory::new();
    let client = setup.client();
    let seats = watched(&client, "a", 2);
    let (long, short) = (seats.acquire().unwrap(), seats.acquire().unwrap());
    assert!(seats.update_lease(&long.id(), SECOND * 3600).unwrap());
    assert!(seats.update_lease(&short.id(), SECOND * 15).unwrap());
    setup.clock.advance(SECOND * 60);
    assert_eq!(seats.lease_of(&long.id()).unwrap(), Some(SECOND * 3540));
    assert!(seats.lease_of(&short.id()).unwrap().unwrap() >= SECOND * 20);
    assert!(long.is_valid() && short.is_valid());
}

#[test]
fn max_hold_and_long_holds_are_watched_permits_too() {
    let setup = InMemory::new();
    let (tell, told_of) = unbounded();
    let builder = setup.builder().max_hold(SECOND * 60);
    let builder =
        builder.on_long_hold(SECOND * 5, move |held| drop(tell.send(held.name().to_owned())));
    let client = built(builder);
    let permit = watched(&client, "a", 1).acquire().unwrap();
    setup.clock.advance(SECOND * 60);
    assert_eq!(told_of.recv_timeout(SOON), Ok("a".to_owned()));
    assert_eq!(permit.lost().unwrap().recv_timeout(SOON), Ok(LostReason::Expired));
}

/// Aims a fault at the next run of a script.
fn on(setup: &crate::common::ProxiedServer, script: &'static str, fault: Fault) -> Aim {
    let hash = setup.server.command(&["SCRIPT", "LOAD", &crate::common::code(script)]).text();
    let is = move |request: &Request| request.name() == "EVALSHA" && request.argument(1) == hash;
    setup.proxy.on(is, fault)
}

#[test]
fn delayed_acquire_copy_grants_no_watched_permit_after_release() {
    let setup = crate::common::ProxiedServer::new();
    let client = built(setup.builder().command_timeout(SECOND * 2));
    let seats = watched(&client, "a", 2);
    let kept = on(&setup, ACQUIRE, Fault::HoldRequest);
    let permit: Permit = std::thread::scope(|scope| {
        let acquire = scope.spawn(|| seats.acquire().unwrap());
        kept.wait_for_hit(SOON);
        setup.proxy.cut_all();
        acquire.join().unwrap()
    });
    permit.release().unwrap();
    let none = Reply::Array(vec![Reply::Integer(0), Reply::Integer(2), Reply::Integer(-1)]);
    assert_eq!(kept.deliver().remove(0), none);
    assert_eq!(counts(&seats), (2, 0));
}

#[test]
fn watched_permits_count_once_although_replies_are_lost() {
    let setup = crate::common::ProxiedServer::new();
    let client = setup.patient();
    let seats = watched(&client, "a", 3);
    // So that the server knows the scripts.
    drop(seats.acquire_many(2).unwrap());
    for script in [ACQUIRE, RELEASE] {
        let aim = on(&setup, script, Fault::ResetBeforeReply);
        let permits = seats.acquire_many(2).unwrap();
        assert_eq!(counts(&seats), (1, 2));
        permits.release().unwrap();
        assert_eq!((aim.hits(), counts(&seats)), (1, (3, 0)));
    }
    assert_eq!(client.stats().held, 0);
}

#[test]
fn an_unanswered_acquire_of_a_watched_permit_leaves_none_behind() {
    let setup = InMemory::new();
    let client = setup.client();
    let seats = watched(&client, "a", 1);
    setup.memory.lose_replies(true);
    assert!(seats.try_acquire().unwrap_err().is_outcome_unknown());
    setup.memory.lose_replies(false);
    setup.clock.advance(SECOND);
    assert_eq!((client.stats().held, client.stats().queued_releases), (0, 0));
    assert_eq!(counts(&seats), (1, 0));
    assert!(seats.try_acquire().unwrap().is_some());
}
