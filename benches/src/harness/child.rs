//! A measuring process, as the report sees it.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

use crate::harness::clock::now;

/// A process that writes and reads lines. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<(Instant, String)>,
}

impl Child {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (sender, lines) = unbounded();
        if let Some(output) = process.stdout.take() {
            let read = move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send((now(), line)).is_err() {
                        break;
                    }
                }
            };
            thread::Builder::new().name("bench-lines".to_owned()).spawn(read)?;
        }
        Ok(Self { input: process.stdin.take(), process, lines })
    }

    /// The next line that it writes.
    pub(crate) fn line(&mut self, timeout: Duration) -> io::Result<String> {
        self.timed_line(timeout).map(|(_, line)| line)
    }

    /// The next line that it writes, and when it was read.
    pub(crate) fn timed_line(&mut self, timeout: Duration) -> io::Result<(Instant, String)> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(line),
            Err(error) if error.is_timeout() => {
                Err(io::Error::other(format!("no line in {timeout:?}")))
            }
            Err(_) => {
                let status = self.process.wait()?;
                Err(io::Error::other(format!("it ended without a line, {status}")))
            }
        }
    }

    /// Writes a line to its standard input.
    pub(crate) fn send(&mut self, line: &str) -> io::Result<()> {
        match &mut self.input {
            Some(input) => writeln!(input, "{line}"),
            None => Ok(()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A failure means that it has ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
