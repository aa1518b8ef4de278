//! A hold that is released before its shortest time is over: Java's waiters get the lock then, and
//! not a lease later.

use std::time::{Duration, Instant};

use crate::kind::Kind;
use crate::peer::Answer;
use crate::shared::{JAVA, Tries, alone, connect, fresh, now, warm_up};

const MIN_HOLD: Duration = Duration::from_secs(2);

/// Long before the end of the lease, which is 30 s.
const LATEST: Duration = Duration::from_secs(15);

pub(crate) fn a_waiter_in_java_has_the_lock_when_a_shortest_hold_is_over(kind: &Kind) {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(kind, &client, &java);
    let name = fresh(kind.word);
    let lock = (kind.open)(&client, &name).at_least(MIN_HOLD);
    let begun = now();
    let held = lock.lock().unwrap();
    let tries = Tries::begin();
    // It knows of the lease, and sleeps for as long as that unless it is woken.
    let waiting = java.send(kind.word, &name, "lock");
    tries.wait_until_asleep(kind.tries);
    held.unlock().unwrap();
    assert!(lock.try_lock().unwrap().is_none() && waiting.is_under_way());
    is_granted_in_time(&waiting.answer(), begun);
    java.call(kind.word, &name, "unlock");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_reader_enters_during_min_hold_while_writer_waits() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh("read");
    let both = client.read_write_lock(&name);
    let begun = now();
    both.read_lock().with_min_hold(MIN_HOLD).lock().unwrap().unlock().unwrap();
    java.call("read", &name, "lock");
    java.call("read", &name, "unlock");
    assert!(both.write_lock().try_lock().unwrap().is_none());
    is_granted_in_time(&java.send("write", &name, "lock").answer(), begun);
    java.call("write", &name, "unlock");
}

fn is_granted_in_time(owned: &Answer, begun: Instant) {
    assert!(owned.said.is_ok(), "{:?}", owned.said);
    let took = owned.at.saturating_duration_since(begun);
    assert!(took >= MIN_HOLD && took < LATEST, "owned after {took:?}");
}
