//! No password is in the events that a subscriber receives, also from the crates below.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::common::user::RULE;
use crate::common::{SOON, built};
use crate::ran_in_a_child;
use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use wheellock::{Client, Credentials};
use wheellock_fixture::{Server, wait_until};

const SECRET: &str = "s3cret/#?";

struct Everything(Arc<Mutex<String>>);

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        write!(self.0.lock(), "{attributes:?}").unwrap();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, record: &Record<'_>) {
        write!(self.0.lock(), "{record:?}").unwrap();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        write!(self.0.lock(), "{event:?}").unwrap();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn events_contain_no_secret() {
    if ran_in_a_child(events_contain_no_secret) {
        return;
    }
    let told = Arc::new(Mutex::new(String::new()));
    tracing::subscriber::set_global_default(Everything(Arc::clone(&told))).unwrap();
    let rule = RULE.replace(">password", &format!(">{SECRET}"));
    let server = Server::builder().user(&rule).start();
    drop(server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]));
    let asks = Client::builder()
        .url(&server.url())
        .credentials(|| Ok(Credentials::new("family", SECRET)))
        .watchdog_lease(Duration::from_millis(500));
    let client = built(asks);
    let guard = client.lock("a").lock().unwrap();
    server.kill();
    wait_until("it is lost", SOON, || !guard.is_held());
    wait_until("that is told", SOON, || told.lock().contains("lock_lost"));
    let told = told.lock();
    assert!(told.contains("allkeys-lru"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}
