//! One connection to a server: bytes out, replies in, each within a deadline.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

pub(super) use super::limit::{Limit, passes};
use super::replies::Replies;
use super::socket::Socket;
use crate::value::Value;

/// A connection that has seen nothing but replies. After any error of its own it must be dropped: what is left in it
/// belongs to a command that was given up.
pub(super) struct Connection {
    socket: Arc<Socket>,
    replies: Replies,
    /// What the socket's timeouts are set to, so that they need not be set for each command.
    read_timeout: Duration,
    write_timeout: Duration,
    /// The [era](super::sockets::Sockets::era) in which it was made.
    pub(super) era: u64,
}

/// Why a command got no reply.
#[derive(Debug)]
pub(super) enum Broken {
    /// The command did not leave whole, so it can never run.
    NotSent(io::Error),
    /// It left, and may have run.
    Unanswered(io::Error),
}

impl Broken {
    /// Whether there was no answer in time, on a connection that may be well otherwise.
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Unanswered(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

impl Connection {
    /// Takes a connected socket over, whose reads and writes take at most `timeout` so far.
    pub(super) fn new(socket: Arc<Socket>, timeout: Duration, era: u64) -> Self {
        let replies = Replies::new();
        Self { socket, replies, read_timeout: timeout, write_timeout: timeout, era }
    }

    /// Sends one command and waits for its reply.
    pub(super) fn call(&mut self, packed: &[u8], limit: &mut Limit) -> Result<Value, Broken> {
        self.send(packed, limit).map_err(Broken::NotSent)?;
        self.receive(limit).map_err(Broken::Unanswered)
    }

    pub(super) fn send(&mut self, packed: &[u8], limit: &mut Limit) -> io::Result<()> {
        let mut rest = packed;
        let mut left = limit.left()?;
        loop {
            if out_of_step(self.write_timeout, left) {
                self.socket.set_write_timeout(left)?;
                self.write_timeout = left;
            }
            match (&*self.socket).write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
            if rest.is_empty() {
                return Ok(());
            }
            left = limit.refresh().left()?;
        }
    }

    pub(super) fn receive(&mut self, limit: &mut Limit) -> io::Result<Value> {
        let mut reader = DeadlineReader {
            socket: &self.socket,
            timeout: &mut self.read_timeout,
            limit,
            begun: false,
        };
        self.replies.next(&mut reader)
    }

    /// Why one side does not believe the other, if that is what broke it.
    pub(super) fn distrust(&self) -> Option<String> {
        self.socket.distrust()
    }

    /// The two halves for a connection that only listens: more may have been read than was asked for.
    pub(super) fn into_parts(self) -> (Arc<Socket>, Replies) {
        (self.socket, self.replies)
    }
}

/// Reads until the deadline, whatever the socket's own timeout is.
struct DeadlineReader<'a> {
    socket: &'a Socket,
    timeout: &'a mut Duration,
    limit: &'a mut Limit,
    /// Whether some of the reply has come: the rest has not all the time again.
    begun: bool,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.begun, true) {
            self.limit.refresh();
        }
        let mut left = self.limit.left()?;
        loop {
            if out_of_step(*self.timeout, left) {
                self.socket.set_read_timeout(left)?;
                *self.timeout = left;
            }
            match self.socket.read(buffer) {
                Err(error) if passes(&error) => {}
                result => return result,
            }
            left = self.limit.refresh().left()?;
        }
    }
}

/// Whether a socket's timeout would overshoot the deadline, or wake so much earlier that setting it is cheaper.
fn out_of_step(set: Duration, left: Duration) -> bool {
    set > left + Duration::from_millis(1) || set < left / 2
}
