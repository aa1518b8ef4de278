//! A non-reentrant lock is refused to its holder, on both sides, and has the same keys as any
//! other.

use std::time::Duration;

use wheellock::Error;

use crate::shared::{JAVA, SERVER, alone, connect, fresh};

/// What stands on the server: owners and counts.
fn written(name: &str) -> Vec<String> {
    SERVER.command(&["HGETALL", name]).texts()
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_holder_of_a_non_reentrant_lock_is_refused_on_both_sides() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh("nonreentrant");
    let lock = client.non_reentrant_lock(&name);

    java.call("nonreentrant", &name, "lock");
    let held_once = [java.call("peer", "-", "owner"), "1".to_owned()];
    for again in ["lock", "lock lease=20000", "tryLock", "tryLock wait=10 lease=20000"] {
        java.send("nonreentrant", &name, again).throws("IllegalMonitorStateException");
        assert_eq!(written(&name), held_once, "after {again}");
    }
    assert!(lock.try_lock().unwrap().is_none(), "it is held by another, and that is no error");
    java.call("nonreentrant", &name, "unlock");

    let held = lock.lock().unwrap();
    let held_once = [held.owner().to_owned(), "1".to_owned()];
    let again = [lock.lock().map(Some), lock.try_lock(), lock.try_lock_for(Duration::from_secs(1))];
    for refused in again {
        assert!(matches!(refused, Err(Error::AlreadyHeld { .. })), "{refused:?}");
        assert_eq!(written(&name), held_once);
    }
    assert_eq!(java.call("nonreentrant", &name, "tryLock"), "false");
    assert_eq!(java.call("nonreentrant", &name, "tryLock wait=10 lease=20000"), "false");
    held.unlock().unwrap();
    java.call("nonreentrant", &name, "lock");
    java.call("nonreentrant", &name, "unlock");
    assert_eq!(written(&name), Vec::<String>::new());
}
