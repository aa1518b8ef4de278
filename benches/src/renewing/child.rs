//! A measuring process, as the report sees it.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child as Process, Command, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

/// A process that writes lines and waits for some. It ends with this value.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    lines: Receiver<String>,
}

impl Child {
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (sender, lines) = unbounded();
        if let Some(output) = process.stdout.take() {
            let read = move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            };
            thread::Builder::new().name("bench-lines".to_owned()).spawn(read)?;
        }
        Ok(Self { process, lines })
    }

    /// The next line that it writes.
    pub(crate) fn line(&mut self, patience: Duration) -> io::Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(error) if error.is_timeout() => {
                Err(io::Error::other(format!("no answer in {patience:?}")))
            }
            Err(_) => {
                let status = self.process.wait()?;
                Err(io::Error::other(format!("it ended without an answer, {status}")))
            }
        }
    }

    /// Lets a process go on that is ready.
    pub(crate) fn go(&mut self) -> io::Result<()> {
        match &mut self.process.stdin {
            Some(input) => input.write_all(b"go\n"),
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
