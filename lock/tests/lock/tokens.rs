//! Fencing tokens of every kind of lock.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::expected::lost;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, settle};
use wheellock::{Client, Error, Guard, LostReason, Memory};
use wheellock_fixture::Server;

type Draw<'a> = &'a dyn Fn() -> Result<u64, Error>;

on_all_stores! {
    fn tokens_grow_from_hold_to_hold_across_kinds_of_one_name(setup: &TestStore) {
        let clients = [(); 2].map(|()| setup.client());
        let mut newest = 0;
        for client in clients.iter().cycle().take(4) {
            let read_write = client.read_write_lock("a");
            let seats = client.expirable_semaphore("a");
            let draws: [(&str, Draw<'_>); 11] = [
                ("lock", &|| client.lock("a").lock()?.draw_token()),
                ("fair", &|| client.fair_lock("a").lock()?.draw_token()),
                ("fenced", &|| client.fenced_lock("a").lock()?.draw_token()),
                ("fenced, sendable", &|| client.fenced_lock("a").sendable().lock()?.draw_token()),
                ("spin", &|| client.spin_lock("a").lock()?.draw_token()),
                ("simple", &|| client.simple_lock("a").lock()?.draw_token()),
                ("write", &|| read_write.write_lock().lock()?.draw_token()),
                ("read", &|| read_write.read_lock().lock()?.draw_token()),
                ("not reentrant", &|| client.non_reentrant_lock("a").lock()?.draw_token()),
                ("a lease", &|| client.lock("a").with_lease(SOON).lock()?.draw_token()),
                ("many", &|| Ok(client.lock_many(&["a"]).lock()?.draw_tokens()?[0])),
            ];
            for (kind, draw) in draws {
                let token = draw().unwrap();
                assert!(token > newest, "{kind}: {token} after {newest}");
                newest = token;
            }
            // A semaphore has keys of its own, and the same counter.
            settle(client);
            seats.try_set_permits(1).unwrap();
            let kinds = [seats.clone(), seats.clone().with_lease(SOON), seats.clone().watched()];
            for seats in &kinds {
                let permit = seats.acquire().unwrap();
                let token = permit.draw_token().unwrap();
                assert!(token > newest, "{token} after {newest}");
                assert_eq!(permit.draw_token().unwrap(), token);
                newest = token;
                permit.release().unwrap();
            }
            assert_eq!(client.fenced_lock("a").last_token().unwrap(), newest);
            setup.delete("a");
        }
    }

    fn all_guards_of_a_hold_have_one_token(setup: &TestStore) {
        let client = setup.client();
        let lock = client.fair_lock("a").sendable().with_owner("request 7");
        let guards = [(); 4].map(|()| lock.lock().unwrap());
        assert!(guards.iter().all(|guard| guard.token().is_none()));
        let tokens: Vec<u64> = thread::scope(|scope| {
            let draw = |guard| scope.spawn(move || Guard::draw_token(guard).unwrap());
            let threads: Vec<_> = guards.iter().map(draw).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        assert!(guards.iter().all(|guard| guard.token() == Some(tokens[0])));
        assert_eq!(client.fenced_lock("a").with_owner("request 7").lock().unwrap().token(), Some(tokens[0]));
    }

    fn each_lock_of_a_multi_lock_has_its_token(setup: &TestStore) {
        let client = setup.client();
        let multi = client.multi_lock(&[&client.lock("a"), &client.fenced_lock("b"), &client.fair_lock("c")]);
        let guard = multi.lock().unwrap();
        let before = guard.tokens();
        assert_eq!(before.iter().flatten().count(), 1, "the fenced one has it already");
        let tokens = guard.draw_tokens().unwrap();
        assert_eq!(guard.tokens(), tokens.iter().copied().map(Some).collect::<Vec<_>>());
        assert_eq!(tokens[1], before[1].unwrap());
        guard.unlock().unwrap();
        let later = multi.lock().unwrap().draw_tokens().unwrap();
        assert!(later.iter().zip(&tokens).all(|(later, token)| later > token));
    }

    fn a_hold_that_is_gone_has_no_token(setup: &TestStore) {
        let client = setup.client();
        let guard = client.lock("a").lock().unwrap();
        setup.delete("a");
        let error = guard.draw_token().unwrap_err();
        assert_eq!(error, lost("a", LostReason::Deleted));
        assert!(!guard.is_held());
        assert_eq!(client.fenced_lock("a").last_token().unwrap(), 0, "none was drawn");
        let seats = client.expirable_semaphore("seats");
        seats.try_set_permits(1).unwrap();
        let permit = seats.acquire().unwrap();
        seats.release(&permit.id()).unwrap();
        assert_eq!(permit.draw_token().unwrap_err(), lost("seats", LostReason::Deleted));
    }
}

#[test]
fn each_use_of_a_cached_lock_has_a_token_of_its_own() {
    let client = Client::in_memory();
    let lock = client.lock("a").with_cache(Duration::from_secs(5));
    lock.lock().unwrap().unlock().unwrap();
    let first = lock.lock().unwrap().draw_token().unwrap();
    let second = lock.lock().unwrap().draw_token().unwrap();
    assert!(second > first, "{second} after {first}");
}

#[test]
fn tokens_continue_from_redisson_and_grow_after_counter_loss() {
    const COUNTER: &str = "redisson_lock_token:{a}";
    const HIGH: u64 = 8_000_000_000_000_000;
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("a");
    let first = lock.lock().unwrap().draw_token().unwrap();
    server.command(&["DEL", COUNTER]);
    let second = lock.lock().unwrap().draw_token().unwrap();
    assert!(second > first, "{second} after {first}");
    server.command(&["SET", COUNTER, &HIGH.to_string(), "EX", "100"]);
    assert_eq!(lock.lock().unwrap().draw_token().unwrap(), HIGH + 1);
    assert_eq!(server.command(&["TTL", COUNTER]).integer(), -1);
    server.command(&["DEL", COUNTER]);
    server.command(&["LPUSH", COUNTER, "x"]);
    let guard = lock.lock().unwrap();
    let error = guard.draw_token().unwrap_err();
    assert!(matches!(error, Error::WrongType { .. }), "{error}");
    assert!(guard.is_held(), "the lock itself is held");
}

#[test]
fn a_token_without_an_answer_is_drawn_again() {
    let memory = Memory::new();
    let client = built(Client::builder().in_memory(&memory));
    let guard = client.lock("a").lock().unwrap();
    memory.lose_replies(true);
    let error = guard.draw_token().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    memory.lose_replies(false);
    assert!(guard.is_held());
    let drawn = client.fenced_lock("a").last_token().unwrap();
    assert!(guard.draw_token().unwrap() > drawn);
    assert_eq!(guard.draw_token().unwrap(), client.fenced_lock("a").last_token().unwrap());
}
