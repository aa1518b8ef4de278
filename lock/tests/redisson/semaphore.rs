//! A semaphore is the same on both sides: one count, and waiters wake each other.

use crate::common::takings::taken;
use wheellock::{Client, SemaphoreGuard};

use crate::peer::JavaThread;
use crate::shared::{JAVA, LIMIT, SERVER, Tries, alone, connect, fresh};
use crate::waking::{java_wakes_rust, rust_wakes_java};

/// What the Java program calls it.
const SEMAPHORE: &str = "semaphore";

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn the_permits_of_a_semaphore_are_counted_together() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(SEMAPHORE);
    let semaphore = client.semaphore(&name);
    let say = |operation: &str| java.call(SEMAPHORE, &name, operation);
    let both_count = |permits: i64| {
        assert_eq!(semaphore.available_permits().unwrap(), permits);
        assert_eq!(say("availablePermits"), permits.to_string());
    };

    both_count(0);
    assert!(!semaphore.release_if_exists(1).unwrap());
    assert_eq!(say("releaseIfExists permits=1"), "false");
    assert!(!semaphore.try_acquire(1).map(taken).unwrap());
    assert_eq!(say("tryAcquire"), "false");
    assert_eq!(SERVER.command(&["EXISTS", &name]).integer(), 0);

    assert_eq!(say("trySetPermits permits=5"), "true");
    assert!(!semaphore.try_set_permits(7).unwrap());
    both_count(5);
    semaphore.acquire(2).unwrap().forget();
    both_count(3);
    say("acquire permits=2");
    both_count(1);
    assert!(!semaphore.try_acquire(2).map(taken).unwrap());
    assert_eq!(say("tryAcquire permits=2"), "false");
    assert!(semaphore.try_acquire(1).map(taken).unwrap());
    both_count(0);
    // Nobody owns a permit: either side may give back what the other took.
    semaphore.release(2).unwrap();
    say("release permits=1");
    both_count(3);
    assert!(semaphore.release_if_exists(1).unwrap());
    assert_eq!(say("releaseIfExists permits=1"), "true");
    both_count(5);
    semaphore.add_permits(-7).unwrap();
    both_count(-2);
    say("addPermits permits=5");
    both_count(3);
    assert_eq!(semaphore.drain_permits().unwrap(), 3);
    both_count(0);
    say("release permits=4");
    assert_eq!(say("drainPermits"), "4");
    both_count(0);
    assert_eq!(say("delete"), "true");
    assert!(semaphore.try_set_permits(2).unwrap());
    assert_eq!(say("trySetPermits permits=7"), "false");
    both_count(2);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn permits_that_java_adds_wake_a_waiter_in_rust() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(&client, &java);
    for adds in ["release permits=2", "addPermits permits=2", "trySetPermits permits=2"] {
        let name = fresh(SEMAPHORE);
        let semaphore = client.semaphore(&name);
        java_wakes_rust(
            Tries::begin(),
            || semaphore.acquire(2).map(SemaphoreGuard::forget).unwrap(),
            || java.send(SEMAPHORE, &name, adds),
        );
        assert_eq!(java.call(SEMAPHORE, &name, "availablePermits"), "0");
        let taken = java_wakes_rust(
            Tries::begin(),
            || semaphore.try_acquire_for(3, LIMIT).map(taken).unwrap(),
            || java.send(SEMAPHORE, &name, "release permits=3"),
        );
        assert!(taken);
        assert_eq!(java.call(SEMAPHORE, &name, "availablePermits"), "0");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn permits_that_rust_adds_wake_a_waiter_in_java() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(&client, &java);
    let adds: [fn(&wheellock::Semaphore); 3] = [
        |semaphore| semaphore.release(2).unwrap(),
        |semaphore| semaphore.add_permits(2).unwrap(),
        |semaphore| assert!(semaphore.try_set_permits(2).unwrap()),
    ];
    for add in adds {
        let name = fresh(SEMAPHORE);
        let semaphore = client.semaphore(&name);
        rust_wakes_java(
            Tries::begin(),
            || java.send(SEMAPHORE, &name, "acquire permits=2"),
            || add(&semaphore),
        );
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        let taken = rust_wakes_java(
            Tries::begin(),
            || java.send(SEMAPHORE, &name, "tryAcquire permits=3 wait=30000"),
            || semaphore.release(3).unwrap(),
        );
        assert_eq!(taken, "true");
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }
}

/// Does everything once on both sides. Then the server has the scripts, and the JVM its classes.
fn warm_up(client: &Client, java: &JavaThread<'_>) {
    let name = fresh(SEMAPHORE);
    let semaphore = client.semaphore(&name);
    semaphore.try_set_permits(1).unwrap();
    semaphore.acquire(1).unwrap().forget();
    semaphore.release(1).unwrap();
    semaphore.add_permits(1).unwrap();
    for operation in ["trySetPermits permits=1", "acquire", "release", "addPermits permits=1"] {
        java.call(SEMAPHORE, &name, operation);
    }
}
