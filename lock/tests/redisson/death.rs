//! A killed holder is followed by a waiter of the other side when its lease ends, and not before.

use std::thread;
use std::time::{Duration, Instant};

use wheellock_fixture::wait_until;

use crate::child::child;
use crate::peer::Peer;
use crate::shared::{JAVA, LIMIT, SERVER, Tries, alone, connect, fresh, now, start, time_to_live};
use crate::{AT_ONCE, KINDS};

/// The watchdog's lease of those that are killed, so that they are soon made up for.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_waiter_owns_lock_of_killed_java_holder_after_lease() {
    let _alone = alone();
    let client = connect();
    let setting = format!("lockWatchdogTimeout={}", LEASE.as_millis());
    let doomed = Peer::start(&[&setting], &[&SERVER]);
    let names: Vec<String> = KINDS.iter().map(|kind| fresh(kind.word)).collect();
    for (kind, name) in KINDS.iter().zip(&names) {
        doomed.thread().call(kind.word, name, "lock");
    }
    for name in &names {
        wait_until_renewed(name);
    }
    thread::scope(|scope| {
        let waiters: Vec<_> = KINDS
            .iter()
            .zip(&names)
            .map(|(kind, name)| {
                let lock = (kind.open)(&client, name);
                let before = client.stats().waiters;
                let waiter = start(scope, move || {
                    let held = lock.lock().unwrap();
                    let owned_at = now();
                    held.unlock().unwrap();
                    owned_at
                });
                // The number of scripts says nothing here: earlier waiters poll, and the doomed
                // holder renews.
                wait_until("it waits", LIMIT, || client.stats().waiters > before);
                waiter
            })
            .collect();
        doomed.kill();
        let ends: Vec<Instant> = names.iter().map(|name| end_of_lease(name)).collect();
        for ((kind, waiter), end) in KINDS.iter().zip(waiters).zip(ends) {
            assert_follows(kind.word, waiter.join().unwrap(), end);
        }
    });
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_waiter_owns_lock_of_killed_rust_holder_after_lease() {
    let _alone = alone();
    for kind in KINDS {
        let name = fresh(kind.word);
        let mut doomed = child("hold", &[("KIND", kind.word), ("NAME", &name)]);
        doomed.wait_for_line("holds", LIMIT);
        wait_until_renewed(&name);
        let java = JAVA.thread();
        let tries = Tries::begin();
        let waiting = java.send(kind.word, &name, "lock");
        tries.wait_until_asleep(kind.tries);
        doomed.kill();
        let end = end_of_lease(&name);
        let owned = waiting.answer();
        assert!(owned.said.is_ok(), "{:?}", owned.said);
        assert_follows(kind.word, owned.at, end);
        java.call(kind.word, &name, "unlock");
    }
}

/// Waits until the time to live of a lock has grown, which only the watchdog of its holder makes it
/// do.
pub(crate) fn wait_until_renewed(name: &str) {
    let mut last = time_to_live(name);
    wait_until("the lock is renewed", LIMIT, || {
        let now = time_to_live(name);
        let grown = now > last;
        last = now;
        grown
    });
}

/// When the lease of a lock ends that is not renewed any more.
pub(crate) fn end_of_lease(name: &str) -> Instant {
    let asked_at = now();
    let left = time_to_live(name);
    assert!(left > Duration::ZERO && left <= LEASE, "{left:?}");
    asked_at + left
}

/// The server counts whole milliseconds, and the end was reckoned a round trip too early.
pub(crate) fn assert_follows(kind: &str, owned_at: Instant, end: Instant) {
    let early = end.saturating_duration_since(owned_at);
    let late = owned_at.saturating_duration_since(end);
    assert!(early <= Duration::from_millis(2), "{kind}: owned {early:?} before the lease ended");
    assert!(late < AT_ONCE, "{kind}: owned {late:?} after the lease ended");
}
