//! When the thread `lock-wakers` exists: once a loss is awaited, one for a client, and not in a
//! fork. Counts the threads of the process.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::common::SOON;
use crate::common::forked::Child;
use crate::ran_in_a_child;
use wheellock::{Client, LostFuture, LostReason};
use wheellock_fixture::wait_until;

/// How many threads have that name. A thread names itself, a little after it begins.
fn wakers() -> usize {
    fs::read_dir("/proc/self/task")
        .unwrap()
        // It may end while we look.
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|comm| comm.trim() == "lock-wakers")
        .count()
}

fn poll(future: &mut LostFuture) -> Poll<Option<LostReason>> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn one_thread_wakes_all_tasks_of_a_client_and_none_in_a_fork() {
    if ran_in_a_child(one_thread_wakes_all_tasks_of_a_client_and_none_in_a_fork) {
        return;
    }
    let client = Client::in_memory();
    let guards: Vec<_> =
        (0..1000).map(|i| client.lock(&i.to_string()).sendable().lock().unwrap()).collect();
    assert_eq!(wakers(), 0);
    let mut futures: Vec<_> = guards.iter().map(|guard| guard.lost_future().unwrap()).collect();
    wait_until("the thread is there", SOON, || wakers() == 1);
    assert!(futures.iter_mut().all(|future| poll(future).is_pending()));

    let mut inherited = Some((guards, futures, client));
    let child = Child::doing(SOON, || {
        let (guards, mut futures, client) = inherited.take().unwrap();
        let forked = Poll::Ready(Some(LostReason::Forked));
        assert_eq!(poll(&mut futures[0]), forked);
        let mut asked = guards[1].lost_future().unwrap();
        assert_eq!((poll(&mut asked), wakers()), (forked, 0));
        drop((asked, futures, guards, client));
    });
    let (guards, mut futures, client) = inherited.unwrap();
    child.wait();
    assert!(futures.iter_mut().all(|future| poll(future).is_pending()) && wakers() == 1);
    drop((guards, client));
    wait_until("the thread has ended", SOON, || wakers() == 0);
    assert!(futures.iter_mut().all(|future| poll(future) == Poll::Ready(None)));
}
