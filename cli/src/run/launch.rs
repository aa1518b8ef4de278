//! The process that becomes the command.
//!
//! Safe Rust can run nothing between `fork` and `exec`, so the command's process is first this
//! program again (`__launch`). On Linux the process requests SIGKILL at the death of its parent.
//! Then the process checks that the parent is alive, undoes the parent's signal mask, and executes
//! the command in place of this program. The exit codes are the codes of env(1).

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Command};

use rustix::process::getppid;

use crate::exit;
use crate::output::complain;
use crate::run::signals;

/// The first argument of a launch process.
pub(crate) const WORD: &str = "__launch";

/// A [`Command`] to run this program again.
pub(crate) fn this_program() -> Command {
    // The link works even if the file was replaced while this process waited for the lock.
    let path = if cfg!(target_os = "linux") {
        Ok(PathBuf::from("/proc/self/exe"))
    } else {
        env::current_exe()
    };
    let mut program = Command::new(path.unwrap_or_else(|_| PathBuf::from("wheellock")));
    program.arg0("wheellock");
    program
}

/// The launch process for a command. To be spawned by the main thread, which lives as long as this
/// process: the signal at the parent's death is sent when the spawning thread ends.
pub(crate) fn command(blocked: &str, command: &[OsString]) -> Command {
    let mut launch = this_program();
    launch.arg(WORD).arg(process::id().to_string()).arg(blocked).args(command).process_group(0);
    launch
}

/// Becomes the command. Returns an exit code on failure.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let [parent, blocked, program, arguments @ ..] = words else {
        complain("this is a part of `wheellock run`, and not for use by itself");
        return exit::FAILED;
    };
    if let Err(error) = prepare(&parent.to_string_lossy(), &blocked.to_string_lossy()) {
        complain(&format!("the command was not started: {error}"));
        return exit::FAILED;
    }
    let error = Command::new(program).args(arguments).exec();
    complain(&format!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}

fn prepare(parent: &str, blocked: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The parent may have ended before the request.
    let now = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    if now.as_deref() != Some(parent) {
        return Err(io::Error::other("the process that holds the lock is gone"));
    }
    signals::unblock(blocked)
}
