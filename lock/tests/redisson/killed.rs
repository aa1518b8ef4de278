//! A killed process holds as a reader, several locks, or a permit: the other side gets it back.

use std::thread;
use std::time::{Duration, Instant};

use wheellock::Client;
use wheellock_fixture::{TestProcess, wait_until};

use crate::child::child;
use crate::death::{LEASE, assert_follows, end_of_lease, wait_until_renewed};
use crate::kind::Kind;
use crate::peer::Peer;
use crate::shared::{JAVA, LIMIT, SERVER, Tries, alone, connect, fresh, now, start};
use crate::{AT_ONCE, TRIES};

/// A lock to read under. It is not among the exclusive ones.
pub(crate) const READ: Kind = Kind {
    word: "read",
    since: (3, 0),
    open: |client, name| Box::new(client.read_write_lock(name).read_lock()),
    reentrant: true,
    tells_loss: true,
    tries: TRIES,
    at_once: AT_ONCE,
};

/// Java, with a watchdog whose lease is [`LEASE`].
fn doomed() -> Peer {
    Peer::start(&[&format!("lockWatchdogTimeout={}", LEASE.as_millis())], &[&SERVER])
}

/// A child of ours that holds something of that name.
fn doomed_child(role: &str, name: &str) -> TestProcess {
    let mut doomed = child(role, &[("KIND", READ.word), ("NAME", name)]);
    doomed.wait_for_line("holds", LIMIT);
    doomed
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_writer_gets_lock_of_killed_java_reader_after_lease() {
    let _alone = alone();
    // Java's renewals leave the lock no more than Java's lease, and ours give it back.
    let client = Client::builder().url(&SERVER.url()).foreign_watchdog(LEASE).build().unwrap();
    let (doomed, name, shared) = (doomed(), fresh("read"), fresh("read"));
    let read = client.read_write_lock(&shared).read_lock();
    let living = read.lock().unwrap();
    for name in [&name, &shared] {
        doomed.thread().call("read", name, "lock");
    }
    wait_until_renewed(&name);
    let end = thread::scope(|scope| {
        let write = client.read_write_lock(&name).write_lock();
        let waiter = start(scope, move || {
            let held = write.lock().unwrap();
            let owned_at = now();
            held.unlock().unwrap();
            owned_at
        });
        wait_until("it waits", LIMIT, || client.stats().waiters > 0);
        doomed.kill();
        let end = end_of_lease(&name);
        assert_follows("read", waiter.join().unwrap(), end);
        end
    });
    // A dead reader does not count when its lease is over: the last live one frees the lock.
    wait_until("the other lease is over too", LIMIT, || now() > end + LEASE);
    living.check().unwrap();
    assert_eq!(JAVA.thread().call("write", &shared, "tryLock"), "false");
    living.unlock().unwrap();
    let java = JAVA.thread();
    assert_eq!(java.call("write", &shared, "tryLock"), "true");
    java.call("write", &shared, "unlock");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_writer_gets_lock_of_killed_rust_reader_after_lease() {
    let _alone = alone();
    let name = fresh("read");
    let mut doomed = doomed_child("hold", &name);
    wait_until_renewed(&name);
    let java = JAVA.thread();
    let tries = Tries::begin();
    let waiting = java.send("write", &name, "lock");
    tries.wait_until_asleep(TRIES);
    doomed.kill();
    let end = end_of_lease(&name);
    let owned = waiting.answer();
    assert!(owned.said.is_ok(), "{:?}", owned.said);
    assert_follows("read", owned.at, end);
    java.call("write", &name, "unlock");
}

fn three() -> [String; 3] {
    let name = fresh("multi");
    ["a", "b", "c"].map(|last| format!("{name}:{last}"))
}

/// When the last of the leases ends.
fn end_of_all(names: &[String; 3]) -> Instant {
    let [first, second, third] = names.each_ref().map(|name| end_of_lease(name));
    first.max(second).max(third)
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_owns_multi_lock_of_killed_java_holder_after_leases_end() {
    let _alone = alone();
    let (client, names, doomed) = (connect(), three(), doomed());
    doomed.thread().call("multi", &names.join(","), "lock");
    for name in &names {
        wait_until_renewed(name);
    }
    let [first, second, third] = names.each_ref().map(|name| client.lock(name));
    let multi = client.multi_lock(&[&first, &second, &third]);
    thread::scope(|scope| {
        let waiter = start(scope, || {
            let held = multi.lock().unwrap();
            let owned_at = now();
            held.unlock().unwrap();
            owned_at
        });
        wait_until("it waits", LIMIT, || client.stats().waiters > 0);
        doomed.kill();
        let end = end_of_all(&names);
        assert_follows("multi", waiter.join().unwrap(), end);
    });
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_owns_multi_lock_of_killed_rust_holder_after_leases_end() {
    let _alone = alone();
    let names = three();
    let mut doomed = doomed_child("hold several", &names.join(","));
    for name in &names {
        wait_until_renewed(name);
    }
    let java = JAVA.thread();
    let tries = Tries::begin();
    let waiting = java.send("multi", &names.join(","), "lock");
    tries.wait_until_asleep(TRIES);
    doomed.kill();
    let end = end_of_all(&names);
    let owned = waiting.answer();
    assert!(owned.said.is_ok(), "{:?}", owned.said);
    assert_follows("multi", owned.at, end);
    java.call("multi", &names.join(","), "unlock");
}

/// When the lease of the only permit that is taken ends, by the server's clock.
fn end_of_permit(name: &str) -> Instant {
    let ends = SERVER.command(&["ZRANGE", &format!("{{{name}}}:timeout"), "0", "-1", "WITHSCORES"]);
    let asked_at = now();
    let time = SERVER.command(&["TIME"]).texts();
    let micros = |at: usize| time[at].parse::<u64>().unwrap();
    let ends: f64 = ends.texts()[1].parse().unwrap();
    let at = Duration::from_micros(micros(0) * 1_000_000 + micros(1));
    asked_at + Duration::from_secs_f64(ends / 1000.0).saturating_sub(at)
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn rust_acquires_permit_of_killed_java_holder_after_lease() {
    let _alone = alone();
    let (client, name, doomed) = (connect(), fresh("permits"), doomed());
    let semaphore = client.expirable_semaphore(&name);
    semaphore.try_set_permits(1).unwrap();
    doomed.thread().call("permits", &name, &format!("acquire lease={}", LEASE.as_millis()));
    let end = end_of_permit(&name);
    doomed.kill();
    assert!(semaphore.try_acquire().unwrap().is_none(), "it is still taken");
    let permit = semaphore.acquire().unwrap();
    assert_follows("permits", now(), end);
    permit.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1);
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_acquires_permit_of_killed_rust_holder_after_lease() {
    let _alone = alone();
    // Started before the lease begins.
    let java = JAVA.thread();
    let name = fresh("permits");
    connect().expirable_semaphore(&name).try_set_permits(1).unwrap();
    let mut doomed = doomed_child("hold a permit", &name);
    let end = end_of_permit(&name);
    doomed.kill();
    assert_eq!(java.call("permits", &name, "tryAcquire"), "null", "it is still taken");
    let owned = java.send("permits", &name, "acquire lease=20000").answer();
    assert_follows("permits", owned.at, end);
    java.call("permits", &name, &format!("release id={}", owned.said.unwrap()));
    assert_eq!(java.call("permits", &name, "availablePermits"), "1");
}
