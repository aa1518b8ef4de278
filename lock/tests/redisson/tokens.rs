//! Fencing tokens grow from hold to hold on either side, and both sides know the last one.

use std::thread;

use wheellock::FencedLock;

use crate::peer::JavaThread;
use crate::shared::{JAVA, LIMIT, Tries, alone, connect, fresh, start, warm_up};
use crate::{KINDS, TRIES};

/// What the Java program calls a fenced lock.
const FENCED: &str = "fenced";

/// The tokens that were given, each larger than the one before.
struct Tokens<'a> {
    name: &'a str,
    lock: &'a FencedLock,
    java: &'a JavaThread<'a>,
    last: u64,
}

impl Tokens<'_> {
    /// Both sides have the last token that was given.
    fn assert_last(&self) {
        assert_eq!(self.lock.last_token().unwrap(), self.last);
        assert_eq!(self.java.call(FENCED, self.name, "getToken"), self.last.to_string());
    }

    fn next(&mut self, token: u64) {
        assert!(token > self.last, "{token} after {}", self.last);
        self.last = token;
        self.assert_last();
    }

    /// A new one, which the server has drawn for a way to lock that does not answer it.
    fn next_unsaid(&mut self) {
        self.next(self.lock.last_token().unwrap());
    }

    fn next_of_java(&mut self, operation: &str) {
        let token = self.java.call(FENCED, self.name, operation);
        self.next(token.parse().unwrap());
    }

    fn unlock_java(&self) {
        self.java.call(FENCED, self.name, "unlock");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn fencing_tokens_grow_from_hold_to_hold_on_both_sides() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(FENCED);
    let lock = client.fenced_lock(&name);
    let mut tokens = Tokens { name: &name, lock: &lock, java: &java, last: 0 };
    tokens.assert_last();

    for operation in ["lockAndGetToken", "tryLockAndGetToken wait=10 lease=20000"] {
        tokens.next_of_java(operation);
        // Redisson draws one more for each nested hold.
        tokens.next_of_java(operation);
        tokens.unlock_java();
        tokens.unlock_java();

        let outer = lock.lock().unwrap();
        tokens.next(outer.token());
        // We do not: the first section is not to be refused because of the one within.
        let inner = lock.try_lock().unwrap().unwrap();
        assert_eq!(inner.token(), outer.token());
        tokens.assert_last();
        inner.unlock().unwrap();
        outer.unlock().unwrap();
    }
    for operation in ["lock", "tryLock", "tryLock wait=10 lease=20000"] {
        java.call(FENCED, &name, operation);
        tokens.next_unsaid();
        tokens.unlock_java();
        let held = lock.lock().unwrap();
        tokens.next(held.token());
        held.unlock().unwrap();
    }
    // Those of other kinds come from the same counter.
    for lock in [client.lock(&name), client.fair_lock(&name), client.spin_lock(&name)] {
        tokens.next_of_java("lockAndGetToken");
        tokens.unlock_java();
        let held = lock.lock().unwrap();
        tokens.next(held.draw_token().unwrap());
        held.unlock().unwrap();
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn waiter_token_exceeds_holder_token_across_java_and_rust() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(KINDS.iter().find(|kind| kind.word == FENCED).unwrap(), &client, &java);
    let name = fresh(FENCED);
    let lock = client.fenced_lock(&name);
    let mut tokens = Tokens { name: &name, lock: &lock, java: &java, last: 0 };
    // A contender for a key without an expiry would be told that it has the lock (D10): ours never
    // is without.
    let refused = "tryLockAndGetToken wait=500 lease=20000";
    java.call(FENCED, &name, "lockAndGetToken");
    java.call(FENCED, &name, "unlock");

    for waits in ["lockAndGetToken", "tryLockAndGetToken wait=30000 lease=20000"] {
        let held = lock.lock().unwrap();
        tokens.next(held.token());
        assert_eq!(java.call(FENCED, &name, refused), "null");
        let tries = Tries::begin();
        let waiting = java.send(FENCED, &name, waits);
        tries.wait_until_asleep(TRIES);
        assert!(waiting.is_under_way(), "it took a lock that was held");
        held.unlock().unwrap();
        tokens.next(waiting.value().parse().unwrap());

        let tries = Tries::begin();
        let token = thread::scope(|scope| {
            let waiter = start(scope, || lock.try_lock_for(LIMIT).unwrap().unwrap().token());
            tries.wait_until_asleep(TRIES);
            assert!(!waiter.is_finished(), "it took a lock that was held");
            tokens.unlock_java();
            waiter.join().unwrap()
        });
        tokens.next(token);
    }
}
