//! A fork of the test's process: what it does, and its exit code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, never};
use fork::{Fork, fork, waitpid_nohang};
use hashed_wheel::Parker;
use wheellock::{Clock, SystemClock};
use wheellock_fixture::wait_until;

/// The child of a fork.
pub(crate) struct Child {
    id: i32,
    limit: Duration,
}

impl Child {
    /// Does this in a fork, which then ends, and within the limit whatever hangs.
    pub(crate) fn doing(limit: Duration, action: impl FnOnce()) -> Self {
        match fork().unwrap() {
            Fork::Parent(id) => Self { id, limit },
            Fork::Child => {
                let (begins, begun) = bounded(0);
                let alarm = move || {
                    begins.send(()).unwrap();
                    let end = SystemClock.now() + limit;
                    SystemClock.park(&Parker::new(), Some(end), &never());
                    process::exit(3);
                };
                thread::Builder::new().spawn(alarm).unwrap();
                // The standard library holds a lock while a thread starts: a fork would keep it
                // locked.
                begun.recv().unwrap();
                let done = catch_unwind(AssertUnwindSafe(action));
                process::exit(i32::from(done.is_err()));
            }
        }
    }

    /// Waits for its end, and fails if it failed.
    pub(crate) fn wait(self) {
        self.wait_while(|| {});
    }

    /// As [`wait`](Self::wait), and does something again and again meanwhile.
    pub(crate) fn wait_while(self, mut meanwhile: impl FnMut()) {
        let mut status = None;
        wait_until("the fork ends", self.limit, || {
            meanwhile();
            status = waitpid_nohang(self.id).unwrap();
            status.is_some()
        });
        assert_eq!(status, Some(0), "the fork failed");
    }
}
