//! Both sides report the same about one lock, on whichever side it is held.

use std::time::Duration;

use wheellock::Error;
use wheellock_fixture::wait_until;

use crate::kind::{Exclusive, Kind};
use crate::peer::JavaThread;
use crate::shared::{JAVA, LIMIT, SERVER, alone, connect, fresh};

/// The lease of the holds that are compared.
const LEASE: Duration = Duration::from_secs(20);

pub(crate) fn a_hold_in_java_is_the_same_seen_from_rust(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let (java, bystander) = (JAVA.thread(), JAVA.thread());
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name);
    assert_is_free(kind, &name, &*lock, &java);

    java.call(kind.word, &name, "lock lease=20000");
    let mut holds = 1;
    if kind.reentrant {
        assert_eq!(java.call(kind.word, &name, "tryLock wait=0 lease=20000"), "true");
        holds += 1;
    }
    for left in (1..=holds).rev() {
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(bystander.call(kind.word, &name, "tryLock"), "false");
        assert!(lock.is_locked().unwrap());
        assert_eq!(lock.hold_count(), 0);
        assert_eq!(java.call(kind.word, &name, "getHoldCount"), left.to_string());
        assert_eq!(java.call(kind.word, &name, "isHeldByCurrentThread"), "true");
        assert_same_time_to_live(kind, &name, &*lock, &java);
        java.call(kind.word, &name, "unlock");
    }
    assert_is_free(kind, &name, &*lock, &java);
}

pub(crate) fn a_hold_in_rust_is_the_same_seen_from_java(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name).leased(LEASE);
    assert_is_free(kind, &name, &*lock, &java);

    let mut guards = vec![lock.lock().unwrap()];
    assert_count_on_server(&name, 1);
    if kind.reentrant {
        guards.push(lock.try_lock().unwrap().unwrap());
    }
    while let Some(guard) = guards.pop() {
        assert_eq!(java.call(kind.word, &name, "tryLock"), "false");
        assert_eq!(java.call(kind.word, &name, "isLocked"), "true");
        assert_eq!(java.call(kind.word, &name, "isHeldByCurrentThread"), "false");
        assert_eq!(java.call(kind.word, &name, "getHoldCount"), "0");
        java.send(kind.word, &name, "unlock").throws("IllegalMonitorStateException");
        let count = lock.hold_count();
        assert_eq!(count as usize, guards.len() + 1);
        assert_count_on_server(&name, count);
        assert!(lock.remaining_lease().unwrap().unwrap() <= LEASE);
        assert_same_time_to_live(kind, &name, &*lock, &java);
        assert!(guard.is_held());
        guard.unlock().unwrap();
    }
    assert_is_free(kind, &name, &*lock, &java);
}

pub(crate) fn a_hold_forced_open_on_one_side_is_gone_on_the_other(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name);

    java.call(kind.word, &name, "lock");
    assert!(lock.force_unlock().unwrap());
    assert_is_free(kind, &name, &*lock, &java);
    let unlock = java.send(kind.word, &name, "unlock");
    if kind.tells_loss {
        unlock.throws("IllegalMonitorStateException");
    } else {
        assert_eq!(unlock.value(), "");
    }

    let held = lock.lock().unwrap();
    assert_eq!(java.call(kind.word, &name, "forceUnlock"), "true");
    assert_is_free_to_others(kind, &name, &*lock, &java);
    let ended = held.unlock();
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");

    assert!(!lock.force_unlock().unwrap());
    assert_eq!(java.call(kind.word, &name, "forceUnlock"), "false");
    assert_is_free(kind, &name, &*lock, &java);
}

pub(crate) fn a_lease_ends_on_both_sides(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name);

    java.call(kind.word, &name, "lock lease=300");
    // Nobody sends a message when a lease ends: the waiter has to come back by itself.
    let held = lock.lock().unwrap();
    java.send(kind.word, &name, "unlock").throws("IllegalMonitorStateException");
    assert!(held.is_held(), "the late unlock ended another's hold");
    held.unlock().unwrap();

    let held = lock.leased(Duration::from_millis(300)).lock().unwrap();
    java.call(kind.word, &name, "lock");
    assert!(!held.is_held());
    let ended = held.unlock();
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    assert_eq!(java.call(kind.word, &name, "isHeldByCurrentThread"), "true");
    java.call(kind.word, &name, "unlock");
    wait_until("nothing is left", LIMIT, || !lock.is_locked().unwrap());
}

/// Nobody holds it, both sides say so, and either can take it.
fn assert_is_free(kind: &Kind, name: &str, lock: &dyn Exclusive, java: &JavaThread<'_>) {
    assert_eq!(lock.hold_count(), 0);
    assert_is_free_to_others(kind, name, lock, java);
    lock.try_lock().unwrap().unwrap().unlock().unwrap();
}

/// As [`assert_is_free`], while a guard of ours is there that does not know yet that its hold was
/// lost.
fn assert_is_free_to_others(kind: &Kind, name: &str, lock: &dyn Exclusive, java: &JavaThread<'_>) {
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);
    assert_eq!(java.call(kind.word, name, "isLocked"), "false");
    assert_eq!(java.call(kind.word, name, "isHeldByCurrentThread"), "false");
    assert_eq!(java.call(kind.word, name, "getHoldCount"), "0");
    assert_eq!(java.call(kind.word, name, "remainTimeToLive"), "-2");
    assert_eq!(java.call(kind.word, name, "tryLock"), "true");
    java.call(kind.word, name, "unlock");
}

/// Java asks for the count of its own holds only; this is what it would be told of others.
fn assert_count_on_server(name: &str, count: u32) {
    let counts = SERVER.command(&["HVALS", name]).texts();
    assert!(counts.contains(&count.to_string()), "{count} is not in {counts:?}");
}

/// What Java says lies between what Rust says before and after it.
fn assert_same_time_to_live(kind: &Kind, name: &str, lock: &dyn Exclusive, java: &JavaThread<'_>) {
    let before = lock.remaining_lease().unwrap().unwrap();
    let millis = java.call(kind.word, name, "remainTimeToLive").parse().unwrap();
    let after = lock.remaining_lease().unwrap().unwrap();
    let between = Duration::from_millis(millis);
    assert!(before >= between && between >= after, "{before:?}, {between:?}, {after:?}");
}
