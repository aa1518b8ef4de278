//! One renewal thread per master that has holds, and none for a master that has left. Counts the
//! threads of the process.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::common::slots::{builder_of, name_at, start};
use crate::common::{SOON, built, pause};
use crate::ran_in_a_child;
use wheellock::LockGuard;
use wheellock_fixture::wait_until;

fn renewal_threads() -> usize {
    let named = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
        let is_one = |task: &fs::DirEntry| {
            // It may have ended meanwhile.
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.trim_end() == "lock-renewal"
        };
        tasks.filter(is_one).map(|task| task.file_name()).collect::<BTreeSet<_>>()
    };
    let before = named();
    // A thread has its parent's name until it has given itself its own.
    pause(Duration::from_millis(10));
    before.intersection(&named()).count()
}

#[test]
fn one_renewal_thread_per_master_with_holds() {
    if ran_in_a_child(one_renewal_thread_per_master_with_holds) {
        return;
    }
    let cluster = start(3, 1);
    let client = built(builder_of(&cluster).watchdog_lease(SOON / 2));
    let names: Vec<_> =
        cluster.nodes()[..3].iter().map(|master| name_at(&cluster, master)).collect();
    assert_eq!(renewal_threads(), 0);
    let first = client.lock(&names[0]).lock().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed > 0);
    // Perhaps another one for the client's record, which may be at another master.
    assert!((1..=2).contains(&renewal_threads()));
    let others: Vec<_> = names[1..].iter().map(|name| client.lock(name).lock().unwrap()).collect();
    wait_until("each has its thread", SOON, || renewal_threads() == 3);

    let old = &cluster.nodes()[0];
    cluster.fail_over(old);
    wait_until("the new one has a thread too", SOON * 2, || renewal_threads() == 4);
    old.kill();
    wait_until("the old one has none any more", SOON * 2, || renewal_threads() == 3);
    assert!(first.is_held() && others.iter().all(LockGuard::is_held));
    drop((first, others));

    // Also if nothing is renewed any more.
    let old = &cluster.nodes()[1];
    cluster.fail_over(old);
    let guard = client.lock(&names[1]).lock().unwrap();
    wait_until("the next new one has a thread too", SOON, || renewal_threads() == 4);
    drop(guard);
    assert_eq!(client.stats().held, 0);
    old.kill();
    wait_until("the next old one has none any more", SOON * 2, || renewal_threads() == 3);
    drop(client);
    // One that was waited for may be listed for a moment more.
    wait_until("there is none any more", SOON, || renewal_threads() == 0);
}
