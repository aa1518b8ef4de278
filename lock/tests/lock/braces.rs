//! `x` and `{x}`: two names, whose channels and further keys are one in Redisson's layout.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_all_stores};
use crate::common::takings::taken;
use crate::common::{SOON, wait_for_a_waiter};
use crossbeam_channel::bounded;
use wheellock::{Client, Error, Lock, Wait};

/// Longer than a try takes, and far below the poll bound.
const SHORT: Duration = Duration::from_millis(600);

fn assert_refused<T>(refused: &Result<T, Error>) {
    let Err(error) = refused else { panic!("it is not refused") };
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("\"{x}\"") && text.contains("share"), "{text}");
}

on_all_stores! {
    fn a_wait_for_a_name_does_not_hold_up_its_name_in_braces(setup: &TestStore) {
        let kinds: [fn(&Client, &str) -> Lock; 4] = [
            Client::lock,
            Client::spin_lock,
            |client, name| client.read_write_lock(name).read_lock(),
            |client, name| client.read_write_lock(name).write_lock(),
        ];
        let (client, rival) = (setup.client(), setup.client());
        for (number, kind) in kinds.into_iter().enumerate() {
            let [plain, braced] = [format!("x{number}"), format!("{{x{number}}}")];
            let held = match number {
                0 | 1 => rival.lock(&plain),
                _ => rival.read_write_lock(&plain).write_lock(),
            };
            let held = held.lock().unwrap();
            let (stop, stopped) = bounded::<()>(0);
            let guard = thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let wait = Wait::forever().or_cancelled(&stopped);
                    kind(&client, &plain).try_lock_with(wait).map(drop)
                });
                wait_for_a_waiter(&client);
                let guard = kind(&client, &braced).try_lock_for(SHORT);
                drop(stop);
                assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled { .. })));
                guard.map(|guard| guard.is_some())
            });
            assert_eq!(guard, Ok(true), "{braced}");
            drop(held);
        }
    }

    fn permit_wait_does_not_block_permits_of_the_braced_name(setup: &TestStore) {
        let client = setup.client();
        let [plain, braced] = ["x", "{x}"].map(|name| client.semaphore(name));
        assert!(braced.try_set_permits(1).unwrap());
        let (stop, stopped) = bounded::<()>(0);
        let acquired = thread::scope(|scope| {
            let waiter = scope
                .spawn(|| plain.try_acquire_with(2, Wait::forever().or_cancelled(&stopped)).map(taken));
            wait_for_a_waiter(&client);
            let acquired = braced.try_acquire_for(1, SHORT).map(taken);
            drop(stop);
            assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled { .. })));
            acquired
        });
        assert_eq!(acquired, Ok(true));
    }

    fn a_client_refuses_the_second_of_two_names_with_one_queue(setup: &TestStore) {
        let client = setup.client();
        drop(client.fair_lock("x").lock().unwrap());
        assert_refused(&client.fair_lock("{x}").try_lock());
        assert_refused(&client.non_reentrant_fair_lock("{x}").lock());
        // What has no further keys is not concerned, nor are other names.
        drop(client.lock("{x}").lock().unwrap());
        drop(client.fair_lock("{x}:y").lock().unwrap());
        drop(client.fair_lock("x").lock().unwrap());
    }

    fn a_client_refuses_the_second_of_two_names_with_one_counter(setup: &TestStore) {
        let client = setup.client();
        drop(client.fenced_lock("x").lock().unwrap());
        assert_refused(&client.fenced_lock("{x}").try_lock_for(SOON));
        assert_refused(&client.fenced_lock("{x}").last_token());
    }

    fn client_refuses_the_second_name_of_a_shared_lease_set(setup: &TestStore) {
        let client = setup.client();
        assert!(client.expirable_semaphore("x").try_set_permits(1).unwrap());
        assert_refused(&client.expirable_semaphore("{x}").try_set_permits(1));
        assert_refused(&client.expirable_semaphore("{x}").try_acquire());
    }
}
