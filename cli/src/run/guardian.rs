//! The guardian: a process that ends the command if the holder of the lock cannot.
//!
//! At the holder's death the kernel's signal reaches only the command, and not the rest of the
//! process group. So the guardian reads from a pipe whose other end only the holder has. The pipe
//! closes however the holder ends, and the guardian kills the group.
//!
//! A stopped holder cannot end the command either. So the holder reports the end of the hold, six
//! times in a lease, as a time of a clock shared by all processes. A duration would be wrong if the
//! holder was stopped between computing and writing the value. After that time the guardian does
//! the same as the holder at a loss.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{ClockId, clock_gettime};

use crate::exit;
use crate::output::complain;
use crate::run::launch;

/// The first argument of a guardian process.
pub(crate) const WORD: &str = "__guardian";

/// The delay of the guardian behind the holder. A running holder ends the command first, and
/// reports the reason.
const HOLDER_FIRST: Duration = Duration::from_millis(100);

/// The holder's handle of the guardian process.
pub(crate) struct Guardian {
    _process: Child,
    pipe: Option<ChildStdin>,
}

impl Guardian {
    pub(crate) fn start(kill_after: Duration) -> io::Result<Self> {
        let mut process = launch::this_program()
            .arg(WORD)
            .arg(millis(kill_after).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A separate group, as signals from a terminal to the holder's group are not for the
            // guardian. Other signals are blocked: the guardian inherits the holder's mask.
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take();
        if let Some(pipe) = &pipe {
            // A guardian that is stopped must not block the holder.
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { _process: process, pipe })
    }

    /// Reports the command's process group. From now on the command does not outlive the holder.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.tell(&format!("group {}", group.as_raw_nonzero()));
    }

    /// Reports a hold that is certain for `remaining` from now on.
    pub(crate) fn held_for(&mut self, remaining: impl FnOnce() -> Duration) {
        // The clock is read first: a stop between both calls makes the reported time earlier.
        let now = now();
        let until = now.saturating_add(remaining()).saturating_add(HOLDER_FIRST);
        self.tell(&format!("until {}", millis(until)));
    }

    /// Dismisses the guardian after the end of the command. To be called before the command is
    /// reaped: afterwards the id may belong to another process.
    pub(crate) fn dismiss(mut self) {
        self.tell("done");
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // A failure means that the guardian was killed, or is stopped. The holder still ends
            // the command, and on Linux the kernel kills the command if the holder is killed.
            pipe.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }
}

/// Runs the guardian process, and returns the exit code.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let kill_after = words.first().and_then(|word| word.to_str()?.parse().ok());
    let Some(kill_after) = kill_after.map(Duration::from_millis) else {
        complain("this is a part of `wheellock run`, and not for use by itself");
        return exit::FAILED;
    };
    let mut watch = Watch::new(kill_after);
    let mut lines = Lines::default();
    loop {
        let next = watch.next().map(|due| due.saturating_sub(now()));
        let Ok(Some(heard)) = lines.read(next) else {
            // The holder is gone, or the pipe cannot be read any more.
            if let Some(group) = watch.group {
                signal(group, Signal::KILL);
            }
            return exit::SUCCESS;
        };
        if heard.iter().any(|line| watch.hear(line)) {
            return exit::SUCCESS;
        }
        if let Some((group, action)) = watch.due(now()) {
            signal(group, action);
        }
    }
}

fn signal(group: Pid, signal: Signal) {
    // A failure means that the group is gone, or runs as another user.
    kill_process_group(group, signal).ok();
    // A stopped process reacts only to SIGKILL, so the group is continued.
    kill_process_group(group, Signal::CONT).ok();
}

/// The guardian's state and rules, as plain data. Times are readings of [`now`].
#[derive(Debug)]
struct Watch {
    group: Option<Pid>,
    kill_after: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// SIGTERM follows at this time, if known.
    Held(Option<Duration>),
    /// SIGKILL follows at this time.
    Terminated(Duration),
    Killed,
}

impl Watch {
    const fn new(kill_after: Duration) -> Self {
        Self { group: None, kill_after, stage: Stage::Held(None) }
    }

