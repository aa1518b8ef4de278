//! What is serialized of locks, holds, statistics and warnings.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use crate::common::built;
use crate::common::in_memory::InMemory;
use serde_json::{Value, json};
use wheellock::Client;
use wheellock_fixture::Server;

const SECOND: Duration = Duration::from_secs(1);

fn value(of: &impl serde::Serialize) -> Value {
    serde_json::to_value(of).unwrap()
}

#[test]
fn serialized_status_has_holders_waiters_and_times_in_ms() {
    let setup = InMemory::new();
    let client = built(setup.builder().label("billing"));
    let lock = client.read_write_lock("a").read_lock().with_lease(SECOND * 60);
    let guard = lock.lock().unwrap();
    setup.clock.advance(SECOND * 2);
    let status = value(&client.status("a").unwrap());
    let holder = json!({
        "owner": guard.owner(),
        "kind": "wheellock",
        "label": "billing",
        "process": std::process::id(),
        "held_for_ms": 2000,
        "remaining_ms": 58_000,
        "watched": false,
        "may_be_cached": false,
        "count": 1,
        "shared": true,
    });
    let expected = json!({
        "name": "a",
        "kind": "read-write",
        "holders": [holder],
        "holder_count": 1,
        "number": null,
        "waiters": { "here": 0, "elsewhere": null, "queue": [] },
    });
    assert_eq!(status, expected);
    let free = value(&client.status("b").unwrap());
    assert_eq!((&free["kind"], &free["holders"]), (&Value::Null, &json!([])));
}

#[test]
fn a_lock_without_an_end_has_no_remaining_time() {
    let server = Server::start();
    server.command(&["HSET", "a", "7c6b4dc1-1111-4111-8111-111111111111:1", "1"]);
    let client = built(Client::builder().url(&server.url()));
    let status = value(&client.status("a").unwrap());
    let holder = &status["holders"][0];
    assert_eq!((&holder["kind"], &holder["remaining_ms"]), (&json!("redisson"), &Value::Null));
}

#[test]
fn holds_and_statistics_have_words_for_kinds_and_reasons() {
    let setup = InMemory::new();
    let client = setup.client();
    let _named = client.fair_lock("a").with_owner("request 7").lock().unwrap();
    let hold = value(&client.holds());
    assert_eq!(hold[0]["holder"], json!({ "named": "request 7" }));
    assert_eq!((&hold[0]["kind"], &hold[0]["remaining_ms"]), (&json!("fair"), &json!(29_698)));
    let lost = client.lock("b").lock().unwrap();
    let thread = json!({ "thread": format!("{:?}", std::thread::current().id()) });
    let holds = value(&client.holds());
    assert!(holds.as_array().unwrap().iter().any(|hold| hold["holder"] == thread), "{holds}");
    setup.memory.delete("b");
    assert!(lost.unlock().is_err());
    let stats = value(&client.stats());
    assert_eq!(stats["losses"], json!({ "deleted": 1 }));
    assert_eq!(stats["acquires"]["fair"]["acquired"], 1);
    assert_eq!(stats["acquires"].as_object().unwrap().len(), 2);
    assert_eq!(stats["renewal_lateness"]["p99_us"], 0);
}

#[test]
fn a_warning_has_its_name_and_its_fields() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let client = built(Client::builder().url(&server.url()));
    let warnings = value(&client.warnings());
    assert_eq!(warnings, json!([{ "warning": "eviction", "policy": "allkeys-lru" }]));
}
