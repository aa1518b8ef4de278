//! The two directions of a shared connection's socket: the bytes that are being written, and the
//! replies that were read.

use std::io::{self, Read};
use std::time::Duration;

use crate::ops::value::Value;
use crate::store::redis::net::connection::DeadlineReader;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::Socket;
use crate::store::redis::resp::decode::Decoder;

pub(crate) struct ReadHalf {
    pub(crate) decoder: Decoder,
    pub(crate) timeout: Duration,
    /// Replies that were read together.
    pub(crate) replies: Vec<Value>,
}

pub(crate) struct WriteHalf {
    /// Bytes of calls, of which `written` are written.
    pub(crate) bytes: Vec<u8>,
    pub(crate) written: usize,
    pub(crate) timeout: Duration,
}

impl ReadHalf {
    /// Reads at least one reply by the deadline, or what has arrived, without waiting.
    pub(crate) fn read(
        &mut self,
        socket: &Socket,
        deadline: Option<&mut Deadline>,
    ) -> io::Result<()> {
        let first = match deadline {
            Some(deadline) => {
                self.decoder.next(&mut DeadlineReader::new(socket, &mut self.timeout, deadline))
            }
            None => self.decoder.next(&mut ArrivedReader(socket)),
        };
        self.replies.push(first?);
        while let Some(reply) = self.decoder.buffered() {
            self.replies.push(reply);
        }
        Ok(())
    }
}

/// Reads what has arrived.
struct ArrivedReader<'a>(&'a Socket);

impl Read for ArrivedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.try_read(buffer) {
                // Over TLS, what arrived was no whole record.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl WriteHalf {
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    pub(crate) fn append(&mut self, bytes: Vec<u8>) {
        if self.rest().is_empty() {
            (self.bytes, self.written) = (bytes, 0);
        } else {
            self.bytes.extend_from_slice(&bytes);
        }
    }
}
