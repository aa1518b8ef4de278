//! A holder is stopped for longer than its lease, another takes over and writes, and the first wakes
//! and writes.

use std::io::Write;

use wheellock::Client;
use wheellock_fixture::TestProcess;

use crate::LIMIT;
use crate::child::{Task, command};
use crate::kinds::{LEASE, LOCK, Place, TestServers};

/// What the first holder says of its write, and what the resource has in the end.
fn wake_a_paused_holder(setup: &TestServers, place: &Place, fenced: bool) -> (String, String) {
    let url = setup.server.url();
    let mut resource = place.open();
    let mut command = command(place, &Task::Write { url: &url, fenced });
    let (first, mut input, lines) = TestProcess::spawn_for_talk(&mut command);
    let next = |prefix: &str| {
        let mut lines = std::iter::repeat_with(|| lines.recv_timeout(LIMIT).unwrap());
        lines.find(|line| line.starts_with(prefix)).unwrap()
    };
    let token: u64 = next("it holds ").rsplit_once(' ').unwrap().1.parse().unwrap();
    first.pause();

    let client = Client::builder().url(&url).watchdog_lease(LEASE).build().unwrap();
    let guard = client.lock(LOCK).try_lock_for(LIMIT).unwrap().unwrap();
    let newer = guard.draw_token().unwrap();
    assert!(newer > token, "{newer} after {token}");
    resource.write(newer, "of the newer holder", &mut |_| {}).unwrap();

    first.resume();
    input.write_all(b"\n").unwrap();
    let said = lines.recv_timeout(LIMIT).unwrap();
    // Who holds the lock writes on.
    if fenced {
        resource.write(newer, "of the newer holder, again", &mut |_| {}).unwrap();
    }
    (said, resource.read())
}

fn a_paused_holder_is_refused(setup: &TestServers) {
    for place in setup.places() {
        let (said, text) = wake_a_paused_holder(setup, &place, true);
        assert!(said.starts_with("stale: "), "{place:?}: {said}");
        assert_eq!(text, "of the newer holder, again", "{place:?}");
    }
}

fn without_a_fence_it_writes(setup: &TestServers) {
    for place in setup.places() {
        let (said, text) = wake_a_paused_holder(setup, &place, false);
        assert_eq!((&*said, &*text), ("written", "of the paused holder"), "{place:?}");
    }
}

#[test]
fn a_paused_holder_is_refused_by_sqlite_redis_and_files() {
    a_paused_holder_is_refused(&TestServers::new());
}

#[test]
fn paused_holder_without_fence_overwrites_sqlite_redis_files() {
    without_a_fence_it_writes(&TestServers::new());
}

#[test]
fn a_paused_holder_is_refused_by_postgresql() {
    if let Some(setup) = TestServers::with_postgres() {
        a_paused_holder_is_refused(&setup);
    }
}

#[test]
fn without_a_fence_a_paused_holder_overwrites_postgresql() {
    if let Some(setup) = TestServers::with_postgres() {
        without_a_fence_it_writes(&setup);
    }
}
