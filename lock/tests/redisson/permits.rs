//! A semaphore with ids and leases is the same on both sides: an id of one side is valid on the
//! other.

use std::time::Duration;

use wheellock::{Client, Error, PermitId};

use crate::peer::JavaThread;
use crate::shared::{JAVA, SERVER, Tries, alone, connect, fresh};
use crate::waking::{java_wakes_rust, rust_wakes_java};

/// What the Java program calls it.
const PERMITS: &str = "permits";

/// A lease that does not end within a test.
const LEASE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_permit_is_released_on_the_other_side_by_its_id() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(PERMITS);
    let semaphore = client.expirable_semaphore(&name);
    let leases = format!("{{{name}}}:timeout");
    let say = |operation: &str| java.call(PERMITS, &name, operation);
    let both_count = |free: i64, taken: i64| {
        assert_eq!(semaphore.available_permits().unwrap(), free);
        assert_eq!(semaphore.acquired_permits().unwrap(), taken);
        assert_eq!(semaphore.permits().unwrap(), free + taken);
        assert_eq!(say("availablePermits"), free.to_string());
        assert_eq!(say("acquiredPermits"), taken.to_string());
        assert_eq!(say("getPermits"), (free + taken).to_string());
    };

    both_count(0, 0);
    assert_eq!(say("trySetPermits permits=3"), "true");
    assert!(!semaphore.try_set_permits(5).unwrap());
    both_count(3, 0);

    for leased in [false, true] {
        let of_java = say(if leased { "acquire lease=20000" } else { "acquire" });
        both_count(2, 1);
        semaphore.release(&of_java.parse().unwrap()).unwrap();
        both_count(3, 0);
        assert_eq!(say(&format!("tryRelease id={of_java}")), "false");

        let taker = if leased { semaphore.clone().with_lease(LEASE) } else { semaphore.clone() };
        let of_rust = taker.acquire().unwrap().into_id();
        let written = SERVER.command(&["ZRANGE", &leases, "0", "-1"]);
        let id: Vec<u8> = (0..16)
            .map(|at| u8::from_str_radix(&of_rust.to_string()[2 * at..][..2], 16).unwrap())
            .collect();
        assert_eq!(written.array()[0].bytes(), id);
        both_count(2, 1);
        say(&format!("release id={of_rust}"));
        both_count(3, 0);
        assert!(!semaphore.try_release(&of_rust).unwrap());
        let released = semaphore.release(&of_rust);
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    }

    let of_java: Vec<PermitId> =
        say("acquire permits=2").split(',').map(|id| id.parse().unwrap()).collect();
    both_count(1, 2);
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    assert!(semaphore.release_all(&of_java).unwrap());
    let of_rust = semaphore.acquire_many(2).unwrap();
    assert_eq!(say("tryAcquire permits=2"), "");
    let ids: Vec<String> = of_rust.into_ids().iter().map(ToString::to_string).collect();
    assert_eq!(say(&format!("tryReleaseAll ids={}", ids.join(","))), "2");
    both_count(3, 0);

    semaphore.set_permits(4).unwrap();
    both_count(4, 0);
    say("setPermits permits=2");
    semaphore.add_permits(3).unwrap();
    say("addPermits permits=-1");
    both_count(4, 0);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn the_lease_of_a_permit_is_known_and_changed_on_both_sides() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(PERMITS);
    let semaphore = client.expirable_semaphore(&name);
    semaphore.try_set_permits(2).unwrap();
    let say = |operation: &str| java.call(PERMITS, &name, operation);
    let in_java = |id: &PermitId| say(&format!("getLeaseTime id={id}")).parse::<i64>().unwrap();

    let of_java: PermitId = say("acquire lease=20000").parse().unwrap();
    let of_rust = semaphore.clone().with_lease(LEASE).acquire().unwrap();
    for id in [of_java, of_rust.id()] {
        // What Java says lies between what Rust says before and after it, by two clocks of one
        // machine.
        let before = semaphore.lease_of(&id).unwrap().unwrap();
        let between = Duration::from_millis(in_java(&id).try_into().unwrap());
        let after = semaphore.lease_of(&id).unwrap().unwrap();
        let off = Duration::from_millis(5);
        assert!(before + off >= between && between + off >= after && before <= LEASE);

        assert!(semaphore.remove_lease(&id).unwrap());
        assert_eq!(in_java(&id), -1);
        assert_eq!(say(&format!("updateLeaseTime id={id} lease=50000")), "true");
        assert!(semaphore.lease_of(&id).unwrap().unwrap() > 2 * LEASE);
        assert!(semaphore.update_lease(&id, 3 * LEASE).unwrap());
        assert!(in_java(&id) > 55_000);
        assert_eq!(say(&format!("updateLeaseTime id={id} lease=-1")), "true");
        assert_eq!(semaphore.lease_of(&id).unwrap(), Some(Duration::MAX));
    }
    of_rust.release().unwrap();
    assert_eq!(say(&format!("tryRelease id={of_java}")), "true");
    assert!(!semaphore.update_lease(&of_java, LEASE).unwrap());
    assert_eq!(say(&format!("updateLeaseTime id={of_java} lease=1000")), "false");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_permit_whose_lease_ended_on_one_side_is_had_on_the_other() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(PERMITS);
    let semaphore = client.expirable_semaphore(&name);
    semaphore.try_set_permits(1).unwrap();

    let of_java = java.call(PERMITS, &name, "acquire lease=300");
    // Nobody sends a message when a lease ends: the waiter has to come back by itself.
    let of_rust = semaphore.clone().with_lease(Duration::from_millis(300)).acquire().unwrap();
    assert_eq!(java.call(PERMITS, &name, &format!("tryRelease id={of_java}")), "false");
    let again = java.call(PERMITS, &name, "acquire");
    assert!(!of_rust.is_valid());
    let late = of_rust.release();
    assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    assert_eq!(semaphore.available_permits().unwrap(), 0, "the late release gave another's permit");
    semaphore.release(&again.parse().unwrap()).unwrap();
    assert_eq!(java.call(PERMITS, &name, "getPermits"), "1");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn permit_release_wakes_waiter_across_java_and_rust() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(&client, &java);
    // With a lease, Redisson's waiter sleeps until it ends; without one it sleeps until it is
    // woken.
    for leased in ["", " lease=20000"] {
        let name = fresh(PERMITS);
        let semaphore = client.expirable_semaphore(&name);
        semaphore.try_set_permits(1).unwrap();
        let taker = if leased.is_empty() { semaphore } else { semaphore.with_lease(LEASE) };

        let of_java = java.call(PERMITS, &name, &format!("acquire{leased}"));
        let of_rust = java_wakes_rust(
            Tries::begin(),
            || taker.acquire().unwrap(),
            || java.send(PERMITS, &name, &format!("release id={of_java}")),
        );
        let of_java = rust_wakes_java(
            Tries::begin(),
            || java.send(PERMITS, &name, &format!("tryAcquire wait=30000{leased}")),
            || of_rust.release().unwrap(),
        );
        let of_rust = java_wakes_rust(
            Tries::begin(),
            || taker.acquire_many(3).unwrap(),
            || java.send(PERMITS, &name, "setPermits permits=4"),
        );
        drop(of_rust);
        taker.release(&of_java.parse().unwrap()).unwrap();
        assert_eq!(java.call(PERMITS, &name, "availablePermits"), "4");
    }
}

/// Does everything once on both sides. Then the server has the scripts, and the JVM its classes.
fn warm_up(client: &Client, java: &JavaThread<'_>) {
    let name = fresh(PERMITS);
    let semaphore = client.expirable_semaphore(&name);
    semaphore.set_permits(1).unwrap();
    java.call(PERMITS, &name, "setPermits permits=1");
    semaphore.acquire().unwrap().release().unwrap();
    let id = java.call(PERMITS, &name, "acquire lease=60000");
    java.call(PERMITS, &name, &format!("release id={id}"));
}
