//! The command as a job: process group, signals, and terminal.
//!
//! The command has a process group of its own, so that a loss ends the whole command and nothing
//! else. For a terminal, such a group is a background job. Passing the terminal on at the start
//! would take the terminal from the rest of a pipeline. So the command gets the terminal at the
//! first request, when the terminal stops the command for reading, and only if wheellock is in the
//! foreground. wheellock takes the terminal back at the end of the command, and stops together with
//! the command at Ctrl-Z.

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

/// The command before, during and after its run. Several threads share the job.
pub(crate) struct Job {
    state: Mutex<State>,
    /// Gets a message for a signal that arrives while no command runs.
    interrupted: Sender<()>,
}

struct State {
    phase: Phase,
    /// The first signal received while no command ran.
    signal: Option<Signal>,
    /// A signal meant to end the command was received while the command ran.
    was_told_to_end: bool,
    /// The command has had or requested the terminal.
    wants_terminal: bool,
    /// The whole job was stopped, and is not continued yet.
    is_suspended: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Before,
    /// The process group, whose id is the command's process id.
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

    /// Starts the command. `None` if a signal was received before. An error if the process cannot
    /// be started.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<Option<Child>> {
        // The mutex is held during the start, so that a signal either prevents the start or reaches
        // the command.
        let mut state = self.state.lock();
        if state.signal.is_some() {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.phase = Phase::Running(Pid::from_child(&child));
        Ok(Some(child))
    }

    /// The first signal received while no command ran.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.state.lock().signal
    }

    /// Whether a signal meant to end the command was received while the command ran.
    pub(crate) fn was_told_to_end(&self) -> bool {
        self.state.lock().was_told_to_end
    }

    /// Handles a signal sent to this process.
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

    /// Sends a signal to the whole process group, if the command runs.
    pub(crate) fn send(&self, signal: Signal) {
        if let Phase::Running(group) = self.state.lock().phase {
            send(group, signal);
            // A stopped process reacts only to SIGKILL, so the group is continued.
            send(group, Signal::CONT);
        }
    }

    /// Stops the command and this process, as Ctrl-Z does with an ordinary job. The lease runs on,
    /// without renewals.
    fn suspend(&self) {
        let mut state = self.state.lock();
        if let Phase::Running(group) = state.phase {
            state.is_suspended = true;
            send(group, Signal::TSTP);
        }
        drop(state);
        kill_process(getpid(), Signal::STOP).ok();
    }

    /// Continues the command, in the foreground if this process is in the foreground.
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

    /// Waits for the end of the command, and passes the terminal on and back meanwhile. The command
    /// is not reaped, so the id remains the command's. An error if the command cannot be waited
    /// for.
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
            // Consume the stop, so that the next `waitid` does not report the stop again. If the
            // command was continued or has ended since, there is nothing to consume. The mutex is
            // held, so that no other thread continues the command and passes the terminal on
            // meanwhile.
            let mut state = self.state.lock();
            let taken = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            if let Ok(Some(status)) = waitid(WaitId::Pid(group), taken)
                && let Some(signal) = status.stopping_signal().and_then(Signal::from_named_raw)
            {
                state.command_stopped(group, signal);
            }
        }
    }

    /// Ends the running phase. To be called before the command is reaped.
    pub(crate) fn end(&self) {
        self.state.lock().phase = Phase::After;
    }
}

impl State {
    /// Handles a stop of the command, which nothing has continued since.
    fn command_stopped(&mut self, group: Pid, signal: Signal) {
        let Some(terminal) = Terminal::open() else { return };
        match signal {
            // The command has requested the terminal.
            Signal::TTIN | Signal::TTOU => {
                self.wants_terminal = true;
                if self.is_suspended {
                    // The command stays stopped, and gets the terminal when the job is continued.
                } else if terminal.pass_on(group) {
                    send(group, Signal::CONT);
                } else if !terminal.belongs_to(group) {
                    // wheellock is a background job too, and stops like any background job. This
                    // process does not block SIGTTIN.
                    kill_current_process_group(Signal::TTIN).ok();
                }
            }
            // Ctrl-Z has stopped the command alone. The rest of the job, with this process, must
            // stop too, or the shell would wait for the job.
            _ if terminal.take_back(group) => {
                self.wants_terminal = true;
                kill_current_process_group(Signal::TSTP).ok();
            }
            // Somebody has stopped the command on purpose.
            _ => {}
        }
    }
}

fn send(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        // The group has just ended.
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

    /// Passes the terminal to the command's group, if this process is in the foreground. Returns
    /// whether the terminal was passed on.
    fn pass_on(&self, group: Pid) -> bool {
        self.belongs_to(getpgrp()) && tcsetpgrp(&self.0, group).is_ok()
    }

    /// Takes the terminal back, if the command's group has the terminal. Returns whether the
    /// terminal was taken back.
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
