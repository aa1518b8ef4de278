//! What `waiters` returns.

use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::user::{LOOKING, rule_with, user_url};
use crate::common::{SOON, built, now};
use crossbeam_channel::bounded;
use wheellock::{Client, HolderKind};
use wheellock_fixture::{Server, wait_until};

/// A server with the operations guide's user.
fn server() -> Server {
    Server::builder().user(&rule_with(&[LOOKING])).start()
}

fn labelled(server: &Server, label: &str) -> Client {
    built(Client::builder().url(&user_url(&server.url())).label(label))
}

#[test]
fn waiters_count_each_local_thread_and_each_remote_client_once() {
    let server = server();
    let (holder, first, second) =
        (labelled(&server, "holder"), labelled(&server, "first"), labelled(&server, "second"));
    let guard = holder.lock("a").lock().unwrap();
    let before = holder.lock("a").waiters().unwrap();
    assert_eq!((before.here, before.elsewhere), (0, Some(0)));
    thread::scope(|scope| {
        for client in [&first, &first, &second] {
            scope.spawn(|| drop(client.lock("a").lock().unwrap()));
        }
        wait_until("all wait", SOON, || {
            let [here, there] = [&first, &second].map(|client| client.lock("a").waiters().unwrap());
            (here.here, here.elsewhere, there.here, there.elsewhere) == (2, Some(1), 1, Some(1))
        });
        let seen = holder.lock("a").waiters().unwrap();
        assert_eq!((seen.here, seen.elsewhere), (0, Some(2)));
        assert!(seen.queue.is_empty());
        guard.unlock().unwrap();
    });
}

#[test]
fn the_queue_of_a_fair_lock_is_shown_in_its_order_with_labels() {
    let server = server();
    let holder = labelled(&server, "holder");
    let java = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";
    let (first, second) = (labelled(&server, "first"), labelled(&server, "second"));
    let guard = holder.fair_lock("a").lock().unwrap();
    let seen = || holder.fair_lock("a").waiters().unwrap();
    let began = now();
    thread::scope(|scope| {
        for (place, client) in [&first, &second].into_iter().enumerate() {
            scope.spawn(|| drop(client.fair_lock("a").lock().unwrap()));
            wait_until("it queues", SOON, || seen().queue.len() > place);
        }
        // Clients that only wait have a record too.
        wait_until("the labels are known", SOON, || {
            seen().queue.iter().all(|waiter| waiter.label.is_some())
        });
        server.command(&["RPUSH", "redisson_lock_queue:{a}", java]);
        let waiters = seen();
        let labels: Vec<_> = waiters.queue.iter().map(|waiter| waiter.label.as_deref()).collect();
        assert_eq!(labels, [Some("first"), Some("second"), None]);
        let [one, two, three] = waiters.queue.as_slice() else { panic!("{waiters:?}") };
        let longest = now().saturating_duration_since(began) + Duration::from_millis(5);
        for waiter in [one, two] {
            assert!(waiter.waits_for.unwrap() <= longest, "{waiter:?} of {longest:?}");
        }
        assert_eq!((three.owner.as_str(), three.kind), (java, HolderKind::Redisson));
        assert_eq!((waiters.here, waiters.elsewhere), (0, Some(3)));
        assert_eq!(first.fair_lock("a").waiters().unwrap().here, 1);
        server.command(&["LREM", "redisson_lock_queue:{a}", "0", java]);
        guard.unlock().unwrap();
    });
}

#[test]
fn the_queue_tells_for_how_long_each_waits() {
    let store = InMemory::new();
    let client = store.client();
    let guard = client.fair_lock("a").lock().unwrap();
    let queue = || client.fair_lock("a").waiters().unwrap().queue;
    let waited: Vec<_> = thread::scope(|scope| {
        for place in 0..2 {
            scope.spawn(|| drop(client.fair_lock("a").lock().unwrap()));
            wait_until("it queues", SOON, || queue().len() > place);
            store.clock.advance(Duration::from_secs(1));
        }
        let waited = queue().iter().map(|waiter| waiter.waits_for).collect();
        guard.unlock().unwrap();
        waited
    });
    assert_eq!(waited, [2, 1].map(|seconds| Some(Duration::from_secs(seconds))));
}

#[test]
fn a_watch_without_time_looks_once() {
    let client = Client::in_memory();
    let before = client.status("a").unwrap();
    // One that waits does so until the test is over.
    let (looked, looks) = bounded(1);
    let (watching, unchanged) = (client.clone(), before.clone());
    let look = move || drop(looked.send(watching.next_change(&unchanged, Duration::ZERO)));
    thread::Builder::new().name("watch".to_owned()).spawn(look).unwrap();
    assert_eq!(looks.recv_timeout(SOON).unwrap(), Ok(None));
    let _held = client.lock("a").lock().unwrap();
    let after = client.next_change(&before, Duration::ZERO).unwrap().unwrap();
    assert_eq!(after.holders.len(), 1);
}
