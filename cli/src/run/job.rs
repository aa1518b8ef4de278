//! The command as a job: its process group, what signals do to it, and the terminal.
//!
//! The command is in a process group of its own, so that a loss ends all of it and nothing else.
//! To a terminal that is a background job. It gets the terminal when it first asks for it, that is,
//! when the terminal stops it for reading, and only if wheellock is in the foreground then. So a
//! pipeline keeps its terminal, and an editor gets it (DESIGN: terminal of a command).

use std::fs::{File, OpenOptions};
use std::io;
use std::process::{Child, Command};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_current_process_group, kill_process,
    kill_process_group, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use wheellock::crossbeam_channel::Sender;

use crate::output::complain;

/// The command, before, while and after it runs. Several threads share it.
pub(crate) struct Job {
    state: Mutex<State>,
    /// Gets a message when a signal comes while no command runs.
    interrupted: Sender<()>,
}

struct State {
    phase: Phase,
    /// The first signal that came while no command ran.
    signal: Option<Signal>,
    /// A signal that is meant to end a command has come while one ran.
    was_told_to_end: bool,
    /// The command has had the terminal, or has asked for it.
    wants_terminal: bool,
    /// Since a stop that is for the whole job, until it is continued.
    is_suspended: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Before,
    /// The process group, whose id is that of the command.
    Running(Pid),
    After,
}

impl Job {
    pub(crate) fn new(interrupted: Sender<()>) -> Self {
        let state = State {
            phase: Phase::Before,
            signal: None,
            was_told_to_end: false,
            wants_terminal: false,
            is_suspended: false,
        };
        Self { state: Mutex::new(state), interrupted }
    }

    /// Starts the command, unless a signal came before. `None` if one did.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<Option<Child>> {
        // Under the lock, so that a signal comes either before, or to the command.
        let mut state = self.state.lock();
        if state.signal.is_some() {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.phase = Phase::Running(Pid::from_child(&child));
        Ok(Some(child))
    }

    /// The first signal that came while no command ran.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.state.lock().signal
    }

    /// Whether a signal that is meant to end a command has come while one ran.
    pub(crate) fn was_told_to_end(&self) -> bool {
        self.state.lock().was_told_to_end
    }

    /// Takes a signal that came to this process.
    pub(crate) fn take(&self, signal: Signal) {
        match signal {
            Signal::TSTP => self.suspend(),
            Signal::CONT => self.resume(),
            signal => self.forward(signal),
        }
    }

    fn forward(&self, signal: Signal) {
        let mut state = self.state.lock();
        if let Phase::Running(group) = state.phase {
            state.was_told_to_end |=
                matches!(signal, Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM);
            send(group, signal);
        } else {
            state.signal.get_or_insert(signal);
            // A full channel has a message already.
            self.interrupted.try_send(()).ok();
        }
    }

    /// Sends a signal to the whole process group, if it is there.
    pub(crate) fn send(&self, signal: Signal) {
        if let Phase::Running(group) = self.state.lock().phase {
            send(group, signal);
            // A stopped process takes only SIGKILL.
            send(group, Signal::CONT);
        }
    }

    /// Stops the command and this process, as Ctrl-Z does with an ordinary job. The lease goes on.
    fn suspend(&self) {
        let mut state = self.state.lock();
        if let Phase::Running(group) = state.phase {
            state.is_suspended = true;
            send(group, Signal::TSTP);
        }
        drop(state);
        kill_process(getpid(), Signal::STOP).ok();
    }

    /// Continues the command, in the foreground if this process is there.
    fn resume(&self) {
        let mut state = self.state.lock();
        state.is_suspended = false;
        if let Phase::Running(group) = state.phase {
            if state.wants_terminal
                && let Some(terminal) = Terminal::open()
            {
                terminal.pass_on(group);
            }
            send(group, Signal::CONT);
        }
    }

    /// Waits until the command has ended, and looks after the terminal meanwhile. The command is
    /// not reaped: its id stays its own.
    pub(crate) fn watch(&self, group: Pid) -> io::Result<()> {
        let look_only = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        loop {
            let status = match waitid(WaitId::Pid(group), look_only) {
                Ok(Some(status)) => status,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if !status.stopped() {
                if let Some(terminal) = Terminal::open() {
                    terminal.take_back(group);
                }
                return Ok(());
            }
            // Now the stop is taken, so that the next look does not find it again. The command may
            // have been continued or have ended since; then there is nothing to take. Under the
            // lock, so that nobody continues it and gives it the terminal in between.
            let mut state = self.state.lock();
            let taken = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            if let Ok(Some(status)) = waitid(WaitId::Pid(group), taken)
                && let Some(signal) = status.stopping_signal().and_then(Signal::from_named_raw)
            {
                state.command_stopped(group, signal);
            }
        }
    }

    /// The command is about to be reaped.
    pub(crate) fn end(&self) {
        self.state.lock().phase = Phase::After;
    }
}

impl State {
    /// It has stopped, and nothing has continued it since.
    fn command_stopped(&mut self, group: Pid, signal: Signal) {
        let Some(terminal) = Terminal::open() else { return };
        match signal {
            // It has asked for the terminal.
            Signal::TTIN | Signal::TTOU => {
                self.wants_terminal = true;
                if self.is_suspended {
                    // It gets it when the job is continued. Until then it stands still.
                } else if terminal.pass_on(group) {
                    send(group, Signal::CONT);
                } else if !terminal.belongs_to(group) {
                    // wheellock is a background job itself, and stops as one does. This process
                    // has not blocked SIGTTIN.
                    kill_current_process_group(Signal::TTIN).ok();
                }
            }
            // Ctrl-Z has stopped the command alone. The rest of the job has to stop too, or the
            // shell would wait for it. This process gets the signal as well.
            _ if terminal.take_back(group) => {
                self.wants_terminal = true;
                kill_current_process_group(Signal::TSTP).ok();
            }
            // Somebody has stopped it on purpose.
            _ => {}
        }
    }
}

fn send(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        // It has just ended.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            complain(&format!("signal {} cannot be sent to the command: {error}", signal.as_raw()));
        }
    }
}

/// The terminal that controls this process.
struct Terminal(File);

impl Terminal {
    fn open() -> Option<Self> {
        OpenOptions::new().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    fn belongs_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0) == Ok(group)
    }

    /// Gives it to the command's group, if this process has it.
    fn pass_on(&self, group: Pid) -> bool {
        self.belongs_to(getpgrp()) && tcsetpgrp(&self.0, group).is_ok()
    }

    /// Takes it from the command's group, if that has it.
    fn take_back(&self, group: Pid) -> bool {
        self.belongs_to(group) && tcsetpgrp(&self.0, getpgrp()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use wheellock::crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn a_command_is_not_started_after_a_signal() {
        let (interrupt, interrupted) = bounded(1);
        let job = Job::new(interrupt);
        // Neither starts nor ends anything.
        job.take(Signal::CONT);
        assert!(interrupted.is_empty());
        job.take(Signal::TERM);
        job.take(Signal::INT);
        // It would fail if it was started.
        let mut command = Command::new("/nowhere/at-all");
        assert!(job.start(&mut command).unwrap().is_none());
        assert_eq!(job.signal(), Some(Signal::TERM), "the first one counts");
        assert_eq!(interrupted.len(), 1);
    }
}
