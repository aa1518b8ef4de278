//! Releases just before a failover, which the new master may not have.

use wheellock_fixture::{Server, wait_until};

use super::{SECOND, asking, exists, wait_until_at, wait_until_followed};
use crate::SOON;
use crate::common::built;
use crate::fake::FakeSentinel;

/// A replica has heard of all this, and of nothing that comes later.
fn copy(old: &Server, new: &Server) {
    for key in old.command(&["KEYS", "*"]).array() {
        let key = key.bytes();
        let value = old.command(&[b"DUMP".as_slice(), key]);
        let left = old.command(&[b"PTTL".as_slice(), key]).integer().max(0).to_string();
        let restore = [b"RESTORE".as_slice(), key, left.as_bytes(), value.bytes()];
        assert_eq!(new.command(&restore).text(), "OK");
    }
}

#[test]
fn locks_released_before_switch_are_released_at_new_master() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = FakeSentinel::start(Some((old.address(), 5)));
    let client = built(asking(&[&sentinel]).watchdog_lease(SECOND * 600));
    wait_until_followed(&sentinel);
    let held = client.lock("held").lock().unwrap();
    let leased = client.lock("leased").with_lease(SECOND * 600).lock().unwrap();
    let permits = || client.expirable_semaphore("permits");
    permits().try_set_permits(10).unwrap();
    let watched = permits().watched().acquire().unwrap();
    let by_id = permits().with_lease(SECOND * 600).acquire().unwrap().into_id();
    let several = permits().acquire_many(3).unwrap();
    let counted = client.semaphore("counted");
    counted.try_set_permits(5).unwrap();
    counted.acquire(2).unwrap().forget();
    let forced = client.lock("forced").lock().unwrap();

    let names = ["lock", "fair", "fenced", "spin", "simple", "read", "write", "dropped"];
    let lock = client.lock("lock").lock().unwrap();
    let nested = client.lock("lock").lock().unwrap();
    let fair = client.fair_lock("fair").lock().unwrap();
    let fenced = client.fenced_lock("fenced").lock().unwrap();
    let spin = client.spin_lock("spin").lock().unwrap();
    let simple = client.simple_lock("simple").lock().unwrap();
    let read = client.read_write_lock("read").read_lock().lock().unwrap();
    let write = client.read_write_lock("write").write_lock().lock().unwrap();
    let dropped = client.lock("dropped").lock().unwrap();
    copy(&old, &new);
    nested.unlock().unwrap();
    lock.unlock().unwrap();
    fair.unlock().unwrap();
    fenced.unlock().unwrap();
    spin.unlock().unwrap();
    simple.unlock().unwrap();
    read.unlock().unwrap();
    write.unlock().unwrap();
    drop(dropped);
    watched.release().unwrap();
    permits().release(&by_id).unwrap();
    several.release().unwrap();
    counted.release(2).unwrap();
    // The client does not know that another holds it there by then.
    assert!(client.lock("forced").force_unlock().unwrap());
    drop(forced);
    new.command(&["DEL", "forced"]);
    new.command(&["HSET", "forced", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
    new.command(&["PEXPIRE", "forced", "600000"]);
    assert!(names.iter().all(|name| exists(&new, name) && !exists(&old, name)));

    let mut monitor = new.monitor();
    sentinel.says(new.address(), 6);
    sentinel.tell(old.address(), new.address());
    wait_until("all is released there", SOON, || !names.iter().any(|name| exists(&new, name)));
    let free = || new.command(&["GET", "permits"]).text();
    wait_until("the permits are given back there", SOON, || free() == "10");
    wait_until("no release is queued", SOON, || client.stats().queued_releases == 0);
    // What is held goes first.
    let seen = monitor.seen();
    let of = |name: &str| {
        let is_of = |command: &&wheellock_fixture::SeenCommand| {
            command.name().starts_with("EVAL") && command.arguments.iter().any(|word| word == name)
        };
        seen.iter().position(|command| is_of(&command)).unwrap()
    };
    assert!(of("held") < of("lock") && of("leased") < of("lock"));
    // Its owner is not known, and what only counts would be counted twice.
    assert_eq!(
        new.command(&["HEXISTS", "forced", "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1"]).integer(),
        1
    );
    assert_eq!(new.command(&["GET", "counted"]).text(), "3");
    assert!(held.is_held() && leased.is_held());
    assert_eq!(client.stats().abandoned_releases, 0);
}

#[test]
fn locks_released_during_switch_are_released_at_new_master() {
    let (old, new) = (Server::start(), Server::start());
    let sentinel = FakeSentinel::start(Some((old.address(), 5)));
    let client = built(asking(&[&sentinel]));
    wait_until_followed(&sentinel);
    for number in 0..300 {
        let guard = client.lock(&format!("lock-{number}")).lock().unwrap();
        let owner = guard.owner().to_owned();
        new.command(&["HSET", &guard.name(), &owner, "1"]);
        new.command(&["PEXPIRE", &guard.name(), "600000"]);
        if number == 150 {
            sentinel.says(new.address(), 6);
            sentinel.tell(old.address(), new.address());
        }
        // At whichever it is by now, where it is or is not.
        drop(guard);
    }
    wait_until_at(&client, &new);
    wait_until("nothing is left there", SOON, || new.size() == 0);
}
