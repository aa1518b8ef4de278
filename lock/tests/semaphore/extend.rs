//! Permits with a lease that are extended, or watched from now on.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use wheellock::{Client, Error, ExpirableSemaphore, LostReason};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn seats(client: &Client) -> ExpirableSemaphore {
    let seats = client.expirable_semaphore("seats");
    seats.try_set_permits(5).unwrap();
    seats
}

fn is_lost(result: &Result<(), Error>, by: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason, .. }) if *reason == by)
}

on_all_stores! {
    fn extended_permits_have_the_new_lease_here_and_on_the_server(setup: &TestStore) {
        let client = setup.client();
        let seats = seats(&client).with_lease(MINUTE);
        let permits = seats.acquire_many(3).unwrap();
        permits.extend(MINUTE * 10).unwrap();
        // A shorter one takes nothing away.
        permits.extend(SECOND).unwrap();
        for id in permits.ids() {
            let there = seats.lease_of(id).unwrap().unwrap();
            let here = permits.remaining();
            assert!(here > MINUTE * 9 && there > MINUTE * 9 && there <= MINUTE * 10, "{there:?}");
        }
        permits.release().unwrap();
        assert_eq!(seats.available_permits().unwrap(), 5);
    }

    fn a_permit_without_a_lease_has_nothing_to_extend(setup: &TestStore) {
        let client = setup.client();
        let mut permit = seats(&client).acquire().unwrap();
        permit.extend(MINUTE).unwrap();
        assert_eq!(permit.remaining(), Duration::MAX);
        assert!(matches!(permit.watch(), Err(Error::InvalidSetting { .. })));
        assert!(permit.is_valid() && permit.lost().is_none());
    }

    fn watched_permits_are_holds_until_they_are_given_back(setup: &TestStore) {
        let client = setup.client();
        let seats = seats(&client).with_lease(MINUTE);
        let mut permits = seats.acquire_many(2).unwrap();
        assert!(client.holds().is_empty());
        for _ in 0..2 {
            permits.watch().unwrap();
            assert_eq!(client.holds().iter().filter(|hold| hold.watched).count(), 2);
        }
        assert!(permits.is_valid());
        permits.release().unwrap();
        assert!(client.holds().is_empty());
        assert_eq!(seats.available_permits().unwrap(), 5);
    }

    fn a_permit_that_was_given_back_by_its_id_is_lost(setup: &TestStore) {
        let client = setup.client();
        let seats = seats(&client).with_lease(MINUTE);
        let mut permit = seats.acquire().unwrap();
        seats.release(&permit.id()).unwrap();
        assert!(is_lost(&permit.watch(), LostReason::Deleted));
        assert!(!permit.is_valid());
        assert!(is_lost(&permit.extend(MINUTE), LostReason::Expired));
        assert_eq!(seats.available_permits().unwrap(), 5);
    }
}

#[test]
fn watch_on_leased_permit_renews_lease_until_release() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND * 30);
    let seats = seats(&client).with_lease(SECOND * 10);
    let mut permit = seats.acquire().unwrap();
    permit.extend(SECOND * 20).unwrap();
    setup.clock.advance(SECOND * 15);
    assert!(permit.is_valid());
    permit.watch().unwrap();
    for _ in 0..100 {
        setup.clock.advance(SECOND * 5);
        assert!(permit.remaining() >= SECOND * 19, "{:?}", permit.remaining());
    }
    seats.release(&permit.id()).unwrap();
    setup.clock.advance(SECOND * 11);
    assert_eq!(permit.lost().unwrap().try_recv(), Ok(LostReason::Deleted));
    assert!(is_lost(&permit.release(), LostReason::Deleted));
}
