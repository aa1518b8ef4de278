//! The signals that wheellock waits for, instead of being ended by them (DESIGN: signals of a
//! command).
//!
//! They are blocked, not handled. A handler would become the default action in the command, and a
//! signal that `nohup` ignores must stay ignored there.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use nix::sys::signal::{SigSet, Signal as Blockable};
use rustix::process::Signal;

/// Passed on to the command, and the end of a wait.
const FORWARDED: [Blockable; 7] = [
    Blockable::SIGHUP,
    Blockable::SIGINT,
    Blockable::SIGQUIT,
    Blockable::SIGTERM,
    Blockable::SIGUSR1,
    Blockable::SIGUSR2,
    Blockable::SIGALRM,
];

/// The stop and the continuation of a terminal's job.
const JOB_CONTROL: [Blockable; 2] = [Blockable::SIGTSTP, Blockable::SIGCONT];

/// What blocks a process that takes the terminal back from another process group: nothing, if this
/// is blocked.
const TERMINAL: Blockable = Blockable::SIGTTOU;

/// The signals that are waited for, all of them blocked.
pub(crate) struct Signals {
    waited_for: SigSet,
    /// What was blocked here and is not to be so in the command.
    blocked: Vec<Blockable>,
}

impl Signals {
    /// Blocks them. To be called before another thread starts, as each inherits what is blocked.
    pub(crate) fn block() -> io::Result<Self> {
        let ignored = ignored();
        let before = SigSet::thread_get_mask()?;
        let mut waited_for = SigSet::empty();
        for signal in FORWARDED.into_iter().chain(JOB_CONTROL) {
            // A blocked signal comes even if it is ignored. It would end a wait under `nohup`.
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

    /// The next signal.
    pub(crate) fn wait(&self) -> io::Result<Signal> {
        loop {
            let signal = self.waited_for.wait()?;
            if let Some(signal) = Signal::from_named_raw(signal as i32) {
                return Ok(signal);
            }
        }
    }

    /// What was blocked, as one word for [`unblock`].
    pub(crate) fn blocked(&self) -> String {
        let numbers = self.blocked.iter().map(|signal| (*signal as i32).to_string());
        numbers.collect::<Vec<_>>().join(",")
    }
}

/// Undoes the block in another process, which has inherited it. Signals that have come meanwhile
/// take effect at once.
pub(crate) fn unblock(blocked: &str) -> io::Result<()> {
    let mut signals = SigSet::empty();
    for number in blocked.split(',').filter(|number| !number.is_empty()) {
        let number: i32 = number.parse().map_err(io::Error::other)?;
        signals.add(Blockable::try_from(number)?);
    }
    Ok(signals.thread_unblock()?)
}

/// The signals that this process was started to ignore. Only Linux tells; elsewhere there are none.
pub(crate) fn ignored() -> BTreeSet<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    (1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect()
}
