//! Keys beside the lock's that hold something else: the error names the key.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, is_wrong_type, settle};
use wheellock::{Client, Error};

fn assert_named<T>(result: Result<T, Error>, key: &str) {
    let error = result.err();
    let found = error.as_ref().is_some_and(|error| is_wrong_type(error, key));
    assert!(found, "{key}: {error:?}");
}

/// Makes the key a hash, does something, and removes the key.
fn with_hash_at(client: &Client, key: &str, act: impl FnOnce()) {
    let hash = client.lock(key).lock().unwrap();
    act();
    hash.unlock().unwrap();
}

/// Makes the key a text, does something, and removes the key.
fn with_text_at(setup: &TestStore, key: &str, act: impl FnOnce()) {
    setup.put_text(key);
    act();
    setup.delete(key);
}

on_all_stores! {
    fn a_foreign_key_beside_a_lock_is_named(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let token = "redisson_lock_token:{a}";
        with_hash_at(&rival, token, || {
            assert_named(client.fenced_lock("a").try_lock(), token);
            assert_named(client.fenced_lock("a").last_token(), token);
            let _leader = rival.lock("a").lock().unwrap();
            assert_named(client.leader_election("a").leader(), token);
        });
        settle(&rival);
        let _held = rival.lock("a").lock().unwrap();
        for key in ["redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"] {
            with_text_at(setup, key, || {
                assert_named(client.fair_lock("a").try_lock_for(SOON), key);
            });
        }
    }

    fn a_foreign_key_beside_a_semaphore_is_named(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        with_text_at(setup, "{a}:timeout", || {
            let seats = client.expirable_semaphore("a");
            assert_named(seats.try_acquire(), "{a}:timeout");
            assert_named(seats.permits(), "{a}:timeout");
        });
        let request = format!("wheellock_request:{{b}}:{}:0", client.id());
        with_hash_at(&rival, &request, || {
            assert_named(client.semaphore("b").release(1), &request);
            assert_named(client.count_down_latch("b").try_set_count(1), &request);
        });
    }

    fn a_foreign_key_of_a_job_is_named(setup: &TestStore) {
        let (client, rival) = (setup.client(), setup.client());
        let run = || client.job("report").run_once("noon", |_| Ok::<_, ()>(()));
        let record = "wheellock_job_record:{report}:noon";
        with_text_at(setup, record, || assert_named(run(), record));
        let tokens = "wheellock_job_token:{report}";
        with_hash_at(&rival, tokens, || assert_named(run(), tokens));
    }
}
