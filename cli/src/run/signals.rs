//! Signals that wheellock receives instead of ending.
//!
//! The signals are blocked in every thread, and a single thread waits for them. Handlers lost: the
//! command would start with the default action in place of a handler, so `nohup` would have no
//! effect there. A blocked signal leaves the disposition unchanged.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use nix::sys::signal::{SigSet, Signal as Blockable};
use rustix::process::Signal;

/// Signals passed on to the command. Before the start of the command, they end the wait.
const FORWARDED: [Blockable; 7] = [
    Blockable::SIGHUP,
    Blockable::SIGINT,
    Blockable::SIGQUIT,
    Blockable::SIGTERM,
    Blockable::SIGUSR1,
    Blockable::SIGUSR2,
    Blockable::SIGALRM,
];

/// Signals that stop and continue the job of a terminal.
const JOB_CONTROL: [Blockable; 2] = [Blockable::SIGTSTP, Blockable::SIGCONT];

/// The signal that stops a background process for taking the terminal back. A process that blocks
/// the signal is not stopped.
const TERMINAL: Blockable = Blockable::SIGTTOU;

/// The signals that are received, all of them blocked.
pub(crate) struct Signals {
    waited_for: SigSet,
    /// The signals blocked by this process, to be unblocked in the command.
    blocked: Vec<Blockable>,
}

impl Signals {
    /// Blocks the signals. To be called before another thread starts, as each thread inherits the
    /// mask. An error if the mask cannot be changed.
    pub(crate) fn block() -> io::Result<Self> {
        let ignored = ignored();
        let before = SigSet::thread_get_mask()?;
        let mut waited_for = SigSet::empty();
        for signal in FORWARDED.into_iter().chain(JOB_CONTROL) {
            // Waiting returns a blocked signal even if ignored, so SIGHUP would end a wait under
            // `nohup`.
            if !ignored.contains(&(signal as i32)) {
                waited_for.add(signal);
            }
        }
        let mut blocked = waited_for;
        blocked.add(TERMINAL);
        blocked.thread_block()?;
        let blocked = blocked.iter().filter(|signal| !before.contains(*signal)).collect();
        Ok(Self { waited_for, blocked })
    }

    /// Waits for the next signal.
    pub(crate) fn wait(&self) -> io::Result<Signal> {
        loop {
            let signal = self.waited_for.wait()?;
            if let Some(signal) = Signal::from_named_raw(signal as i32) {
                return Ok(signal);
            }
        }
    }

    /// The signals blocked by this process, as a word for [`unblock`].
    pub(crate) fn blocked(&self) -> String {
        let numbers = self.blocked.iter().map(|signal| (*signal as i32).to_string());
        numbers.collect::<Vec<_>>().join(",")
    }
}

/// Unblocks the signals in a process that has inherited the mask. Pending signals take effect at
/// once. An error if `blocked` is no list of signals.
pub(crate) fn unblock(blocked: &str) -> io::Result<()> {
    let mut signals = SigSet::empty();
    for number in blocked.split(',').filter(|number| !number.is_empty()) {
        let number: i32 = number.parse().map_err(io::Error::other)?;
        signals.add(Blockable::try_from(number)?);
    }
    Ok(signals.thread_unblock()?)
}

/// The signals that this process was started to ignore. Empty except on Linux, where the system
/// reports them.
pub(crate) fn ignored() -> BTreeSet<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    (1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect()
}
