//! When the callbacks thread exists: only with a callback, not after the end of the client, and not
//! in a fork. Counts the threads of the process.

// With the feature `tracing` every client has the thread.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::time::Duration;

use crate::ran_in_a_child;
use crossbeam_channel::unbounded;
use fork::{Fork, fork, waitpid_nohang};
use wheellock::{Client, LostReason};
use wheellock_fixture::{Server, wait_until};

const SOON: Duration = Duration::from_secs(10);

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Whether the callbacks' thread is there. A thread names itself, a little after it begins.
fn is_there() -> bool {
    fs::read_dir("/proc/self/task")
        .unwrap()
        // It may end while we look.
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .any(|comm| comm.trim() == "lock-callbacks")
}

#[test]
fn the_callbacks_thread_exists_only_with_a_callback() {
    if ran_in_a_child(the_callbacks_thread_exists_only_with_a_callback) {
        return;
    }
    let before = threads();
    let plain = Client::in_memory();
    // The ticker and the renewal thread.
    assert_eq!(threads(), before + 2);
    drop(plain);
    wait_until("its threads have ended", SOON, || threads() == before);

    let (tell, told) = unbounded();
    let server = Server::start();
    let client = Client::builder()
        .url(&server.url())
        .on_lost(move |lost| tell.send((lost.name().to_owned(), lost.reason())).unwrap())
        .build()
        .unwrap();
    let guard = client.lock("the parent's").lock().unwrap();
    wait_until("the thread is there", SOON, is_there);

    let child = match fork().unwrap() {
        Fork::Parent(child) => child,
        Fork::Child => {
            let looked = catch_unwind(AssertUnwindSafe(|| {
                assert_eq!(threads(), 1);
                // The hold is the parent's: no loss of the child's.
                assert!(guard.check().is_err());
                assert!(guard.unlock().is_err());
                client.shutdown(SOON);
                drop(client);
                assert_eq!(threads(), 1);
                assert!(told.is_empty());
            }));
            process::exit(i32::from(looked.is_err()));
        }
    };
    let mut status = None;
    wait_until("the fork ends", SOON, || {
        status = waitpid_nohang(child).unwrap();
        status.is_some()
    });
    assert_eq!(status, Some(0), "the fork failed");

    assert!(guard.is_held() && told.is_empty());
    client.lock("the parent's").force_unlock().unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(("the parent's".to_owned(), LostReason::Deleted)));
    client.shutdown(SOON);
    wait_until("the thread has ended", SOON, || !is_there());
    drop(guard);
}
