//! The events of the cargo feature `tracing`: target, names and fields.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ran_in_a_child;
use crossbeam_channel::{Sender, unbounded};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wheellock::{Client, Fault, Faults, ManualClock, Memory};
use wheellock_fixture::Server;

const SECOND: Duration = Duration::from_secs(1);

/// Sends on the events of this level, and panics at one lock's name.
struct Collector(Sender<(String, BTreeMap<String, String>)>, Level);

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "wheellock"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        if *span.metadata().level() == self.1 {
            self.0.send((span.metadata().name().to_owned(), fields.0)).unwrap();
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if *event.metadata().level() != self.1 {
            return;
        }
        assert_ne!(fields.0.get("lock").map(String::as_str), Some("bad"), "on purpose");
        self.0.send((event.metadata().name().to_owned(), fields.0)).unwrap();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn losses_long_holds_and_warnings_are_traced_without_callbacks() {
    if ran_in_a_child(losses_long_holds_and_warnings_are_traced_without_callbacks) {
        return;
    }
    let (tell, told) = unbounded();
    tracing::subscriber::set_global_default(Collector(tell, Level::WARN)).unwrap();
    let next = || told.recv_timeout(SECOND * 10).unwrap();

    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client =
        Client::builder().in_memory(&memory).on_long_hold(SECOND * 15, |_| ()).build().unwrap();
    let bad = client.lock("bad").lock().unwrap();
    memory.delete("bad");
    let guard = client.lock("orders:42").lock().unwrap();
    clock.advance(SECOND * 25);
    let (name, fields) = next();
    assert_eq!((name.as_str(), fields["lock"].as_str()), ("lock_held_long", "orders:42"));
    assert_eq!(fields["owner"], guard.owner());
    assert!(fields.contains_key("held_for"));

    memory.set_faults(Faults::new().on_renewal(0, Fault::ClockBack(SECOND * 60)));
    clock.advance(SECOND * 10);
    let (name, fields) = next();
    assert_eq!(name, "server_clock_jumped");
    assert_eq!((fields["by"].as_str(), fields["forward"].as_str()), ("60s", "false"));

    memory.delete("orders:42");
    clock.advance(SECOND * 10);
    let (name, fields) = next();
    assert_eq!((name.as_str(), fields["lock"].as_str()), ("lock_lost", "orders:42"));
    assert_eq!(fields["owner"], guard.owner());
    assert_eq!(fields["reason"], "its key was deleted");
    assert!(fields.contains_key("held_for") && fields.contains_key("message"));
    // A subscriber that panics has no effect on locks.
    assert_eq!(client.stats().callback_panics, 1);
    drop((guard, bad));

    let server = Server::builder().argument("--maxmemory-policy", "allkeys-lru").start();
    let _client = Client::connect(&server.url()).unwrap();
    let (name, fields) = next();
    assert_eq!((name.as_str(), fields["policy"].as_str()), ("server_evicts", "allkeys-lru"));

    let server = Server::start();
    server.command(&["ACL", "SETUSER", "deaf", "on", ">secret", "~*", "&*", "+@all", "-subscribe"]);
    server.command(&["HSET", "taken", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    let client = Client::connect(&format!("redis://deaf:secret@{}/", server.address())).unwrap();
    assert!(client.lock("taken").try_lock_for(SECOND).unwrap().is_none());
    let (name, fields) = next();
    assert_eq!(name, "server_refuses_channels");
    assert!(fields["refusal"].starts_with("NOPERM"), "{fields:?}");
}

#[test]
fn acquires_and_releases_are_debug_events_of_the_calling_thread() {
    if ran_in_a_child(acquires_and_releases_are_debug_events_of_the_calling_thread) {
        return;
    }
    let (tell, told) = unbounded();
    tracing::subscriber::set_global_default(Collector(tell, Level::DEBUG)).unwrap();
    // What a call emits is there when it returns.
    let next = |expected: &str| {
        let (name, fields) = told.try_recv().unwrap();
        assert_eq!(name, expected);
        assert_eq!((fields["lock"].as_str(), fields["kind"].as_str()), ("orders:42", "fair"));
        fields
    };
    let client = Client::in_memory();
    let guard = client.fair_lock("orders:42").lock().unwrap();
    next("lock_acquire");
    let fields = next("lock_acquired");
    assert_eq!(fields["owner"], guard.owner());
    assert!(fields.contains_key("waited"));
    let other = client.fair_lock("orders:42").with_owner("other");
    assert!(other.try_lock().unwrap().is_none());
    next("lock_acquire");
    let fields = next("lock_not_acquired");
    assert_eq!(fields["end"], "timed_out");
    assert!(!fields.contains_key("error"));
    let owner = guard.owner().to_owned();
    drop(guard);
    let fields = next("lock_released");
    assert_eq!(fields["owner"], owner);
    assert!(fields.contains_key("held_for"));
    assert!(told.is_empty());
    // A subscriber that panics has no effect on locks.
    let bad = client.lock("bad").lock().unwrap();
    assert!(bad.is_held());
    bad.unlock().unwrap();
}

#[test]
fn events_cut_a_long_name_short() {
    if ran_in_a_child(events_cut_a_long_name_short) {
        return;
    }
    let (tell, told) = unbounded();
    tracing::subscriber::set_global_default(Collector(tell, Level::DEBUG)).unwrap();
    let name = "x".repeat(60_000);
    let client = Client::in_memory();
    let guard = client.lock(&name).lock().unwrap();
    drop(guard);
    let events: Vec<_> = told.try_iter().collect();
    assert_eq!(events.len(), 3, "lock_acquire, lock_acquired, lock_released");
    for (event, fields) in events {
        assert!(fields["lock"].len() < 200, "{event}: {} bytes", fields["lock"].len());
    }
}
