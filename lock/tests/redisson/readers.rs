//! A read-write lock is the same on both sides: readers share it, and a writer excludes all.

use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use wheellock::{Client, Error, Lock};
use wheellock_fixture::wait_until;

use crate::peer::{JavaThread, Peer};
use crate::shared::{JAVA, LIMIT, SERVER, Tries, alone, connect, fresh, now, start, time_to_live};
use crate::waking::{java_wakes_rust, rust_wakes_java};
use crate::{AT_ONCE, TRIES};

const LEASE: Duration = Duration::from_secs(20);

/// The longest that a waiter of ours sleeps without having been woken.
const POLL: Duration = Duration::from_secs(1);

/// The half of the lock that the Java program calls so.
fn half(client: &Client, word: &str, name: &str) -> Lock {
    let lock = client.read_write_lock(name);
    if word == "read" { lock.read_lock() } else { lock.write_lock() }
}

/// Does everything once on both sides. Then the server has the scripts, and the JVM its classes.
fn warm_up(client: &Client, java: &JavaThread<'_>) {
    let name = fresh("read");
    for word in ["read", "write"] {
        half(client, word, &name).lock().unwrap().unlock().unwrap();
        java.call(word, &name, "lock");
        java.call(word, &name, "unlock");
    }
}

/// No key of a lock is left, of either side.
fn assert_nothing_is_left(name: &str) {
    assert_eq!(SERVER.command(&["EXISTS", name]).integer(), 0);
    let holds = format!("{{{name}}}:*:rwlock_timeout:*");
    assert_eq!(SERVER.command(&["KEYS", &holds]).texts(), Vec::<String>::new());
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn readers_of_both_sides_share_and_a_writer_of_either_is_alone() {
    let _alone = alone();
    let (client, other) = (connect(), connect());
    let (java, java_writer) = (JAVA.thread(), JAVA.thread());
    let name = fresh("read");
    let read = half(&client, "read", &name);
    let (other_read, write) = (half(&other, "read", &name), half(&other, "write", &name));
    let ask = |word: &str, operation: &str| java.call(word, &name, operation);
    let is_locked = |reading: bool, writing: bool| {
        assert_eq!(ask("read", "isLocked"), reading.to_string());
        assert_eq!(ask("write", "isLocked"), writing.to_string());
        assert_eq!(read.is_locked().unwrap(), reading);
        assert_eq!(write.is_locked().unwrap(), writing);
    };
    let keeps_writers_out = || {
        assert!(write.try_lock().unwrap().is_none());
        assert_eq!(java_writer.call("write", &name, "tryLock"), "false");
        is_locked(true, false);
    };
    let keeps_all_out = || {
        assert!(write.try_lock().unwrap().is_none());
        assert!(read.try_lock().unwrap().is_none());
        assert_eq!(ask("read", "tryLock"), "false");
        assert_eq!(ask("write", "tryLock"), "false");
        is_locked(false, true);
    };

    is_locked(false, false);
    let reading = read.lock().unwrap();
    keeps_writers_out();
    assert_eq!(ask("read", "tryLock"), "true");
    keeps_writers_out();
    let another = other_read.lock().unwrap();
    assert_eq!(ask("read", "tryLock wait=10 lease=20000"), "true");
    assert_eq!(ask("read", "getHoldCount"), "2");
    assert_eq!(read.hold_count(), 1);
    // Whoever leaves first, the lock is the others'.
    another.unlock().unwrap();
    ask("read", "unlock");
    keeps_writers_out();
    reading.unlock().unwrap();
    keeps_writers_out();
    let reading = read.lock().unwrap();
    ask("read", "unlock");
    keeps_writers_out();
    assert!(reading.is_held());
    reading.unlock().unwrap();
    assert_nothing_is_left(&name);

    java_writer.call("write", &name, "lock");
    keeps_all_out();
    java_writer.call("write", &name, "unlock");
    thread::scope(|scope| {
        let (done, told) = bounded::<()>(1);
        let (writes, written) = bounded(1);
        let third = half(&connect(), "write", &name);
        start(scope, move || {
            let writing = third.lock().unwrap();
            writes.send(()).unwrap();
            told.recv().ok();
            writing.unlock().unwrap();
        });
        written.recv_timeout(LIMIT).unwrap();
        keeps_all_out();
        drop(done);
    });
    is_locked(false, false);
    assert_nothing_is_left(&name);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_read_unlock_in_java_leaves_a_reader_of_rust_its_lock() {
    let _alone = alone();
    let client = connect();
    let (java, java_writer) = (JAVA.thread(), JAVA.thread());
    for lease in [None, Some(LEASE)] {
        let name = fresh("read");
        let read = half(&client, "read", &name);
        let read = lease.map_or(read.clone(), |lease| read.with_lease(lease));
        let outer = read.lock().unwrap();
        let inner = read.lock().unwrap();
        for way in ["lock lease=1000", "lock"] {
            // Redisson makes the lock's time to live that of the longest hold that it finds.
            java.call("read", &name, way);
            java.call("read", &name, "unlock");
            let left = time_to_live(&name);
            assert!(left > LEASE / 2, "{left:?} are left after {way}");
            assert!(left >= outer.remaining());
            outer.check().unwrap();
            assert_eq!(java_writer.call("write", &name, "tryLock"), "false");
        }
        inner.unlock().unwrap();
        java.call("read", &name, "lock lease=1000");
        java.call("read", &name, "unlock");
        outer.check().unwrap();
        assert!(time_to_live(&name) >= outer.remaining());
        outer.unlock().unwrap();
        assert_nothing_is_left(&name);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_time_to_live_that_a_renewal_in_java_cut_is_mended() {
    let _alone = alone();
    // Java's renewals leave the lock no more than this.
    let foreign = Duration::from_secs(1);
    let client = Client::builder().url(&SERVER.url()).foreign_watchdog(foreign).build().unwrap();
    let java_writer = JAVA.thread();
    for lease in [None, Some(LEASE)] {
        let name = fresh("read");
        let doomed = Peer::start(&["lockWatchdogTimeout=1000"], &[&SERVER]);
        let reader = doomed.thread();
        let read = half(&client, "read", &name);
        let read = lease.map_or(read.clone(), |lease| read.with_lease(lease));
        let reading = read.lock().unwrap();
        reader.call("read", &name, "lock");
        let hold = format!("{{{name}}}:{}:rwlock_timeout:1", reader.call("peer", "-", "owner"));
        // Not only once.
        for _ in 0..2 {
            wait_until("Java has cut it", LIMIT, || time_to_live(&name) <= foreign);
            wait_until("it is mended", LIMIT, || time_to_live(&name) > 2 * foreign);
        }
        wait_until("Java has cut it", LIMIT, || time_to_live(&name) <= foreign);
        doomed.kill();
        wait_until("Java's hold is over", LIMIT, || time_to_live(&hold).is_zero());
        reading.check().unwrap();
        // A renewal that the server had received before Java died may have cut it once more.
        wait_until("it is mended", LIMIT, || time_to_live(&name) >= reading.remaining());
        assert_eq!(java_writer.call("write", &name, "tryLock"), "false");
        reading.unlock().unwrap();
        assert_nothing_is_left(&name);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn read_write_release_wakes_java_or_rust_waiter_at_once() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(&client, &java);
    for (holds, waits) in [("read", "write"), ("write", "read")] {
        let name = fresh(holds);
        let (held, wanted) = (half(&client, holds, &name), half(&client, waits, &name));
        java.call(holds, &name, "lock");
        java_wakes_rust(
            Tries::begin(),
            || wanted.lock().unwrap().unlock().unwrap(),
            || java.send(holds, &name, "unlock"),
        );
        for way in ["lock", "tryLock wait=30000 lease=20000"] {
            let holding = held.lock().unwrap();
            rust_wakes_java(
                Tries::begin(),
                || java.send(waits, &name, way),
                || {
                    java.wait_until_asleep();
                    holding.unlock().unwrap();
                },
            );
            java.call(waits, &name, "unlock");
        }
        assert_nothing_is_left(&name);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn writer_release_admits_all_java_and_rust_readers_at_once() {
    let _alone = alone();
    let client = connect();
    let writer = JAVA.thread();
    let java = [JAVA.thread(), JAVA.thread()];
    warm_up(&client, &writer);
    for in_java in [false, true] {
        let name = fresh("write");
        let read = half(&client, "read", &name);
        let write = half(&client, "write", &name);
        let held = if in_java {
            writer.call("write", &name, "lock");
            None
        } else {
            Some(write.lock().unwrap())
        };
        let tries = Tries::begin();
        let waiting = java.each_ref().map(|java| java.send("read", &name, "lock"));
        thread::scope(|scope| {
            let (owns, owned) = bounded(2);
            let (done, told) = bounded::<()>(1);
            for _ in 0..2 {
                let (read, owns, told) = (&read, owns.clone(), told.clone());
                start(scope, move || {
                    let reading = read.lock().unwrap();
                    owns.send(now()).unwrap();
                    told.recv().ok();
                    reading.unlock().unwrap();
                });
            }
            // Two of Java's, and of our own the first one, which asks for all.
            tries.wait_until_asleep(3 * TRIES);
            java.iter().for_each(JavaThread::wait_until_asleep);
            if let Some(held) = held {
                held.unlock().unwrap();
            } else {
                writer.call("write", &name, "unlock");
            }
            let left_at = now();
            // All are in before one leaves.
            let ours = [owned.recv_timeout(LIMIT).unwrap(), owned.recv_timeout(LIMIT).unwrap()];
            let theirs = waiting.map(|waiting| waiting.answer().at);
            for at in ours.into_iter().chain(theirs) {
                let took = at.saturating_duration_since(left_at);
                assert!(took < AT_ONCE, "a reader came in after {took:?}");
            }
            drop(done);
        });
        for java in &java {
            java.call("read", &name, "unlock");
        }
        assert_nothing_is_left(&name);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_writer_downgrade_admits_java_readers_at_once() {
    let _alone = alone();
    let client = connect();
    let (java, java_writer) = (JAVA.thread(), JAVA.thread());
    warm_up(&client, &java);
    let name = fresh("write");
    let writing = half(&client, "write", &name).lock().unwrap();
    let reading = half(&client, "read", &name).lock().unwrap();
    rust_wakes_java(
        Tries::begin(),
        || java.send("read", &name, "lock"),
        || writing.unlock().unwrap(),
    );
    assert!(reading.is_held());
    assert_eq!(java_writer.call("write", &name, "tryLock"), "false");
    java.call("read", &name, "unlock");
    reading.unlock().unwrap();
    assert_nothing_is_left(&name);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_writer_downgrade_admits_rust_readers_at_next_poll() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    warm_up(&client, &java);
    let name = fresh("write");
    let read = half(&client, "read", &name);
    java.call("write", &name, "lock");
    java.call("read", &name, "lock");
    let tries = Tries::begin();
    thread::scope(|scope| {
        let waiter = start(scope, || {
            let reading = read.lock().unwrap();
            let owned_at = now();
            reading.unlock().unwrap();
            owned_at
        });
        tries.wait_until_asleep(TRIES);
        // Redisson sends no message (D9).
        let released = java.send("write", &name, "unlock").answer();
        assert!(released.said.is_ok(), "{:?}", released.said);
        let took = waiter.join().unwrap().saturating_duration_since(released.at);
        assert!(took < POLL + AT_ONCE, "it came in after {took:?}");
    });
    java.call("read", &name, "unlock");
    assert_nothing_is_left(&name);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_reader_that_was_forced_out_on_one_side_is_out_on_the_other() {
    let _alone = alone();
    let client = connect();
    let java = JAVA.thread();
    let name = fresh("read");
    let read = half(&client, "read", &name);
    java.call("read", &name, "lock");
    assert!(!half(&client, "write", &name).force_unlock().unwrap(), "there is no writer");
    assert!(read.force_unlock().unwrap());
    assert_eq!(java.call("read", &name, "isLocked"), "false");
    java.send("read", &name, "unlock").throws("IllegalMonitorStateException");

    let reading = read.lock().unwrap();
    assert_eq!(java.call("write", &name, "forceUnlock"), "false");
    assert_eq!(java.call("read", &name, "forceUnlock"), "true");
    assert!(!read.is_locked().unwrap());
    let ended = reading.unlock();
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
}
