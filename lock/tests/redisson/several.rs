//! A multi-lock of one side excludes the other side from all of its locks, in any order.

use std::thread;
use std::time::Duration;

use wheellock::{Client, MultiGuard, MultiLock};
use wheellock_fixture::wait_until;

use crate::AT_ONCE;
use crate::child::setting;
use crate::counting::{Counting, TIMES, count_in_threads};
use crate::peer::JavaThread;
use crate::shared::{JAVA, LIMIT, SECOND_JAVA, SERVER, alone, connect, fresh, now, start};

/// Names of three locks, in the order in which this library takes them.
fn three() -> [String; 3] {
    let name = fresh("multi");
    ["a", "b", "c"].map(|last| format!("{name}:{last}"))
}

/// All of them as one, named in this order.
fn together(client: &Client, names: &[String; 3], order: [usize; 3]) -> MultiLock {
    let [first, second, third] = order.map(|index| client.lock(&names[index]));
    client.multi_lock(&[&first, &second, &third])
}

/// As the Java program is told.
fn joined(names: &[String; 3], order: [usize; 3]) -> String {
    order.map(|index| names[index].as_str()).join(",")
}

fn assert_free(names: &[String], java: &JavaThread<'_>) {
    for name in names {
        assert_eq!(java.call("lock", name, "isLocked"), "false", "{name}");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_multi_lock_holds_all_its_locks_on_both_sides_or_none() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let names = three();
    let in_java = joined(&names, [2, 1, 0]);
    let multi = together(&client, &names, [1, 0, 2]);

    let held = multi.lock().unwrap();
    for name in &names {
        assert_eq!(java.call("lock", name, "tryLock"), "false", "{name}");
    }
    assert_eq!(java.call("multi", &in_java, "tryLock"), "false");
    assert_eq!(java.call("multi", &in_java, "tryLock wait=50 lease=20000"), "false");
    assert!(held.is_held());
    held.unlock().unwrap();
    assert_free(&names, &java);

    for way in ["lock", "tryLock", "tryLock wait=1000 lease=20000"] {
        java.call("multi", &in_java, way);
        assert!(multi.try_lock().unwrap().is_none());
        assert!(multi.try_lock_for(Duration::from_millis(50)).unwrap().is_none());
        for name in &names {
            assert!(client.lock(name).try_lock().unwrap().is_none(), "{name} after {way}");
        }
        java.call("multi", &in_java, "unlock");
        assert_free(&names, &java);
    }

    for (taken, name) in names.iter().enumerate() {
        let others: Vec<String> = names
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != taken)
            .map(|(_, name)| name.clone())
            .collect();
        java.call("lock", name, "lock");
        assert!(multi.try_lock().unwrap().is_none());
        assert!(multi.try_lock_for(Duration::from_millis(50)).unwrap().is_none());
        assert_free(&others, &java);
        java.call("lock", name, "unlock");

        let held = client.lock(name).lock().unwrap();
        assert_eq!(java.call("multi", &in_java, "tryLock"), "false");
        assert_eq!(java.call("multi", &in_java, "tryLock wait=50 lease=20000"), "false");
        assert_free(&others, &java);
        held.unlock().unwrap();
    }
    assert_free(&names, &java);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn multi_lock_release_wakes_java_or_rust_waiter_at_once() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    for order in [[0, 1, 2], [2, 1, 0]] {
        let names = three();
        let in_java = joined(&names, order);
        let multi = together(&client, &names, [1, 2, 0]);
        // Then the server has the scripts, and the JVM its classes.
        multi.lock().unwrap().unlock().unwrap();
        java.call("multi", &in_java, "lock");

        thread::scope(|scope| {
            let waiter = start(scope, || {
                let held = multi.lock().unwrap();
                let owned_at = now();
                held.unlock().unwrap();
                owned_at
            });
            wait_until("it waits", LIMIT, || listeners(&names) >= 1);
            let released = java.send("multi", &in_java, "unlock").answer();
            assert!(released.said.is_ok(), "{:?}", released.said);
            let took = waiter.join().unwrap().saturating_duration_since(released.at);
            assert!(took < AT_ONCE, "Rust owned it after {took:?}");
        });

        // Other names: to one of the last our client listens for some seconds more.
        let names = three();
        let in_java = joined(&names, order);
        let held = together(&client, &names, [1, 2, 0]).lock().unwrap();
        let waiting = java.send("multi", &in_java, "lock");
        wait_until("it waits", LIMIT, || listeners(&names) >= 1);
        held.unlock().unwrap();
        let released_at = now();
        let took = waiting.answer().at.saturating_duration_since(released_at);
        assert!(took < AT_ONCE, "Java owned it after {took:?}");
        java.call("multi", &in_java, "unlock");
    }
}

/// How many listen for the end of one of these locks.
fn listeners(names: &[String; 3]) -> i64 {
    let channels = names.each_ref().map(|name| format!("redisson_lock__channel:{{{name}}}"));
    let listening =
        |channel: &String| SERVER.command(&["PUBSUB", "NUMSUB", channel]).array()[1].integer();
    channels.iter().map(listening).sum()
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn multi_lock_counts_all_increments_of_java_and_rust_processes() {
    assert_all_count(TIMES, [0, 1, 2]);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn multi_lock_counts_all_increments_with_opposite_java_order() {
    // Few: where two meet, each with what the other wants, ours lets go only after 100 ms.
    assert_all_count(20, [2, 1, 0]);
}

/// Each thread counts so often. Java takes the locks in that order, and this library from the first
/// to the last.
fn assert_all_count(times: usize, order: [usize; 3]) {
    let _alone = alone();
    let names = three();
    let counting = Counting {
        server: &SERVER,
        java: [&JAVA, &SECOND_JAVA],
        kind: "multi",
        name: &joined(&names, order),
        times,
        role: "count under several",
        settings: &[("NAME", &names.join(","))],
    };
    counting.assert_all_count();
    assert_free(&names, &JAVA.thread());
}

/// In a child process: what one of ours does.
pub(crate) fn count_under_several() {
    let client = Client::connect(&setting("SERVER")).unwrap();
    let names: Vec<String> = setting("NAME").split(',').map(str::to_owned).collect();
    let multi = together(&client, &names.try_into().unwrap(), [1, 0, 2]);
    count_in_threads(&setting("SERVER"), || multi.lock(), MultiGuard::unlock);
}
