//! The Java program does what its grammar says, for every kind and on several servers.

use wheellock_fixture::{Server, wait_until};

use crate::peer::{JavaThread, Peer};
use crate::shared::{LIMIT, alone};

/// Says each line `KIND NAME OPERATION...` and compares what comes back.
fn talk(java: &JavaThread<'_>, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        assert_eq!(java.call(words[0], words[1], words[2]), *expected, "{line}");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn the_java_program_keeps_to_its_grammar() {
    let _alone = alone();
    let servers = [Server::start(), Server::start(), Server::start()];
    let peer = Peer::start(&["lockWatchdogTimeout=5000"], &servers.each_ref());
    let (java, other) = (peer.thread(), peer.thread());

    for kind in ["lock", "fair", "spin", "nonreentrant", "nonreentrantfair", "fenced", "write"] {
        lock_by_lock(&java, &other, kind, &format!("{kind}@1"));
        assert_eq!(servers[0].command(&["EXISTS", kind]).integer(), 0, "{kind}");
    }
    assert_eq!(servers[0].command(&["GET", "counter"]).text(), "35");
    talk(&java, &[("read both lock", ""), ("read both tryLock wait=0 lease=5000", "true")]);
    talk(&other, &[("read both tryLock", "true"), ("write both tryLock", "false")]);

    talk(
        &java,
        &[
            ("fenced fence lockAndGetToken", "1"),
            ("fenced fence lockAndGetToken lease=5000", "2"),
            ("fenced fence getToken", "2"),
        ],
    );
    talk(&other, &[("fenced fence tryLockAndGetToken wait=500 lease=5000", "null")]);

    talk(&java, &[("multi one,two@1 tryLock wait=1000 lease=5000", "true")]);
    talk(&java, &[("red one,one@1,one@2 tryLock wait=1000 lease=5000", "true")]);
    talk(&other, &[("multi two@1,three tryLock", "false")]);
    talk(&java, &[("red one,one@1,one@2 unlock", ""), ("multi one,two@1 unlock", "")]);
    talk(&other, &[("multi two@1,three tryLock", "true"), ("multi three,two@1 unlock", "")]);

    java.call("lock", "interrupted", "lock");
    let waiting = other.send("lock", "interrupted", "lockInterruptibly");
    let channel = "redisson_lock__channel:{interrupted}";
    let listens = || servers[0].command(&["PUBSUB", "NUMSUB", channel]).array()[1].integer() == 1;
    wait_until("it waits", LIMIT, listens);
    other.call("peer", "-", "interrupt");
    // In the middle of a command it comes as the cause of a `RedisException`.
    let thrown = waiting.answer().said;
    assert!(thrown.as_ref().is_err_and(|text| text.contains("InterruptedException")), "{thrown:?}");
    java.send("lock", "interrupted", "sing").throws("IllegalArgumentException");
    let owner = java.call("peer", "-", "owner");
    let holder = servers[0].command(&["HKEYS", "interrupted"]).texts();
    assert_eq!(holder, [owner]);
}

fn lock_by_lock(java: &JavaThread<'_>, other: &JavaThread<'_>, kind: &str, name: &str) {
    let say = |thread: &JavaThread<'_>, operation: &str, expected: &str| {
        assert_eq!(thread.call(kind, name, operation), expected, "{kind} {operation}");
    };
    say(java, "lock lease=5000", "");
    say(java, "isLocked", "true");
    say(java, "getHoldCount", "1");
    say(java, "isHeldByCurrentThread", "true");
    say(other, "isHeldByCurrentThread", "false");
    say(other, "tryLock", "false");
    say(other, "tryLock wait=10", "false");
    say(other, "tryLock wait=10 lease=100", "false");
    other.send(kind, name, "unlock").throws("IllegalMonitorStateException");
    say(java, "unlock", "");
    say(java, "remainTimeToLive", "-2");
    say(other, "count counter=counter times=5", "5");
    say(other, "lockInterruptibly", "");
    say(java, "forceUnlock", "true");
    say(java, "forceUnlock", "false");
    java.send(kind, name, "newCondition").throws("UnsupportedOperationException");
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn the_java_program_knows_semaphores_and_latches() {
    let _alone = alone();
    let server = Server::start();
    let peer = Peer::start(&[], &[&server]);
    let java = peer.thread();
    talk(
        &java,
        &[
            ("semaphore s trySetPermits permits=3", "true"),
            ("semaphore s acquire permits=2", ""),
            ("semaphore s tryAcquire permits=2", "false"),
            ("semaphore s tryAcquire permits=2 wait=10", "false"),
            ("semaphore s tryAcquire", "true"),
            ("semaphore s release permits=4", ""),
            ("semaphore s availablePermits", "4"),
            ("semaphore s addPermits permits=-1", ""),
            ("semaphore s drainPermits", "3"),
            ("semaphore s releaseIfExists permits=1", "true"),
            ("semaphore s count counter=c times=5", "5"),
            ("semaphore s remainTimeToLive", "-1"),
            ("semaphore s delete", "true"),
            ("permits p trySetPermits permits=5", "true"),
            ("permits p getPermits", "5"),
            ("permits p count counter=c times=5", "5"),
            ("latch l trySetCount count=2", "true"),
            ("latch l countDown", ""),
            ("latch l getCount", "1"),
            ("latch l await wait=10", "false"),
            ("latch l countDown", ""),
            ("latch l await", ""),
            ("latch l delete", "false"),
        ],
    );
    assert_eq!(server.command(&["GET", "c"]).text(), "10");

    let leased = java.call("permits", "p", "acquire lease=5000");
    assert_eq!(leased.len(), 32);
    let two = java.call("permits", "p", "tryAcquire permits=2 wait=10 lease=5000");
    assert_eq!(two.split(',').count(), 2);
    let left = java.call("permits", "p", &format!("getLeaseTime id={leased}"));
    assert!((1..=5000).contains(&left.parse().unwrap()), "{left}");
    let update = format!("updateLeaseTime id={leased} lease=9000");
    assert_eq!(java.call("permits", "p", &update), "true");
    let _unleased = java.call("permits", "p", "tryAcquire");
    talk(
        &java,
        &[
            ("permits p availablePermits", "1"),
            ("permits p acquiredPermits", "4"),
            ("permits p tryAcquire permits=2", ""),
            ("permits p tryAcquire permits=2 wait=10", ""),
        ],
    );
    java.call("permits", "p", &format!("release id={leased}"));
    assert_eq!(java.call("permits", "p", &format!("tryRelease id={leased}")), "false");
    java.send("permits", "p", &format!("release id={leased}")).throws("RedisException");
    assert_eq!(java.call("permits", "p", &format!("tryReleaseAll ids={two}")), "2");
    java.send("permits", "p", &format!("releaseAll ids={two}")).throws("RedisException");
    talk(
        &java,
        &[
            ("permits p setPermits permits=7", ""),
            ("permits p addPermits permits=-1", ""),
            ("permits p availablePermits", "5"),
            ("permits p delete", "true"),
        ],
    );
}
