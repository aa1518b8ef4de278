//! A TLS stream that several threads share: one reads, others write, another may shut it.
//!
//! The session is behind a mutex, which no thread holds while it waits for the socket. So a reader
//! that waits for bytes does not block a writer, and `shut` on the socket ends its wait. Each call
//! makes at most one system call that waits, and returns `Interrupted` if that was not enough: the
//! caller checks its deadline and calls again.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::error::Reason;
use crate::model::sync::Mutex;
use crate::store::redis::net::deadline::{Deadline, Now, is_timeout_or_signal, socket_timeout};

pub(crate) struct TlsStream {
    stream: TcpStream,
    /// Locked by the thread that reads.
    inbound: Mutex<Inbound>,
    /// Locked by the thread that writes, so that records leave in the order in which they were
    /// made.
    outbound: Mutex<Outbound>,
    /// Locked last, and never while waiting.
    session: Mutex<ClientConnection>,
}

/// Bytes that were received and not passed to the session.
struct Inbound {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Records that are being sent.
#[derive(Default)]
struct Outbound {
    records: Vec<u8>,
    /// How many of their bytes were written to the socket.
    sent: usize,
    /// How many of the writer's bytes they contain.
    plaintext: usize,
}

const INBOUND_BYTES: usize = 16 * 1024;
/// What is encrypted at once: one record. So what was not sent whole cannot be deciphered.
const OUTBOUND_BYTES: usize = 16 * 1024;

impl TlsStream {
    /// The TLS handshake on a connected stream, by the deadline. The server must present a
    /// certificate for `host`.
    pub(crate) fn handshake(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        host: &str,
        deadline: &mut Deadline,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| tls_failed(rustls::Error::UnsupportedNameType))?;
        let mut session = ClientConnection::new(Arc::clone(config), name).map_err(tls_failed)?;
        // What is written is passed on at once: a bound would only refuse the rest of a long write.
        session.set_buffer_limit(None);
        while session.is_handshaking() {
            flush(&mut session, &stream, deadline)?;
            receive(&mut session, &stream, deadline)?;
            if let Err(error) = session.process_new_packets() {
                // Sends the alert that says why. A server that does not read it learns nothing.
                drop(flush(&mut session, &stream, deadline));
                return Err(tls_failed(error));
            }
        }
        flush(&mut session, &stream, deadline)?;
        let inbound = Inbound { bytes: vec![0; INBOUND_BYTES].into(), start: 0, end: 0 };
        Ok(Self {
            stream,
            inbound: Mutex::new(inbound),
            outbound: Mutex::default(),
            session: Mutex::new(session),
        })
    }

    /// The stream below. Its timeouts apply to this one.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_by(buffer, |bytes| (&self.stream).read(bytes))
    }

    /// Reads without blocking.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_by(buffer, |bytes| self.stream.read_now(bytes))
    }

    fn read_by(
        &self,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut inbound = self.inbound.lock();
        if let Some(read) = self.decrypt(&mut inbound, buffer)? {
            return Ok(read);
        }
        inbound.start = 0;
        inbound.end = 0;
        let received = read(&mut inbound.bytes)?;
        if received == 0 {
            return Ok(0);
        }
        inbound.end = received;
        self.decrypt(&mut inbound, buffer)?.ok_or_else(|| io::ErrorKind::Interrupted.into())
    }

    /// Plaintext of what was received before. `None` if that contains no whole record.
    fn decrypt(&self, inbound: &mut Inbound, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut session = self.session.lock();
        loop {
            // First what it has: a session with much plaintext accepts no more.
            match session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(Some),
            }
            let mut rest = inbound.bytes.get(inbound.start..inbound.end).unwrap_or_default();
            if rest.is_empty() {
                return Ok(None);
            }
            session.read_tls(&mut rest)?;
            inbound.start = inbound.end - rest.len();
            // Its own messages, such as a change of keys, leave with the next write.
            session.process_new_packets().map_err(tls_failed)?;
        }
    }

    /// After a timeout or `Interrupted`, call it again with the same bytes: some may have been
    /// sent.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_by(bytes, |records| (&self.stream).write(records))
    }

    /// Writes as [`write`](Self::write) does, without blocking.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_by(bytes, |records| self.stream.write_now(records))
    }

    fn write_by(
        &self,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut outbound = self.outbound.lock();
        let Outbound { records, sent, plaintext } = &mut *outbound;
        if *sent == records.len() {
            (*sent, *plaintext) = (0, 0);
            records.clear();
            let mut session = self.session.lock();
            let next = bytes.get(..OUTBOUND_BYTES).unwrap_or(bytes);
            *plaintext = session.writer().write(next)?;
            while session.wants_write() {
                session.write_tls(records)?;
            }
        }
        let rest = records.get(*sent..).unwrap_or_default();
        match write(rest)? {
            0 => Ok(0),
            all if all == rest.len() => {
                *sent += all;
                Ok(*plaintext)
            }
            some => {
                *sent += some;
                Err(io::ErrorKind::Interrupted.into())
            }
        }
    }

    /// Why TLS failed, if that is what broke the connection. A server that requires a certificate
    /// says so only after the handshake.
    pub(crate) fn error(&self) -> Option<Reason> {
        let error = self.session.lock().process_new_packets().err()?;
        Some(Reason::caused_by(error))
    }
}

/// Why TLS failed, if that is the cause of an error of the handshake.
pub(crate) fn tls_error(error: &io::Error) -> Option<Reason> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(Reason::caused_by(inner.clone()))
}

fn tls_failed(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn flush(
    session: &mut ClientConnection,
    mut stream: &TcpStream,
    deadline: &mut Deadline,
) -> io::Result<()> {
    while session.wants_write() {
        stream.set_write_timeout(Some(socket_timeout(left(deadline)?)))?;
        match session.write_tls(&mut stream) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if !is_timeout_or_signal(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn receive(
    session: &mut ClientConnection,
    mut stream: &TcpStream,
    deadline: &mut Deadline,
) -> io::Result<()> {
    loop {
        stream.set_read_timeout(Some(socket_timeout(left(deadline)?)))?;
        match session.read_tls(&mut stream) {
            Ok(0) => {
                let reason = "the connection was closed in the TLS handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
            }
            Err(error) if is_timeout_or_signal(&error) => {}
            received => return received.map(drop),
        }
    }
}

fn left(deadline: &mut Deadline) -> io::Result<Duration> {
    deadline.refresh().left().map_err(|_| {
        // A server without TLS takes the handshake for a command, and waits for the end of it.
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