    /// Handles a line from the holder. Returns whether the line was the last.
    fn hear(&mut self, line: &str) -> bool {
        match line.split_once(' ') {
            Some(("group", id)) => self.group = id.parse().ok().and_then(Pid::from_raw),
            Some(("until", until)) => {
                if let (Stage::Held(_), Ok(until)) = (self.stage, until.parse()) {
                    self.stage = Stage::Held(Some(Duration::from_millis(until)));
                }
            }
            _ => return line == "done",
        }
        false
    }

    /// The time of the next action.
    const fn next(&self) -> Option<Duration> {
        match self.stage {
            Stage::Held(until) => until,
            Stage::Terminated(kill) => Some(kill),
            Stage::Killed => None,
        }
    }

    /// The signal due at `now`, and the group to be signalled. Advances the stage.
    fn due(&mut self, now: Duration) -> Option<(Pid, Signal)> {
        let group = self.group?;
        if self.next()? > now {
            return None;
        }
        match self.stage {
            Stage::Held(_) => {
                self.stage = Stage::Terminated(now.saturating_add(self.kill_after));
                Some((group, Signal::TERM))
            }
            Stage::Terminated(_) => {
                self.stage = Stage::Killed;
                Some((group, Signal::KILL))
            }
            Stage::Killed => None,
        }
    }
}

/// Reads lines from the standard input.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

/// The most bytes of an incomplete line. All lines of the holder are shorter.
const LONGEST_LINE: usize = 1024;

impl Lines {
    /// Waits for lines, for at most `limit`. `None` at the end of the input. An error if the input
    /// cannot be read, or if a line is too long.
    fn read(&mut self, limit: Option<Duration>) -> io::Result<Option<Vec<String>>> {
        let input = io::stdin();
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], limit.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(Some(Vec::new())),
            other => other?,
        };
        let mut bytes = [0; LONGEST_LINE];
        let read = match rustix::io::read(&input, &mut bytes) {
            Ok(0) => return Ok(None),
            Err(Errno::INTR) => return Ok(Some(Vec::new())),
            read => read?,
        };
        self.rest.extend(bytes.iter().take(read));
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        if self.rest.len() > LONGEST_LINE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()))
    }
}

/// Reads a clock shared by all processes. On Linux and Android, the clock includes the time in
/// which the machine is suspended.
fn now() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

/// Whole milliseconds, rounded down: rather too early than too late.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn watch() -> (Watch, Pid) {
        let mut watch = Watch::new(2 * SECOND);
        assert!(!watch.hear("group 4711"));
        (watch, Pid::from_raw(4711).unwrap())
    }

    #[test]
    fn command_gets_term_at_lock_end_and_kill_after_grace_time() {
        let (mut watch, group) = watch();
        assert_eq!(watch.due(100 * SECOND), None, "nothing is known yet");
        assert!(!watch.hear("until 10000"));
        assert_eq!(watch.due(9 * SECOND), None);
        assert!(!watch.hear("until 20000"));
        assert_eq!(watch.due(19 * SECOND), None);
        assert_eq!(watch.next(), Some(20 * SECOND));
        assert_eq!(watch.due(20 * SECOND), Some((group, Signal::TERM)));
        assert_eq!(watch.due(21 * SECOND), None);
        assert_eq!(watch.due(22 * SECOND), Some((group, Signal::KILL)));
        assert_eq!((watch.due(50 * SECOND), watch.next()), (None, None));
    }

    #[test]
    fn what_a_holder_says_after_the_end_changes_nothing() {
        let (mut watch, group) = watch();
        watch.hear("until 10000");
        assert_eq!(watch.due(10 * SECOND), Some((group, Signal::TERM)));
        watch.hear("until 99000");
        assert_eq!(watch.due(12 * SECOND), Some((group, Signal::KILL)));
    }

    #[test]
    fn only_the_last_word_ends_the_watch() {
        let (mut watch, _) = watch();
        assert!(!watch.hear("nonsense") && !watch.hear("until soon") && !watch.hear(""));
        assert!(watch.hear("done"));
    }
}
