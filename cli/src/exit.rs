//! The exit codes, as listed in README.md.

/// wheellock succeeded, and so did the command, if any.
pub(crate) const SUCCESS: u8 = 0;

/// Another owner had the lock. `--on-conflict` replaces this code, which flock(1) uses too.
pub(crate) const NOT_ACQUIRED: u8 = 1;

/// A check of `wheellock doctor` warns, and none has failed.
pub(crate) const WARNED: u8 = 1;

/// A check of `wheellock doctor` has failed.
pub(crate) const UNFIT: u8 = 2;

/// Threads are deadlocked.
pub(crate) const DEADLOCK: u8 = 3;

/// The slot was tried as often as allowed.
pub(crate) const ATTEMPTS_USED_UP: u8 = 122;

/// The lock was lost before it was released.
pub(crate) const LOST: u8 = 123;

/// wheellock itself failed. This code and the next two have the same meaning in env(1).
pub(crate) const FAILED: u8 = 125;

/// The command was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for a signal that ended the command, or the wait before the command: 128 + N, as
/// reported by a shell. [`FAILED`] if the sum exceeds 255.
pub(crate) fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(FAILED)
}
