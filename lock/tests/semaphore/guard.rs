//! The guard of permits without ids.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, settle};
use wheellock::{Client, Error, LostReason, Semaphore, SemaphoreGuard};
use wheellock_fixture::{Fault, Proxy, Request, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn with_permits(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("a");
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

on_all_stores! {
    fn semaphore_guard_returns_permits_on_release_and_on_drop(setup: &TestStore) {
        let client = setup.client();
        let semaphore = with_permits(&client, 3);
        let guard = semaphore.acquire(2).unwrap();
        assert_eq!((guard.permits(), guard.name()), (2, "a".to_owned()));
        assert_eq!(semaphore.available_permits(), Ok(1));
        guard.release().unwrap();
        assert_eq!(semaphore.available_permits(), Ok(3));
        drop(semaphore.try_acquire(3).unwrap().unwrap());
        settle(&client);
        assert_eq!(semaphore.available_permits(), Ok(3));
    }

    fn a_forgotten_guard_leaves_its_permits_to_any_client(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        with_permits(&client, 3).acquire(2).unwrap().forget();
        assert_eq!(client.semaphore("a").available_permits(), Ok(1));
        other.semaphore("a").release(2).unwrap();
        assert_eq!(client.semaphore("a").available_permits(), Ok(3));
    }

    fn guard_drop_on_second_thread_wakes_waiter_of_second_client(setup: &TestStore) {
        let (client, waiter) = (setup.client(), setup.without_polls());
        let semaphore = with_permits(&client, 1);
        let guard = semaphore.acquire(1).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = waiter.semaphore("a").acquire(1);
                guard.and_then(SemaphoreGuard::release)
            });
            wait_until("the other waits", SOON, || waiter.stats().waiters == 1);
            scope.spawn(move || drop(guard));
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        settle(&client);
        assert_eq!(semaphore.available_permits(), Ok(1));
    }

    fn permits_of_a_deleted_semaphore_are_lost_and_make_no_new_one(setup: &TestStore) {
        let client = setup.client();
        let semaphore = with_permits(&client, 2);
        let (released, dropped) = (semaphore.acquire(1).unwrap(), semaphore.acquire(1).unwrap());
        setup.delete("a");
        let lost = released.release().unwrap_err();
        let is_deleted = matches!(lost, Error::Lost { reason: LostReason::Deleted, .. });
        assert!(is_deleted && !lost.is_retryable(), "{lost}");
        drop(dropped);
        settle(&client);
        assert!(!setup.is_there("a"));
    }

    fn guard_drop_after_client_shutdown_returns_permits(setup: &TestStore) {
        let (client, other) = (setup.client(), setup.client());
        let guard = with_permits(&client, 2).acquire(2).unwrap();
        client.shutdown(SOON);
        assert_eq!(other.semaphore("a").available_permits(), Ok(0));
        drop(guard);
        let back = || other.semaphore("a").available_permits() == Ok(2);
        wait_until("the permits are back", SOON, back);
    }
}

#[test]
fn permits_whose_release_got_no_reply_are_given_back_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let client = built(Client::builder().url(&proxy.url()).command_timeout(SECOND));
    let semaphore = with_permits(&client, 5);
    // The server knows the script from now on.
    semaphore.acquire(1).unwrap().release().unwrap();
    let is_release = |request: &Request| {
        request.name().starts_with("EVAL") && request.contains("redisson_sc:{a}")
    };
    for end in [drop::<SemaphoreGuard>, |guard: SemaphoreGuard| drop(guard.release())] {
        let guard = semaphore.acquire(2).unwrap();
        let lost = proxy.on(is_release, Fault::ResetBeforeReply);
        end(guard);
        lost.wait_for_hit(SOON);
        settle(&client);
        assert_eq!(client.stats().abandoned_releases, 0);
        assert_eq!(server.command(&["GET", "a"]).text(), "5");
    }
}

#[test]
fn failed_release_of_permits_is_retried_in_background() {
    let setup = InMemory::new();
    let client = setup.client();
    let semaphore = with_permits(&client, 3);
    let guard = semaphore.acquire(3).unwrap();
    setup.memory.set_unreachable(true);
    drop(guard);
    assert_eq!(client.stats().queued_releases, 1);
    setup.memory.set_unreachable(false);
    setup.clock.advance(SECOND * 3);
    wait_until("the release is sent", SOON, || client.stats().queued_releases == 0);
    assert_eq!(semaphore.available_permits(), Ok(3));
}

/// A copy after the server has forgotten the first one could add the permits twice.
#[test]
fn release_retry_is_abandoned_before_server_forgets_first_copy() {
    let setup = InMemory::new();
    let client = setup.client();
    let semaphore = with_permits(&client, 3);
    let guard = semaphore.acquire(3).unwrap();
    setup.memory.lose_replies(true);
    drop(guard);
    assert_eq!(setup.memory.text("a").as_deref(), Some("3"));
    for _ in 0..120 {
        setup.clock.advance(SECOND);
    }
    setup.memory.lose_replies(false);
    let stats = client.stats();
    assert_eq!((stats.queued_releases, stats.abandoned_releases), (0, 1));
    assert_eq!(semaphore.available_permits(), Ok(3));
}
