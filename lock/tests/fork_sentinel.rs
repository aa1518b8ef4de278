//! A fork of a client that follows a master: the child follows it by itself. The one test of this program, as it forks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::thread;
use std::time::Duration;

use crossbeam_channel::never;
use fork::{Fork, fork, waitpid_nohang};
use hashed_wheel::Parker;
use wheellock::{Client, Clock, LostReason, SystemClock};
use wheellock_fixture::{Sentinels, wait_until};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(600);

#[test]
fn a_fork_follows_the_master_too_and_leaves_the_parents_connections_alone() {
    let sentinels = Sentinels::start();
    let client = Client::connect(&sentinels.url()).unwrap();
    let kept = client.lock("kept").with_lease(LEASE).lock().unwrap();
    let replica = sentinels.replicas()[0];
    let replicated = |name: &str| replica.command(&["EXISTS", name]).integer() == 1;
    wait_until("it is replicated", SOON, || replicated("kept"));

    let child = match fork().unwrap() {
        Fork::Parent(child) => child,
        Fork::Child => {
            // Whatever hangs, this process ends.
            let alarm = || {
                let end = SystemClock.now() + SOON;
                SystemClock.park(&Parker::new(), Some(end), &never());
                process::exit(3);
            };
            thread::Builder::new().spawn(alarm).unwrap();
            let followed = catch_unwind(AssertUnwindSafe(|| {
                assert!(client.lock("kept").try_lock().unwrap().is_none());
                let own = client.lock("own").with_lease(LEASE).lock().unwrap();
                // Nothing is called meanwhile: the child's own thread finds it out.
                assert_eq!(own.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
                let own = client.lock("own").lock().unwrap();
                own.unlock().unwrap();
                drop(client);
            }));
            process::exit(i32::from(followed.is_err()));
        }
    };
    wait_until("the fork has a lock", SOON, || replicated("own"));
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.command(&["DEL", "own"]);
    let before = client.stats().connections_made;
    let new = sentinels.fail_over();
    let mut status = None;
    wait_until("the fork ends", SOON, || {
        status = waitpid_nohang(child).unwrap();
        status.is_some()
    });
    assert_eq!(status, Some(0), "the fork failed");
    wait_until("the parent is there too", SOON, || client.stats().connections_made > before);
    assert!(kept.is_held() && replicated("kept"));
    assert_eq!(new.address(), replica.address());
    kept.unlock().unwrap();
    assert!(!replicated("kept"));
}
