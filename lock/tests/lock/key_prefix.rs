//! The key prefix: every kind of lock, semaphore and latch uses it in its keys, channels and
//! messages.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::contended::{KINDS, Kind, contend, with_name};
use crate::common::expected::lost;
use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_both_stores};
use crate::common::{SOON, built, is_wrong_type, wait_for_a_waiter};
use wheellock::{Client, Error, LostReason};
use wheellock_fixture::{Server, wait_until};

/// What decides about the slot of a key in a cluster.
fn tag(key: &str) -> &str {
    let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inner.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn keys(server: &Server) -> Vec<String> {
    let mut keys = server.command(&["KEYS", "*"]).texts();
    keys.retain(|key| !key.starts_with("wheellock_client:"));
    keys
}

fn channels(server: &Server) -> Vec<String> {
    server.command(&["PUBSUB", "CHANNELS"]).texts()
}

on_both_stores! {
    fn a_prefixed_name_is_the_full_name(setup: &TestStore) {
        let (behind, plain) = (setup.client().with_prefix("app:").with_prefix("orders:"), setup.client());
        for kind in KINDS {
            let full = format!("app:orders:{}", kind.word);
            contend(&kind, (&behind, kind.word), (&plain, &full), || ());
            contend(&kind, (&plain, &full), (&behind, kind.word), || ());
            // Another client holds the bare name.
            let end = (kind.hold)(&behind, kind.word);
            let end_other = (kind.hold)(&plain, kind.word);
            end();
            end_other();
        }
    }

    fn what_a_client_makes_behind_a_prefix_is_its_own(setup: &TestStore) {
        let client = setup.client();
        let family = client.with_prefix("orders:");
        assert_eq!(family.id(), client.id());
        let guard = family.lock("7").lock().unwrap();
        assert_eq!(client.stats().held, 1);
        // The same thread, client and full name: it nests.
        let again = client.lock("orders:7").try_lock().unwrap().unwrap();
        assert_eq!(family.lock("7").hold_count(), 2);
        assert_eq!(setup.fields("orders:7"), [(guard.owner().to_owned(), "2".to_owned())]);
        drop(again);
        assert_eq!(family.shutdown(SOON).released, 1);
        assert_eq!(client.lock("b").try_lock().map(drop), Err(Error::Shutdown));
    }

    fn guards_errors_and_names_show_the_full_name(setup: &TestStore) {
        let client = setup.client().with_prefix("app:");
        assert_eq!(client.lock("a").name(), "app:a");
        assert_eq!(client.multi_lock(&[&client.lock("a")]).lock().unwrap().names(), ["app:a"]);
        let guard = client.lock("a").lock().unwrap();
        assert_eq!(guard.name(), "app:a");
        setup.delete("app:a");
        let lost = lost("app:a", LostReason::Deleted);
        assert_eq!(guard.unlock(), lost);
        setup.put_text("app:text");
        let wrong = client.lock("text").try_lock().unwrap_err();
        assert!(is_wrong_type(&wrong, "app:text"), "{wrong}");
    }

    fn too_long_or_empty_name_with_a_prefix_is_refused(setup: &TestStore) {
        let client = setup.client();
        let long = "x".repeat(64 * 1024);
        assert!(client.with_prefix("").lock(&long).try_lock().unwrap().is_some());
        let behind = client.with_prefix("app:");
        let errors = [
            behind.lock(&long).try_lock().unwrap_err(),
            behind.read_write_lock(&long).read_lock().try_lock().unwrap_err(),
            behind.semaphore(&long).try_acquire(1).unwrap_err(),
            behind.expirable_semaphore(&long).try_acquire().unwrap_err(),
            behind.count_down_latch(&long).count_down().unwrap_err(),
            client.with_prefix(&long).lock("a").try_lock().unwrap_err(),
            behind.lock("").try_lock().unwrap_err(),
            client.with_prefix("").lock("").try_lock().unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            assert!(error.to_string().len() < 300, "{error}");
        }
        assert_eq!(behind.lock("").name(), "app:");
    }
}

#[test]
fn the_clients_prefix_comes_first() {
    let setup = InMemory::new();
    let client = built(setup.builder().key_prefix("old:").key_prefix("app:"));
    assert_eq!(client.lock("a").name(), "app:a");
    assert_eq!(client.with_prefix("orders:").lock("a").name(), "app:orders:a");
    assert_eq!(built(setup.builder().key_prefix("")).lock("a").name(), "a");
}

#[test]
fn a_release_of_a_prefixed_name_wakes_waiters_for_the_full_name() {
    let setup = InMemory::new();
    let (behind, plain) = (setup.client().with_prefix("app:"), setup.client());
    for kind in KINDS.iter().filter(|kind| kind.channel.is_some()) {
        let full = format!("app:{}", kind.word);
        let end = (kind.hold)(&behind, kind.word);
        let (tell, told) = mpsc::channel();
        let (wait, client) = (kind.wait, plain.clone());
        // Not in a scope: a waiter that is not woken would block the test, as no time passes.
        let waiter = thread::Builder::new().spawn(move || tell.send(wait(&client, &full, SOON)));
        wait_for_a_waiter(&plain);
        end();
        assert_eq!(told.recv_timeout(SOON), Ok(true), "{}", kind.word);
        waiter.unwrap().join().unwrap().unwrap();
    }
}

/// What is on the server while `kind` is held and waited for: the keys, and the channels once the
/// waiter listens.
fn seen(server: &Server, prefix: &str, kind: &Kind, name: &str) -> (Vec<String>, Vec<String>) {
    let connect = || built(Client::builder().url(&server.url()).key_prefix(prefix));
    let (holder, waiter) = (connect(), connect());
    let mut seen = (Vec::new(), Vec::new());
    contend(kind, (&holder, name), (&waiter, name), || {
        let listens = || channels(server).len() == usize::from(kind.channel.is_some());
        wait_until("the waiter listens", SOON, listens);
        seen = (keys(server), channels(server));
    });
    seen
}

#[test]
fn keys_and_channels_have_the_prefix_and_share_a_slot_per_lock() {
    for prefix in ["app:", "{app}:"] {
        for name in ["7", "{7}:x"] {
            let full = format!("{prefix}{name}");
            for kind in KINDS {
                let server = Server::start();
                let (keys, channels) = seen(&server, prefix, &kind, name);
                let found = format!("{}: {keys:?}, {channels:?}", kind.word);
                let begins = |all: &[String], pattern: &str| {
                    let beginning = with_name(pattern, &full);
                    all.iter().any(|one| one.starts_with(&beginning))
                };
                assert!(kind.keys.iter().all(|key| begins(&keys, key)), "{found}");
                assert!(kind.channel.iter().all(|channel| begins(&channels, channel)), "{found}");
                assert!(keys.iter().chain(&channels).all(|one| one.contains(&full)), "{found}");
                let slot = if prefix.contains('{') { "app" } else { tag(&full) };
                assert!(keys.iter().all(|key| tag(key) == slot), "{found}");
                // Redisson puts braces around the name of a latch, whatever that has.
                let latch = kind.word == "count_down_latch";
                let in_slot = |channel: &String| latch || tag(channel) == slot;
                assert!(channels.iter().all(in_slot), "{found}");
            }
        }
    }
}

#[test]
fn the_report_of_a_loss_and_of_a_shutdown_name_the_lock_in_full() {
    let setup = InMemory::new();
    let (tell, told) = mpsc::channel();
    let client = setup
        .builder()
        .key_prefix("app:")
        .on_lost(move |lost| drop(tell.send(lost.name().to_owned())));
    let client = built(client);
    let leased = client.lock("leased").with_lease(Duration::from_secs(1)).lock().unwrap();
    setup.clock.advance(Duration::from_secs(1));
    assert_eq!(told.recv_timeout(SOON).as_deref(), Ok("app:leased"));
    let held = client.lock("held").lock().unwrap();
    setup.memory.set_unreachable(true);
    assert_eq!(client.shutdown(Duration::ZERO).unreleased, ["app:held"]);
    drop((leased, held));
}

#[test]
fn a_red_lock_of_another_name_keeps_the_prefix_of_each_client() {
    let setups = [InMemory::new(), InMemory::new(), InMemory::new()];
    let prefixes = ["a:", "b:", ""];
    let clients: Vec<Client> = setups
        .iter()
        .zip(prefixes)
        .map(|(setup, prefix)| built(setup.builder().key_prefix(prefix)))
        .collect();
    let guard = Client::red_lock(&clients, "first").with_name("second").lock().unwrap();
    for (setup, prefix) in setups.iter().zip(prefixes) {
        let held = || !setup.memory.fields(&format!("{prefix}second")).is_empty();
        wait_until("it is held everywhere", SOON, held);
    }
    guard.unlock().unwrap();
}
