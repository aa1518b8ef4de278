//! A TLS stream that several threads hold: one reads, others write, another may shut it.
//!
//! The session is behind a mutex, which nobody holds while waiting for the socket. So a reader that waits for bytes
//! keeps no writer off, and `shut` on the socket ends its wait. Each call makes one system call at most that waits, and
//! answers `Interrupted` if that was not enough: the caller looks at its deadline and calls again.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::limit::{Limit, passes};

pub(super) struct TlsStream {
    stream: TcpStream,
    /// Held by whoever reads.
    inbound: Mutex<Inbound>,
    /// Held by whoever writes, so that records leave in the order in which they were made.
    outbound: Mutex<Outbound>,
    /// Taken last, and never while waiting.
    session: Mutex<ClientConnection>,
}

/// Bytes that were received and that the session has not seen.
struct Inbound {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Records on their way.
#[derive(Default)]
struct Outbound {
    records: Vec<u8>,
    /// How many of their bytes have left.
    sent: usize,
    /// How many of the writer's bytes they stand for.
    taken: usize,
}

const INBOUND_BYTES: usize = 16 * 1024;
/// What is made into records at once: four of them.
const OUTBOUND_BYTES: usize = 64 * 1024;

impl TlsStream {
    /// Shakes hands over a connected stream, by the limit. The server has to show a certificate for `host`.
    pub(super) fn shake_hands(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        host: &str,
        limit: &mut Limit,
    ) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| distrusted(rustls::Error::UnsupportedNameType))?;
        let mut session = ClientConnection::new(Arc::clone(config), name).map_err(distrusted)?;
        // What is written is passed on at once, so the bound would only refuse the second half of a long write.
        session.set_buffer_limit(None);
        while session.is_handshaking() {
            flush(&mut session, &stream, limit)?;
            receive(&mut session, &stream, limit)?;
            if let Err(error) = session.process_new_packets() {
                // The other side is told why. If it does not listen, that is its loss.
                drop(flush(&mut session, &stream, limit));
                return Err(distrusted(error));
            }
        }
        flush(&mut session, &stream, limit)?;
        let inbound = Inbound { bytes: vec![0; INBOUND_BYTES].into(), start: 0, end: 0 };
        Ok(Self {
            stream,
            inbound: Mutex::new(inbound),
            outbound: Mutex::default(),
            session: Mutex::new(session),
        })
    }

    /// What is below. Its timeouts are this stream's.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inbound = self.inbound.lock();
        if let Some(read) = self.decipher(&mut inbound, buffer)? {
            return Ok(read);
        }
        inbound.start = 0;
        inbound.end = 0;
        let received = (&self.stream).read(&mut inbound.bytes)?;
        if received == 0 {
            return Ok(0);
        }
        inbound.end = received;
        self.decipher(&mut inbound, buffer)?.ok_or_else(|| io::ErrorKind::Interrupted.into())
    }

    /// Plaintext, of what was received before. `None` if no record of it is whole.
    fn decipher(&self, inbound: &mut Inbound, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut session = self.session.lock();
        loop {
            // First what is there: a session that holds much takes no more.
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
            // What it has to answer, a change of keys say, leaves with the next write.
            session.process_new_packets().map_err(distrusted)?;
        }
    }

    /// After an error that passes, call it again with the same bytes: they may be on their way already.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut outbound = self.outbound.lock();
        let Outbound { records, sent, taken } = &mut *outbound;
        if *sent == records.len() {
            (*sent, *taken) = (0, 0);
            records.clear();
            let mut session = self.session.lock();
            let next = bytes.get(..OUTBOUND_BYTES).unwrap_or(bytes);
            *taken = session.writer().write(next)?;
            while session.wants_write() {
                session.write_tls(records)?;
            }
        }
        let rest = records.get(*sent..).unwrap_or_default();
        match (&self.stream).write(rest)? {
            0 => Ok(0),
            all if all == rest.len() => {
                *sent += all;
                Ok(*taken)
            }
            some => {
                *sent += some;
                Err(io::ErrorKind::Interrupted.into())
            }
        }
    }

    /// Why one side does not believe the other, if that is what broke the connection. A server that wants a certificate
    /// says so only after the handshake.
    pub(super) fn distrust(&self) -> Option<String> {
        let error = self.session.lock().process_new_packets().err()?;
        Some(error.to_string())
    }
}

/// The same, of an error of the handshake.
pub(super) fn distrust(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(inner.to_string())
}

fn distrusted(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn flush(
    session: &mut ClientConnection,
    mut stream: &TcpStream,
    limit: &mut Limit,
) -> io::Result<()> {
    while session.wants_write() {
        stream.set_write_timeout(Some(left(limit)?))?;
        match session.write_tls(&mut stream) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if !passes(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn receive(
    session: &mut ClientConnection,
    mut stream: &TcpStream,
    limit: &mut Limit,
) -> io::Result<()> {
    loop {
        stream.set_read_timeout(Some(left(limit)?))?;
        match session.read_tls(&mut stream) {
            Ok(0) => {
                let reason = "the connection was closed in the TLS handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
            }
            Err(error) if passes(&error) => {}
            received => return received.map(drop),
        }
    }
}

fn left(limit: &mut Limit) -> io::Result<Duration> {
    limit.refresh().left().map_err(|_| {
        // A server without TLS waits for the end of what it takes for a command.
        let reason = "the TLS handshake was not over in time; is TLS spoken at this port?";
        io::Error::new(io::ErrorKind::TimedOut, reason)
    })
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}
