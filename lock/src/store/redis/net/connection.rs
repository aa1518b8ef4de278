//! One connection to a server: commands are sent and replies received, each within a deadline.

use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Reason;
use crate::ops::value::Value;
use crate::store::redis::net::deadline::{
    Deadline, is_close_enough, is_timeout_or_signal, socket_timeout,
};
use crate::store::redis::net::socket::Socket;
use crate::store::redis::resp::decode::{Bounds, Decoder};

/// A connection that has received nothing but replies. After any error of its own it must be
/// dropped: what may still arrive on it belongs to a command that was given up.
pub(crate) struct Connection {
    socket: Arc<Socket>,
    decoder: Decoder,
    /// What the socket's timeouts are set to: they are not set for each command.
    read_timeout: Duration,
    write_timeout: Duration,
    /// The [generation](crate::store::redis::net::open_sockets::Sockets::generation) in which it
    /// was made.
    pub(crate) generation: u64,
}

/// Why a command got no reply.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The command was not sent whole, so it can never run.
    NotSent(io::Error),
    /// It was sent, and may have run.
    Unanswered(io::Error),
}

impl Broken {
    /// The connection has ended. `is_whole`: the whole command was sent.
    pub(crate) fn new(error: io::Error, is_whole: bool) -> Self {
        if is_whole { Self::Unanswered(error) } else { Self::NotSent(error) }
    }

    /// Whether no reply came in time, on a connection that may be intact otherwise.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Unanswered(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

impl Connection {
    /// A connection on a connected socket, whose timeouts are set to `timeout`.
    pub(crate) fn new(socket: Arc<Socket>, timeout: Duration, generation: u64) -> Self {
        let decoder = Decoder::new();
        Self { socket, decoder, read_timeout: timeout, write_timeout: timeout, generation }
    }

    /// Sends one command and waits for its reply.
    pub(crate) fn call(&mut self, packed: &[u8], deadline: &mut Deadline) -> Result<Value, Broken> {
        self.send(packed, deadline).map_err(Broken::NotSent)?;
        self.receive(deadline).map_err(Broken::Unanswered)
    }

    pub(crate) fn send(&mut self, packed: &[u8], deadline: &mut Deadline) -> io::Result<()> {
        let mut rest = packed;
        loop {
            let written = write_some(&self.socket, rest, &mut self.write_timeout, deadline)?;
            rest = rest.get(written..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            deadline.refresh();
        }
    }

    pub(crate) fn receive(&mut self, deadline: &mut Deadline) -> io::Result<Value> {
        let mut reader = DeadlineReader::new(&self.socket, &mut self.read_timeout, deadline);
        self.decoder.next(&mut reader)
    }

    /// How large a reply may be from now on.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.decoder.set_bounds(bounds);
    }

    /// A handle with which another thread can shut it while it is in use.
    pub(crate) fn socket(&self) -> Weak<Socket> {
        Arc::downgrade(&self.socket)
    }

    /// Whether the server has not ended it, as far as is known here. No command may be under way.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.has_no_input()
    }

    /// Why TLS failed, if that is what broke it.
    pub(crate) fn tls_error(&self) -> Option<Reason> {
        self.socket.tls_error()
    }

    /// The parts of a connection that only receives. The decoder may have read ahead.
    pub(crate) fn into_parts(self) -> (Arc<Socket>, Decoder) {
        (self.socket, self.decoder)
    }
}

/// Writes what the kernel accepts by the deadline, at least one byte. `timeout` is what the
/// socket's is set to.
pub(crate) fn write_some(
    mut socket: &Socket,
    bytes: &[u8],
    timeout: &mut Duration,
    deadline: &mut Deadline,
) -> io::Result<usize> {
    let mut left = deadline.left()?;
    loop {
        if !is_close_enough(*timeout, left) {
            *timeout = socket_timeout(left);
            socket.set_write_timeout(*timeout)?;
        }
        match socket.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if is_timeout_or_signal(&error) => {}
            result => return result,
        }
        left = deadline.refresh().left()?;
    }
}

/// Reads until the deadline, whatever the socket's own timeout is.
pub(crate) struct DeadlineReader<'a> {
    socket: &'a Socket,
    timeout: &'a mut Duration,
    deadline: &'a mut Deadline,
    /// Whether a read was made already: the next one reads the clock first.
    has_read: bool,
}

impl<'a> DeadlineReader<'a> {
    /// `timeout` is what the socket's is set to.
    pub(crate) fn new(
        socket: &'a Socket,
        timeout: &'a mut Duration,
        deadline: &'a mut Deadline,
    ) -> Self {
        Self { socket, timeout, deadline, has_read: false }
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.has_read, true) {
            self.deadline.refresh();
        }
        let mut left = self.deadline.left()?;
        loop {
            if !is_close_enough(*self.timeout, left) {
                *self.timeout = socket_timeout(left);
                self.socket.set_read_timeout(*self.timeout)?;
            }
            match self.socket.read(buffer) {
                Err(error) if is_timeout_or_signal(&error) => {}
                result => return result,
            }
            left = self.deadline.refresh().left()?;
        }
    }
}
