//! Forks: how a process recognizes that a fork has copied a value into it (DESIGN: forks).
//!
//! A fork copies the memory at one instant, with only the thread that forks. Whatever another
//! thread was doing stays unfinished in the child: a mutex that the thread had locked stays locked,
//! a cell that the thread was filling stays "being filled". So a child neither locks nor drops what
//! its parent made.

use std::process;

/// The process in which a value was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomeProcess(u32);

impl HomeProcess {
    /// The current process.
    pub(crate) fn new() -> Self {
        Self(process::id())
    }

    /// Whether the value is in its home, and not in a child of a fork. One system call.
    pub(crate) fn is_current(self) -> bool {
        self.0 == process::id()
    }
}
