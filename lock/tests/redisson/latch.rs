//! A latch is the same on both sides: both count it down, and it opens for both.

use wheellock::CountDownLatch;

use crate::shared::{JAVA, LIMIT, SERVER, Tries, alone, connect, fresh};
use crate::waking::{java_wakes_rust, rust_wakes_java};

/// What the Java program calls it.
const LATCH: &str = "latch";

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_latch_is_counted_down_together() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh(LATCH);
    let latch = client.count_down_latch(&name);
    let say = |operation: &str| java.call(LATCH, &name, operation);
    let both_count = |count: u64| {
        assert_eq!(latch.count().unwrap(), count);
        assert_eq!(say("getCount"), count.to_string());
    };

    both_count(0);
    latch.count_down().unwrap();
    say("countDown");
    both_count(0);
    assert_eq!(SERVER.command(&["EXISTS", &name]).integer(), 0);

    assert_eq!(say("trySetCount count=3"), "true");
    assert!(!latch.try_set_count(5).unwrap());
    both_count(3);
    latch.count_down().unwrap();
    both_count(2);
    say("countDown");
    both_count(1);
    assert!(!latch.wait_for(std::time::Duration::from_millis(10)).unwrap());
    assert_eq!(say("await wait=10"), "false");
    latch.count_down().unwrap();
    both_count(0);
    latch.wait().unwrap();
    assert_eq!(say("await wait=10"), "true");

    assert!(latch.try_set_count(2).unwrap());
    assert_eq!(say("trySetCount count=7"), "false");
    both_count(2);
    assert_eq!(say("delete"), "true");
    assert!(!latch.delete().unwrap());
    both_count(0);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_rust_waiter_continues_when_java_counts_down_to_zero() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let waits: [fn(&CountDownLatch); 2] =
        [|latch| latch.wait().unwrap(), |latch| assert!(latch.wait_for(LIMIT).unwrap())];
    for wait in waits {
        let name = fresh(LATCH);
        let latch = client.count_down_latch(&name);
        latch.try_set_count(2).unwrap();
        java.call(LATCH, &name, "countDown");
        java_wakes_rust(
            Tries::of(&["getrange"]),
            || wait(&latch),
            || java.send(LATCH, &name, "countDown"),
        );
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_java_waiter_continues_when_rust_opens_the_latch() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    // Redisson's own delete leaves Java's waiters asleep (D15). Ours opens.
    let opens: [fn(&CountDownLatch); 2] =
        [|latch| latch.count_down().unwrap(), |latch| assert!(latch.delete().unwrap())];
    for open in opens {
        for (waits, answer) in [("await", ""), ("await wait=30000", "true")] {
            let name = fresh(LATCH);
            let latch = client.count_down_latch(&name);
            java.call(LATCH, &name, "trySetCount count=2");
            latch.count_down().unwrap();
            let woken = rust_wakes_java(
                Tries::of(&["get"]),
                || java.send(LATCH, &name, waits),
                || open(&latch),
            );
            assert_eq!(woken, answer);
        }
    }
}
