//! The home process of a timer: the process in which the timer was built. A child of a fork has a
//! copy of the timer's memory, and no ticker thread, so a timer is dead in a child.
//!
//! Each call compares a count of forks before the call locks a shard or reads the clock, and fails
//! in a child. A drop in a child leaks pending values. A handler of the C library
//! (`pthread_atfork`) increments the count, and reading the count is a relaxed load. With `getpid`,
//! a system call of 80 ns, scheduling and cancelling a timeout would take three times as long. A
//! timer restarted in the child was rejected: the timer's values would be due in both processes.
//!
//! One gap remains. `parking_lot` has one table of sleeping threads for all locks of a process. A
//! fork in the nanoseconds while a thread enters the table leaves a part of the table locked in the
//! child, and the child's own timers may wait for the part forever.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// The process in which a value was built.
///
/// A fork copies the memory at one instant, with the forking thread only. The work of every other
/// thread stays unfinished in the child: a lock held by another thread stays locked.
#[derive(Clone, Debug)]
pub(crate) struct HomeProcess {
    /// Differs in every child, except for a child in a process id namespace of its own.
    id: u32,
    /// The count of the C library's forks, which recognizes a child with the id of its parent or of
    /// an ended ancestor. `None` if the count could not be set up.
    forks: Option<forkguard::Guard>,
}

impl HomeProcess {
    /// The current process.
    pub(crate) fn new() -> Self {
        Self { id: std::process::id(), forks: count_forks() }
    }

    /// Whether the current process is the home process, and not a child. Never blocks. Makes a
    /// system call.
    pub(crate) fn is_current(&self) -> bool {
        self.id == std::process::id() && self.has_same_forks()
    }

    /// As [`is_current`](Self::is_current), but without the system call: compares the count of
    /// forks, and the process id only if there is no count. Does not recognize a child made without
    /// the C library's `fork`.
    #[inline]
    pub(crate) fn is_current_by_count(&self) -> bool {
        if self.forks.is_some() { self.has_same_forks() } else { self.is_current() }
    }

    #[inline]
    fn has_same_forks(&self) -> bool {
        !self.forks.clone().is_some_and(|mut forks| forks.detected_fork())
    }
}

/// The value of [`COUNTING`] once the handler that counts forks is registered, or could not be.
const REGISTERED: u32 = u32::MAX;
/// The id of the process which registers the handler, then [`REGISTERED`]. Zero before the first
/// registration: no process id is zero.
static COUNTING: AtomicU32 = AtomicU32::new(0);
/// The most checks whether another thread has registered the handler. A registration takes
/// microseconds.
const MAX_CHECKS: u32 = 10_000;

/// A guard with the current count of forks; `None` if the count cannot be set up. The first
/// `Guard::try_new` registers the handler inside a cell, and concurrent callers wait for the cell.
/// In a child, the registering thread may not exist, and a caller would wait forever. So only one
/// thread registers the handler, and every other thread polls [`COUNTING`] a limited number of
/// times. The cell also retains a failure: no later call tries again.
fn count_forks() -> Option<forkguard::Guard> {
    if cfg!(miri) {
        // Miri has no `pthread_atfork`.
        return None;
    }
    let id = std::process::id();
    for _ in 0..MAX_CHECKS {
        match COUNTING.compare_exchange(0, id, Ordering::Acquire, Ordering::Acquire) {
            Err(REGISTERED) => return forkguard::Guard::try_new().ok(),
            Ok(_) => {
                let guard = forkguard::Guard::try_new().ok();
                COUNTING.store(REGISTERED, Ordering::Release);
                return guard;
            }
            Err(other) if other == id => thread::yield_now(),
            // The process was forked while a thread of the parent registered the handler. The
            // process id alone decides.
            Err(_) => return None,
        }
    }
    None
}
