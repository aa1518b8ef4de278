//! The process in which a timer was built. A child of a fork has a copy of the timer's memory, and
//! no ticker thread (DESIGN: forks).

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// The process in which something was made.
///
/// A fork copies the memory at one instant, with only the thread that forks. Whatever another
/// thread was doing stays unfinished in the child: a lock that the other thread held stays locked.
#[derive(Clone, Debug)]
pub(crate) struct HomeProcess {
    /// Differs in every child, except one in a process id namespace of its own.
    id: u32,
    /// The C library's count of forks, which recognizes a child with the id of its parent or of an
    /// ancestor that has ended. `None` if it could not be set up.
    forks: Option<forkguard::Guard>,
}

impl HomeProcess {
    /// The current process.
    pub(crate) fn new() -> Self {
        Self { id: std::process::id(), forks: count_forks() }
    }

    /// Whether the current process is this one, and not a child of this one. Never blocks. It takes
    /// a system call.
    pub(crate) fn is_current(&self) -> bool {
        self.id == std::process::id() && self.has_same_forks()
    }

    /// As [`is_current`](Self::is_current), for calls that take less time than a system call: by
    /// the count of forks, and by the process id only if there is no count. It does not recognize a
    /// child that was made without the C library's `fork`.
    #[inline]
    pub(crate) fn is_current_by_count(&self) -> bool {
        if self.forks.is_some() { self.has_same_forks() } else { self.is_current() }
    }

    #[inline]
    fn has_same_forks(&self) -> bool {
        !self.forks.clone().is_some_and(|mut forks| forks.detected_fork())
    }
}

/// The value of [`COUNTING`] once the handler that counts forks is registered.
const REGISTERED: u32 = u32::MAX;
/// The process that registers the handler. No process id is zero.
static COUNTING: AtomicU32 = AtomicU32::new(0);
/// How often to check whether another thread has registered the handler, which takes microseconds.
const MAX_CHECKS: u32 = 10_000;

/// The number of forks of this process's ancestors. The first call registers a handler, which the
/// crate does inside a cell that other callers wait for. So one thread alone registers it, and no
/// thread waits that may be in a copy of its process.
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
            // The fork came while a thread of the parent was registering. The process id alone
            // decides.
            Err(_) => return None,
        }
    }
    None
}
