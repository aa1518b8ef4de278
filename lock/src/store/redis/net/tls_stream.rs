//! A TLS stream shared by several threads: a thread reads, others write, another thread may shut
//! the stream.
//!
//! The socket below does not block. The session is locked for each attempt, and never while a
//! thread waits for the socket. So a waiting reader does not block a writer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::error::Reason;
use crate::model::sync::Mutex;
use crate::store::redis::net::deadline::{Deadline, is_timeout_or_signal, wait_for};

/// A socket that does not block, and its TLS session.
pub(crate) struct TlsStream {
    stream: TcpStream,
    session: Mutex<Session>,
}

/// The state of the TLS protocol, and the progress of the present write.
struct Session {
    tls: ClientConnection,
    /// Number of the writer's bytes encrypted in a record not yet accepted whole by the socket.
    unsent: usize,
}

/// Largest number of bytes that are encrypted at once: one record. So the server cannot decipher a
/// record not sent whole.
const TLS_RECORD_BYTES: usize = 16 * 1024;

impl TlsStream {
    /// Performs the TLS handshake on a connected stream, by the deadline. The server must present a
    /// certificate for `host`.
    pub(crate) fn handshake(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        host: &str,
        deadline: &mut Deadline,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| tls_failed(rustls::Error::UnsupportedNameType))?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(tls_failed)?;
        stream.set_nonblocking(true)?;
        while tls.is_handshaking() || tls.wants_write() {
            match tls.complete_io(&mut &stream) {
                Ok(_) => {}
                Err(error) if is_timeout_or_signal(&error) => {
                    let wants = if tls.wants_write() { PollFlags::OUT } else { PollFlags::IN };
                    let waited = wait_for(&stream, wants, left(deadline)?);
                    waited.or_else(|error| {
                        if is_timeout_or_signal(&error) { Ok(()) } else { Err(error) }
                    })?;
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let reason = "the connection was closed in the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { stream, session: Mutex::new(Session { tls, unsent: 0 }) })
    }

    /// Returns the socket below the TLS session, which does not block.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads like [`try_read`](Self::try_read), and waits once for bytes, for at most `left`.
    pub(crate) fn read_within(&self, buffer: &mut [u8], left: Duration) -> io::Result<usize> {
        match self.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(&self.stream, PollFlags::IN, left)?;
                self.try_read(buffer)
            }
            read => read,
        }
    }

    /// Reads without blocking. Fails with `WouldBlock` if no whole record has arrived.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let Session { tls, .. } = &mut *self.session.lock();
        loop {
            // First the buffered plaintext: a session with much plaintext accepts no more.
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut &self.stream)? == 0 {
                return Ok(0);
            }
            // The session's own messages, such as a change of keys, are sent with the next write.
            tls.process_new_packets().map_err(tls_failed)?;
        }
    }

    /// Writes like [`try_write`](Self::try_write), and waits once until the socket accepts bytes,
    /// for at most `left`.
    pub(crate) fn write_within(&self, bytes: &[u8], left: Duration) -> io::Result<usize> {
        match self.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(&self.stream, PollFlags::OUT, left)?;
                self.try_write(bytes)
            }
            written => written,
        }
    }

    /// Writes at most one record without blocking, and returns the number of bytes. Fails with
    /// `WouldBlock` if the socket does not accept a whole record. Part of the record may be sent:
    /// write the same bytes again.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let Session { tls, unsent } = &mut *self.session.lock();
        if *unsent == 0 {
            *unsent = tls.writer().write(bytes.get(..TLS_RECORD_BYTES).unwrap_or(bytes))?;
        }
        while tls.wants_write() {
            if tls.write_tls(&mut &self.stream)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(std::mem::take(unsent))
    }

    /// Returns the TLS error that broke the connection, if any. A server that requires a
    /// certificate reports a missing certificate only after the handshake.
    pub(crate) fn error(&self) -> Option<Reason> {
        let error = self.session.lock().tls.process_new_packets().err()?;
        Some(Reason::caused_by(error))
    }
}

/// Returns the TLS error behind an error of the handshake, if any.
pub(crate) fn tls_error(error: &io::Error) -> Option<Reason> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(Reason::caused_by(inner.clone()))
}

/// Wraps a TLS error, so that [`tls_error`] finds the TLS error in the result.
fn tls_failed(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Returns the time left for the handshake, by a fresh reading of the clock. The error names the
/// likely cause of a timeout.
fn left(deadline: &mut Deadline) -> io::Result<Duration> {
    deadline.refresh().left().map_err(|_| {
        // A server without TLS takes the handshake for a command, and waits for the command's end.
        let reason = "the TLS handshake timed out; if the server speaks no TLS at this port, write \
                      redis:// or the port for TLS";
        io::Error::new(io::ErrorKind::TimedOut, reason)
    })
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}
