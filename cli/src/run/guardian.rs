//! The guardian: a process that ends the command when the process that holds the lock cannot
//! (DESIGN: guardian).
//!
//! It reads from a pipe whose other end only the holder has. The pipe closes when the holder ends,
//! however it ends. And the holder tells it until when the lock is held, so that a holder that is
//! stopped does not leave the command running for longer than that.

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

/// The first argument of such a process.
pub(crate) const WORD: &str = "__guardian";

/// How much later than the holder the guardian acts. A holder that lives ends the command itself,
/// and says why.
const HOLDER_FIRST: Duration = Duration::from_millis(100);

/// The holder's side.
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
            // What a terminal sends to the holder's group is not for the guardian. Other signals
            // find it with the holder's mask.
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take();
        if let Some(pipe) = &pipe {
            // A guardian that is stopped must not block the holder.
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { _process: process, pipe })
    }

    /// From now on the command does not outlive the holder.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.tell(&format!("group {}", group.as_raw_nonzero()));
    }

    /// The lock is held for `remaining` from now on for certain.
    pub(crate) fn held_for(&mut self, remaining: impl FnOnce() -> Duration) {
        // The clock first: this process may be stopped between the two.
        let now = now();
        let until = now.saturating_add(remaining()).saturating_add(HOLDER_FIRST);
        self.tell(&format!("until {}", millis(until)));
    }

    /// The command has ended. To be called before it is reaped: afterwards its id may belong to
    /// another process.
    pub(crate) fn dismiss(mut self) {
        self.tell("done");
    }

    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            // A failure means that the guardian was killed, or is stopped. The holder still ends
            // the command, and on Linux the kernel does if the holder is killed.
            pipe.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }
}

/// The guardian itself.
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
            // The holder is gone, or can no longer be heard.
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
    // A stopped process takes only SIGKILL.
    kill_process_group(group, Signal::CONT).ok();
}

/// What the guardian knows, and what follows from it. Times are those of [`now`].
#[derive(Debug)]
struct Watch {
    group: Option<Pid>,
    kill_after: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Held until then, if it is known.
    Held(Option<Duration>),
    /// Asked to end; to be killed then.
    Terminated(Duration),
    Killed,
}

impl Watch {
    const fn new(kill_after: Duration) -> Self {
        Self { group: None, kill_after, stage: Stage::Held(None) }
    }

    /// Takes a line of the holder's. Whether it was the last.
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

    /// When to look again.
    const fn next(&self) -> Option<Duration> {
        match self.stage {
            Stage::Held(until) => until,
            Stage::Terminated(kill) => Some(kill),
            Stage::Killed => None,
        }
    }

    /// What is to be sent now, and to which group.
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

/// The lines on the standard input.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

/// Longer than every line of the holder's.
const LONGEST_LINE: usize = 1024;

impl Lines {
    /// Waits for lines, for at most `limit`. `None` at the end.
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

/// A clock that all processes share, and that goes on while the machine is suspended if it can.
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
    fn a_command_is_asked_to_end_when_the_lock_ends_and_killed_if_it_does_not() {
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
