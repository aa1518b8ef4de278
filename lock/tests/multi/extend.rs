//! Several locks with leases of their own that are extended, or watched from now on, together.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use wheellock::{Error, LostReason};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

on_all_stores! {
    fn extended_locks_have_the_new_lease_here_and_on_the_server(setup: &TestStore) {
        let client = setup.client();
        let [one, other] = ["a", "b"].map(|name| client.lock(name).with_lease(MINUTE));
        let guard = client.multi_lock(&[&one, &other]).lock().unwrap();
        guard.extend(MINUTE * 10).unwrap();
        for name in ["a", "b"] {
            let (here, there) = (guard.remaining(), setup.time_to_live(name).unwrap());
            assert!(here > MINUTE * 9 && here < there && there <= MINUTE * 10, "{here:?}, {there:?}");
        }
        assert!(client.holds().iter().all(|hold| !hold.watched));
        guard.unlock().unwrap();
        assert!(!setup.is_there("a") && !setup.is_there("b"));
    }

    fn locks_of_which_one_is_gone_are_lost_together(setup: &TestStore) {
        let client = setup.client();
        let [one, other] = ["a", "b"].map(|name| client.lock(name).with_lease(MINUTE));
        let guard = client.multi_lock(&[&one, &other]).lock().unwrap();
        setup.delete("b");
        let lost = guard.extend(MINUTE).unwrap_err();
        let is_deleted =
            matches!(&lost, Error::Lost { name, reason: LostReason::Deleted, .. } if name == "b");
        assert!(is_deleted && !guard.is_held(), "{lost}");
        assert!(guard.watch().is_err());
    }
}

#[test]
fn watched_locks_are_renewed_until_the_guard_is_gone() {
    let setup = InMemory::new();
    let client = setup.client_with_lease(SECOND * 30);
    let leased = client.lock("a").with_lease(SECOND * 10);
    // Nested in a guard that is watched, and one that is not.
    let outer = client.lock("a").with_lease(SECOND * 10).lock().unwrap();
    let guard = client.multi_lock(&[&leased, &client.lock("b")]).lock().unwrap();
    for _ in 0..2 {
        guard.watch().unwrap();
    }
    for _ in 0..20 {
        setup.clock.advance(SECOND * 5);
        assert!(guard.remaining() >= SECOND * 19, "{:?}", guard.remaining());
    }
    guard.unlock().unwrap();
    assert!(outer.is_held() && !client.holds()[0].watched);
    setup.clock.advance(SECOND * 31);
    assert!(!outer.is_held());
}
