//! A connection to a server: commands are sent and replies received, each within a deadline.

use std::io::{self, Read};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::Reason;
use crate::ops::value::Value;
use crate::store::redis::net::deadline::{Deadline, is_timeout_or_signal};
use crate::store::redis::net::socket::{Socket, Timeouts};
use crate::store::redis::resp::decode::{Bounds, Decoder};

/// A connection on which only replies have been received. After any error of a method, drop the
/// connection: later bytes may belong to a command given up before.
///
/// The connection of the `redis` crate would not do. Each read of a connect restarts the timeout,
/// and a command after a write timeout ends up inside the previous command.
pub(crate) struct Connection {
    socket: Arc<Socket>,
    decoder: Decoder,
    timeouts: Timeouts,
    /// The [generation](crate::store::redis::net::open_sockets::Sockets::generation) in which the
    /// connection was made.
    pub(crate) generation: u64,
    /// Duration of the first command, if measured.
    pub(crate) round_trip: Option<Duration>,
}

/// Why a command got no reply.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The command was not sent whole, so the server can never run the command.
    NotSent(io::Error),
    /// The command was sent, and may have run.
    Unanswered(io::Error),
}

impl Broken {
    /// Returns the failure of one command in a write of several commands. The write failed with
    /// `error` after the kernel had accepted `written` bytes. `end` is the position of the
    /// command's end in the bytes of the write.
    pub(crate) fn in_write(error: io::Error, end: usize, written: usize) -> Self {
        if end <= written { Self::Unanswered(error) } else { Self::NotSent(error) }
    }

    /// Returns whether the reply timed out. The connection may be intact.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Unanswered(error) if error.kind() == io::ErrorKind::TimedOut)
    }
}

impl Connection {
    /// Creates a connection on a connected socket whose timeouts are set to `timeout`.
    pub(crate) fn new(socket: Arc<Socket>, timeout: Duration, generation: u64) -> Self {
        let decoder = Decoder::new();
        let timeouts = Timeouts::of_new(timeout);
        Self { socket, decoder, timeouts, generation, round_trip: None }
    }

    /// Sends a command, and returns the reply. Waits until the deadline.
    pub(crate) fn call(&mut self, packed: &[u8], deadline: &mut Deadline) -> Result<Value, Broken> {
        self.send(packed, deadline).map_err(Broken::NotSent)?;
        self.receive(deadline).map_err(Broken::Unanswered)
    }

    /// Sends the bytes of one or more commands, without waiting for replies.
    pub(crate) fn send(&mut self, packed: &[u8], deadline: &mut Deadline) -> io::Result<()> {
        self.send_counted(packed, deadline).map_err(|(_, error)| error)
    }

    /// Sends bytes like [`send`](Self::send). An error also has the number of bytes that the kernel
    /// has accepted.
    pub(crate) fn send_counted(
        &mut self,
        packed: &[u8],
        deadline: &mut Deadline,
    ) -> Result<(), (usize, io::Error)> {
        let mut accepted = 0;
        loop {
            let rest = packed.get(accepted..).unwrap_or_default();
            accepted += write_some(&self.socket, rest, &mut self.timeouts, deadline)
                .map_err(|error| (accepted, error))?;
            if accepted >= packed.len() {
                return Ok(());
            }
            deadline.refresh();
        }
    }

    /// Returns the next reply. Waits until the deadline.
    pub(crate) fn receive(&mut self, deadline: &mut Deadline) -> io::Result<Value> {
        let mut reader = DeadlineReader::new(&self.socket, &mut self.timeouts, deadline);
        self.decoder.next(&mut reader)
    }

    /// Returns the next reply, if an earlier read received the whole reply. Does not read the
    /// socket.
    pub(crate) fn buffered(&mut self) -> Option<Value> {
        self.decoder.buffered()
    }

    /// Returns the next reply, or `None` if the reply has not arrived whole. Does not wait.
    pub(crate) fn receive_arrived(&mut self) -> io::Result<Option<Value>> {
        match self.decoder.next(&mut ArrivedReader(&self.socket)) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.socket.is_tls()
    }

    /// Sets the largest size of later replies.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.decoder.set_bounds(bounds);
    }

    /// Returns a handle to shut the socket from another thread, also during a call.
    pub(crate) fn socket(&self) -> Weak<Socket> {
        Arc::downgrade(&self.socket)
    }

    /// Returns whether the socket has nothing to read, neither bytes nor the end of the stream. No
    /// command may be in flight.
    pub(crate) fn is_open(&self) -> bool {
        self.socket.has_no_input()
    }

    /// Returns the TLS error that broke the connection, if any.
    pub(crate) fn tls_error(&self) -> Option<Reason> {
        self.socket.tls_error()
    }

    /// Returns the socket and the decoder, and drops the timeouts. The decoder may have received
    /// bytes of further replies, so a reader must go on with this decoder. A subscriber splits its
    /// connection, because one thread reads and other threads write.
    pub(crate) fn into_parts(self) -> (Arc<Socket>, Decoder) {
        (self.socket, self.decoder)
    }
}

/// Writes at least one byte, and as many as the kernel accepts, by the deadline. Returns the number
/// of bytes.
fn write_some(
    socket: &Socket,
    bytes: &[u8],
    timeouts: &mut Timeouts,
    deadline: &mut Deadline,
) -> io::Result<usize> {
    let mut left = deadline.left()?;
    loop {
        match socket.write_within(bytes, left, timeouts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if is_timeout_or_signal(&error) => left = deadline.refresh().left()?,
            result => return result,
        }
    }
}

/// Reads the bytes that have arrived on a socket. Fails with `WouldBlock` if there are none.
pub(crate) struct ArrivedReader<'a>(pub(crate) &'a Socket);

impl Read for ArrivedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// Reads from a socket, and waits for bytes until the deadline.
struct DeadlineReader<'a> {
    socket: &'a Socket,
    timeouts: &'a mut Timeouts,
    deadline: &'a mut Deadline,
    /// Whether a read was made. The next read first reads the clock.
    has_read: bool,
}

impl<'a> DeadlineReader<'a> {
    fn new(socket: &'a Socket, timeouts: &'a mut Timeouts, deadline: &'a mut Deadline) -> Self {
        Self { socket, timeouts, deadline, has_read: false }
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.has_read, true) {
            self.deadline.refresh();
        }
        let mut left = self.deadline.left()?;
        loop {
            match self.socket.read_within(buffer, left, self.timeouts) {
                Err(error) if is_timeout_or_signal(&error) => {
                    left = self.deadline.refresh().left()?;
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_may_have_run_once_its_last_byte_is_written() {
        const END: usize = 8;
        let may_have_run = |written| {
            let broken = Broken::in_write(io::ErrorKind::BrokenPipe.into(), END, written);
            matches!(broken, Broken::Unanswered(_))
        };
        assert_eq!([0, END - 1, END, END + 1].map(may_have_run), [false, false, true, true]);
    }
}
