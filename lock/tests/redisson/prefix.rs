//! A prefix here and a `NameMapper` in Java with the same text: one and the same lock.

use wheellock::Client;

use crate::kind::Kind;
use crate::peer::{JavaThread, Peer};
use crate::shared::{SERVER, Tries, alone, fresh, warm_up};
use crate::waking::{java_wakes_rust, rust_wakes_java};
use crate::{KINDS, TRIES};

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn names_behind_a_prefix_are_those_of_a_name_mapper_in_java() {
    let _alone = alone();
    let peer = Peer::start(&["nameMapper=app:"], &[&SERVER]);
    let java = peer.thread();
    let client = Client::builder().url(&SERVER.url()).key_prefix("app:").build().unwrap();
    // Those that wait for messages: the others have no channel.
    for kind in KINDS.iter().filter(|kind| kind.tries == TRIES) {
        hand_over(kind, &client, &java);
    }
    let (seats, parts) = (fresh("semaphore"), fresh("latch"));

    let semaphore = client.semaphore(&seats);
    assert_eq!(java.call("semaphore", &seats, "trySetPermits permits=1"), "true");
    semaphore.acquire(1).unwrap().forget();
    assert_eq!(java.call("semaphore", &seats, "tryAcquire"), "false");
    let wait = || java.send("semaphore", &seats, "acquire");
    rust_wakes_java(Tries::begin(), wait, || semaphore.release(1).unwrap());

    let latch = client.count_down_latch(&parts);
    assert!(latch.try_set_count(1).unwrap());
    let count_down = || java.send("latch", &parts, "countDown");
    java_wakes_rust(Tries::of(&["getrange"]), || latch.wait().unwrap(), count_down);
}

/// From Java to Rust, and back.
fn hand_over(kind: &Kind, client: &Client, java: &JavaThread<'_>) {
    warm_up(kind, client, java);
    let name = fresh(kind.word);
    let lock = (kind.open)(client, &name);
    java.call(kind.word, &name, "lock");
    let key = format!("app:{name}");
    assert_eq!(SERVER.command(&["EXISTS", &key]).integer(), 1, "{key}");
    assert!(lock.try_lock().unwrap().is_none(), "{key}");
    let wait = || lock.lock().unwrap().unlock().unwrap();
    java_wakes_rust(Tries::begin(), wait, || java.send(kind.word, &name, "unlock"));

    let held = lock.lock().unwrap();
    assert_eq!(java.call(kind.word, &name, "tryLock"), "false");
    let wait = || java.send(kind.word, &name, "lock");
    rust_wakes_java(Tries::begin(), wait, || held.unlock().unwrap());
    java.call(kind.word, &name, "unlock");
}
